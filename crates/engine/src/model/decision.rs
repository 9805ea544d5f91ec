//! Decisions: the complete output of a scheduling pass. Wait reasons are in `wait.rs`.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::model::name::{GpuId, NodeId, WorkloadId};
use crate::model::request::MigProfile;
use crate::model::units::{MiB, Time};
use crate::model::wait::WaitReason;
use crate::model::workload::OnFault;

/// Output of [`Scheduler::decide`](crate::Scheduler::decide).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// In the order in which the driver executes them.
    pub decisions: Vec<Decision>,
    /// Latest time of the next call of `decide`, even without a new event.
    pub wake_at: Option<Time>,
}

/// A workload that is stopped for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    pub workload: WorkloadId,
    pub reason: PreemptionReason,
}

/// The rule that permits a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionReason {
    /// The preemptor has the higher priority.
    Priority,
    /// The preemptor's queue reclaims guaranteed quota that the victim's queue borrowed.
    Reclaim,
}

/// An instruction to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Start a task. The engine has booked its resources; the driver answers with `PlacementConfirmed` or
    /// `PlacementRefused`.
    Place(Placement),
    /// Stop every task of the victims; the driver answers with `TaskStopped` for each. The freed resources
    /// are held for the beneficiary.
    Preempt {
        victims: Vec<Victim>,
        beneficiary: WorkloadId,
        /// Expiry of the hold.
        until: Time,
    },
    /// A placement lost its node or GPU.
    Displace {
        workload: WorkloadId,
        cause: Fault,
        /// `Requeue`: stop the remaining tasks and answer with `TaskStopped`; `Keep`: leave them.
        action: OnFault,
    },
    /// The place of a lost task is reserved for its replacement. Repeated when the place changes.
    AwaitReplacement {
        workload: WorkloadId,
        task: u32,
        /// `None` while no node has room.
        node: Option<NodeId>,
        /// The workload restarts at this time if the task has no replacement by then.
        until: Time,
    },
    /// Reports a wait reason when its [class](WaitReason::class) changes. `explain` always has the latest
    /// reason.
    Wait { workload: WorkloadId, reason: Arc<WaitReason> },
}

/// A task, its node and its GPUs; the driver has nothing left to choose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub workload: WorkloadId,
    /// Numbered from 0.
    pub task: u32,
    pub node: NodeId,
    pub gpus: GpuAssignment,
}

/// The GPUs of a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuAssignment {
    /// The engine chose the devices.
    Devices(Vec<GpuAllocation>),
    /// The node chooses this number of devices.
    Count(u32),
}

/// A GPU and the share of it that a task gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAllocation {
    pub gpu: GpuId,
    pub share: GpuShare,
}

/// The amount of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuShare {
    Whole,
    /// Thousandths of the GPU, and the memory that belongs to them.
    Fraction {
        milli: u32,
        mib: MiB,
    },
    /// `start` is the slice's first memory slot.
    MigSlice {
        profile: MigProfile,
        start: u8,
    },
}

/// The cause of a displacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    NodeLost(NodeId),
    Draining(NodeId),
    GpuDraining {
        node: NodeId,
        gpu: GpuId,
    },
    /// The cloud provider reclaims the node at the time `at`.
    SpotReclaim {
        node: NodeId,
        at: Time,
    },
    /// The GPU failed or disappeared.
    GpuFailed {
        node: NodeId,
        gpu: GpuId,
    },
    /// The replacement of this task did not come or found no room in time.
    ReplacementMissing {
        task: u32,
    },
    /// This task of the gang was refused or lost; a gang runs with all tasks or none.
    GangBroken {
        task: u32,
    },
}
