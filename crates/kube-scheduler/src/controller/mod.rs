//! The `GPUWorkload` controller as a pure function: a workload, its pods and the scheduler's view go in; pods to create and
//! delete, and the status to write, come out. No I/O and no clock.
//!
//! The controller remembers nothing between two calls, so that a crash between two writes loses nothing. Its memory are the
//! pods themselves (labels for task and attempt, an annotation for the retries before) and the status of the workload. Pod
//! names follow from these, so that the API server refuses a pod that is created twice because a watch lags.
//!
//! Open `reconcile.rs` first.

mod assignment;
mod condition;
mod lifecycle;
mod pod_creation;
mod reconcile;
mod task_pod;
mod task_table;

#[cfg(test)]
mod tests;

pub(crate) use condition::{WAITING_FOR_QUOTA, WAITING_FOR_REPLACEMENT};
pub use reconcile::reconcile;
pub(crate) use task_table::is_completed;

use agentaflow_kube_core::crd::GpuWorkloadStatus;
use std::collections::BTreeSet;

/// The scheduler's view of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    /// Reason for which the workload is not placed.
    pub reason: Option<PendingReason>,
    /// Placements that are being bound.
    pub planned: Vec<PlannedTask>,
    /// The API server's reason for refusing the last pod; none once a pod was created.
    pub rejected: Option<String>,
    /// Deleted pods that the watch has not reported as ending.
    pub deleting: BTreeSet<String>,
    pub turn: QuotaTurn,
}

/// Turn of a gang among the gangs of its namespace after the API server refused pods, as under a `ResourceQuota`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QuotaTurn {
    /// No contention.
    #[default]
    Free,
    /// The gang creates its pods when ready; other gangs give back theirs.
    Own { ready: bool, at: jiff::Timestamp },
    /// Another gang, by kind and name, gets its pods first.
    Wait { holder: String },
    /// The pods were refused in the gang's own turn.
    BackOff { until: jiff::Timestamp },
}

/// Reason for which a workload is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingReason {
    /// In `CamelCase`, such as `NoRoom` or `QuotaExceeded`.
    pub code: String,
    pub message: String,
}

/// Placement of a task that is being bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTask {
    pub task: u32,
    pub node: String,
    /// GPU ids on that node.
    pub gpus: Vec<String>,
}

/// Result of one reconciliation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciled {
    /// A pod that exists already under the workload's ownership counts as created.
    pub create: Vec<NewPod>,
    /// The headless Service of a gang whose pods are created; it may exist.
    pub service: Option<serde_json::Value>,
    /// The time after the end is over: the workload is deleted.
    pub expired: bool,
    pub delete: Vec<DeletePod>,
    /// The status to write, if it differs from the present one.
    pub status: Option<GpuWorkloadStatus>,
    /// The workload has the finalizer of earlier versions. Owner references make it unnecessary, and a finalizer blocks the
    /// deletion of a namespace while no scheduler runs.
    pub remove_finalizer: bool,
    pub events: Vec<WorkloadEvent>,
    /// Tasks lack pods.
    pub incomplete: bool,
    /// Time of the next reconciliation if nothing happens before.
    pub wake: Option<jiff::Timestamp>,
}

#[derive(Clone, PartialEq)]
pub struct NewPod {
    pub name: String,
    /// The pod as sent to the API server.
    pub body: serde_json::Value,
}

/// Without the body: commands and variables of users belong in no log.
impl std::fmt::Debug for NewPod {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NewPod").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletePod {
    pub name: String,
    /// Another pod of the same name is not deleted.
    pub uid: String,
    /// In `CamelCase`.
    pub why: &'static str,
    /// Grace period in seconds; the pod's own if absent.
    pub grace: Option<u32>,
}

/// An Event about the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadEvent {
    pub event_type: EventType,
    /// In `CamelCase`.
    pub reason: &'static str,
    pub message: String,
}

/// Type of a Kubernetes Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}
