//! Errors of rejected input. A rejected event leaves the state unchanged.

use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, WorkloadId};
use crate::model::units::MiB;

/// A value that is invalid in every state of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInput {
    #[error("a GPU share must be 1 to 1000 thousandths, got {0}")]
    Share(u32),
    #[error("a utilization must be 0 to 100 percent, got {0}")]
    Percent(String),
    #[error("{field} is {value}, above the limit of {limit}")]
    TooLarge { field: &'static str, value: u64, limit: u64 },
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("unknown MIG profile `{0}`")]
    MigProfile(String),
    /// The GPU is in MIG mode, but the engine has no slice table for the model.
    #[error("unknown MIG geometry for `{model}` with {memory}")]
    MigGeometry { model: GpuModel, memory: MiB },
    /// Fixed slices that the model does not offer, or that overlap.
    #[error("the MIG slices of GPU `{gpu}` are not a valid layout for `{model}`")]
    MigLayout { gpu: GpuId, model: GpuModel },
    #[error("{field} `{name}` is empty or longer than {limit} bytes")]
    Name {
        field: &'static str,
        /// The name as given, shortened.
        name: String,
        limit: usize,
    },
    #[error("GPU `{0}` appears twice")]
    DuplicateGpu(GpuId),
    /// An invalid label expression, taint or toleration.
    #[error("{0}")]
    Label(String),
    /// Fields of a request that contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
    #[error("unknown strategy `{0}`; known strategies: {1}")]
    Strategy(String, String),
}

/// The reason for which the engine rejected an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    #[error("workload `{0}` already exists")]
    DuplicateWorkload(WorkloadId),
    #[error("workload `{0}` not found")]
    UnknownWorkload(WorkloadId),
    #[error("workload `{workload}` has no task {task}; it has {tasks} tasks")]
    UnknownTask {
        workload: WorkloadId,
        task: u32,
        /// Number of tasks of the workload.
        tasks: u32,
    },
    /// The event needs a placed task.
    #[error("task {task} of workload `{workload}` is not placed")]
    NotPlaced { workload: WorkloadId, task: u32 },
    /// A task of an adopted workload is missing, or appears twice.
    #[error("task {task} of workload `{workload}` must appear once, placed or finished")]
    Incomplete { workload: WorkloadId, task: u32 },
    #[error("node `{0}` not found")]
    UnknownNode(NodeId),
    #[error("node `{node}` has no GPU `{gpu}`")]
    UnknownGpu { node: NodeId, gpu: GpuId },
    #[error("task {task} of workload `{workload}` has {asked} GPUs, but the event names {given}")]
    DeviceCount {
        workload: WorkloadId,
        task: u32,
        /// GPUs of the task's placement.
        asked: usize,
        /// GPUs in the event.
        given: usize,
    },
    #[error("queue `{0}` not found")]
    UnknownQueue(QueueId),
    #[error("queue `{queue}` {why}")]
    Queue { queue: QueueId, why: &'static str },
    #[error("node `{node}` has no foreign use `{foreign}`")]
    UnknownForeign { node: NodeId, foreign: ForeignId },
    #[error("disruption budget `{0}` not found")]
    UnknownBudget(BudgetId),
    #[error("inconsistent snapshot: {0}")]
    Snapshot(String),
}
