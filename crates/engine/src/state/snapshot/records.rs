//! The records that a snapshot consists of.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::decision::{Decision, GpuAllocation};
use crate::model::event::{Demand, ForeignDemand};
use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, ResourceName, WorkloadId};
use crate::model::node::{ForeignUse, GpuHealth, Node};
use crate::model::policy::{Policy, Queue};
use crate::model::units::{Percent, Time};
use crate::model::wait::{WaitClass, WaitReason};
use crate::model::workload::Workload;
use crate::state::scheduler::RoundRobinCursor;
use crate::state::workloads::{Replacement, WorkloadPhase};
use crate::strategy::Strategy;
use crate::strategy::demand::TaskClass;

/// The complete state of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Time of the latest event or pass.
    pub now: Time,
    pub policy: Policy,
    /// GPU models and named resources in the order of their first appearance, which breaks ties.
    pub vocabulary: (Vec<GpuModel>, Vec<ResourceName>),
    /// Parents before children.
    pub queues: Vec<QueueSnapshot>,
    pub nodes: Vec<NodeSnapshot>,
    /// Oldest first.
    pub workloads: Vec<WorkloadSnapshot>,
    pub budgets: BTreeMap<BudgetId, u32>,
    /// Pending tasks of other schedulers.
    pub foreign_demand: BTreeMap<ForeignId, ForeignDemand>,
    pub cursor: Option<RoundRobinCursor>,
    pub holds: Vec<HoldSnapshot>,
    /// Workloads that quota is reserved for, oldest first.
    pub savers: Vec<WorkloadId>,
    /// First member and wait reason of each blocked group.
    pub blocked_groups: Vec<(WorkloadId, Arc<WaitReason>)>,
    pub demand: DemandSnapshot,
    /// Times at which blocked groups are tried again.
    pub timers: BTreeSet<Time>,
    /// Decisions of the next plan.
    pub queued_decisions: Vec<Decision>,
    /// The next pass tries blocked groups again.
    pub retry_blocked: bool,
}

/// A queue and its past usage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueSnapshot {
    pub queue: Queue,
    /// Past usage of the queue itself and of its subtree, as bit patterns of `f64`.
    #[serde(default)]
    pub past: [[u64; 4]; 2],
    /// Time up to which each of the two is counted.
    #[serde(default)]
    pub as_of: [Time; 2],
}

/// A node and its condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    pub node: Node,
    #[serde(default)]
    pub lost: bool,
    #[serde(default)]
    pub cordoned: bool,
    #[serde(default)]
    pub draining: bool,
    /// Time at which the cloud provider reclaims the node.
    #[serde(default)]
    pub reclaimed: Option<Time>,
    /// GPUs that are not healthy.
    #[serde(default)]
    pub health: BTreeMap<GpuId, GpuHealth>,
    #[serde(default)]
    pub utilization: BTreeMap<GpuId, Percent>,
    /// Foreign use, and the GPUs assumed for its unnamed ones.
    #[serde(default)]
    pub foreign: BTreeMap<ForeignId, (ForeignUse, Vec<GpuId>)>,
}

/// A workload and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSnapshot {
    /// `submitted` is always set.
    pub workload: Workload,
    pub phase: WorkloadPhase,
    #[serde(default)]
    pub placed_at: Time,
    /// Tasks that have a node.
    #[serde(default)]
    pub tasks: Vec<TaskSnapshot>,
    #[serde(default)]
    pub finished: BTreeSet<u32>,
    /// Tasks that wait for a replacement; their reserved places are in `tasks`.
    #[serde(default)]
    pub lost: Vec<LostTaskSnapshot>,
    /// Refused placements since the last confirmed one.
    #[serde(default)]
    pub refusals: u32,
    /// End of the backoff.
    #[serde(default)]
    pub not_before: Time,
    /// Node of the last refusal.
    #[serde(default)]
    pub avoid: Option<NodeId>,
    /// Class of the last reported wait reason.
    #[serde(default)]
    pub reported_class: Option<WaitClass>,
}

/// A task and its allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    pub task: u32,
    pub node: NodeId,
    pub gpus: Vec<GpuAllocation>,
    #[serde(default)]
    pub confirmed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating_since: Option<Time>,
    /// `gpus` are the reported devices, not assumed ones.
    #[serde(default)]
    pub devices_known: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LostTaskSnapshot {
    pub task: u32,
    pub until: Time,
    pub replacement: Replacement,
    /// The driver knows the current place.
    pub reported: bool,
}

/// Room reserved for a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldSnapshot {
    pub workload: WorkloadId,
    /// `None` for a reservation.
    pub victims: Option<Vec<WorkloadId>>,
    /// Expiry of a preemption hold, or expected start of a reservation.
    pub until: Option<Time>,
    /// Node and GPUs of each task.
    pub claims: Vec<(NodeId, Vec<GpuAllocation>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DemandSnapshot {
    /// Demand set by the driver.
    pub pinned: Option<Vec<Demand>>,
    /// Demand learned from submissions.
    pub learned: Vec<(TaskClass, u64)>,
    /// Demand that the current tables were built from; `None` forces a rebuild.
    pub basis: Option<Vec<(TaskClass, u64)>>,
    /// The tables of `fgd` and of `least_fragmented` exist.
    pub tables: [bool; 2],
    /// Tasks seen, and the number at which the tables are rebuilt.
    pub seen: [u64; 2],
    /// Strategies that look ahead, chosen by workloads.
    pub wanted: BTreeSet<Strategy>,
    /// Submissions are counted.
    pub learns: bool,
}
