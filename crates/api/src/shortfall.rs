//! Obstacles to a request on nodes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::wire_enum;

/// Number of nodes, and the first shortfall of each; most common first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FitSummary {
    pub nodes: u32,
    /// Shortfalls with the number of nodes that have them.
    pub shortfalls: Vec<NodesShort>,
}

impl FitSummary {
    pub(crate) fn lacks_runtime(&self) -> bool {
        let runtime = |short: &NodesShort| matches!(short.shortfall, Shortfall::Runtime { .. });
        !self.shortfalls.is_empty() && self.shortfalls.iter().all(runtime)
    }
}

/// Nodes with the same shortfall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodesShort {
    pub count: u32,
    #[serde(flatten)]
    pub shortfall: Shortfall,
}

/// First obstacle to a request on a node. `available` is the most that one of the nodes has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "shortfall", rename_all = "snake_case")]
pub enum Shortfall {
    /// The node does not answer.
    NotReady,
    /// The node is cordoned, drained or about to be reclaimed.
    Unschedulable,
    /// The request names another node.
    OtherNode,
    /// The node lacks the labels of the node selector.
    NodeSelector,
    /// The node matches no term of the node affinity.
    NodeAffinity,
    /// The request does not tolerate a taint.
    Taint {
        /// Taint as `key=value:effect`.
        taint: String,
    },
    /// The node has no GPU.
    NoGpu,
    /// The GPUs are of another model.
    GpuModel {
        /// Models of the nodes.
        has: Vec<String>,
        requested: Vec<String>,
    },
    /// The queue may use no more GPUs of this model.
    GpuModelQuota {
        model: String,
    },
    /// Every GPU is too small, in MiB.
    GpuSize {
        requested: u64,
        available: u64,
    },
    /// The node has too few GPUs, used or not.
    GpuCount {
        requested: u32,
        /// GPUs of the node.
        available: u32,
    },
    /// The node only assigns whole GPUs.
    WholeGpusOnly,
    /// Too few GPUs are free.
    FreeGpus {
        requested: u32,
        available: u32,
    },
    /// No GPU has the share left, in thousandths.
    GpuShare {
        requested: u32,
        available: u32,
    },
    /// No GPU has the memory left, in MiB.
    GpuMemory {
        requested: u64,
        /// Most memory left on one GPU.
        available: u64,
    },
    /// No GPU in MIG mode has the profile.
    NoMigProfile {
        /// Profile, such as `1g.5gb`.
        profile: String,
    },
    /// No room for the MIG slices.
    MigSlices {
        profile: String,
        requested: u32,
        available: u32,
    },
    /// Too few free GPUs in one NVLink group.
    NvLink {
        requested: u32,
        /// GPUs free in one group.
        available: u32,
    },
    /// The GPUs that would fit take no new work.
    UnavailableGpus {
        cordoned: u32,
        draining: u32,
        /// GPUs that are unhealthy.
        unhealthy: u32,
        /// GPUs that `uncordon` opens, as `index` or UUID.
        gpus: Vec<String>,
    },
    /// CPU, in thousandths of a core.
    Cpu {
        requested: u64,
        available: u64,
    },
    /// Host memory, in MiB.
    Memory {
        requested: u64,
        available: u64,
    },
    /// Local storage, in MiB.
    Storage {
        requested: u64,
        available: u64,
    },
    /// The node runs its maximum number of tasks.
    TaskLimit,
    /// The node lacks a runtime.
    Runtime {
        runtime: RuntimeNeed,
    },
    /// Another pod shares the node's GPUs.
    SharedGpus,
    Resource {
        name: String,
        requested: u64,
        available: u64,
    },
    /// Another task holds an exclusive token, such as a host port.
    Token {
        token: String,
    },
    /// Pod affinity: the required tasks are elsewhere.
    TaskAffinity,
    /// Pod anti-affinity: a task that must be avoided is here.
    TaskAntiAffinity,
    /// The topology spread does not permit one more task here.
    TopologySpread,
    /// An obstacle that this version does not know.
    #[serde(other)]
    Unknown,
}

wire_enum! {
    /// Runtime that a node lacks.
    pub enum RuntimeNeed else Unknown {
        Docker = "docker",
        Process = "process",
        /// A runtime that this version does not know.
        Unknown = "unknown",
    }
}
