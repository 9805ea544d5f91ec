//! What the engine answers: complete decisions, and reasons as data.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::name::{GpuId, GpuModel, NodeId, QueueId, ResourceName, TokenName, WorkloadId};
use crate::request::MigProfile;
use crate::units::{MiB, MilliCpu, Time};
use crate::workload::{Gate, OnFault};

/// The answer to one `decide`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What to do, in order.
    pub decisions: Vec<Decision>,
    /// When to ask again even if nothing happens before.
    pub wake: Option<Time>,
}

/// A workload that is stopped for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Who is stopped.
    pub workload: WorkloadId,
    /// By what right.
    pub right: Right,
}

/// What allows one workload to have another one stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// A higher priority.
    Priority,
    /// What its queue is guaranteed, and another queue has borrowed.
    Guarantee,
}

/// One thing to do or to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Start a task there. It is booked already: answer `Confirmed` or `Refused`.
    Place(Placement),
    /// Stop these workloads, every task of them, and answer `Gone` as the tasks go. What they free
    /// is held for the beneficiary until then.
    Preempt {
        /// Who is stopped, and by what right.
        victims: Vec<Victim>,
        /// For whom.
        beneficiary: WorkloadId,
        /// When the hold lapses.
        until: Time,
    },
    /// The ground under a placement gave way.
    Displace {
        /// Whose placement.
        workload: WorkloadId,
        /// What happened.
        cause: Fault,
        /// `Requeue`: stop what still runs and answer `Gone`; `Keep`: leave it.
        action: OnFault,
    },
    /// It waits, and this is why. Said when the sort of reason changes: whether there is no room or the
    /// room is held for another is the same news, and `explain` always knows the latest.
    Wait {
        /// Who waits.
        workload: WorkloadId,
        /// Why.
        reason: Arc<WaitReason>,
    },
}

/// A task, its node and its GPUs: nothing is left to choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The workload.
    pub workload: WorkloadId,
    /// The task, from 0.
    pub task: u32,
    /// The node.
    pub node: NodeId,
    /// The GPUs.
    pub gpus: Gpus,
}

/// The GPUs of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// These, and so much of each.
    Chosen(Vec<GpuPart>),
    /// So many; the node chooses which.
    Count(u32),
}

/// A GPU, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPart {
    /// The GPU.
    pub gpu: GpuId,
    /// How much of it.
    pub part: Part,
}

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of it.
    Whole,
    /// A share, with the memory that goes with it.
    Share {
        /// Thousandths.
        milli: u32,
        /// Memory.
        mib: MiB,
    },
    /// A MIG slice.
    Slice {
        /// Its profile.
        profile: MigProfile,
        /// Its first memory slot.
        start: u8,
    },
}

/// Why a placement cannot stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The node does not answer.
    NodeLost(NodeId),
    /// The node is being emptied.
    Draining(NodeId),
    /// The cloud takes the node back.
    SpotReclaim {
        /// The node.
        node: NodeId,
        /// When.
        at: Time,
    },
    /// The GPU is broken or no longer there.
    GpuSick {
        /// Its node.
        node: NodeId,
        /// The GPU.
        gpu: GpuId,
    },
    /// Another task of the gang could not be started; the gang starts whole or not at all.
    GangBroken {
        /// The task that was refused.
        task: u32,
    },
}

/// Why a workload waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// There are no nodes.
    NoNodes,
    /// No node has room now.
    NoRoom(Tally),
    /// No node would have room even if it were empty.
    NeverFits(Tally),
    /// Some tasks of the gang would fit now, but not all.
    Gang {
        /// Tasks that must start together.
        needs: u32,
        /// Tasks that fit now (in the best domain, when the gang is bound to one).
        fits: u32,
        /// Whether an empty cluster would take them all.
        ever: bool,
        /// What the nodes lack for one more.
        tally: Tally,
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
        /// What this workload would add.
        asked: u64,
    },
    /// There is room, but it is kept for a workload whose turn it is.
    Held {
        /// For whom.
        by: WorkloadId,
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
            Self::Held { .. } => "Held",
            Self::Preempting { .. } => "Preempting",
            Self::BackingOff { .. } => "BackingOff",
            Self::Gated(_) => "Gated",
        }
    }

    /// Reasons of one sort come and go with every start and end; only a change of sort is news.
    pub(crate) fn sort(&self) -> &'static str {
        match self {
            Self::NoRoom(_) | Self::Gang { .. } | Self::Held { .. } => "Room",
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
    pub fn cured_by_nodes(&self) -> bool {
        matches!(
            self,
            Self::NoNodes
                | Self::NoRoom(_)
                | Self::NeverFits(_)
                | Self::Gang { .. }
                | Self::Held { .. }
        )
    }
}

/// How many nodes there are and what each lacks; most common first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Nodes looked at.
    pub nodes: u32,
    /// What is lacking, and on how many nodes.
    pub lacks: Vec<(Lack, u32)>,
}

/// What a node lacks for a request: the first thing that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// It does not answer.
    Down,
    /// It is cordoned, drained or about to be taken back.
    Closed,
    /// The request names another node.
    OtherNode,
    /// It lacks the labels of the node selector.
    Selector,
    /// It matches no term of the node affinity.
    NodeAffinity,
    /// It has a taint that the request does not tolerate.
    Taint(String),
    /// It has no GPU.
    NoGpu,
    /// Its GPUs are of another model.
    Model,
    /// Its queue may use no more GPUs of that model.
    ModelQuota(GpuModel),
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
    Unshared,
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
    NoMig(MigProfile),
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
    Jobs,
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
    Near,
    /// Where tasks are that it, or they, want to be away from.
    Away,
    /// The domain has its share of such tasks already.
    Spread,
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
