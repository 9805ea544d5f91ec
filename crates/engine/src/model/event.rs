//! Events: every change that a driver reports to the engine.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::model::adopted::AdoptedWorkload;
use crate::model::error::InvalidInput;
use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, QueueId, WorkloadId};
use crate::model::node::{ForeignUse, GpuHealth, Node};
use crate::model::policy::{Policy, Queue};
use crate::model::request::{GpuRequest, Request, limit};
use crate::model::units::{MAX_AMOUNT, MilliCpu, Percent, Priority, Time};
use crate::model::workload::{Gate, Workload};
use crate::strategy::Strategy;

/// Input of [`Scheduler::apply`](crate::Scheduler::apply). A rejected event changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A node joined, became reachable again, or changed its capacity, labels or taints.
    NodeUpdated(Box<Node>),
    /// The node is unreachable. Its workloads are displaced according to their [`OnFault`](crate::OnFault).
    NodeLost(NodeId),
    /// The node left the cluster for good. Its workloads are requeued.
    NodeRemoved(NodeId),
    /// Marks a node unschedulable (`on`) or schedulable again.
    Cordon {
        node: NodeId,
        on: bool,
    },
    /// Starts (`on`) or ends a drain: the node takes no new work and displaces its workloads.
    Drain {
        node: NodeId,
        on: bool,
    },
    /// The cloud provider reclaims this spot node at the time `at`.
    SpotReclaim {
        node: NodeId,
        at: Time,
    },
    GpuHealth {
        node: NodeId,
        gpu: GpuId,
        health: GpuHealth,
    },
    /// Live utilization of a node's GPUs.
    Utilization {
        node: NodeId,
        readings: Vec<(GpuId, Percent)>,
    },
    /// Replaces the foreign usage with this id on the node.
    ForeignUseUpdated {
        node: NodeId,
        id: ForeignId,
        usage: Box<ForeignUse>,
    },
    ForeignUseRemoved {
        node: NodeId,
        id: ForeignId,
    },
    /// Replaces, or with `None` removes, the pending task with this id of another scheduler.
    ForeignDemandUpdated {
        id: ForeignId,
        demand: Option<Box<ForeignDemand>>,
    },
    Submitted(Box<Workload>),
    /// The workload already runs on nodes. The engine books it there even beyond capacity.
    Adopted(Box<AdoptedWorkload>),
    /// Sets or, with `None`, removes the gate that blocks scheduling of the workload.
    GateChanged {
        workload: WorkloadId,
        gate: Option<Gate>,
    },
    /// The workload was cancelled and none of its tasks runs.
    Cancelled(WorkloadId),
    /// All tasks of the workload ended.
    Finished(WorkloadId),
    /// One task ended. The workload finishes with its last task.
    TaskFinished {
        workload: WorkloadId,
        task: u32,
    },
    /// No task of the workload runs any more and the driver wants it scheduled again. The workload keeps
    /// its submission time.
    Requeued(WorkloadId),
    /// The driver started the task as placed.
    PlacementConfirmed {
        workload: WorkloadId,
        task: u32,
    },
    /// The driver could not start the task as placed. The workload retries after a backoff.
    PlacementRefused {
        workload: WorkloadId,
        task: u32,
    },
    /// The devices that the node assigned to the task.
    DevicesReported {
        workload: WorkloadId,
        task: u32,
        gpus: Vec<GpuId>,
    },
    /// The task is terminating; it holds its resources until [`TaskStopped`](Event::TaskStopped).
    TaskTerminating {
        workload: WorkloadId,
        task: u32,
    },
    /// A terminating task ended. After its last task the workload is pending again.
    TaskStopped {
        workload: WorkloadId,
        task: u32,
    },
    /// A task of a running workload ended before its work was done, and the driver expects a replacement. Its
    /// place stays reserved; without a replacement in time the workload restarts as a whole.
    TaskLost {
        workload: WorkloadId,
        task: u32,
    },
    /// The replacement of a lost task exists and can be placed.
    TaskReplaced {
        workload: WorkloadId,
        task: u32,
    },
    /// Before the driver restarted, victims were terminating on these nodes for a pending workload.
    Nominated {
        workload: WorkloadId,
        nodes: Vec<NodeId>,
    },
    QueueUpdated(Box<Queue>),
    QueueRemoved(QueueId),
    PolicyUpdated(Box<Policy>),
    /// Replaces the cluster's default strategy only.
    StrategyUpdated(Strategy),
    /// Sets the number of tasks that a disruption budget allows to be stopped now.
    BudgetUpdated {
        id: BudgetId,
        allowed: u32,
    },
    BudgetRemoved(BudgetId),
    /// Replaces the disruption budgets that protect a workload.
    WorkloadBudgetsUpdated {
        workload: WorkloadId,
        budgets: Vec<BudgetId>,
    },
    /// Pins the expected demand for strategies that look ahead; `None` learns it from submissions.
    DemandUpdated(Option<Vec<Demand>>),
}

/// A pending task of another scheduler, which may take room that a preemption frees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignDemand {
    pub request: Arc<Request>,
    pub priority: Priority,
    pub submitted: Time,
}

/// One class of expected tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// CPU per task.
    pub cpu: MilliCpu,
    /// GPUs per task.
    pub gpu: GpuRequest,
    /// Accepted models; empty means any.
    pub models: Vec<GpuModel>,
    /// Number of such tasks, relative to the other classes.
    pub count: u64,
}

impl Demand {
    /// Rejects out-of-range values; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        limit("the number of expected tasks", self.count, MAX_AMOUNT)?;
        Request { cpu: self.cpu, gpu: self.gpu, ..Request::default() }.validate()
    }
}
