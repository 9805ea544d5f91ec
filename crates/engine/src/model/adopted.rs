//! Workloads that already run when the driver reports them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::model::name::{GpuId, NodeId};
use crate::model::units::Time;
use crate::model::workload::Workload;

/// A workload and the nodes of its tasks. Each task is in `tasks`, in `finished` or in `lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptedWorkload {
    /// Replaces the description of a pending workload with the same id, which keeps its submission time.
    pub workload: Workload,
    pub tasks: Vec<AdoptedTask>,
    #[serde(default)]
    pub finished: BTreeSet<u32>,
    /// Tasks that wait for a replacement.
    #[serde(default)]
    pub lost: Vec<AdoptedLoss>,
    #[serde(default)]
    pub placed_at: Time,
}

/// A task that ended before its work was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptedLoss {
    pub task: u32,
    /// Preferred place of the replacement.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// End of the reservation; `None` starts the full time now.
    #[serde(default)]
    pub until: Option<Time>,
}

/// A task that has a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptedTask {
    pub task: u32,
    pub node: NodeId,
    /// `None` when the devices are unknown; the engine then assumes some.
    #[serde(default)]
    pub devices: Option<Vec<GpuId>>,
    /// The task runs, or its node accepted it.
    #[serde(default)]
    pub confirmed: bool,
    #[serde(default)]
    pub terminating: bool,
}
