//! Tasks on a node and the resources that they hold.

use std::time::Instant;

use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::link::TaskUse;

use crate::core::job::workload::DEFAULT_GRACE;
use crate::store::{JobRow, TaskAssignment};

/// A task of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskRef {
    pub(crate) job: JobId,
    pub(crate) task: u32,
}

/// Resources of a node that a task holds.
#[derive(Clone, Debug)]
pub(crate) struct TaskBooking {
    /// Time of the assignment, or of the start of the server.
    pub(super) since: Instant,
    /// Owner of the job.
    pub(super) user: UserId,
    pub(super) gpus: Vec<GpuBooking>,
    pub(super) cpu_milli: u64,
    /// MiB.
    pub(super) memory: u64,
    /// GiB.
    pub(super) storage: u64,
    /// Seconds between SIGTERM and SIGKILL.
    pub(super) stop_grace: u32,
    /// Use as of the last heartbeat.
    pub(super) used: Option<TaskUse>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct GpuBooking {
    pub(super) index: u32,
    /// MiB.
    pub(super) memory: u64,
}

impl TaskBooking {
    pub(crate) fn new(job: &JobRow, task: &TaskAssignment) -> Self {
        let gpu = |grant: &agentaflow_api::link::GpuGrant| GpuBooking {
            index: grant.index,
            memory: grant.memory,
        };
        Self {
            since: Instant::now(),
            user: job.user_id,
            gpus: task.grants.iter().map(gpu).collect(),
            cpu_milli: job.spec.cpu_cores_required.unwrap_or_default().0,
            memory: job.spec.memory_required.unwrap_or(0),
            storage: job.spec.storage_required.unwrap_or(0),
            stop_grace: job.spec.stop_grace_seconds.unwrap_or(DEFAULT_GRACE),
            used: None,
        }
    }
}
