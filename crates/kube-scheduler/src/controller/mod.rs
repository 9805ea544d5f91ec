//! The `GPUWorkload` controller as a pure function: a workload, its pods and what the scheduler thinks go in;
//! pods to make and to delete, and the status to write, come out. No I/O and no clock.
//!
//! What is remembered lies in two places only, so that a crash between two writes loses nothing: the pods
//! themselves (labels for task and attempt, an annotation for the retries spent before), and the workload's
//! status. The names of pods follow from what was seen, so a pod that is made twice because a watch
//! lags behind is refused by the API server instead of running twice.
//!
//! Where to look first: `reconcile.rs` is one look at a workload from beginning to end.

mod assignment;
mod condition;
mod lifecycle;
mod pod_creation;
mod reconcile;
mod task_pod;
mod task_table;

#[cfg(test)]
mod tests;

pub use reconcile::reconcile;

use agentaflow_kube_core::crd::GpuWorkloadStatus;
use std::collections::BTreeSet;

/// What the scheduler thinks of a workload now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchedulerView {
    /// Why it is not placed, if it is not.
    pub reason: Option<PendingReason>,
    /// Where its tasks are about to go.
    pub planned: Vec<PlannedTask>,
    /// What the API server said when it last refused to make a pod of it; none once one was made.
    pub rejected: Option<String>,
    /// Pods whose deletion was asked for and that were not seen to end yet.
    pub deleting: BTreeSet<String>,
}

/// Why a workload waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingReason {
    /// One word, such as `NoRoom` or `QuotaExceeded`.
    pub word: String,
    /// One sentence.
    pub message: String,
}

/// Where a task is about to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTask {
    /// The task.
    pub task: u32,
    /// The node.
    pub node: String,
    /// The ids of the GPUs on that node.
    pub gpus: Vec<String>,
}

/// What is to be done for a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciled {
    /// Pods to make. One that exists already is as good as made.
    pub create: Vec<NewPod>,
    /// Pods to delete.
    pub delete: Vec<DeletePod>,
    /// The status to write, when it differs from the one that is there.
    pub status: Option<GpuWorkloadStatus>,
    /// What to do about our finalizer.
    pub finalizer: Finalizer,
    /// Events to record on the workload.
    pub notes: Vec<WorkloadEvent>,
    /// When to look again even if nothing happens.
    pub wake: Option<jiff::Timestamp>,
}

/// A pod to make.
#[derive(Clone, PartialEq)]
pub struct NewPod {
    /// Its name.
    pub name: String,
    /// The pod as it is sent to the API server.
    pub body: serde_json::Value,
}

/// The body holds people's commands and variables, which belong in no log.
impl std::fmt::Debug for NewPod {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("NewPod").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletePod {
    /// Its name.
    pub name: String,
    /// Only this one, not another of the same name.
    pub uid: String,
    /// Why, in one word.
    pub why: &'static str,
    /// Seconds it may take to stop; its own when absent.
    pub grace: Option<u32>,
}

/// What to do about our finalizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finalizer {
    /// Nothing.
    #[default]
    Keep,
    /// Put it on the workload.
    Add,
    /// Take it off: nothing of the workload is left.
    Remove,
}

/// An Event to record on the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadEvent {
    /// Good or bad news.
    pub kind: EventType,
    /// One word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// Good or bad news, as Kubernetes tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Good, or expected.
    Normal,
    /// Bad.
    Warning,
}
