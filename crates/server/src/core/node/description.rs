//! Node record to engine node.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_api::node::{GpuInstance, NodeSpec};
use agentaflow_api::units::Dollars;
use agentaflow_engine::{
    DeviceSelection, ForeignGpu, ForeignUse, Gpu, GpuHealth, GpuId, MiB, MicroDollars, MigMode,
    MigProfile, MilliCpu, Node, Price,
};

use super::LiveNode;
use crate::store::{NodeOverrides, NodeRow};

/// Tasks at once on a node that names no limit. Each live task costs the agent and its guardian memory and processes.
const MAX_TASKS: u32 = 1_000;

/// Amount of a runtime resource: tasks of a runtime are not limited by count.
const PLENTY: u64 = 1 << 30;
/// Foreign use of up to 1/10 of a device only makes the device smaller.
const SMALL_PART: u64 = 10;
/// Foreign use is rounded up to this many MiB, so that small changes cause no event.
const FOREIGN_STEP: u64 = 64;

/// Runtime of a node of a Kubernetes cluster: devices are assigned whole, by count.
pub(super) const KUBERNETES: &str = "kubernetes";

/// Engine name of a GPU: its index.
pub(crate) fn gpu_id(gpu: &GpuInstance, position: usize) -> GpuId {
    GpuId::from(gpu.gpu_index.map_or_else(|| position.to_string(), |index| index.to_string()))
}

/// GPUs that an admin cordoned or drains.
pub(crate) fn closed_gpus(set: &NodeOverrides) -> BTreeMap<GpuId, GpuHealth> {
    let each = |gpus: &BTreeSet<String>, health| {
        let named = gpus.iter().map(|gpu| (GpuId::from(gpu.as_str()), health));
        named.collect::<Vec<_>>()
    };
    let closed = each(&set.cordoned_gpus, GpuHealth::Cordoned);
    closed.into_iter().chain(each(&set.draining_gpus, GpuHealth::Draining)).collect()
}

/// GPUs of a node: as listed, or, if only sums are known, that many equal GPUs.
pub(crate) fn instances(spec: &NodeSpec) -> Vec<GpuInstance> {
    if !spec.gpu_instances.is_empty() {
        return spec.gpu_instances.clone();
    }
    let each = spec.gpu_memory_total / u64::from(spec.gpu_count.max(1));
    let one = |index: u32| GpuInstance {
        gpu_index: Some(index),
        gpu_type: spec.gpu_type.clone(),
        gpu_memory: Some(each),
        ..GpuInstance::default()
    };
    (0..spec.gpu_count).map(one).collect()
}

/// Engine node and its foreign use.
pub(super) fn describe(node: &LiveNode, booked: &BTreeMap<u32, u64>) -> (Node, ForeignUse) {
    let foreign = foreign_memory(node, booked);
    let (mut small, mut large) = (BTreeMap::new(), ForeignUse::default());
    for (index, gpu) in instances(&node.row.spec).iter().enumerate() {
        let id = gpu_id(gpu, index);
        let used = foreign.get(&id).copied().unwrap_or(0).next_multiple_of(FOREIGN_STEP);
        let memory = gpu.gpu_memory.unwrap_or(0);
        if used == 0 {
        } else if used * SMALL_PART <= memory {
            small.insert(id, used);
        } else {
            large.gpus.insert(id, ForeignGpu::Memory(MiB(used.min(memory))));
        }
    }
    if node.is_kubernetes() {
        let spec = &node.row.spec;
        let used =
            |total: u64, free: Option<u64>| free.map_or(0, |free| total.saturating_sub(free));
        large.cpu = MilliCpu(used(spec.cpu_cores.0, node.reported_free.cpu_milli));
        large.memory = MiB(used(spec.memory_total, node.reported_free.memory));
    }
    (engine_node(&node.row, &node.runtimes(), &small), large)
}

/// Foreign MiB on each GPU: as the agent reports, or as the reported free memory implies.
fn foreign_memory(node: &LiveNode, booked: &BTreeMap<u32, u64>) -> BTreeMap<GpuId, u64> {
    if node.row.spec.simulated {
        return BTreeMap::new();
    }
    let mut foreign = BTreeMap::new();
    let all = instances(&node.row.spec);
    for (position, reading) in node.readings.iter().enumerate() {
        let id = gpu_id(reading, position);
        let total = all.iter().enumerate().find(|(at, gpu)| gpu_id(gpu, *at) == id);
        let total = total.and_then(|(_, gpu)| gpu.gpu_memory).unwrap_or(0);
        let booked = reading.gpu_index.and_then(|index| booked.get(&index)).copied().unwrap_or(0);
        let implied = || {
            let free = reading.gpu_memory_available?;
            Some(total.saturating_sub(booked).saturating_sub(free))
        };
        let used = reading.gpu_memory_foreign.or_else(implied).unwrap_or(0);
        foreign.insert(id, used);
    }
    if foreign.is_empty() {
        spread_sum(node, booked, &all, &mut foreign);
    }
    foreign
}

/// Distributes a reported sum over the GPUs, emptiest first.
fn spread_sum(
    node: &LiveNode,
    booked: &BTreeMap<u32, u64>,
    all: &[GpuInstance],
    foreign: &mut BTreeMap<GpuId, u64>,
) {
    let Some(free) = node.reported_free.gpu_memory else { return };
    let room = |(at, gpu): (usize, &GpuInstance)| {
        let used = gpu.gpu_index.and_then(|index| booked.get(&index)).copied().unwrap_or(0);
        (gpu.gpu_memory.unwrap_or(0).saturating_sub(used), gpu_id(gpu, at))
    };
    let mut rooms: Vec<(u64, GpuId)> = all.iter().enumerate().map(room).collect();
    let unbooked: u64 = rooms.iter().map(|(room, _)| room).sum();
    let mut used = unbooked.saturating_sub(free);
    rooms.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    for (room, id) in rooms {
        let here = used.min(room);
        used -= here;
        foreign.insert(id, here);
    }
}

/// Engine node of a record. `smaller` reduces the memory of GPUs, in MiB.
pub(crate) fn engine_node(
    row: &NodeRow,
    runtimes: &[&str],
    smaller: &BTreeMap<GpuId, u64>,
) -> Node {
    let spec = &row.spec;
    let mut node = Node::new(row.node_id.as_str());
    node.rank = u32::try_from(row.id.0).unwrap_or(u32::MAX);
    node.cpu = MilliCpu(spec.cpu_cores.0);
    node.memory = MiB(spec.memory_total);
    node.storage = MiB(spec.storage_total.saturating_mul(1024));
    // Jobs that request no resources are limited by nothing else.
    let limit = Some(spec.max_concurrent_jobs).filter(|limit| *limit > 0);
    node.max_tasks = Some(limit.unwrap_or(MAX_TASKS));
    node.device_selection = DeviceSelection::Engine;
    node.whole_gpus_only = runtimes.contains(&KUBERNETES);
    node.price = price(spec);
    let region = spec.region.iter().map(|region| ("region", region.as_str()));
    let zone = spec.zone.iter().map(|zone| ("zone", zone.as_str()));
    let given = spec.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    node.labels =
        region.chain(zone).chain(given).map(|(key, value)| (key.into(), value.into())).collect();
    for offered in runtimes.iter().copied().flat_map(offers) {
        node.resources.insert((*offered).into(), PLENTY);
    }
    for (position, gpu) in instances(spec).iter().enumerate() {
        let id = gpu_id(gpu, position);
        let less = smaller.get(&id).copied().unwrap_or(0);
        let model = gpu.gpu_type.as_ref().or(gpu.gpu_name.as_ref()).or(spec.gpu_type.as_ref());
        node.gpus.push(Gpu {
            model: model.map_or("GPU", String::as_str).into(),
            memory: MiB(gpu.gpu_memory.unwrap_or(0).saturating_sub(less)),
            nvlink: gpu.nvlink_group.and_then(|group| u16::try_from(group).ok()),
            mig: mig_mode(gpu),
            id,
        });
    }
    node
}

fn mig_mode(gpu: &GpuInstance) -> MigMode {
    let Some(slices) = &gpu.mig else { return MigMode::Off };
    let known = |slice: &agentaflow_api::node::MigSlice| {
        Some((MigProfile::new(&slice.profile).ok()?, slice.start))
    };
    MigMode::Fixed(slices.iter().filter_map(known).collect())
}

pub(crate) fn price(spec: &NodeSpec) -> Price {
    let micros = |dollars: Dollars| MicroDollars(dollars.0.max(0) as u64);
    Price {
        gpu_hour: micros(spec.price_per_gpu_hour),
        cpu_hour: micros(spec.price_per_cpu_hour),
        gib_hour: micros(spec.price_per_memory_gb_hour),
    }
}

/// Resources that a runtime offers; the engine matches them like any other resource. A push agent runs plain
/// containers only; a pod sees no folders of its host and has no address of the host.
fn offers(runtime: &str) -> &'static [&'static str] {
    match runtime {
        "docker" => &["runtime/docker", "runtime/container", "runtime/plain-docker"],
        "kubernetes" => &["runtime/container", "runtime/plain-docker"],
        "process" => &["runtime/process"],
        "push" => &["runtime/plain-docker"],
        _ => &[],
    }
}
