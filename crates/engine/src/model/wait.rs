//! Why a workload waits, as data: sentences are made of it elsewhere.

use serde::{Deserialize, Serialize};

use crate::model::name::{GpuId, GpuModel, QueueId, ResourceName, TokenName, WorkloadId};
use crate::model::node::GpuHealth;
use crate::model::request::MigProfile;
use crate::model::units::{MiB, MilliCpu, Time};
use crate::model::workload::Gate;

/// Why a workload waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// There are no nodes.
    NoNodes,
    /// No node has room now.
    NoRoom(FitSummary),
    /// No node would have room even if it were empty.
    NeverFits(FitSummary),
    /// Some tasks of the gang would fit now, but not all.
    Gang {
        /// Tasks that must start together.
        needs: u32,
        /// Tasks that fit now (in the best domain, when the gang is bound to one).
        fits: u32,
        /// Whether an empty cluster would take them all.
        fits_when_empty: bool,
        /// What the nodes lack for one more.
        summary: FitSummary,
    },
    /// The queue, or one above it, is at its limit.
    Quota {
        /// The queue at its limit.
        queue: QueueId,
        /// What is limited.
        resource: QuotaResource,
        /// The limit.
        limit: u64,
        /// What is used.
        used: u64,
        /// What is kept for work that waits for it.
        #[serde(default)]
        reserved: u64,
        /// What this workload would add.
        requested: u64,
    },
    /// There is room, but it is kept for a workload whose turn it is.
    Reserved {
        /// For whom.
        workload: WorkloadId,
        /// When that one is expected to start.
        until: Option<Time>,
    },
    /// Others are being stopped for it.
    Preempting {
        /// Who.
        victims: Vec<WorkloadId>,
        /// When the hold lapses.
        until: Time,
    },
    /// A placement was refused; it is tried again then.
    BackingOff {
        /// When.
        until: Time,
        /// How often so far.
        refusals: u32,
    },
    /// The body keeps it back.
    Gated(Gate),
}

impl WaitReason {
    /// One word for the kind of reason.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoNodes => "NoNodes",
            Self::NoRoom(_) => "NoRoom",
            Self::NeverFits(_) => "NeverFits",
            Self::Gang { .. } => "GangIncomplete",
            Self::Quota { .. } => "QuotaExceeded",
            Self::Reserved { .. } => "Reserved",
            Self::Preempting { .. } => "Preempting",
            Self::BackingOff { .. } => "BackingOff",
            Self::Gated(_) => "Gated",
        }
    }

    /// Reasons of one sort come and go with every start and end; only a change of sort is news.
    pub(crate) fn sort(&self) -> &'static str {
        match self {
            Self::NoRoom(_) | Self::Gang { .. } | Self::Reserved { .. } => "Room",
            other => other.kind(),
        }
    }

    /// The sort with this name, if there is one.
    pub(crate) fn known_sort(name: &str) -> Option<&'static str> {
        const SORTS: [&str; 7] =
            ["NoNodes", "Room", "NeverFits", "QuotaExceeded", "Preempting", "BackingOff", "Gated"];
        SORTS.into_iter().find(|sort| *sort == name)
    }

    /// Whether more nodes of the right kind would cure it: what a node autoscaler wants to know.
    pub fn resolved_by_nodes(&self) -> bool {
        matches!(
            self,
            Self::NoNodes
                | Self::NoRoom(_)
                | Self::NeverFits(_)
                | Self::Gang { .. }
                | Self::Reserved { .. }
        )
    }
}

/// How many nodes there are and what each lacks; most common first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitSummary {
    /// Nodes looked at.
    pub nodes: u32,
    /// What is lacking, and on how many nodes.
    pub shortfalls: Vec<(Shortfall, u32)>,
}

/// What a node lacks for a request: the first thing that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shortfall {
    /// It does not answer.
    NotReady,
    /// It is cordoned, drained or about to be taken back.
    Unschedulable,
    /// The request names another node.
    OtherNode,
    /// It lacks the labels of the node selector.
    NodeSelector,
    /// It matches no term of the node affinity.
    NodeAffinity,
    /// It has a taint that the request does not tolerate.
    Taint(String),
    /// It has no GPU.
    NoGpu,
    /// Its GPUs are of another model.
    GpuModel {
        /// The models of these nodes.
        has: Vec<GpuModel>,
        /// The models asked for.
        asked: Vec<GpuModel>,
    },
    /// Its queue may use no more GPUs of that model.
    GpuModelQuota(GpuModel),
    /// Its GPUs are too small.
    GpuSize {
        /// Memory asked for.
        need: MiB,
        /// The largest GPU among these nodes.
        largest: MiB,
    },
    /// Too few GPUs at all.
    GpuCount {
        /// GPUs asked for.
        need: u32,
        /// The most that one of these nodes has.
        most: u32,
    },
    /// It chooses devices by itself and only hands out whole ones.
    WholeGpusOnly,
    /// Too few free GPUs.
    FreeGpus {
        /// GPUs asked for.
        need: u32,
        /// The most that are free on one of these nodes.
        most: u32,
    },
    /// No GPU with that share left.
    GpuShare {
        /// Thousandths asked for.
        need: u32,
        /// The largest share left.
        most: u32,
    },
    /// No GPU with that memory left.
    GpuMemory {
        /// Memory asked for.
        need: MiB,
        /// The most left on one GPU.
        most: MiB,
    },
    /// No GPU in MIG mode has that profile.
    NoMigProfile(MigProfile),
    /// No place for the slice.
    MigSlice {
        /// The profile.
        profile: MigProfile,
        /// Slices asked for.
        need: u32,
        /// The most that one of these nodes could take.
        most: u32,
    },
    /// Too few free GPUs in one `NVLink` group.
    NvLink {
        /// GPUs asked for.
        need: u32,
        /// The most free in one group.
        most: u32,
    },
    /// It would have GPUs to give if these were open.
    UnavailableGpus(UnavailableGpus),
    /// CPU.
    Cpu {
        /// Asked for.
        need: MilliCpu,
        /// The most left on one of these nodes.
        most: MilliCpu,
    },
    /// Host memory.
    Memory {
        /// Asked for.
        need: MiB,
        /// The most left on one of these nodes.
        most: MiB,
    },
    /// Local storage.
    Storage {
        /// Asked for.
        need: MiB,
        /// The most left on one of these nodes.
        most: MiB,
    },
    /// It runs as many tasks as it may.
    TaskLimit,
    /// A named resource.
    Resource {
        /// Its name.
        name: ResourceName,
        /// Asked for.
        need: u64,
        /// The most left on one of these nodes.
        most: u64,
    },
    /// A token that somebody else holds.
    Token(TokenName),
    /// Not where the tasks are that it wants to be near.
    TaskAffinity,
    /// Where tasks are that it, or they, want to be away from.
    TaskAntiAffinity,
    /// The domain has its share of such tasks already.
    TopologySpread,
}

/// How many GPUs take no new work, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnavailableGpus {
    /// Somebody closed them.
    pub cordoned: u32,
    /// Somebody has them emptied.
    pub draining: u32,
    /// They are broken.
    pub failed: u32,
    /// Those that people closed, by name, where one node is spoken of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuId>,
}

impl UnavailableGpus {
    /// Counts a GPU in this state.
    pub(crate) fn count(&mut self, gpu: &GpuId, health: GpuHealth) {
        match health {
            GpuHealth::Healthy => return,
            GpuHealth::Failed | GpuHealth::Degraded => return self.failed += 1,
            GpuHealth::Cordoned => self.cordoned += 1,
            GpuHealth::Draining => self.draining += 1,
        }
        self.gpus.push(gpu.clone());
    }

    /// Counts those of another node, too. Names alone mean nothing then.
    pub(crate) fn add(&mut self, other: &Self) {
        self.cordoned += other.cordoned;
        self.draining += other.draining;
        self.failed += other.failed;
        self.gpus.clear();
    }
}

/// What a quota counts.
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
    /// Thousandths of a GPU of a model.
    GpuModel(GpuModel),
    /// A named resource.
    Named(ResourceName),
}
