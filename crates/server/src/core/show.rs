//! How records look from outside, and explanations.

use agentaflow_api::agent::{Agent, AgentStatus};
use agentaflow_api::explain::{CloseNode, Explanation, PlannedTask};
use agentaflow_api::job::{Job, JobStatus, TaskPlace, TaskState};
use agentaflow_api::node::Health;
use agentaflow_api::queue::Queue;
use agentaflow_api::units::{Cores, Dollars, Stamp};
use agentaflow_engine::{
    Eta, Placement, Request, Shortfall, Time, WaitReason, WhatIf, WorkloadId, WorkloadState,
    WorkloadView,
};

use super::budgets::{accrued, expected_ms};
use super::money;
use super::nodes::node_name;
use super::reports::allocation;
use super::state::{State, job_of, workload_id};
use crate::store::{AgentRow, JobRow, SeatState};

const HOUR_MS: u64 = 3_600_000;

impl State {
    /// An agent.
    pub(crate) fn show_agent(&self, row: &AgentRow) -> Agent {
        let node = self.nodes.get(&row.node_id);
        let here = node.is_some_and(|node| node.stream == Some(row.id) || node.push_answers);
        let row = row.clone();
        Agent {
            id: row.id,
            agent_id: row.agent_id,
            agent_version: row.agent_version,
            config: row.config,
            capabilities: row.capabilities,
            api_endpoint: row.api_endpoint,
            websocket_endpoint: row.websocket_endpoint,
            node_id: row.node_id,
            status: if here { AgentStatus::Active } else { AgentStatus::Inactive },
            health_status: node.map_or(Health::Unknown, |node| node.row.health),
            last_heartbeat: node.and_then(|node| node.beat_at),
            created_at: row.created_at,
            updated_at: row.updated_at,
            started_at: row.started_at,
            api_key: None,
        }
    }

    /// A job; what it cost so far includes what is not billed yet. Why it waits is told by who asked the engine.
    pub(crate) fn show_job(&self, row: JobRow, waits: Option<String>) -> Job {
        let state = row.state.clone();
        let first = state.seats.first();
        let gpus: Vec<String> =
            state.seats.iter().flat_map(|seat| money::gpu_names(&seat.grants)).collect();
        let running = accrued(&row, Stamp::now());
        let simulated = first.is_some_and(|seat| {
            !seat.grants.is_empty()
                && self.nodes.get(&seat.node).is_some_and(|node| node.row.spec.simulated)
        });
        let duration = match (state.completed_at, state.started_at) {
            (None, Some(from)) => Some(Stamp::now().0.saturating_sub(from.0).max(0) as u64),
            (Some(_), Some(_)) => Some(state.ran_ms),
            _ => None,
        };
        let tasks = state.seats.iter().map(|seat| TaskPlace {
            task: seat.task,
            node_id: self
                .nodes
                .get(&seat.node)
                .map_or_else(String::new, |node| node.row.node_id.clone()),
            node_name: node_name(self, seat.node),
            gpus: money::gpu_names(&seat.grants),
            state: match seat.state {
                SeatState::Assigned => TaskState::Scheduled,
                SeatState::Accepted => TaskState::Starting,
                SeatState::Running => TaskState::Running,
                SeatState::Ended => TaskState::Ended,
            },
            exit_code: seat.exit_code,
        });
        let tasks = tasks.collect();
        let placed = state.status != JobStatus::Pending;
        let has_place = matches!(state.status, JobStatus::Scheduled | JobStatus::Running);
        let price_per_hour = has_place.then(|| Dollars(hourly(&row)));
        let kubernetes = first.filter(|_| placed).and_then(|seat| seat.kubernetes.as_ref());
        Job {
            id: row.id,
            user_id: row.user_id,
            status: state.status,
            output_data: state.output_data,
            error_message: state.error_message,
            assigned_node_id: first.filter(|_| placed).map(|seat| seat.node),
            assigned_gpu_id: (placed && !gpus.is_empty()).then(|| gpus.join(",")),
            k8s_pod_name: kubernetes.map(|place| place.pod_name.clone()),
            k8s_job_name: kubernetes.map(|place| place.job_name.clone()),
            k8s_namespace: kubernetes.map(|place| place.namespace.clone()),
            gpu_memory_used: state.usage.gpu_memory,
            cpu_cores_used: state.usage.cpu_cores,
            memory_used: state.usage.memory,
            storage_used: state.usage.storage,
            scheduled_at: state.scheduled_at,
            started_at: state.started_at,
            completed_at: state.completed_at,
            duration_seconds: duration.map(|ms| ms as f64 / 1000.0),
            cost: Dollars(state.cost.saturating_add(running)),
            created_at: row.created_at,
            updated_at: state.updated_at,
            exit_code: state.exit_code,
            end_reason: state.end_reason.filter(|_| state.status.is_final()),
            end_cause: state.end_cause.filter(|_| state.status.is_final()),
            attempt: state.epoch,
            retries_used: state.retries_used,
            secret_env_names: row.secret_names,
            cancel_requested: state.cancel_requested,
            simulated,
            tasks: if placed { tasks } else { Vec::new() },
            wait_reason: waits.filter(|_| state.status == JobStatus::Pending),
            price_per_hour,
            username: self.directory.users.get(&row.user_id).map(|user| user.username.clone()),
            spec: row.spec,
        }
    }

    /// All queues, the root first.
    pub(crate) fn show_queues(&self) -> Vec<Queue> {
        let views = self.engine.queues();
        let mut shown = Vec::new();
        for view in views {
            let name = view.id.as_str().to_owned();
            let row = self.queues.get(&name).cloned().unwrap_or_default();
            let mine = |job: &&JobRow| job.queue == name;
            let pending = self
                .jobs
                .values()
                .filter(mine)
                .filter(|job| job.state.status == JobStatus::Pending);
            let pending = pending.count() as u32;
            let all = self.jobs.values().filter(mine).count() as u32;
            let mut spec = row.spec;
            spec.name.clone_from(&name);
            shown.push(Queue {
                spec,
                pending,
                running: all - pending,
                gpus_used: Cores(view.used[3].max(0) as u64),
                cpu_used: Cores(view.used[0].max(0) as u64),
                memory_used: view.used[1].max(0) as u64,
                created_at: row.created_at,
                updated_at: row.updated_at,
            });
        }
        shown.sort_by_key(|queue| (queue.spec.name != "root", queue.spec.name.clone()));
        shown
    }

    /// Why a live job waits, or where it is.
    pub(crate) fn explain(&self, id: i64) -> Option<Explanation> {
        let job = self.jobs.get(&id)?;
        let now = self.clock.now();
        let told = self.engine.explain(now, &workload_id(id))?;
        let view = self.engine.workload(&workload_id(id))?;
        let mut explanation = self.waiting(told.reason.as_ref(), told.eta, now);
        explanation.job_id = Some(id);
        explanation.status = job.state.status;
        explanation.position = told.position;
        explanation.waiting = told.waiting;
        explanation.would_start_now =
            told.alternatives.iter().map(agentaflow_explain::nearby).collect();
        explanation.closest =
            told.closest.iter().map(|(node, lack)| self.close_node(node.as_str(), lack)).collect();
        self.explain_place(&mut explanation, job, &view);
        Some(explanation)
    }

    /// The part of an explanation that is about a wait.
    fn waiting(&self, reason: Option<&WaitReason>, eta: Eta, now: Time) -> Explanation {
        let detail = reason.map(|reason| in_words(reason, now));
        let eta_text = agentaflow_explain::eta(eta, now);
        Explanation {
            summary: detail
                .clone()
                .map_or_else(|| eta_text.clone(), |detail| format!("{detail}; {eta_text}")),
            reason: reason.map(|reason| reason_word(reason).to_owned()),
            detail,
            data: reason.and_then(|reason| serde_json::to_value(reason).ok()),
            eta: match eta {
                Eta::Now => Some(Stamp::now()),
                Eta::At(at) => Some(self.clock.stamp(at)),
                Eta::Unknown => None,
            },
            eta_text,
            ..Explanation::default()
        }
    }

    fn explain_place(&self, explanation: &mut Explanation, job: &JobRow, view: &WorkloadView) {
        let placed = job.state.status != JobStatus::Pending;
        let hourly = if placed {
            explanation.placement = job.state.seats.iter().map(|seat| self.planned(seat)).collect();
            hourly(job)
        } else {
            let asked = money::expected(&view.workload.request, view.workload.tasks);
            money::cost(asked, self.dearest(), HOUR_MS)
        };
        explanation.price_per_hour = Some(Dollars(hourly));
        let known = job.spec.estimated_duration_seconds.or(job.spec.timeout_seconds);
        explanation.estimated_cost = known.map(|_| {
            Dollars((i128::from(hourly) * i128::from(expected_ms(job)) / 3_600_000) as i64)
        });
        if placed {
            let where_to = node_names(&explanation.placement);
            let verb = match (job.state.status, view.state) {
                (_, WorkloadState::Stopping) => "is being stopped on",
                (JobStatus::Running, _) => "runs on",
                _ => "is starting on",
            };
            explanation.summary = format!("it {verb} {where_to}");
            explanation.eta = job.state.started_at;
            explanation.eta_text = explanation.summary.clone();
        }
    }

    fn planned(&self, seat: &crate::store::Seat) -> PlannedTask {
        let node = self.nodes.get(&seat.node);
        PlannedTask {
            task: seat.task,
            node_id: node.map_or_else(String::new, |node| node.row.node_id.clone()),
            node_name: node_name(self, seat.node),
            gpus: money::gpu_names(&seat.grants),
            simulated: node.is_some_and(|node| node.row.spec.simulated) && !seat.grants.is_empty(),
        }
    }

    fn close_node(&self, node_id: &str, lack: &Shortfall) -> CloseNode {
        let node = self.nodes.values().find(|node| node.row.node_id == node_id);
        let node_name = node.map_or_else(String::new, |node| node.row.spec.node_name.clone());
        CloseNode {
            node_id: node_id.to_owned(),
            lacks: agentaflow_explain::lack_of(&node_name, lack),
            node_name,
        }
    }

    /// What would become of a job.
    pub(crate) fn foresee(
        &self,
        job: &JobRow,
        request: &Request,
        tasks: u32,
        seen: &WhatIf,
    ) -> Explanation {
        let now = self.clock.now();
        let mut explanation = self.waiting(seen.reason.as_ref(), seen.eta, now);
        explanation.waiting = self.engine.pending_count() as u32;
        explanation.would_start_now =
            seen.alternatives.iter().map(agentaflow_explain::nearby).collect();
        explanation.closest =
            seen.closest.iter().map(|(node, lack)| self.close_node(node.as_str(), lack)).collect();
        let seat = |placement: &Placement| self.seat(request, placement);
        let seats: Vec<_> = seen.placements.iter().filter_map(seat).collect();
        explanation.placement = seats.iter().map(|seat| self.planned(seat)).collect();
        let hourly = if seats.is_empty() {
            money::cost(money::expected(request, tasks), self.dearest(), HOUR_MS)
        } else {
            seats.iter().map(|seat| money::cost(allocation(job, seat), seat.price, HOUR_MS)).sum()
        };
        explanation.price_per_hour = Some(Dollars(hourly));
        let known = job.spec.estimated_duration_seconds.or(job.spec.timeout_seconds);
        explanation.estimated_cost = known.map(|_| {
            Dollars((i128::from(hourly) * i128::from(expected_ms(job)) / 3_600_000) as i64)
        });
        if seen.eta == Eta::Now {
            let places = node_names(&explanation.placement);
            explanation.summary = format!("it would start now on {places}");
        }
        explanation
    }
}

/// The nodes of tasks, each named once.
fn node_names(tasks: &[PlannedTask]) -> String {
    let mut names: Vec<&str> = tasks.iter().map(|task| task.node_name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// Why a job waits, with other jobs called by the numbers that every call takes.
pub(crate) fn in_words(reason: &WaitReason, now: Time) -> String {
    agentaflow_explain::reason_naming(reason, now, &called)
}

/// What people call a job of the engine. Its name may be nobody's business but its owner's; the number tells nothing.
pub(crate) fn called(workload: &WorkloadId) -> String {
    job_of(workload)
        .map_or_else(|| agentaflow_explain::quoted(workload), |number| format!("job {number}"))
}

/// What a job costs an hour where it is.
fn hourly(job: &JobRow) -> i64 {
    let seats = job.state.seats.iter();
    seats.map(|seat| money::cost(allocation(job, seat), seat.price, HOUR_MS)).sum()
}

/// One word for a wait. A runtime that no node has is a reason of its own.
fn reason_word(reason: &WaitReason) -> &'static str {
    let tally = match reason {
        WaitReason::NoRoom(tally) | WaitReason::NeverFits(tally) => tally,
        WaitReason::Gated(agentaflow_engine::Gate::Budget(_)) => return "BudgetExceeded",
        other => return other.kind(),
    };
    let runtime = |lack: &Shortfall| matches!(lack, Shortfall::Resource { name, .. } if name.as_str().starts_with("runtime/"));
    if !tally.shortfalls.is_empty() && tally.shortfalls.iter().all(|(lack, _)| runtime(lack)) {
        return "NoRuntime";
    }
    reason.kind()
}

/// A job that is over, explained.
pub(crate) fn explain_over(job: &Job) -> Explanation {
    let words = job.error_message.clone().unwrap_or_else(|| "Completed".to_owned());
    Explanation {
        job_id: Some(job.id),
        status: job.status,
        summary: format!("it is over ({}): {words}", job.status.as_str()),
        reason: job.end_reason.map(|reason| reason.to_string()),
        detail: job.error_message.clone(),
        eta: job.started_at,
        eta_text: "it is over".to_owned(),
        ..Explanation::default()
    }
}
