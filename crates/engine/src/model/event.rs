//! What happens in the world: everything that changes the engine's state.

use serde::{Deserialize, Serialize};

use crate::apply::adopt::AdoptedWorkload;
use crate::model::error::InvalidInput;
use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, WorkloadId};
use crate::model::node::{ForeignUse, GpuHealth, Node};
use crate::model::policy::{Policy, Queue};
use crate::model::request::{GpuRequest, Request, limit};
use crate::model::units::{MAX_AMOUNT, MilliCpu, Percent, Time};
use crate::model::workload::{Gate, Workload};
use crate::strategy::Strategy;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A node was seen: new, back again, or with other capacity, labels or taints.
    NodeUpdated(Box<Node>),
    /// A node does not answer any more.
    NodeLost(NodeId),
    /// A node is gone for good.
    NodeRemoved(NodeId),
    /// Nothing new on this node, or again.
    Cordon {
        /// The node.
        node: NodeId,
        /// Closed, or open again.
        on: bool,
    },
    /// Move everything off this node, or no longer.
    Drain {
        /// The node.
        node: NodeId,
        /// Begin, or stop.
        on: bool,
    },
    /// The cloud takes this node back soon.
    SpotReclaim {
        /// The node.
        node: NodeId,
        /// When it will be gone.
        at: Time,
    },
    /// A GPU's health changed.
    GpuHealth {
        /// The node.
        node: NodeId,
        /// The GPU.
        gpu: GpuId,
        /// How it is now.
        health: GpuHealth,
    },
    /// Live readings of a node's GPUs.
    Utilization {
        /// The node.
        node: NodeId,
        /// GPU and reading.
        readings: Vec<(GpuId, Percent)>,
    },
    /// Somebody else uses the node, or now uses other amounts.
    ForeignUseUpdated {
        /// The node.
        node: NodeId,
        /// Whose use.
        id: ForeignId,
        /// How much.
        usage: Box<ForeignUse>,
    },
    /// That use is over.
    ForeignUseRemoved {
        /// The node.
        node: NodeId,
        /// Whose use.
        id: ForeignId,
    },
    /// A workload was handed in.
    Submitted(Box<Workload>),
    /// A workload was found that has places already. They are facts, whether or not there is room.
    AdoptedWorkload(Box<AdoptedWorkload>),
    /// A workload may not be placed yet, or may be now.
    GateChanged {
        /// The workload.
        workload: WorkloadId,
        /// Why not; none opens the gate.
        gate: Option<Gate>,
    },
    /// A workload is not wanted any more, and nothing of it runs.
    Cancelled(WorkloadId),
    /// A workload is over.
    Finished(WorkloadId),
    /// One task of a workload is over; the workload is when all are.
    TaskFinished {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// Nothing of the workload runs any more and it is to be planned again; it keeps its age.
    Requeued(WorkloadId),
    /// A placement was carried out.
    PlacementConfirmed {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// A placement could not be carried out.
    PlacementRefused {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// The devices that a task really has.
    DevicesReported {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
        /// The GPUs.
        gpus: Vec<GpuId>,
    },
    /// A task is being stopped; it still holds what it has.
    TaskTerminating {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// A task that was being stopped is gone. When all are, the workload waits again.
    TaskStopped {
        /// The workload.
        workload: WorkloadId,
        /// The task.
        task: u32,
    },
    /// Others were being stopped on these nodes for a waiting workload when the body last stopped.
    Nominated {
        /// The workload.
        workload: WorkloadId,
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// A queue was made or changed.
    QueueUpdated(Box<Queue>),
    /// A queue was removed.
    QueueRemoved(QueueId),
    /// The cluster's settings changed.
    PolicyUpdated(Box<Policy>),
    /// The cluster's default strategy changed.
    StrategyUpdated(Strategy),
    /// How many tasks a disruption budget lets go now.
    BudgetUpdated {
        /// The budget.
        id: BudgetId,
        /// Tasks that may be stopped.
        allowed: u32,
    },
    /// A disruption budget was removed.
    BudgetRemoved(BudgetId),
    /// Stopping a workload draws on other budgets than before.
    WorkloadBudgetsUpdated {
        /// The workload.
        workload: WorkloadId,
        /// All budgets that it draws on now.
        budgets: Vec<BudgetId>,
    },
    /// The demand to expect, for strategies that look ahead; none: learn it from what is handed in.
    DemandUpdated(Option<Vec<Demand>>),
}

/// A kind of task to expect, and how many of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// CPU of a task.
    pub cpu: MilliCpu,
    /// GPUs of a task.
    pub gpu: GpuRequest,
    /// Models that it can use; empty means any.
    pub models: Vec<GpuModel>,
    /// How many.
    pub count: u64,
}

impl Demand {
    /// Refuses values that cannot be right; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        limit("the number of tasks to expect", self.count, MAX_AMOUNT)?;
        Request { cpu: self.cpu, gpu: self.gpu, ..Request::default() }.validate()
    }
}
