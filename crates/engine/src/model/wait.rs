//! Wait reasons as data. The crate `agentaflow-explain` renders them as sentences.

use serde::{Deserialize, Serialize};

use crate::model::name::{GpuId, GpuModel, QueueId, ResourceName, TokenName, WorkloadId};
use crate::model::node::GpuHealth;
use crate::model::request::MigProfile;
use crate::model::units::{MiB, MilliCpu, Time};
use crate::model::workload::Gate;

/// The reason for which a workload is pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// The cluster has no nodes.
    NoNodes,
    /// No node has room now.
    NoRoom(FitSummary),
    /// No node has room even when empty.
    NeverFits(FitSummary),
    /// Some tasks of the gang fit now, but not all.
    Gang {
        /// Tasks that must start together.
        needs: u32,
        /// Tasks that fit now, in the best topology domain when the gang is bound to one.
        fits: u32,
        /// An empty cluster has room for all tasks.
        fits_when_empty: bool,
        /// Shortfalls of the nodes for one more task.
        summary: FitSummary,
    },
    /// The queue, or one of its ancestors, is at its limit.
    Quota {
        /// The queue at its limit.
        queue: QueueId,
        resource: QuotaResource,
        limit: u64,
        used: u64,
        /// Quota reserved for other pending workloads.
        #[serde(default)]
        reserved: u64,
        /// Quota that this workload needs.
        requested: u64,
    },
    /// The free room is reserved for another workload.
    Reserved {
        /// The workload that holds the reservation.
        workload: WorkloadId,
        /// Expected start of that workload.
        until: Option<Time>,
    },
    /// Victims are terminating for this workload.
    Preempting {
        victims: Vec<WorkloadId>,
        /// Expiry of the hold on the freed room.
        until: Time,
    },
    /// The driver refused a placement; the engine retries at `until`.
    BackingOff { until: Time, refusals: u32 },
    /// The driver blocks scheduling of this workload.
    Gated(Gate),
}

/// Wait reasons between which a workload changes with every start and end in the cluster. A
/// [`Decision::Wait`](crate::Decision::Wait) is sent only when the class changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitClass {
    NoNodes,
    /// `NoRoom`, `Gang` or `Reserved`.
    Room,
    NeverFits,
    Quota,
    Preempting,
    BackingOff,
    Gated,
}

impl WaitReason {
    pub fn class(&self) -> WaitClass {
        match self {
            Self::NoNodes => WaitClass::NoNodes,
            Self::NoRoom(_) | Self::Gang { .. } | Self::Reserved { .. } => WaitClass::Room,
            Self::NeverFits(_) => WaitClass::NeverFits,
            Self::Quota { .. } => WaitClass::Quota,
            Self::Preempting { .. } => WaitClass::Preempting,
            Self::BackingOff { .. } => WaitClass::BackingOff,
            Self::Gated(_) => WaitClass::Gated,
        }
    }

    /// More nodes of a suitable kind would let the workload start. Drivers report this to node
    /// autoscalers.
    pub fn resolved_by_nodes(&self) -> bool {
        match self {
            Self::NoNodes
            | Self::NoRoom(_)
            | Self::NeverFits(_)
            | Self::Gang { .. }
            | Self::Reserved { .. } => true,
            Self::Quota { .. }
            | Self::Preempting { .. }
            | Self::BackingOff { .. }
            | Self::Gated(_) => false,
        }
    }
}

/// Number of nodes checked and their shortfalls, most common first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitSummary {
    pub nodes: u32,
    /// Each shortfall with the number of nodes that have it.
    pub shortfalls: Vec<(Shortfall, u32)>,
}

/// The first check that a node fails for a request. `need` is the requested amount; `most` and `largest`
/// are the greatest amount on any of the nodes counted under this shortfall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    NotReady,
    /// The node is cordoned, draining or about to be reclaimed by the cloud provider.
    Unschedulable,
    /// The request names another node.
    OtherNode,
    NodeSelector,
    NodeAffinity,
    /// A taint that the request does not tolerate.
    Taint(String),
    NoGpu,
    GpuModel {
        /// Models of the counted nodes.
        has: Vec<GpuModel>,
        asked: Vec<GpuModel>,
    },
    /// The workload's queue has no quota left for this model.
    GpuModelQuota(GpuModel),
    /// Every GPU has too little memory in total.
    GpuSize {
        need: MiB,
        largest: MiB,
    },
    /// The node has too few GPUs in total.
    GpuCount {
        need: u32,
        most: u32,
    },
    /// The node chooses devices itself and allocates whole GPUs only.
    WholeGpusOnly,
    FreeGpus {
        need: u32,
        most: u32,
    },
    /// In thousandths of one GPU.
    GpuShare {
        need: u32,
        most: u32,
    },
    /// Free memory on one GPU.
    GpuMemory {
        need: MiB,
        most: MiB,
    },
    /// No GPU in MIG mode offers this profile.
    NoMigProfile(MigProfile),
    /// Too few free MIG slices.
    MigSlice {
        profile: MigProfile,
        need: u32,
        most: u32,
    },
    /// Free GPUs within one `NVLink` group.
    NvLink {
        need: u32,
        most: u32,
    },
    /// The request would fit if these GPUs were available.
    UnavailableGpus(UnavailableGpus),
    Cpu {
        need: MilliCpu,
        most: MilliCpu,
    },
    Memory {
        need: MiB,
        most: MiB,
    },
    Storage {
        need: MiB,
        most: MiB,
    },
    /// The node runs its maximum number of tasks.
    TaskLimit,
    Resource {
        name: ResourceName,
        need: u64,
        most: u64,
    },
    /// Another task holds this token.
    Token(TokenName),
    /// Required affinity to other tasks.
    TaskAffinity,
    /// Required anti-affinity, of this task or of a task on the node.
    TaskAntiAffinity,
    TopologySpread,
}

/// Number of GPUs that take no new work, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnavailableGpus {
    pub cordoned: u32,
    pub draining: u32,
    /// Failed or degraded.
    pub failed: u32,
    /// Cordoned and draining GPUs; empty when the counts cover more than one node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuId>,
}

impl UnavailableGpus {
    pub(crate) fn count(&mut self, gpu: &GpuId, health: GpuHealth) {
        match health {
            GpuHealth::Healthy => return,
            GpuHealth::Failed | GpuHealth::Degraded => return self.failed += 1,
            GpuHealth::Cordoned => self.cordoned += 1,
            GpuHealth::Draining => self.draining += 1,
        }
        self.gpus.push(gpu.clone());
    }

    /// Adds the counts of another node. GPU ids are dropped: they are unique only within a node.
    pub(crate) fn add(&mut self, other: &Self) {
        self.cordoned += other.cordoned;
        self.draining += other.draining;
        self.failed += other.failed;
        self.gpus.clear();
    }
}

/// A resource under quota, with the unit of its amounts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaResource {
    /// Thousandths of a core.
    Cpu,
    /// MiB.
    Memory,
    /// MiB.
    Storage,
    /// Thousandths of a GPU.
    Gpu,
    /// Thousandths of a GPU of this model.
    GpuModel(GpuModel),
    Named(ResourceName),
}
