//! What one task asks for.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::error::InvalidInput;
use crate::model::labels::{Labels, NodeTerm, Selector, Toleration};
use crate::model::name::{GpuModel, NodeId, ResourceName, TokenName};
use crate::model::units::{MAX_AMOUNT, MAX_GPU_MEMORY, MiB, MilliCpu, MilliGpu};

/// The most GPUs that one task may ask for on one node.
pub(crate) const MAX_GPUS: u32 = 64;

/// The needs of one task. Two workloads with equal requests are one question to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// GPUs, or a part of one.
    pub gpu: GpuRequest,
    /// Nobody else on those GPUs, even when only a part is used.
    pub exclusive: bool,
    /// Every GPU must have at least this much memory in all.
    pub min_gpu_memory: MiB,
    /// Only these models; empty means any.
    pub models: Vec<GpuModel>,
    /// This model where possible.
    pub preferred_model: Option<GpuModel>,
    /// All GPUs of the task in one `NVLink` group.
    pub nvlink: bool,
    /// CPU.
    pub cpu: MilliCpu,
    /// Host memory.
    pub memory: MiB,
    /// Local storage.
    pub storage: MiB,
    /// Countable resources by name.
    pub resources: BTreeMap<ResourceName, u64>,
    /// Things that exclude others: host ports, volumes.
    pub tokens: BTreeMap<TokenName, TokenAccess>,
    /// Only this node.
    pub node: Option<NodeId>,
    /// Labels that a node must carry.
    pub node_selector: Labels,
    /// Node affinity: one of these terms must match; empty means any.
    pub required_nodes: Vec<NodeTerm>,
    /// Node affinity: nodes that match are worth `weight` more.
    pub preferred_nodes: Vec<NodePreference>,
    /// Taints that do not matter to this task.
    pub tolerations: Vec<Toleration>,
    /// The task's own labels, seen by the terms of others.
    pub labels: Labels,
    /// Near or away from other tasks.
    pub affinity: Vec<TaskAffinity>,
    /// Spread among the domains of a topology.
    pub spread: Vec<TopologySpread>,
}

/// How much GPU a task asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuRequest {
    /// No GPU: CPU-only work.
    #[default]
    None,
    /// Whole GPUs of one node.
    Whole(u32),
    /// A part of one GPU.
    Fraction(MilliGpu),
    /// Memory of one GPU, shared until its memory is spoken for.
    Memory(MiB),
    /// MIG slices of one node.
    Mig {
        /// The profile.
        profile: MigProfile,
        /// How many.
        count: u32,
    },
}

/// The name of a MIG profile that some GPU has, such as `1g.5gb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MigProfile(&'static str);

impl MigProfile {
    /// Finds the profile; `mig-1g.5gb` and `nvidia.com/mig-1g.5gb` are the same as `1g.5gb`.
    pub fn new(name: &str) -> Result<Self, InvalidInput> {
        crate::model::mig::known_profile(name)
            .map(Self)
            .ok_or_else(|| InvalidInput::MigProfile(name.chars().take(64).collect()))
    }

    /// The canonical name.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl Serialize for MigProfile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for MigProfile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::new(&name).map_err(serde::de::Error::custom)
    }
}

/// Who may hold a token at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenAccess {
    /// One task on a node (a host port).
    Exclusive,
    /// Any number of tasks on a node, but none that wants it exclusively (a host port on one
    /// address beside the wildcard).
    Shared,
    /// All holders on the same node (a volume that one node can attach).
    OneNode,
    /// One task in the whole cluster (a volume that one pod can mount).
    OneTask,
}

/// A node preference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePreference {
    /// 1 to 100.
    pub weight: u32,
    /// The nodes meant.
    pub term: NodeTerm,
}

/// Near or away from tasks that match a selector, ours or foreign, in the same domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskAffinity {
    /// Near, or away.
    pub kind: AffinityKind,
    /// Which tasks.
    pub selector: Selector,
    /// The node label whose values are the domains; `node` means each node by itself.
    pub key: String,
    /// Required, or worth this much.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// The direction of a [`TaskAffinity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AffinityKind {
    /// In a domain where such a task is. If there is none in any domain of the required terms with the
    /// same selector, a task that the selector means may be the first.
    Affinity,
    /// In a domain where no such task is.
    AntiAffinity,
}

/// Keep the counts of matching tasks in the domains of a topology within `max_skew`. A node counts if it
/// has a value of every key that the task is to be spread over. Tasks that are being stopped do not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologySpread {
    /// Which tasks count.
    pub selector: Selector,
    /// The node label whose values are the domains; `node` means each node by itself.
    pub key: String,
    /// The largest allowed difference to the emptiest domain.
    pub max_skew: u32,
    /// Refuse rather than merely dislike.
    #[serde(default = "yes")]
    pub required: bool,
    /// With fewer eligible domains than this the emptiest counts as zero.
    #[serde(default)]
    pub min_domains: u32,
    /// Nodes count even where the task's own node selector and affinity do not let it go.
    #[serde(default)]
    pub ignore_node_affinity: bool,
    /// Nodes with taints that the task does not tolerate do not count.
    #[serde(default)]
    pub honor_taints: bool,
}

fn yes() -> bool {
    true
}

impl Request {
    /// Refuses values that cannot be right; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        self.validate_gpu()?;
        limit("cpu", self.cpu.0, MAX_AMOUNT)?;
        limit("memory", self.memory.0, MAX_AMOUNT)?;
        limit("storage", self.storage.0, MAX_AMOUNT)?;
        for amount in self.resources.values() {
            limit("a named resource", *amount, MAX_AMOUNT)?;
        }
        for toleration in &self.tolerations {
            toleration.validate().map_err(label_error)?;
        }
        for term in self.required_nodes.iter().chain(self.preferred_nodes.iter().map(|p| &p.term)) {
            term.validate().map_err(label_error)?;
        }
        self.validate_task_terms()
    }

    fn validate_gpu(&self) -> Result<(), InvalidInput> {
        limit("min_gpu_memory", self.min_gpu_memory.0, MAX_GPU_MEMORY)?;
        match self.gpu {
            GpuRequest::None if self.exclusive => {
                Err(InvalidInput::Contradiction("exclusive access needs a GPU to be exclusive on"))
            }
            GpuRequest::Whole(0) => Err(InvalidInput::Zero("the number of GPUs")),
            GpuRequest::Whole(count) => limit("the number of GPUs", count.into(), MAX_GPUS.into()),
            GpuRequest::Memory(MiB(0)) => Err(InvalidInput::Zero("the amount of GPU memory")),
            GpuRequest::Memory(MiB(mib)) => limit("the amount of GPU memory", mib, MAX_GPU_MEMORY),
            GpuRequest::Mig { count: 0, .. } => Err(InvalidInput::Zero("the number of MIG slices")),
            GpuRequest::Mig { count, .. } => limit("MIG slices", count.into(), MAX_GPUS.into()),
            GpuRequest::None | GpuRequest::Fraction(_) => Ok(()),
        }
    }

    fn validate_task_terms(&self) -> Result<(), InvalidInput> {
        for affinity in &self.affinity {
            affinity.selector.validate().map_err(label_error)?;
            limit("an affinity weight", affinity.weight.unwrap_or(0).into(), 100)?;
        }
        for preferred in &self.preferred_nodes {
            limit("a preference's weight", preferred.weight.into(), 100)?;
        }
        for spread in &self.spread {
            spread.selector.validate().map_err(label_error)?;
            if spread.max_skew == 0 {
                return Err(InvalidInput::Zero("max_skew"));
            }
        }
        Ok(())
    }

    /// How many GPUs a placement of this request names.
    pub fn gpu_count(&self) -> u32 {
        match self.gpu {
            GpuRequest::None => 0,
            GpuRequest::Whole(count) | GpuRequest::Mig { count, .. } => count,
            GpuRequest::Fraction(_) | GpuRequest::Memory(_) => 1,
        }
    }
}

pub(crate) fn limit(field: &'static str, value: u64, limit: u64) -> Result<(), InvalidInput> {
    if value > limit { Err(InvalidInput::TooLarge { field, value, limit }) } else { Ok(()) }
}

pub(crate) fn label_error(error: impl std::fmt::Display) -> InvalidInput {
    InvalidInput::Label(error.to_string())
}
