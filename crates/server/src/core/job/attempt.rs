//! Attempts of a job: each placement starts a new one.

use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::units::Stamp;

use agentaflow_api::link::TaskKey;

use crate::store::{JobRow, JobState, TaskAssignment};

impl JobRow {
    /// Key of a task of the current attempt.
    pub(crate) fn task_key(&self, task: u32) -> TaskKey {
        let JobState { epoch, incarnation, .. } = self.state;
        TaskKey { job: self.id, epoch, incarnation, task }
    }
}

impl JobState {
    /// Starts the next attempt with these tasks.
    pub(crate) fn begin_attempt(
        &mut self,
        tasks: Vec<TaskAssignment>,
        incarnation: u32,
        now: Stamp,
    ) {
        self.epoch += 1;
        self.incarnation = incarnation;
        self.status = JobStatus::Scheduled;
        self.scheduled_at = Some(now);
        self.tasks = tasks;
        self.pending_reason = None;
        self.warned_at = None;
        self.clear_outcome();
    }

    /// Makes the job pending after an attempt. The tasks stay until the next attempt.
    pub(crate) fn end_attempt(&mut self) {
        self.status = JobStatus::Pending;
        self.scheduled_at = None;
        self.started_at = None;
        self.failed_at = None;
        self.clear_outcome();
    }

    fn clear_outcome(&mut self) {
        self.stopping = None;
        self.end_reason = None;
        self.end_cause = None;
        self.error_message = None;
        self.exit_code = None;
    }

    /// Returns true if a task of the current attempt has not ended.
    pub(crate) fn has_live_task(&self) -> bool {
        self.tasks.iter().any(|task| task.state != TaskState::Ended)
    }
}
