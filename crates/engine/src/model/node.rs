//! Nodes as bodies describe them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::model::error::InvalidInput;
use crate::model::labels::{Labels, Taint};
use crate::model::mig::{Geometry, Instance, Slots};
use crate::model::name::{ForeignId, GpuId, GpuModel, NodeId, ResourceName, TokenName};
use crate::model::request::{MigProfile, TokenAccess, label_error, limit};
use crate::model::units::{MAX_AMOUNT, MAX_GPU_MEMORY, MiB, MicroDollars, MilliCpu, MilliGpu};
use crate::model::workload::checked_name;

/// The most GPUs of one node.
pub const MAX_NODE_GPUS: usize = 64;

/// A machine and what it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Equally good nodes are taken in the order of their rank, then of their name.
    #[serde(default)]
    pub rank: u32,
    /// Labels.
    #[serde(default)]
    pub labels: Labels,
    /// Taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// CPU that work may use.
    #[serde(default)]
    pub cpu: MilliCpu,
    /// Host memory that work may use.
    #[serde(default)]
    pub memory: MiB,
    /// Local storage that work may use.
    #[serde(default)]
    pub storage: MiB,
    /// The most tasks at a time; none means that resources decide.
    #[serde(default)]
    pub max_tasks: Option<u32>,
    /// Countable resources by name.
    #[serde(default)]
    pub resources: BTreeMap<ResourceName, u64>,
    /// The GPUs.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Who chooses the devices of a placement.
    #[serde(default)]
    pub device_selection: DeviceSelection,
    /// Its GPUs are handed out whole: who asks for a part of one takes all of it.
    #[serde(default)]
    pub whole_gpus_only: bool,
    /// What it costs.
    #[serde(default)]
    pub price: Price,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name on the node.
    pub id: GpuId,
    /// Its model.
    pub model: GpuModel,
    /// Its memory.
    pub memory: MiB,
    /// GPUs with the same number are joined by `NVLink`.
    #[serde(default)]
    pub nvlink: Option<u16>,
    /// Whether it is split.
    #[serde(default)]
    pub mig: MigMode,
}

/// Whether a GPU is in MIG mode. One that is serves slices only, one that is not never does:
/// switching takes a GPU reset, which is not a scheduling decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigMode {
    /// Not in MIG mode.
    #[default]
    Off,
    /// Slices are made where the engine says.
    Free,
    /// Only these slices exist: profile and start slot.
    Fixed(Vec<(MigProfile, u8)>),
}

/// Who chooses the devices of a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSelection {
    /// The engine: placements name GPUs.
    #[default]
    Engine,
    /// The node (a kubelet): placements are a count, the chosen ids arrive as an event.
    Node,
}

/// What a node costs an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    /// A GPU.
    pub gpu_hour: MicroDollars,
    /// A CPU core.
    pub cpu_hour: MicroDollars,
    /// A GiB of memory.
    pub gib_hour: MicroDollars,
}

/// Whether a GPU can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuHealth {
    /// Fine.
    #[default]
    Healthy,
    /// Nothing new goes there; what runs stays.
    Cordoned,
    /// Nothing new goes there, and what runs is displaced.
    Draining,
    /// Broken: what runs there is displaced.
    Failed,
    /// Broken, and what runs there is left to its own fate.
    Degraded,
}

/// Use of a node by somebody else. It may exceed what the node has: that is a fact, not an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForeignUse {
    /// CPU.
    pub cpu: MilliCpu,
    /// Host memory.
    pub memory: MiB,
    /// Local storage.
    pub storage: MiB,
    /// Countable resources.
    pub resources: BTreeMap<ResourceName, u64>,
    /// Tokens, such as host ports.
    pub tokens: BTreeMap<TokenName, TokenAccess>,
    /// GPUs by name.
    pub gpus: BTreeMap<GpuId, ForeignGpu>,
    /// Whole GPUs whose names are not known (yet).
    pub gpu_count: u32,
    /// Its labels, seen by the terms of our tasks.
    pub labels: Labels,
    /// Its own required terms that keep others away: selector and topology key.
    pub anti_affinity: Vec<crate::model::request::TaskAffinity>,
    /// It is being stopped: it still holds what it has, but nobody is spread because of it.
    pub terminating: bool,
}

/// What somebody else uses of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignGpu {
    /// All of it.
    Whole,
    /// A share.
    Share(MilliGpu),
    /// Memory.
    Memory(MiB),
}

impl Node {
    /// A node with nothing but a name.
    pub fn new(id: impl Into<NodeId>) -> Self {
        Self {
            id: id.into(),
            rank: 0,
            labels: Labels::default(),
            taints: Vec::new(),
            cpu: MilliCpu(0),
            memory: MiB(0),
            storage: MiB(0),
            max_tasks: None,
            resources: BTreeMap::new(),
            gpus: Vec::new(),
            device_selection: DeviceSelection::default(),
            whole_gpus_only: false,
            price: Price::default(),
        }
    }

    /// Whether the other description differs in nothing that is booked: neither amounts nor GPUs.
    pub(crate) fn has_same_room(&self, other: &Self) -> bool {
        let Self { rank, labels, taints, price, .. } = other.clone();
        Self { rank, labels, taints, price, ..self.clone() } == *other
    }

    /// Refuses values that cannot be right; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the node's name", self.id.as_str())?;
        limit("cpu", self.cpu.0, MAX_AMOUNT)?;
        limit("memory", self.memory.0, MAX_AMOUNT)?;
        limit("storage", self.storage.0, MAX_AMOUNT)?;
        limit("the number of GPUs", self.gpus.len() as u64, MAX_NODE_GPUS as u64)?;
        for amount in self.resources.values() {
            limit("a named resource", *amount, MAX_AMOUNT)?;
        }
        for taint in &self.taints {
            taint.validate().map_err(label_error)?;
        }
        let mut seen = BTreeSet::new();
        for gpu in &self.gpus {
            gpu.validate()?;
            if !seen.insert(&gpu.id) {
                return Err(InvalidInput::DuplicateGpu(gpu.id.clone()));
            }
        }
        Ok(())
    }
}

impl Gpu {
    fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the GPU's name", self.id.as_str())?;
        checked_name("the GPU's model", self.model.as_str())?;
        if self.memory.0 == 0 {
            return Err(InvalidInput::Zero("the GPU's memory"));
        }
        limit("the GPU's memory", self.memory.0, MAX_GPU_MEMORY)?;
        let geometry = || Geometry::for_gpu(self.model.as_str(), self.memory.0);
        if self.mig != MigMode::Off && geometry().is_none() {
            return Err(InvalidInput::MigGeometry {
                model: self.model.clone(),
                memory: self.memory,
            });
        }
        if self.has_impossible_layout() {
            return Err(InvalidInput::MigLayout {
                gpu: self.id.clone(),
                model: self.model.clone(),
            });
        }
        Ok(())
    }
}

impl Gpu {
    /// Slices that this model does not have, or that overlap.
    fn has_impossible_layout(&self) -> bool {
        let MigMode::Fixed(layout) = &self.mig else { return false };
        let Some(geometry) = Geometry::for_gpu(self.model.as_str(), self.memory.0) else {
            return true;
        };
        let instance = |(profile, start): &(MigProfile, u8)| {
            Some(Instance { profile: geometry.profile(profile.as_str())?, start: *start })
        };
        let instances: Option<Vec<Instance>> = layout.iter().map(instance).collect();
        instances.and_then(|instances| Slots::of(geometry, &instances)).is_none()
    }
}

impl ForeignUse {
    /// Refuses values that cannot be right; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        limit("cpu", self.cpu.0, MAX_AMOUNT)?;
        limit("memory", self.memory.0, MAX_AMOUNT)?;
        limit("storage", self.storage.0, MAX_AMOUNT)?;
        limit("the number of GPUs", self.gpu_count.into(), MAX_NODE_GPUS as u64)?;
        for amount in self.resources.values() {
            limit("a named resource", *amount, MAX_AMOUNT)?;
        }
        for gpu in self.gpus.values() {
            if let ForeignGpu::Memory(mib) = gpu {
                limit("GPU memory", mib.0, MAX_GPU_MEMORY)?;
            }
        }
        Ok(())
    }
}

impl ForeignId {
    pub(crate) fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the foreign use's name", self.as_str())
    }
}
