//! Agents that the server calls: their requests, tasks and stops that they have not confirmed, and tasks that they lost.

use serde_json::{Value, json};

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::{JobStatus, OnNodeLost, TaskState};
use agentaflow_api::link::{Stop, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::assignment::requirements;
use super::job::workload::grace_ms;
use super::node::{JobAnswer, LiveNode, TaskRef};
use super::state::State;
use super::stop::stops;
use super::task_updates::TaskEnd;
use crate::store::{JobRow, TaskAssignment};

/// A push agent confirms a task within this time, or the server calls it again.
const CONFIRM_MS: u64 = 15_000;
/// A push agent may not know a job yet for this time after the placement: it accepts a job first and starts it then.
const SETTLE_MS: u64 = 5_000;
/// Timeout that a push agent receives for a job without one.
const DEFAULT_TIMEOUT_SECONDS: u64 = 3600;

/// Node whose agent the server calls.
#[derive(Clone, Debug)]
pub(crate) struct PushNode {
    pub(crate) id: NodeId,
    pub(crate) endpoint: String,
    /// Address that the node registered from.
    pub(crate) peer: Option<String>,
}

/// Work of a push agent that needs a call.
#[derive(Debug, Default)]
pub(crate) struct PushWork {
    /// Assigned tasks that the agent has not confirmed.
    pub(crate) unconfirmed: Vec<TaskKey>,
    /// Stops that the agent has not confirmed.
    pub(crate) stops: Vec<Stop>,
    /// Confirmed tasks, which the agent should have.
    pub(crate) confirmed: Vec<TaskKey>,
}

impl State {
    pub(super) fn push_nodes(&self) -> Vec<PushNode> {
        let push = self.nodes.iter().filter(|node| node.is_push()).map(LiveNode::row);
        push.filter_map(|row| {
            let endpoint = row.spec.api_endpoint.clone()?;
            Some(PushNode { id: row.id, endpoint, peer: row.peer.clone() })
        })
        .collect()
    }

    pub(super) fn push_work(&self, node: NodeId) -> PushWork {
        let (mut work, now) = (PushWork::default(), self.now());
        let jobs = self.nodes.get(node).map(LiveNode::jobs).unwrap_or_default();
        for job in jobs.into_iter().filter_map(|job| self.jobs.get(job)) {
            if job.state.stopping.is_some() {
                work.stops.extend(stops(job, None).into_iter().map(|stop| stop.stop));
                continue;
            }
            let age = ms_since_placement(job, now);
            for task in &job.state.tasks {
                let key = job.task_key(task.task);
                match task.state {
                    TaskState::Scheduled if age > CONFIRM_MS => work.unconfirmed.push(key),
                    TaskState::Starting | TaskState::Running if age > SETTLE_MS => {
                        work.confirmed.push(key);
                    }
                    _ => {}
                }
            }
        }
        work
    }

    /// Returns true if a push agent that does not know this job has ended it, and not merely accepted it.
    pub(super) fn is_settled(&self, id: JobId) -> bool {
        let now = self.now();
        self.jobs.get(id).is_none_or(|job| ms_since_placement(job, now) > SETTLE_MS)
    }

    /// Records the answer of a push agent to the question for a task. A task that the agent does not have, because it
    /// restarted or could not report the result, ends.
    pub(super) fn record_job_answer(&mut self, node: NodeId, key: TaskKey, answer: JobAnswer) {
        if self.jobs.task_on(key, node).is_none() {
            return;
        }
        let task = TaskRef { job: key.job, task: key.task };
        let missing = self.nodes.update(node, |node| node.record_job_answer(task, answer));
        if let Some(missing) = missing.flatten() {
            let name = self.nodes.name(node);
            let message = format!(
                "the worker of node `{name}` does not know the job any more: it restarted, or could not report the result"
            );
            self.end_lost_task(key.job, node, missing.last_sign, &message);
        }
    }

    /// Declares a push node lost whose port accepts no connections.
    pub(super) fn declare_push_node_lost(&mut self, id: NodeId) {
        self.nodes.update(id, LiveNode::mark_lost);
        let Some(node) = self.nodes.get(id) else { return };
        let (name, refuses) = (&node.row().spec.node_name, node.has_no_process());
        let verb = if refuses { "refuses connections" } else { "cannot be reached" };
        let message = format!("node `{name}` {verb} at its `api_endpoint`");
        self.node_event(id, EventKind::NodeLost, message);
        self.end_jobs_of_lost_worker(id);
        self.report_node(id);
    }

    /// Ends the jobs of a lost push node as their `on_node_lost` says. Without a process at the endpoint no result can
    /// come any more; otherwise jobs that wait for the node stay.
    pub(super) fn end_jobs_of_lost_worker(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        let (last_sign, jobs, gone) = (node.last_sign(), node.jobs(), node.has_no_process());
        let name = node.row().spec.node_name.clone();
        for job in jobs {
            let waits = self.jobs.get(job).is_some_and(waits_for_push_node);
            if gone || !waits {
                let verb = if gone { "refuses connections" } else { "cannot be reached" };
                let message = format!("the worker of node `{name}` {verb} and is lost");
                self.end_lost_task(job, id, last_sign, &message);
            } else {
                let message = format!(
                    "the worker of node `{name}` cannot be reached; the job waits for it (on_node_lost: wait)"
                );
                self.job_event(job, EventKind::NodeLost, message);
            }
        }
    }

    /// Ends the task of a job that its push agent lost, billed until the last sign of life. The job fails, or is requeued
    /// with `on_node_lost: requeue`.
    fn end_lost_task(&mut self, id: JobId, node: NodeId, until: Option<Stamp>, message: &str) {
        let Some(job) = self.jobs.get(id) else { return };
        let live = |task: &&TaskAssignment| task.node == node && task.state != TaskState::Ended;
        let Some(task) = job.state.tasks.iter().find(live) else { return };
        let key = job.task_key(task.task);
        // A sign of life cannot be in the future.
        let ran = task.started_at.zip(until.map(|at| at.min(self.now())));
        let ran_ms = ran.map_or(0, |(from, to)| to.0.saturating_sub(from.0).max(0) as u64);
        let waits = waits_for_push_node(job);
        let cancelled = job.state.cancel_requested;
        let stopped_for = job.state.stopping.and_then(StopCause::end_reason);
        self.job_event(id, EventKind::NodeLost, message);
        self.end_task(key, TaskEnd { ran_ms, exit_code: None, stopped: true, gpu: None });
        if !cancelled && (waits || stopped_for.is_some()) {
            let reason = stopped_for.unwrap_or(EndReason::NodeLost);
            return self.finish_job(id, JobStatus::Failed, reason, Some(message.to_owned()));
        }
        self.jobs.update(id, |state| {
            state.stopping = state.stopping.or(Some(StopCause::LeaseLost));
        });
        self.after_task_end(id);
    }

    /// Stops jobs of push agents after their timeout. The agents enforce it themselves; one that forgot a job would keep
    /// the job's resources forever.
    pub(super) fn stop_overdue_pushes(&mut self) {
        let now = self.now();
        let overdue = |job: &&JobRow| {
            let timeout = job.spec.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
            let allowed = timeout.saturating_mul(1000).saturating_add(grace_ms(&job.spec));
            job.state.stopping.is_none() && ms_since_placement(job, now) > allowed + CONFIRM_MS
        };
        let push = self.nodes.iter().filter(|node| node.is_push() && node.has_tasks());
        let jobs = push.flat_map(LiveNode::jobs).filter_map(|job| self.jobs.get(job));
        let jobs: Vec<JobId> = jobs.filter(overdue).map(|job| job.id).collect();
        for job in jobs {
            let message = "the agent did not enforce the timeout; the server stops the job";
            self.job_event(job, EventKind::TimedOut, message);
            self.stop_tasks(job, StopCause::TimedOut, None);
        }
    }

    /// Request of the documented push protocol for a job.
    pub(super) fn push_request(&self, id: JobId) -> Option<Value> {
        let job = self.jobs.get(id)?;
        let spec = &job.spec;
        Some(json!({
            "job_id": id,
            "docker_image": spec.docker_image,
            "docker_tag": spec.docker_tag.as_deref().unwrap_or("latest"),
            "docker_registry": spec.docker_registry,
            "job_config": spec.job_config,
            "input_data": if spec.input_data.is_null() { json!({}) } else { spec.input_data.clone() },
            "resource_requirements": requirements(job),
            "timeout": spec.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS),
        }))
    }
}

/// Jobs on push nodes wait by default: no guardian stops them on a node that is lost.
fn waits_for_push_node(job: &JobRow) -> bool {
    job.spec.on_node_lost.unwrap_or(OnNodeLost::Wait) == OnNodeLost::Wait
}

fn ms_since_placement(job: &JobRow, now: Stamp) -> u64 {
    let elapsed = job.state.scheduled_at.map_or(0, |at| now.0.saturating_sub(at.0));
    elapsed.max(0) as u64
}
