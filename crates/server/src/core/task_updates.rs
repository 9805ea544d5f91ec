//! Updates of tasks from agents.

use agentaflow_api::billing::LedgerEntry;
use agentaflow_api::end::{EndCause, EndReason, StartFailure};
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::{GpuUsage, JobStatus, JobStatusUpdate, ResourceUsage, TaskState};
use agentaflow_api::link::{Ended, Report, StopCause, TaskKey, TaskUpdate};
use agentaflow_api::units::{Cores, GpuAmount, Stamp};
use agentaflow_engine::Event;
use agentaflow_explain::{End, find_cause};

use super::job::workload::workload_id;
use super::node::TaskRef;
use super::pricing::{self, Allocation};
use super::state::State;
use super::stop::requeues;
use crate::api_error::ApiError;
use crate::store::GpuAccount;

/// Tolerance for a reported run time, for clocks that run at different speeds.
const CLOCK_SLACK_MS: u64 = 2_000;
/// Longest message of an agent, in characters.
const MAX_DETAIL: usize = 500;
const MAX_ERROR: usize = 4000;

#[derive(Clone, Copy, Debug)]
pub(super) struct TaskEnd {
    pub(super) ran_ms: u64,
    pub(super) exit_code: Option<i32>,
    /// The task was stopped and did not end by itself.
    pub(super) stopped: bool,
    /// Reported use of GPUs; without it, that of the last heartbeat counts.
    pub(super) gpu: Option<GpuUsage>,
}

impl State {
    /// Applies an update from the agent of a node. False if the task is not, or no longer, assigned to the node: a late
    /// update of a replaced attempt changes nothing.
    pub(super) fn apply_task_update(&mut self, node: NodeId, report: Report) -> bool {
        let Report { key, update } = report;
        let Some(task) = self.jobs.task_on(key, node) else { return false };
        if task.state == TaskState::Ended {
            return true;
        }
        match update {
            TaskUpdate::Accepted => self.advance_task(key, TaskState::Starting),
            TaskUpdate::Placed(object) => {
                self.jobs.update_task(key, |task| task.kubernetes = Some(object));
            }
            TaskUpdate::Running { .. } => self.advance_task(key, TaskState::Running),
            TaskUpdate::Progress { kind, detail } => self.record_progress(key.job, kind, &detail),
            TaskUpdate::Refused { detail } => self.requeue_refused(key, &detail),
            TaskUpdate::Ended(ended) => self.record_end(key, &ended),
        }
        true
    }

    /// Records that the agent has a task or runs it.
    fn advance_task(&mut self, key: TaskKey, reached: TaskState) {
        let Some(job) = self.jobs.get(key.job) else { return };
        let task = job.state.tasks.iter().find(|task| task.task == key.task);
        let Some(before) = task.map(|task| task.state) else { return };
        if before == reached || before == TaskState::Running {
            return;
        }
        let runs = reached == TaskState::Running;
        let first = runs && job.state.status == JobStatus::Scheduled;
        // Times are of the server's clock, so that clocks of agents do not mix.
        let now = self.now();
        self.jobs.update_task(key, |task| {
            task.state = reached;
            if runs {
                task.started_at = Some(now);
            }
        });
        if before == TaskState::Scheduled {
            let workload = workload_id(key.job);
            self.engine.apply(Event::PlacementConfirmed { workload, task: key.task });
        }
        if first {
            self.jobs.update(key.job, |state| {
                state.status = JobStatus::Running;
                state.started_at = Some(now);
            });
            self.job_event(key.job, EventKind::Started, "the job is running");
        }
    }

    fn record_progress(&mut self, job: JobId, kind: EventKind, detail: &str) {
        let detail: String = detail.chars().take(MAX_DETAIL).collect();
        self.job_event(job, kind, detail);
    }

    /// The node cannot run the task now: the engine plans the job again, elsewhere if possible.
    pub(super) fn requeue_refused(&mut self, key: TaskKey, detail: &str) {
        let Some(node) = self.close_task(key, None) else { return };
        let detail: String = detail.chars().take(MAX_DETAIL).collect();
        let message = format!("node {} refused the task: {detail}", self.nodes.name(node));
        self.job_event(key.job, EventKind::Refused, message);
        let workload = workload_id(key.job);
        self.engine.apply(Event::PlacementRefused { workload, task: key.task });
        self.after_task_end(key.job);
    }

    /// Bills a task that ended, records its outcome, and concludes the job after its last task.
    fn record_end(&mut self, key: TaskKey, ended: &Ended) {
        let Some(ran_ms) = self.billed_ms(key, ended) else { return };
        let ran = ended.exit_code.is_some() || ran_ms > 0;
        let stopped = ended.stopped.is_some();
        let gpu = ended.usage.gpu;
        self.end_task(key, TaskEnd { ran_ms, exit_code: ended.exit_code, stopped, gpu });
        let outcome = Outcome::of(ended);
        let now = self.now();
        self.jobs.update(key.job, |state| {
            if ran && state.started_at.is_none() {
                state.started_at = Some(Stamp(now.0.saturating_sub(ran_ms as i64)));
            }
            add_usage(&mut state.usage, &ended.usage);
            if ended.output_data.is_some() {
                state.output_data.clone_from(&ended.output_data);
            }
            match outcome {
                Outcome::Success => {}
                Outcome::Requeue(cause) => state.stopping = state.stopping.or(Some(cause)),
                Outcome::Cancelled => {
                    state.cancel_requested = true;
                    state.exit_code = state.exit_code.or(ended.exit_code);
                }
                // The first failure is the reason; later ones follow from it.
                Outcome::Failure { .. } if state.end_reason.is_some() => {}
                Outcome::Failure { reason, cause, message } => {
                    state.end_reason = Some(reason);
                    state.end_cause = cause;
                    state.failed_at = Some(now);
                    state.error_message = Some(message);
                    state.exit_code = ended.exit_code;
                }
            }
        });
        self.after_task_end(key.job);
    }

    /// Run time to bill: as reported, at most the time since the placement. An agent that reports zero does not know the run
    /// time; then the time since the server heard of the start counts.
    fn billed_ms(&self, key: TaskKey, ended: &Ended) -> Option<u64> {
        let job = self.jobs.get(key.job)?;
        let now = self.now();
        let elapsed =
            |since: Option<Stamp>| since.map_or(0, |at| now.0.saturating_sub(at.0).max(0) as u64);
        let task = job.state.tasks.iter().find(|task| task.task == key.task)?;
        let reported = if ended.ran_ms == 0 { elapsed(task.started_at) } else { ended.ran_ms };
        Some(reported.min(elapsed(job.state.scheduled_at) + CLOCK_SLACK_MS))
    }

    /// Marks a task as ended and bills it.
    pub(super) fn end_task(&mut self, key: TaskKey, end: TaskEnd) {
        let gpu = end.gpu.or_else(|| self.last_gpu_usage(key));
        if self.close_task(key, Some(end)).is_some() {
            self.bill_task(key, TaskEnd { gpu, ..end });
        }
    }

    /// Use of GPUs by a task as of the last heartbeat.
    fn last_gpu_usage(&self, key: TaskKey) -> Option<GpuUsage> {
        let job = self.jobs.get(key.job)?;
        let task = job.state.tasks.iter().find(|task| task.task == key.task)?;
        let task_ref = TaskRef { job: key.job, task: key.task };
        self.nodes.get(task.node)?.task_use(task_ref)?.gpu
    }

    /// Marks a live task as ended, releases its booking, and returns its node.
    fn close_task(&mut self, key: TaskKey, end: Option<TaskEnd>) -> Option<NodeId> {
        let node = self.jobs.update_task(key, |task| {
            if task.state == TaskState::Ended {
                return None;
            }
            task.state = TaskState::Ended;
            if let Some(TaskEnd { ran_ms, exit_code, stopped, .. }) = end {
                task.ran_ms = ran_ms;
                task.exit_code = exit_code;
                task.stopped = stopped;
            }
            Some(task.node)
        });
        let node = node.flatten()?;
        let task = TaskRef { job: key.job, task: key.task };
        self.nodes.update(node, |node| node.remove_task(task));
        Some(node)
    }

    fn bill_task(&mut self, key: TaskKey, end: TaskEnd) {
        let Some(job) = self.jobs.get(key.job) else { return };
        let Some(task) = job.state.tasks.iter().find(|task| task.task == key.task) else { return };
        let allocation = Allocation::of_task(job, task);
        let cost = pricing::cost(allocation, task.price, end.ran_ms);
        let usage = LedgerEntry {
            at: self.now(),
            user_id: job.user_id,
            job_id: Some(key.job),
            attempt: Some(key.epoch),
            task: Some(key.task),
            queue: Some(job.queue.clone()),
            node_id: self.nodes.get(task.node).map(|node| node.row().node_id.clone()),
            gpus: GpuAmount(allocation.gpu_milli),
            cpu_cores: Cores(allocation.cpu_milli),
            memory: allocation.memory,
            duration_ms: end.ran_ms,
            ..LedgerEntry::default()
        };
        let measured = end.gpu.map(|usage| GpuAccount::of_task(job, task, end.ran_ms, usage));
        self.jobs.update(key.job, |state| {
            if let Some(measured) = measured.filter(|measured| measured.billed > 0) {
                state.gpu = Some(state.gpu.unwrap_or_default() + measured);
            }
            state.ran_ms = state.ran_ms.max(end.ran_ms);
            state.cost.0 = state.cost.0.saturating_add(cost.0);
        });
        // A task with an exit code ran, even if for less than a millisecond.
        if end.ran_ms > 0 || end.exit_code.is_some() {
            self.activity.count_cost(cost);
            let entry = self.ledger.book_usage(cost, usage);
            self.journal.write(self.ledger.write_of(entry));
        }
    }

    /// Applies a status of the documented worker protocol.
    pub(super) fn apply_status(
        &mut self,
        id: JobId,
        node: Option<NodeId>,
        update: JobStatusUpdate,
    ) -> Result<(), ApiError> {
        let Some(job) = self.jobs.get(id) else { return Ok(()) };
        let status = update.status.unwrap_or_default();
        let present = job.state.status;
        if present == JobStatus::Pending {
            return Err(illegal_transition(present, status));
        }
        let mut tasks = job.state.tasks.iter();
        let Some(task) = tasks.find(|task| node.is_none_or(|node| task.node == node)) else {
            return Err(ApiError::conflict(
                ErrorCode::NotAssigned,
                "the job is not assigned to this node",
            ));
        };
        let key = job.task_key(task.task);
        let now = self.now();
        let ran = task.started_at.map_or(0, |at| now.0.saturating_sub(at.0).max(0) as u64);
        let text = update.duration_seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        let mut ended = Ended {
            ran_ms: text.map_or(ran, |seconds| (seconds * 1000.0) as u64),
            usage: update.resource_usage.unwrap_or_default(),
            output_data: update.output_data,
            ..Ended::default()
        };
        let node = task.node;
        let exit_code = update.exit_code.filter(|code| *code != 0);
        let update = match status {
            JobStatus::Running => TaskUpdate::Running { started_at: now },
            JobStatus::Completed => {
                ended.exit_code = Some(0);
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Failed => {
                ended.exit_code = exit_code;
                let message = update
                    .error_message
                    .unwrap_or_else(|| "the agent reported a failure without a message".to_owned());
                let message: String = message.chars().take(MAX_ERROR).collect();
                ended.failed_to_start = Some(StartFailure::new(EndReason::Exited, message));
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Cancelled => {
                ended.stopped = Some(job.state.stopping.unwrap_or(StopCause::Cancelled));
                TaskUpdate::Ended(Box::new(ended))
            }
            JobStatus::Pending | JobStatus::Scheduled => {
                return Err(illegal_transition(present, status));
            }
        };
        self.nodes.update(node, |node| node.record_sign(now));
        self.apply_task_update(node, Report { key, update });
        Ok(())
    }
}

/// Error for a change of status that the present status does not permit.
pub(super) fn illegal_transition(from: JobStatus, to: JobStatus) -> ApiError {
    ApiError::conflict(
        ErrorCode::IllegalTransition,
        format!("a job that is {} cannot become {}", from.as_str(), to.as_str()),
    )
}

/// Outcome of a task that ended.
enum Outcome {
    Success,
    /// Stopped only to run again.
    Requeue(StopCause),
    Cancelled,
    Failure {
        reason: EndReason,
        cause: Option<EndCause>,
        message: String,
    },
}

impl Outcome {
    fn of(ended: &Ended) -> Self {
        let failure = |reason, cause, detail: &str| {
            let end = End { reason: Some(reason), cause, exit_code: ended.exit_code, detail };
            Self::Failure { reason, cause, message: agentaflow_explain::end(&end).summary }
        };
        if let Some(failed) = &ended.failed_to_start {
            let reason = match failed.reason {
                known @ (EndReason::ImagePull | EndReason::Exited) => known,
                _ => EndReason::StartFailed,
            };
            let cause = failed.cause.or_else(|| find_cause(&failed.detail));
            return Self::Failure { reason, cause, message: failed.detail.clone() };
        }
        match ended.stopped {
            Some(StopCause::Cancelled) => return Self::Cancelled,
            Some(cause) if requeues(cause) => return Self::Requeue(cause),
            Some(cause) => {
                if let Some(reason) = cause.end_reason() {
                    return failure(reason, None, "");
                }
            }
            None => {}
        }
        if ended.out_of_memory {
            return failure(EndReason::OutOfMemory, None, "");
        }
        // The last output of a program tells more than its exit code.
        let cause = find_cause(&ended.log_tail);
        match (ended.exit_code, ended.signal) {
            (_, Some(_)) => failure(EndReason::Signalled, cause, ""),
            (Some(0), None) => Self::Success,
            (Some(_), None) => failure(EndReason::Exited, cause, ""),
            (None, None) => {
                failure(EndReason::StartFailed, None, "The agent does not know how the task ended")
            }
        }
    }
}

fn add_usage(sum: &mut ResourceUsage, more: &ResourceUsage) {
    sum.gpu_memory = sum.gpu_memory.max(more.gpu_memory);
    sum.memory = sum.memory.max(more.memory);
    sum.storage = sum.storage.max(more.storage);
    sum.cpu_cores = sum.cpu_cores.max(more.cpu_cores);
}
