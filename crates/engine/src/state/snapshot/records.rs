//! Everything that the engine knows, as plain data: what snapshots are made of.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::decision::{Decision, GpuAllocation};
use crate::model::event::Demand;
use crate::model::name::{BudgetId, ForeignId, GpuId, GpuModel, NodeId, ResourceName, WorkloadId};
use crate::model::node::{ForeignUse, GpuHealth, Node};
use crate::model::policy::{Policy, Queue};
use crate::model::units::{Percent, Time};
use crate::model::wait::{WaitClass, WaitReason};
use crate::model::workload::Workload;
use crate::state::scheduler::RoundRobinCursor;
use crate::strategy::Strategy;
use crate::strategy::demand::Kind;

/// Everything that the engine knows, as plain data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The latest time that was heard of.
    pub now: Time,
    /// The settings.
    pub policy: Policy,
    /// GPU models and named resources in the order in which they came up: equally good choices are
    /// made in that order.
    pub vocabulary: (Vec<GpuModel>, Vec<ResourceName>),
    /// The queues, parents before children.
    pub queues: Vec<QueueSnapshot>,
    /// The nodes.
    pub nodes: Vec<NodeSnapshot>,
    /// The workloads, oldest first.
    pub workloads: Vec<WorkloadSnapshot>,
    /// Disruption budgets.
    pub budgets: BTreeMap<BudgetId, u32>,
    /// Where round robin goes on.
    pub cursor: Option<RoundRobinCursor>,
    /// Room kept for waiting workloads.
    pub holds: Vec<HoldSnapshot>,
    /// Workloads that quota is kept for, oldest first.
    pub savers: Vec<WorkloadId>,
    /// Reasons that stand for all workloads like this one.
    pub set_aside: Vec<(WorkloadId, Arc<WaitReason>)>,
    /// The demand to expect.
    pub demand: DemandSnapshot,
    /// When to look again.
    pub timers: BTreeSet<Time>,
    /// What is still to be said.
    pub notices: Vec<Decision>,
    /// Whether set-aside work is worth another try.
    pub improved: bool,
}

/// A queue and what it used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueSnapshot {
    /// The queue.
    pub queue: Queue,
    /// Past use by itself and with all below it, as exact bit patterns.
    #[serde(default)]
    pub past: [[u64; 4]; 2],
    /// The time up to which that is counted, for both.
    #[serde(default)]
    pub as_of: [Time; 2],
}

/// A node and its condition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSnapshot {
    /// Its description.
    pub node: Node,
    /// It does not answer.
    #[serde(default)]
    pub lost: bool,
    /// It is cordoned.
    #[serde(default)]
    pub cordoned: bool,
    /// It is being emptied.
    #[serde(default)]
    pub draining: bool,
    /// The cloud takes it back.
    #[serde(default)]
    pub reclaimed: Option<Time>,
    /// Health of its GPUs, where not healthy.
    #[serde(default)]
    pub health: BTreeMap<GpuId, GpuHealth>,
    /// Last readings.
    #[serde(default)]
    pub utilization: BTreeMap<GpuId, Percent>,
    /// Use by others, and the GPUs assumed for those that were not named.
    #[serde(default)]
    pub foreign: BTreeMap<ForeignId, (ForeignUse, Vec<GpuId>)>,
}

/// A workload and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSnapshot {
    /// As it was handed in, with the time.
    pub workload: Workload,
    /// What it is doing.
    pub phase: WorkloadPhase,
    /// When it was placed.
    #[serde(default)]
    pub placed_at: Time,
    /// Its tasks that have a place.
    #[serde(default)]
    pub tasks: Vec<TaskSnapshot>,
    /// Its tasks that are over.
    #[serde(default)]
    pub finished: BTreeSet<u32>,
    /// How often it was refused.
    #[serde(default)]
    pub refusals: u32,
    /// Not to be tried before.
    #[serde(default)]
    pub not_before: Time,
    /// Where it was refused.
    #[serde(default)]
    pub avoid: Option<NodeId>,
    /// The sort of reason that was reported last.
    #[serde(default)]
    pub told: Option<WaitClass>,
}

/// What a workload is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadPhase {
    /// It waits.
    Pending,
    /// It waits for its victims to go.
    Preempting,
    /// It is placed.
    Placed,
    /// It is being stopped.
    Stopping,
}

/// A task's place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSnapshot {
    /// The task.
    pub task: u32,
    /// The node.
    pub node: NodeId,
    /// The GPUs.
    pub gpus: Vec<GpuAllocation>,
    /// The placement was carried out.
    #[serde(default)]
    pub confirmed: bool,
    /// Since when it is being stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Time>,
    /// The GPUs are what it really has.
    #[serde(default)]
    pub known: bool,
}

/// Room kept for a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HoldSnapshot {
    /// For whom.
    pub workload: WorkloadId,
    /// Who is being stopped; none for a reservation.
    pub victims: Option<Vec<WorkloadId>>,
    /// When it lapses, or the expected start.
    pub until: Option<Time>,
    /// Where.
    pub claims: Vec<(NodeId, Vec<GpuAllocation>)>,
}

/// The demand to expect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DemandSnapshot {
    /// Pinned by the body.
    pub pinned: Option<Vec<Demand>>,
    /// Learned: kind of task and count.
    pub learned: Vec<(Kind, u64)>,
    /// What the tables in use were made from; none when they are to be made anew.
    pub basis: Option<Vec<(Kind, u64)>>,
    /// Which tables those are: the published measure, and our own.
    pub tables: [bool; 2],
    /// Tasks seen, and the number at which the tables are made again.
    pub seen: [u64; 2],
    /// Some workload looks ahead.
    pub wanted: BTreeSet<Strategy>,
    /// What is handed in is remembered.
    pub learns: bool,
}
