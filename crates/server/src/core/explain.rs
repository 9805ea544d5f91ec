//! Explanations of jobs: pending reason, position, expected start and cost.

use agentaflow_api::explain::{CloseNode, Explanation, PlannedTask};
use agentaflow_api::ids::{JobId, MicroUsd};
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::pending::{BudgetShortfall, PendingCode, PendingReason};
use agentaflow_api::units::Dollars;
use agentaflow_engine::{
    Alternative, Eta, Gate, NodeId, Placement, Price, Request, Scheduler, Shortfall, Time,
    WaitReason, WhatIf, WorkloadId, WorkloadState, WorkloadView,
};
use agentaflow_explain::wire::Clock;

use super::assignment::assign_task;
use super::clock::stamp_of;
use super::job::workload::{expected_ms, job_of, workload_id};
use super::node::NodeView;
use super::pricing::{self, HOUR_MS};
use super::published::Published;
use super::state::State;
use crate::store::{JobRow, TaskAssignment};

impl State {
    /// Facts for the pending reason of a job.
    pub(super) fn pending_context<'a>(&self, job: &'a JobRow) -> PendingContext<'a> {
        let pinned = job.pinned.as_deref();
        PendingContext {
            gate: job.state.gate.as_ref(),
            nodes: self.nodes.len(),
            missing_node: pinned.filter(|name| self.nodes.named(name).is_none()),
        }
    }
}

impl Published {
    /// Like [`State::pending_context`], without the core's lock.
    pub(super) fn pending_context<'a>(&self, job: &'a JobRow) -> PendingContext<'a> {
        PendingContext {
            gate: job.state.gate.as_ref(),
            nodes: self.node_count(),
            missing_node: job.pinned.as_deref().filter(|name| !self.has_node_named(name)),
        }
    }
}

/// Answer of the engine about a live job.
#[derive(Debug)]
pub(super) struct EngineAnswer {
    explanation: agentaflow_engine::Explanation,
    view: WorkloadView,
}

impl EngineAnswer {
    /// Asks the engine; none if it does not know the job.
    pub(super) fn of_job(scheduler: &Scheduler, now: Time, id: JobId) -> Option<Self> {
        let id = workload_id(id);
        let explanation = scheduler.explain(now, &id)?;
        Some(Self { explanation, view: scheduler.workload(&id)? })
    }
}

/// Renders answers of the engine with facts that the engine does not know, without the core's lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Explainer<'a> {
    pub(super) published: &'a Published,
    /// Price of a cluster without nodes.
    pub(super) default_price: Price,
    pub(super) now: Time,
}

impl Explainer<'_> {
    /// Explanation of a live job.
    pub(super) fn live_job(&self, job: &JobRow, answer: &EngineAnswer) -> Explanation {
        let EngineAnswer { explanation: message, view } = answer;
        let mut explanation = self.pending(message.reason.as_ref(), message.eta, job);
        explanation.job_id = Some(job.id);
        explanation.status = job.state.status;
        explanation.position = message.position;
        explanation.waiting = message.waiting;
        add_alternatives(&mut explanation, &message.alternatives);
        explanation.closest = self.close_nodes(&message.closest);
        self.add_placement(&mut explanation, job, view);
        explanation
    }

    /// Explanation of a job that is not submitted. `pending` is the number of pending jobs.
    pub(super) fn what_if(
        &self,
        job: &JobRow,
        (request, tasks): (&Request, u32),
        answer: &WhatIf,
        pending: usize,
    ) -> Explanation {
        let mut explanation = self.pending(answer.reason.as_ref(), answer.eta, job);
        explanation.waiting = pending as u32;
        add_alternatives(&mut explanation, &answer.alternatives);
        explanation.closest = self.close_nodes(&answer.closest);
        let assign = |placement: &Placement| {
            let view = self.published.node_named(placement.node.as_str())?;
            assign_task(view.node().id, &view.node().spec, request, placement)
        };
        let planned: Vec<_> = answer.placements.iter().filter_map(assign).collect();
        explanation.placement = planned.iter().map(|task| self.planned_task(task)).collect();
        let hourly = if planned.is_empty() {
            self.highest_hourly_cost(request, tasks)
        } else {
            pricing::tasks_cost(job, planned.iter(), HOUR_MS)
        };
        set_price(&mut explanation, job, hourly);
        if answer.eta == Eta::Now {
            let nodes = node_names(&explanation.placement);
            explanation.summary = format!("Would start now on {nodes}");
            explanation.eta_text = String::new();
        }
        explanation
    }

    /// Pending reason and expected start.
    fn pending(&self, reason: Option<&WaitReason>, eta: Eta, job: &JobRow) -> Explanation {
        let now = self.now;
        let context = self.published.pending_context(job);
        let pending_reason = reason.map(|reason| pending_reason(reason, now, &context));
        let text = pending_reason
            .as_ref()
            .map(|reason| agentaflow_explain::pending::reason(reason, stamp_of(now)));
        let eta_text = agentaflow_explain::eta(eta, now);
        Explanation {
            eta_text: if text.is_some() { eta_text.clone() } else { String::new() },
            summary: text.unwrap_or(eta_text),
            pending_reason,
            eta: match eta {
                Eta::Now => Some(stamp_of(now)),
                Eta::At(at) => Some(stamp_of(at)),
                Eta::Unknown => None,
            },
            ..Explanation::default()
        }
    }

    fn add_placement(&self, explanation: &mut Explanation, job: &JobRow, view: &WorkloadView) {
        let placed = job.state.status != JobStatus::Pending;
        let hourly = if placed {
            explanation.placement =
                job.state.tasks.iter().map(|task| self.planned_task(task)).collect();
            pricing::hourly_cost(job)
        } else {
            self.highest_hourly_cost(&view.workload.request, view.workload.tasks)
        };
        set_price(explanation, job, hourly);
        if placed {
            let nodes = node_names(&explanation.placement);
            let verb = match (job.state.status, view.state) {
                (_, WorkloadState::Stopping) => "Stopping",
                (JobStatus::Running, _) => "Running",
                _ => "Starting",
            };
            explanation.summary = format!("{verb} on {nodes}");
            explanation.eta = job.state.started_at;
            explanation.eta_text = String::new();
        }
    }

    fn highest_hourly_cost(&self, request: &Request, tasks: u32) -> MicroUsd {
        let price = self.published.highest_price(self.default_price);
        pricing::cost(pricing::expected(request, tasks), price, HOUR_MS)
    }

    fn planned_task(&self, task: &TaskAssignment) -> PlannedTask {
        let view = self.published.node_view(task.node);
        let node = view.as_deref().map(NodeView::node);
        let simulated = node.is_some_and(|node| node.spec.simulated);
        PlannedTask {
            task: task.task,
            node_id: node.map_or_else(String::new, |node| node.node_id.clone()),
            node_name: node
                .map_or_else(|| task.node.to_string(), |node| node.spec.node_name.clone()),
            gpus: pricing::gpu_names(&task.grants),
            simulated: simulated && !task.grants.is_empty(),
        }
    }

    fn close_nodes(&self, closest: &[(NodeId, Shortfall)]) -> Vec<CloseNode> {
        closest.iter().map(|(node, lack)| self.close_node(node.as_str(), lack)).collect()
    }

    fn close_node(&self, node_id: &str, lack: &Shortfall) -> CloseNode {
        let view = self.published.node_named(node_id);
        let node = view.as_deref().map(NodeView::node);
        let node_name = node.map_or_else(String::new, |node| node.spec.node_name.clone());
        let closed_by_agent = node
            .filter(|node| *lack == Shortfall::Unschedulable && !node.cordoned)
            .map(|node| agentaflow_explain::closed_by_agent(node.spec.k8s_node_name.as_deref()));
        CloseNode {
            node_id: node_id.to_owned(),
            lacks: closed_by_agent
                .unwrap_or_else(|| agentaflow_explain::shortfall_of(&node_name, lack)),
            shortfall: Some(agentaflow_explain::wire::shortfall(lack)),
            node_name,
        }
    }
}

/// Price per hour, and the expected cost of a job with a known run time.
fn set_price(explanation: &mut Explanation, job: &JobRow, hourly: MicroUsd) {
    explanation.price_per_hour = Some(Dollars(hourly.0));
    let known = job.spec.estimated_duration_seconds.or(job.spec.timeout_seconds);
    explanation.estimated_cost = known.map(|_| {
        let cost = i128::from(hourly.0) * i128::from(expected_ms(job)) / i128::from(HOUR_MS);
        Dollars(cost as i64)
    });
}

/// Names of the nodes of tasks, without duplicates.
fn node_names(tasks: &[PlannedTask]) -> String {
    let mut names: Vec<&str> = tasks.iter().map(|task| task.node_name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Facts of the server that the engine does not know.
#[derive(Debug)]
pub(super) struct PendingContext<'a> {
    pub(super) gate: Option<&'a BudgetShortfall>,
    /// Number of registered nodes. The engine knows only nodes that were reachable once.
    pub(super) nodes: usize,
    /// Node that the job is pinned to, if the node was deleted.
    pub(super) missing_node: Option<&'a str>,
}

/// Pending reason of a job, with other jobs named by number.
pub(super) fn pending_reason(
    reason: &WaitReason,
    now: Time,
    context: &PendingContext<'_>,
) -> PendingReason {
    if let (WaitReason::Gated(Gate::Budget(_)), Some(short)) = (reason, context.gate) {
        return PendingReason::BudgetExceeded(short.clone());
    }
    if let Some(node) = context.missing_node {
        let note =
            format!("Pinned to node {node}, which was deleted; cancel the job and submit it again");
        return PendingReason::Reported { reason: PendingCode::NeverFits, note };
    }
    if *reason == WaitReason::NoNodes {
        return PendingReason::NoNodes { unreachable: context.nodes as u32 };
    }
    let clock = Clock { now, wall: stamp_of(now) };
    agentaflow_explain::wire::pending_reason(reason, &clock, &job_handle)
}

fn add_alternatives(explanation: &mut Explanation, alternatives: &[Alternative]) {
    explanation.alternatives =
        alternatives.iter().map(agentaflow_explain::wire::alternative).collect();
    let texts = explanation.alternatives.iter().map(agentaflow_explain::pending::alternative);
    explanation.would_start_now = texts.collect();
}

/// Number of the job of a workload. The name that the owner chose may be confidential.
fn job_handle(workload: &WorkloadId) -> String {
    job_of(workload).map_or_else(|| workload.to_string(), |number| number.to_string())
}

/// Public name of a job in a sentence.
pub(super) fn job_name(workload: &WorkloadId) -> String {
    agentaflow_explain::pending::job(&job_handle(workload))
}

/// Explanation of a job that has ended.
pub(super) fn explain_ended(job: &Job) -> Explanation {
    let failed = job.status == JobStatus::Failed;
    let text = agentaflow_explain::end(&agentaflow_explain::End {
        reason: job.end_reason,
        cause: job.end_cause,
        exit_code: job.exit_code,
        detail: job.error_message.as_deref().unwrap_or_default(),
    });
    Explanation {
        job_id: Some(job.id),
        status: job.status,
        summary: match job.status {
            JobStatus::Completed => "Completed".to_owned(),
            JobStatus::Cancelled => "Cancelled".to_owned(),
            _ => format!("Failed: {}", text.summary),
        },
        detail: failed.then(|| format!("Remedy: {}", text.remedy)),
        end_reason: agentaflow_explain::end_reason(job.end_reason, job.end_cause),
        end_cause: job.end_cause,
        eta: job.started_at,
        ..Explanation::default()
    }
}
