//! Ends of jobs: completion, failure, requeue, and the loss of nodes.

use std::collections::BTreeSet;

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::{JobStatus, OnNodeLost, TaskState};
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{Event, WorkloadState};

use super::job::workload::{workload, workload_id};
use super::node::{LiveNode, TaskRef};
use super::state::State;
use super::task_updates::TaskEnd;
use crate::store::JobState;

/// Lost nodes that a job survives if it does not set `max_retries`.
const DEFAULT_LOSSES: u32 = 3;
const LOST_TOO_OFTEN: &str = "nodes were lost more often than `max_retries` permits";

impl State {
    /// A task ended. Stops the other tasks if the job can no longer succeed; concludes the job after its last task.
    pub(super) fn after_task_end(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let state = &job.state;
        if !state.has_live_task() {
            return self.conclude_attempt(id);
        }
        let failed = state.end_reason.is_some() || state.cancel_requested;
        if failed && state.stopping.is_none() {
            self.stop_tasks(id, StopCause::GangBroken, None);
        }
    }

    /// No task of the attempt is live: the job ends or is requeued.
    fn conclude_attempt(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let state = &job.state;
        // A task that saves its work and exits with 0 on a stop is not complete.
        let succeeded = !state.tasks.is_empty()
            && state.tasks.iter().all(|task| task.exit_code == Some(0) && !task.stopped);
        if succeeded && state.end_reason.is_none() {
            return self.finish_job(id, JobStatus::Completed, EndReason::Exited, None);
        }
        if let Some(reason) = state.end_reason {
            let retries_left = state.retries_used < job.spec.max_retries.unwrap_or(0);
            if reason.is_retryable() && retries_left && !state.cancel_requested {
                return self.retry(id);
            }
            if !state.cancel_requested || !reason.is_own_exit() {
                let message = state.error_message.clone();
                return self.finish_job(id, JobStatus::Failed, reason, message);
            }
        }
        if state.complete_requested {
            return self.finish_job(id, JobStatus::Completed, EndReason::Completed, None);
        }
        if state.cancel_requested {
            let message = Some("cancelled by its owner".to_owned());
            return self.finish_job(id, JobStatus::Cancelled, EndReason::Cancelled, message);
        }
        if state.stopping == Some(StopCause::LeaseLost) && !self.count_loss(id) {
            let message = Some(LOST_TOO_OFTEN.to_owned());
            return self.finish_job(id, JobStatus::Failed, EndReason::NodeLost, message);
        }
        self.requeue(id);
    }

    /// Counts the loss of a node; false if the job may not be requeued for it.
    fn count_loss(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(id) else { return false };
        let allowed = job.spec.max_retries.unwrap_or(DEFAULT_LOSSES);
        let losses = self.jobs.update(id, |state| {
            state.losses += 1;
            state.losses
        });
        losses.is_some_and(|losses| losses <= allowed)
    }

    fn retry(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let allowed = job.spec.max_retries.unwrap_or(0);
        let cause = job.state.error_message.clone().unwrap_or_default();
        let used = self.jobs.update(id, |state| {
            state.retries_used += 1;
            state.retries_used
        });
        let used = used.unwrap_or_default();
        self.job_event(id, EventKind::Retrying, format!("{cause}; retry {used} of {allowed}"));
        self.requeue(id);
    }

    /// Makes a job pending again with its original submission time, in the engine too.
    fn requeue(&mut self, id: JobId) {
        let workload_id = workload_id(id);
        match self.engine.scheduler().workload(&workload_id) {
            // The engine was restored without this job.
            None => {
                let resubmitted = self.jobs.get(id).and_then(|job| workload(job).ok());
                if let Some(workload) = resubmitted {
                    self.engine.apply(Event::Submitted(Box::new(workload)));
                }
            }
            Some(view) => match view.state {
                WorkloadState::Pending => {}
                WorkloadState::Stopping => {
                    for task in view.tasks {
                        let workload = workload_id.clone();
                        self.engine.apply(Event::TaskStopped { workload, task: task.task });
                    }
                }
                WorkloadState::Placed | WorkloadState::Running => {
                    self.engine.apply(Event::Requeued(workload_id));
                }
            },
        }
        self.record_requeued(id);
    }

    /// Marks the record of a job as pending. The engine has the job pending already, or has placed it again.
    pub(super) fn record_requeued(&mut self, id: JobId) {
        let pending = self.jobs.get(id).map(|job| job.state.status == JobStatus::Pending);
        if pending != Some(false) {
            return;
        }
        self.jobs.update(id, JobState::end_attempt);
        self.job_event(id, EventKind::Requeued, "the job is pending again");
    }

    pub(super) fn finish_job(
        &mut self,
        id: JobId,
        status: JobStatus,
        reason: EndReason,
        message: Option<String>,
    ) {
        let event = match status {
            JobStatus::Completed => EventKind::Completed,
            JobStatus::Cancelled => EventKind::Cancelled,
            _ => EventKind::Failed,
        };
        let text = message.clone().unwrap_or_else(|| reason.to_string());
        let now = self.now();
        let finished = self.jobs.update(id, |state| {
            state.status = status;
            state.completed_at = Some(now);
            state.end_reason = Some(reason);
            state.error_message = message.filter(|_| status != JobStatus::Completed);
            if status == JobStatus::Completed {
                state.exit_code = Some(0);
            }
            state.stopping = None;
            state.pending_reason = None;
            state.sealed = None;
        });
        if finished.is_none() {
            return;
        }
        self.activity.count_end(status);
        self.activity.forget_eta(id);
        let completed = status == JobStatus::Completed;
        self.job_event(id, event, if completed { "Completed".to_owned() } else { text });
        self.engine.apply(match status {
            JobStatus::Cancelled => Event::Cancelled(workload_id(id)),
            _ => Event::Finished(workload_id(id)),
        });
        if let Some(job) = self.jobs.remove(id) {
            let trace_id = job.trace.map(|trace| tracing::field::display(trace.trace_id));
            tracing::debug!(job = %id, trace_id, status = status.as_str(), "job ended");
            for task in &job.state.tasks {
                let key = TaskRef { job: id, task: task.task };
                self.nodes.update(task.node, |node| node.remove_task(key));
            }
        }
    }

    /// Declares a node lost: its guardian has stopped every leased task, so that the jobs can be requeued. Jobs with
    /// `on_node_lost: wait` stay.
    pub(super) fn declare_lost(&mut self, id: NodeId) {
        self.nodes.update(id, LiveNode::mark_lost);
        let Some(node) = self.nodes.get(id) else { return };
        let (row, last_heartbeat, jobs) = (node.row(), node.last_heartbeat(), node.jobs());
        let (name, node_id) = (row.spec.node_name.clone(), row.node_id.clone());
        let message = format!("node `{name}` does not answer; its jobs are requeued");
        self.node_event(id, EventKind::NodeLost, message);
        for job in jobs {
            self.end_tasks_on_lost_node(job, id, last_heartbeat);
        }
        self.engine.apply(Event::NodeLost(node_id.into()));
    }

    /// Ends the tasks of a job on a lost node, billed until the last heartbeat.
    fn end_tasks_on_lost_node(&mut self, id: JobId, node: NodeId, last_heartbeat: Option<Stamp>) {
        let Some(job) = self.jobs.get(id) else { return };
        let waits = job.spec.on_node_lost.unwrap_or_default() == OnNodeLost::Wait;
        if waits && !job.state.cancel_requested {
            return;
        }
        let live = |task: &&crate::store::TaskAssignment| {
            task.node == node && task.state != TaskState::Ended
        };
        let ended: Vec<(TaskKey, TaskEnd)> = job
            .state
            .tasks
            .iter()
            .filter(live)
            .map(|task| {
                let ran = task.started_at.zip(last_heartbeat);
                let ran_ms = ran.map_or(0, |(from, to)| to.0.saturating_sub(from.0).max(0));
                let end =
                    TaskEnd { ran_ms: ran_ms as u64, exit_code: None, stopped: true, gpu: None };
                (job.task_key(task.task), end)
            })
            .collect();
        for (key, end) in ended {
            self.end_task(key, end);
        }
        self.drop_failure_of_peer(id, last_heartbeat);
        self.after_node_loss(id);
    }

    fn after_node_loss(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let has_live_task = job.state.has_live_task();
        let wanted = !job.state.cancel_requested && job.state.end_reason.is_none();
        if !wanted {
            if !has_live_task {
                self.conclude_attempt(id);
            }
            return;
        }
        match (self.count_loss(id), has_live_task) {
            // The engine stops the other tasks when it receives the loss of the node.
            (true, true) => {}
            (true, false) => self.record_requeued(id),
            (false, true) => {
                self.jobs.update(id, |state| {
                    state.end_reason = Some(EndReason::NodeLost);
                    state.error_message = Some("a node of the gang was lost".to_owned());
                });
                self.stop_tasks(id, StopCause::GangBroken, None);
            }
            (false, false) => {
                let message = Some(LOST_TOO_OFTEN.to_owned());
                self.finish_job(id, JobStatus::Failed, EndReason::NodeLost, message);
            }
        }
    }

    /// Drops the failure of a gang's task after the last heartbeat of a lost node: the task failed for lack of its peer.
    fn drop_failure_of_peer(&mut self, id: JobId, last_heartbeat: Option<Stamp>) {
        self.jobs.update(id, |state| {
            let own = state.end_reason.is_some_and(EndReason::is_own_exit);
            if own && state.tasks.len() > 1 && state.failed_at > last_heartbeat {
                state.end_reason = None;
                state.end_cause = None;
                state.error_message = None;
                state.failed_at = None;
                state.exit_code = None;
            }
        });
    }

    /// Ends the tasks of a job on nodes that are already lost: no agent can stop them.
    pub(super) fn end_tasks_on_lost_nodes(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let nodes: BTreeSet<NodeId> = job.state.tasks.iter().map(|task| task.node).collect();
        for id_of_node in nodes {
            let node = self.nodes.get(id_of_node);
            if node.is_none_or(LiveNode::is_lost) {
                let last_sign = node.and_then(LiveNode::last_sign);
                self.end_tasks_on_lost_node(id, id_of_node, last_sign);
            }
        }
    }
}
