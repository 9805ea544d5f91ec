//! What the engine answers: complete decisions. Why something waits is in `wait.rs`.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::model::name::{GpuId, NodeId, WorkloadId};
use crate::model::request::MigProfile;
use crate::model::units::{MiB, Time};
use crate::model::wait::WaitReason;
use crate::model::workload::OnFault;

/// The answer to one `decide`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What to do, in order.
    pub decisions: Vec<Decision>,
    /// When to ask again even if nothing happens before.
    pub wake_at: Option<Time>,
}

/// A workload that is stopped for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Who is stopped.
    pub workload: WorkloadId,
    /// By what right.
    pub reason: PreemptionReason,
}

/// What allows one workload to have another one stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionReason {
    /// A higher priority.
    Priority,
    /// What its queue is guaranteed, and another queue has borrowed.
    Reclaim,
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
    pub gpus: GpuAssignment,
}

/// The GPUs of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuAssignment {
    /// These, and so much of each.
    Devices(Vec<GpuAllocation>),
    /// So many; the node chooses which.
    Count(u32),
}

/// A GPU, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAllocation {
    /// The GPU.
    pub gpu: GpuId,
    /// How much of it.
    pub share: GpuShare,
}

/// How much of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuShare {
    /// All of it.
    Whole,
    /// A share, with the memory that goes with it.
    Fraction {
        /// Thousandths.
        milli: u32,
        /// Memory.
        mib: MiB,
    },
    /// A MIG slice.
    MigSlice {
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
    /// The GPU is being emptied.
    GpuDraining {
        /// Its node.
        node: NodeId,
        /// The GPU.
        gpu: GpuId,
    },
    /// The cloud takes the node back.
    SpotReclaim {
        /// The node.
        node: NodeId,
        /// When.
        at: Time,
    },
    /// The GPU is broken or no longer there.
    GpuFailed {
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
