//! Nodes as drivers describe them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::model::error::InvalidInput;
use crate::model::labels::{Labels, Taint};
use crate::model::mig::{Geometry, Instance, Slots};
use crate::model::name::{ForeignId, GpuId, GpuModel, NodeId, ResourceName, TokenName};
use crate::model::request::{MigProfile, TokenAccess, label_error, limit};
use crate::model::units::{MAX_AMOUNT, MAX_GPU_MEMORY, MiB, MicroDollars, MilliCpu, MilliGpu};
use crate::model::workload::checked_name;

/// Limit of GPUs per node. A time slice counts as a GPU: 16 devices with 256 slices each.
pub const MAX_NODE_GPUS: usize = 4096;

/// Capacity and properties of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    pub id: NodeId,
    /// Breaks ties between nodes with equal scores, before the name; lower first.
    #[serde(default)]
    pub rank: u32,
    #[serde(default)]
    pub labels: Labels,
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Allocatable CPU.
    #[serde(default)]
    pub cpu: MilliCpu,
    /// Allocatable host memory.
    #[serde(default)]
    pub memory: MiB,
    /// Allocatable local storage.
    #[serde(default)]
    pub storage: MiB,
    /// Limit of concurrent tasks; `None` leaves the limit to the resources.
    #[serde(default)]
    pub max_tasks: Option<u32>,
    /// Countable resources by name.
    #[serde(default)]
    pub resources: BTreeMap<ResourceName, u64>,
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    #[serde(default)]
    pub device_selection: DeviceSelection,
    /// The node allocates whole GPUs only: a request for a share takes the whole GPU.
    #[serde(default)]
    pub whole_gpus_only: bool,
    #[serde(default)]
    pub price: Price,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Unique within the node.
    pub id: GpuId,
    pub model: GpuModel,
    pub memory: MiB,
    /// GPUs with the same number are connected by `NVLink`.
    #[serde(default)]
    pub nvlink: Option<u16>,
    #[serde(default)]
    pub mig: MigMode,
}

/// MIG mode of a GPU. A GPU in MIG mode serves slices only; a GPU outside MIG mode serves none. A switch of
/// the mode takes a GPU reset, which is not a scheduling decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigMode {
    #[default]
    Off,
    /// The engine chooses profile and position of each slice.
    Free,
    /// Only these slices exist: profile and start slot.
    Fixed(Vec<(MigProfile, u8)>),
}

/// The component that chooses the devices of a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceSelection {
    /// The engine: placements name GPUs.
    #[default]
    Engine,
    /// The node (a kubelet): placements carry a count; the driver reports the chosen GPUs as an event.
    Node,
}

/// Prices per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Price {
    pub gpu_hour: MicroDollars,
    pub cpu_hour: MicroDollars,
    /// One GiB of memory.
    pub gib_hour: MicroDollars,
}

/// Availability of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuHealth {
    #[default]
    Healthy,
    /// No new tasks; running tasks stay.
    Cordoned,
    /// No new tasks; running tasks are displaced.
    Draining,
    /// Broken: no new tasks; running tasks are displaced.
    Failed,
    /// Broken: no new tasks; running tasks stay.
    Degraded,
}

/// Use of a node by tasks outside the engine's control. It may exceed the node's capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForeignUse {
    pub cpu: MilliCpu,
    pub memory: MiB,
    pub storage: MiB,
    pub resources: BTreeMap<ResourceName, u64>,
    pub tokens: BTreeMap<TokenName, TokenAccess>,
    /// GPUs by id.
    pub gpus: BTreeMap<GpuId, ForeignGpu>,
    /// Number of whole GPUs with unknown ids.
    pub gpu_count: u32,
    /// Matched by the affinity and spread selectors of tasks.
    pub labels: Labels,
    /// Required anti-affinity terms of the foreign task.
    pub anti_affinity: Vec<crate::model::request::TaskAffinity>,
    /// The foreign task holds its resources but no longer counts for topology spread.
    pub terminating: bool,
}

/// Foreign use of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignGpu {
    Whole,
    Share(MilliGpu),
    Memory(MiB),
}

impl Node {
    /// A node without capacity.
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

    /// Both descriptions have the same capacity and GPUs; properties may differ.
    pub(crate) fn has_same_room(&self, other: &Self) -> bool {
        let Self {
            id,
            cpu,
            memory,
            storage,
            max_tasks,
            resources,
            gpus,
            device_selection,
            whole_gpus_only,
            // Properties: bookings stay when they change. `Room::copy_properties` copies the ones for scorers.
            rank: _,
            labels: _,
            taints: _,
            price: _,
        } = self;
        *id == other.id
            && (*cpu, *memory, *storage) == (other.cpu, other.memory, other.storage)
            && *max_tasks == other.max_tasks
            && *resources == other.resources
            && *gpus == other.gpus
            && *device_selection == other.device_selection
            && *whole_gpus_only == other.whole_gpus_only
    }

    /// Rejects out-of-range values; see [`InvalidInput`].
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
    /// The fixed MIG layout has slices that the model does not offer or that overlap.
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
    /// Rejects out-of-range values; see [`InvalidInput`].
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
        checked_name("the id of the foreign use", self.as_str())
    }
}
