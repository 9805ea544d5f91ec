//! Restarts of applications after a driver error (XID) that asks for one.

use std::time::{Duration, Instant};

use agentaflow_api::link::{StopCause, TaskKey};

use super::Tasks;
use crate::gpus::ApplicationFault;

/// Time in which an application ends by itself, as most do.
const OWN_END: Duration = Duration::from_secs(10);

/// Tasks that will be stopped, so that the server starts their jobs again.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    due: Vec<(TaskKey, Instant)>,
}

impl Restarts {
    /// Reports a driver error to each task on the GPU. The only task of a GPU is restarted if its job has a retry left: on a
    /// shared GPU the driver does not tell which application failed.
    pub(crate) fn record(&mut self, fault: &ApplicationFault, tasks: &Tasks, now: Instant) {
        let live = tasks.live();
        let uses = |uuid: &String| *uuid == fault.uuid;
        let mut affected = live
            .iter()
            .filter(|task| task.assignment.gpus.iter().any(|grant| uses(&grant.uuid)))
            .peekable();
        let first = affected.peek().map(|task| (task.key, task.assignment.restart_on_gpu_error));
        let mut count = 0;
        for task in affected {
            count += 1;
            let message = format!("GPU {}: {}", fault.uuid, fault.message);
            tasks.host.outbox.warn(task.key, message);
        }
        if let Some((key, true)) = first
            && count == 1
            && self.due.iter().all(|(known, _)| *known != key)
        {
            self.due.push((key, now + OWN_END));
        }
    }

    /// Stops the tasks that did not end by themselves.
    pub(crate) fn stop_due(&mut self, tasks: &Tasks, now: Instant) {
        let is_due = |(_, at): &(TaskKey, Instant)| *at <= now;
        for (key, _) in self.due.extract_if(.., |entry| is_due(entry)) {
            tasks.stop_own(key, StopCause::GpuApplicationError);
        }
    }
}
