//! Workloads that already run when the driver reports them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::model::name::{GpuId, NodeId};
use crate::model::units::Time;
use crate::model::workload::Workload;

/// A workload and the nodes of its tasks. Each task is either in `tasks` or in `finished`. A driver that
/// lost a task lists the task as finished, and may send [`TaskStopped`](crate::Event::TaskStopped) next
/// to have the rest of the gang stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptedWorkload {
    /// Replaces the description of a pending workload with the same id, which keeps its submission time.
    pub workload: Workload,
    pub tasks: Vec<AdoptedTask>,
    #[serde(default)]
    pub finished: BTreeSet<u32>,
    #[serde(default)]
    pub placed_at: Time,
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
