//! State of one node: description, condition and tasks.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cluster;
use super::room::{Claim, Device, DeviceClaim, NO_LINK, Need, Room, TASKS};
use crate::model::mig::{Geometry, Instance, Slots};
use crate::model::name::{ForeignId, GpuId};
use crate::model::node::{
    DeviceSelection, ForeignGpu, ForeignUse, GpuHealth, MigMode, Node, Price,
};
use crate::model::request::MigProfile;
use crate::model::units::{Percent, Time};
use crate::state::workloads::TaskRef;

#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) spec: Arc<Node>,
    pub(crate) reach: Reachability,
    pub(crate) cordoned: bool,
    pub(crate) draining: bool,
    pub(crate) reclaimed: Option<Time>,
    pub(crate) health: BTreeMap<GpuId, GpuHealth>,
    pub(crate) utilization: BTreeMap<GpuId, Percent>,
    pub(crate) tasks: Vec<TaskRef>,
    pub(crate) foreign: BTreeMap<ForeignId, (ForeignUse, Claim)>,
    /// Foreign use or adopted tasks exceed the capacity.
    pub(crate) overcommitted_externally: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reachability {
    #[default]
    Up,
    Lost,
}

impl NodeState {
    pub(super) fn new(spec: Arc<Node>) -> Self {
        Self {
            spec,
            reach: Reachability::Up,
            cordoned: false,
            draining: false,
            reclaimed: None,
            health: BTreeMap::new(),
            utilization: BTreeMap::new(),
            tasks: Vec::new(),
            foreign: BTreeMap::new(),
            overcommitted_externally: false,
        }
    }

    /// The node takes new tasks.
    pub(crate) fn is_open(&self) -> bool {
        self.reach == Reachability::Up
            && !self.cordoned
            && !self.draining
            && self.reclaimed.is_none()
    }

    /// Copies the node's condition into its room.
    pub(crate) fn apply_state(&self, room: &mut Room) {
        room.open = self.is_open();
        for (index, (gpu, device)) in self.spec.gpus.iter().zip(&mut room.devices).enumerate() {
            device.open = self.health_of(index) == GpuHealth::Healthy;
            device.utilization = self.utilization.get(&gpu.id).copied().unwrap_or_default().step();
        }
        room.summarise();
    }

    pub(crate) fn health_of(&self, device: usize) -> GpuHealth {
        let gpu = self.spec.gpus.get(device);
        gpu.and_then(|gpu| self.health.get(&gpu.id)).copied().unwrap_or_default()
    }

    pub(crate) fn device(&self, gpu: &GpuId) -> Option<usize> {
        self.spec.gpus.iter().position(|known| known.id == *gpu)
    }
}

impl Cluster {
    /// Room of a node without bookings.
    pub(super) fn empty_room(&mut self, spec: &Node) -> Room {
        let workloads = spec.max_tasks.map_or(i64::from(u32::MAX), i64::from);
        let total = [spec.cpu.0 as i64, spec.memory.0 as i64, spec.storage.0 as i64, workloads];
        let mut named: Vec<_> = spec
            .resources
            .iter()
            .map(|(name, amount)| (self.resource(name), *amount as i64))
            .collect();
        named.sort_unstable();
        let devices: SmallVec<[Device; 8]> = spec
            .gpus
            .iter()
            .map(|gpu| Device { whole_only: spec.whole_gpus_only, ..self.device(gpu) })
            .collect();
        let uniform = devices.windows(2).all(|pair| {
            pair[0].model == pair[1].model
                && pair[0].total == pair[1].total
                && pair[0].geometry.is_some() == pair[1].geometry.is_some()
        });
        let mut room =
            Room { free: total, total, open: true, uniform, named, devices, ..Room::default() };
        room.copy_properties(spec);
        debug_assert!(room.total[TASKS] >= 0);
        room.summarise();
        room
    }

    /// The same room without bookings.
    pub(crate) fn without_bookings(&self, spec: &Node, room: &Room) -> Room {
        let mut empty = room.clone();
        empty.free = empty.total;
        empty.tokens.clear();
        for (resource, left) in &mut empty.named {
            let total = spec.resources.get(self.resource_name(*resource));
            *left = total.copied().unwrap_or(0) as i64;
        }
        for device in &mut empty.devices {
            device.milli = 1000;
            device.mib = device.total;
            device.users = 0;
            device.exclusive = 0;
            device.slots = Slots::default();
        }
        empty.summarise();
        empty
    }

    fn device(&mut self, gpu: &crate::model::node::Gpu) -> Device {
        let geometry = match gpu.mig {
            MigMode::Off => None,
            MigMode::Free | MigMode::Fixed(_) => {
                Geometry::for_gpu(gpu.model.as_str(), gpu.memory.0)
            }
        };
        let layout = match (&gpu.mig, geometry) {
            (MigMode::Fixed(layout), Some(geometry)) => Some(instances(geometry, layout)),
            _ => None,
        };
        Device {
            milli: 1000,
            mib: gpu.memory.0 as i32,
            total: gpu.memory.0 as i32,
            model: self.model(&gpu.model),
            users: 0,
            link: gpu.nvlink.unwrap_or(NO_LINK),
            utilization: 0,
            open: true,
            exclusive: 0,
            whole_only: false,
            slots: Slots::default(),
            geometry,
            layout,
        }
    }

    /// Claim of foreign use. Unnamed GPUs count as the last free ones, because kubelets and users tend to
    /// start with the first.
    pub(crate) fn foreign_claim(
        &mut self,
        node: super::NodeIdx,
        uses: &ForeignUse,
        assumed: &[GpuId],
    ) -> Claim {
        let mut need = Need {
            amounts: [uses.cpu.0 as i64, uses.memory.0 as i64, uses.storage.0 as i64, 0],
            named: Vec::new(),
            tokens: uses.tokens.iter().map(|(name, usage)| (name.clone(), *usage)).collect(),
        };
        for (name, amount) in &uses.resources {
            need.named.push((self.resource(name), *amount as i64));
        }
        need.named.sort_unstable();
        let node_state = self.node_state(node);
        let room = self.room(node);
        let mut devices: SmallVec<[DeviceClaim; 1]> = SmallVec::new();
        let mut unknown = uses.gpu_count as usize;
        for (gpu, usage) in &uses.gpus {
            if let Some(index) = node_state.device(gpu) {
                devices.push(foreign_part(index, &room.devices[index], *usage));
            } else if node_state.spec.device_selection == DeviceSelection::Node
                && *usage == ForeignGpu::Whole
            {
                // The node has renamed this GPU.
                unknown += 1;
            }
        }
        let named: Vec<u16> = devices.iter().map(|part| part.device).collect();
        let unnamed = room.devices.iter().enumerate().rev();
        let unnamed = unnamed.filter(|(index, _)| !named.contains(&(*index as u16)));
        let mut unnamed: Vec<_> = unnamed.map(|(index, d)| (d.users, index)).collect();
        unnamed.sort_by_key(|(users, index)| {
            (!assumed.contains(&node_state.spec.gpus[*index].id), *users)
        });
        unnamed.truncate(unknown);
        unnamed.sort_unstable_by_key(|(_, index)| std::cmp::Reverse(*index));
        for (_, index) in unnamed {
            devices.push(foreign_part(index, &room.devices[index], ForeignGpu::Whole));
        }
        Claim { need: Arc::new(need), devices }
    }
}

impl Room {
    /// Copies the properties of a node that scorers read; see [`Node::has_same_room`].
    pub(super) fn copy_properties(&mut self, spec: &Node) {
        let Price { gpu_hour, cpu_hour, gib_hour } = spec.price;
        self.price =
            [gpu_hour, cpu_hour, gib_hour].map(|price| i64::try_from(price.0).unwrap_or(i64::MAX));
    }
}

fn instances(geometry: &Geometry, layout: &[(MigProfile, u8)]) -> Arc<[Instance]> {
    let known = |(profile, start): &(MigProfile, u8)| {
        Some(Instance { profile: geometry.profile(profile.as_str())?, start: *start })
    };
    layout.iter().filter_map(known).collect()
}

fn foreign_part(index: usize, device: &Device, usage: ForeignGpu) -> DeviceClaim {
    let total = i64::from(device.total);
    let (milli, mib, exclusive) = match usage {
        ForeignGpu::Whole => (1000, total, true),
        ForeignGpu::Share(share) => {
            (i64::from(share.get()), total * i64::from(share.get()) / 1000, false)
        }
        ForeignGpu::Memory(mib) => {
            // One use cannot exceed the GPU's memory.
            let mib = (mib.0 as i64).min(total);
            (mib * 1000 / total.max(1), mib, false)
        }
    };
    DeviceClaim {
        device: index as u16,
        exclusive,
        model: device.model,
        milli: milli as i32,
        mib: mib as i32,
        slice: None,
    }
}
