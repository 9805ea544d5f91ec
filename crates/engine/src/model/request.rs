//! Requests: the resources and constraints of one task.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::error::InvalidInput;
use crate::model::labels::{Labels, NodeTerm, Selector, Toleration};
use crate::model::name::{GpuModel, NodeId, ResourceName, TokenName};
use crate::model::units::{MAX_AMOUNT, MAX_GPU_MEMORY, MiB, MilliCpu, MilliGpu};

/// Limit of GPUs per task: a whole node.
pub(crate) const MAX_GPUS: u32 = crate::model::node::MAX_NODE_GPUS as u32;

/// Resources and constraints of one task. Workloads with equal requests share one scheduling shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    pub gpu: GpuRequest,
    /// No other task on the GPUs, even when this task uses only a share of them.
    pub exclusive: bool,
    /// Minimum total memory of every GPU.
    pub min_gpu_memory: MiB,
    /// Accepted models; empty means any.
    pub models: Vec<GpuModel>,
    /// A preference, not a filter.
    pub preferred_model: Option<GpuModel>,
    /// All GPUs of the task must be in one `NVLink` group.
    pub nvlink: bool,
    pub cpu: MilliCpu,
    pub memory: MiB,
    pub storage: MiB,
    /// Countable resources by name.
    pub resources: BTreeMap<ResourceName, u64>,
    /// Mutually exclusive resources: host ports, volumes.
    pub tokens: BTreeMap<TokenName, TokenAccess>,
    /// Pins the task to this node.
    pub node: Option<NodeId>,
    pub node_selector: Labels,
    /// Required node affinity: one of these terms must match; empty means any node.
    pub required_nodes: Vec<NodeTerm>,
    pub preferred_nodes: Vec<NodePreference>,
    pub tolerations: Vec<Toleration>,
    /// Labels of the task, matched by the affinity and spread selectors of other tasks.
    pub labels: Labels,
    pub affinity: Vec<TaskAffinity>,
    pub spread: Vec<TopologySpread>,
}

/// GPUs that a task requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuRequest {
    #[default]
    None,
    /// Whole GPUs of one node.
    Whole(u32),
    /// A fraction of one GPU.
    Fraction(MilliGpu),
    /// Memory of one GPU, shared with other tasks while memory is left.
    Memory(MiB),
    /// MIG slices of one node.
    Mig { profile: MigProfile, count: u32 },
}

/// Canonical name of a MIG profile, such as `1g.5gb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MigProfile(&'static str);

impl MigProfile {
    /// Accepts the bare name and the forms `mig-1g.5gb` and `nvidia.com/mig-1g.5gb`.
    pub fn new(name: &str) -> Result<Self, InvalidInput> {
        crate::model::mig::known_profile(name)
            .map(Self)
            .ok_or_else(|| InvalidInput::MigProfile(name.chars().take(64).collect()))
    }

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

/// Rule for tasks that hold the same token at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenAccess {
    /// One task per node (a host port).
    Exclusive,
    /// Any number of tasks per node, but none with exclusive access (a host port on one address beside
    /// the wildcard address).
    Shared,
    /// All holders on the same node (a `ReadWriteOnce` volume).
    OneNode,
    /// One task in the cluster (a `ReadWriteOncePod` volume).
    OneTask,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePreference {
    /// 1 to 100, added to the score of matching nodes.
    pub weight: u32,
    pub term: NodeTerm,
}

/// Affinity or anti-affinity to tasks that match a selector, including foreign ones, in the same
/// topology domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskAffinity {
    pub kind: AffinityKind,
    pub selector: Selector,
    /// Topology key: the node label whose values are the domains; `node` makes each node a domain.
    pub key: String,
    /// `None` makes the term required; a weight makes it a preference.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// The direction of a [`TaskAffinity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AffinityKind {
    /// In a domain with a matching task. A task that matches its own selector may start in any domain
    /// while no domain of the required terms with that selector has a matching task.
    Affinity,
    /// In a domain without a matching task.
    AntiAffinity,
}

/// Keeps the numbers of matching tasks in the domains of a topology within `max_skew`. A node counts when
/// it has a label for every key of the task's spread constraints. Terminating tasks do not count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopologySpread {
    pub selector: Selector,
    /// Topology key: the node label whose values are the domains; `node` makes each node a domain.
    pub key: String,
    /// Maximum difference to the domain with the fewest matching tasks.
    pub max_skew: u32,
    /// `false` makes the constraint a preference.
    #[serde(default = "yes")]
    pub required: bool,
    /// With fewer eligible domains than this, the minimum counts as zero.
    #[serde(default)]
    pub min_domains: u32,
    /// Count nodes that the task's node selector and node affinity exclude.
    #[serde(default)]
    pub ignore_node_affinity: bool,
    /// Skip nodes with taints that the task does not tolerate.
    #[serde(default)]
    pub honor_taints: bool,
}

fn yes() -> bool {
    true
}

impl Request {
    /// Rejects out-of-range values; see [`InvalidInput`].
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
                Err(InvalidInput::Contradiction("exclusive access requires a GPU request"))
            }
            GpuRequest::Whole(0) => Err(InvalidInput::Zero("the number of GPUs")),
            GpuRequest::Whole(count) => limit("the number of GPUs", count.into(), MAX_GPUS.into()),
            GpuRequest::Memory(MiB(0)) => Err(InvalidInput::Zero("the amount of GPU memory")),
            GpuRequest::Memory(MiB(mib)) => limit("the amount of GPU memory", mib, MAX_GPU_MEMORY),
            GpuRequest::Mig { count: 0, .. } => Err(InvalidInput::Zero("the number of MIG slices")),
            GpuRequest::Mig { count, .. } => {
                limit("the number of MIG slices", count.into(), MAX_GPUS.into())
            }
            GpuRequest::None | GpuRequest::Fraction(_) => Ok(()),
        }
    }

    fn validate_task_terms(&self) -> Result<(), InvalidInput> {
        for affinity in &self.affinity {
            affinity.selector.validate().map_err(label_error)?;
            limit("an affinity weight", affinity.weight.unwrap_or(0).into(), 100)?;
        }
        for preferred in &self.preferred_nodes {
            limit("a node preference weight", preferred.weight.into(), 100)?;
        }
        for spread in &self.spread {
            spread.selector.validate().map_err(label_error)?;
            if spread.max_skew == 0 {
                return Err(InvalidInput::Zero("max_skew"));
            }
        }
        Ok(())
    }

    /// Number of GPU entries in a placement of this request.
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
