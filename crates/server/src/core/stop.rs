//! Cancellation of jobs and stops of their tasks.

use agentaflow_api::end::EndReason;
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::{JobId, NodeId};
use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::link::{Message, Stop, StopCause};
use agentaflow_engine::Event;

use super::job::workload::{grace_ms, workload_id};
use super::state::State;
use crate::api_error::ApiError;
use crate::store::JobRow;

/// Requested end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedEnd {
    Cancel,
    /// The job counts as completed.
    Complete,
}

/// A stop for the agent of a node.
#[derive(Debug)]
pub(super) struct NodeStop {
    pub(super) node: NodeId,
    pub(super) stop: Stop,
}

impl State {
    /// Ends a job: at once if no task is live, through its agents otherwise.
    pub(super) fn end_job(
        &mut self,
        by: &str,
        id: JobId,
        end: RequestedEnd,
    ) -> Result<(), ApiError> {
        let Some(job) = self.jobs.get(id) else {
            return Err(ApiError::conflict(ErrorCode::AlreadyOver, "the job has already ended"));
        };
        if job.state.cancel_requested {
            return Ok(());
        }
        let has_live_task = job.state.has_live_task();
        self.jobs.update(id, |state| {
            state.cancel_requested = true;
            state.complete_requested = end == RequestedEnd::Complete;
        });
        let (kind, verb) = match end {
            RequestedEnd::Cancel => (EventKind::CancelRequested, "cancel"),
            RequestedEnd::Complete => (EventKind::CompleteRequested, "complete"),
        };
        self.job_event(id, kind, format!("`{by}` requested to {verb} the job"));
        if has_live_task {
            self.stop_tasks(id, StopCause::Cancelled, None);
            self.end_tasks_on_lost_nodes(id);
            return Ok(());
        }
        match end {
            RequestedEnd::Complete => {
                self.finish_job(id, JobStatus::Completed, EndReason::Completed, None);
            }
            RequestedEnd::Cancel => {
                let message = Some("cancelled before it started".into());
                self.finish_job(id, JobStatus::Cancelled, EndReason::Cancelled, message);
            }
        }
        Ok(())
    }

    /// Sends a stop to every live task of a job. A cancellation or failure replaces a cause that only moves the job.
    pub(super) fn stop_tasks(&mut self, id: JobId, cause: StopCause, grace: Option<u64>) {
        self.jobs.update(id, |state| {
            if state.stopping.is_none_or(requeues) {
                state.stopping = Some(cause);
            }
        });
        let Some(job) = self.jobs.get(id) else { return };
        for NodeStop { node, stop } in stops(job, grace) {
            let task = stop.key.task;
            self.journal.send(node, Message::Stop(stop));
            self.engine.apply(Event::TaskTerminating { workload: workload_id(id), task });
        }
    }
}

/// Stops of the live tasks of a job that is being stopped.
pub(super) fn stops(job: &JobRow, grace: Option<u64>) -> Vec<NodeStop> {
    let Some(cause) = job.state.stopping else { return Vec::new() };
    let grace_ms = grace.unwrap_or_else(|| grace_ms(&job.spec));
    let live = job.state.tasks.iter().filter(|task| task.state != TaskState::Ended);
    live.map(|task| {
        let key = job.task_key(task.task);
        NodeStop { node: task.node, stop: Stop { key, cause, grace_ms } }
    })
    .collect()
}

/// Returns true if a job that was stopped for this cause is requeued.
pub(super) fn requeues(cause: StopCause) -> bool {
    matches!(
        cause,
        StopCause::Drained
            | StopCause::Preempted
            | StopCause::Shutdown
            | StopCause::GpuUnhealthy
            | StopCause::GangBroken
            | StopCause::Replaced
            | StopCause::LeaseLost
    )
}
