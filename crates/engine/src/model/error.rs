//! What the engine refuses, and why: the state is unchanged after any of these.

use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, WorkloadId};
use crate::model::units::MiB;

/// A value that cannot be right, whatever the state of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInput {
    /// A GPU share outside 1 to 1000.
    #[error("a GPU share is 1 to 1000 thousandths, not {0}")]
    Share(u32),
    /// A utilisation that is no percentage.
    #[error("a utilisation is a number from 0 to 100, not {0}")]
    Percent(String),
    /// An amount beyond anything real.
    #[error("{field} is {value}, more than the {limit} that is accepted")]
    TooLarge {
        /// Which amount.
        field: &'static str,
        /// What was given.
        value: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// An amount that must be at least one.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A priority above the highest.
    #[error("a priority is 0 to 10, not {0}")]
    Priority(u8),
    /// A MIG profile that no GPU has.
    #[error("no GPU has a MIG profile `{0}`")]
    MigProfile(String),
    /// A GPU in MIG mode whose slices are not known.
    #[error("nothing is known about the MIG slices of a `{model}` with {memory}")]
    MigGeometry {
        /// Its model.
        model: GpuModel,
        /// Its memory.
        memory: MiB,
    },
    /// Fixed slices that the GPU does not have, or that overlap.
    #[error("the MIG slices of GPU `{gpu}` cannot all exist on a `{model}`")]
    MigLayout {
        /// The GPU.
        gpu: GpuId,
        /// Its model.
        model: GpuModel,
    },
    /// A name that is empty or too long.
    #[error("{field} `{name}` is empty or longer than {limit} characters")]
    Name {
        /// Which name.
        field: &'static str,
        /// The name as given, shortened.
        name: String,
        /// The longest accepted.
        limit: usize,
    },
    /// The same GPU named twice.
    #[error("GPU `{0}` is named twice")]
    DuplicateGpu(GpuId),
    /// A label expression or taint that makes no sense.
    #[error("{0}")]
    Label(String),
    /// Parts of a request that contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// A strategy nobody knows.
    #[error("no strategy is called `{0}`; there are {1}")]
    Strategy(String, String),
}

/// Why an event was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The values themselves are wrong.
    #[error(transparent)]
    Invalid(#[from] InvalidInput),
    /// A workload with this name waits or runs already.
    #[error("workload `{0}` exists already")]
    DuplicateWorkload(WorkloadId),
    /// No such workload.
    #[error("no workload is called `{0}`")]
    UnknownWorkload(WorkloadId),
    /// The workload has no such task.
    #[error("workload `{workload}` has {tasks} tasks and no task {task}")]
    UnknownTask {
        /// The workload.
        workload: WorkloadId,
        /// The task that was named.
        task: u32,
        /// How many it has.
        tasks: u32,
    },
    /// The task is not placed, so it cannot be confirmed, refused, moved or ended.
    #[error("task {task} of workload `{workload}` is not placed")]
    NotPlaced {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// A task of a workload that has places already is neither placed nor over, or is named twice.
    #[error("task {task} of workload `{workload}` needs one place, or to be over")]
    Incomplete {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// No such node.
    #[error("no node is called `{0}`")]
    UnknownNode(NodeId),
    /// The node has no such GPU.
    #[error("node `{node}` has no GPU `{gpu}`")]
    UnknownGpu {
        /// The node.
        node: NodeId,
        /// The GPU that was named.
        gpu: GpuId,
    },
    /// The number of devices differs from what was asked for.
    #[error("task {task} of workload `{workload}` has {asked} GPUs, {given} were named")]
    DeviceCount {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
        /// GPUs of its placement.
        asked: usize,
        /// GPUs in the event.
        given: usize,
    },
    /// No such queue.
    #[error("no queue is called `{0}`")]
    UnknownQueue(QueueId),
    /// The queue cannot be changed like that.
    #[error("queue `{queue}` {why}")]
    Queue {
        /// The queue.
        queue: QueueId,
        /// What stands in the way.
        why: &'static str,
    },
    /// Foreign use that was never seen.
    #[error("node `{node}` has no foreign use called `{foreign}`")]
    UnknownForeign {
        /// The node.
        node: NodeId,
        /// The use that was named.
        foreign: ForeignId,
    },
    /// No such budget.
    #[error("no disruption budget is called `{0}`")]
    UnknownBudget(BudgetId),
    /// A snapshot that contradicts itself.
    #[error("the snapshot contradicts itself: {0}")]
    Snapshot(String),
}
