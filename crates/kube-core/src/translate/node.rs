//! Nodes and their GPUs.

use agentaflow_engine::{
    DeviceSelection, Gpu, GpuHealth, GpuId, GpuModel, MAX_NODE_GPUS, MiB, MicroDollars, MigMode,
    Percent,
};
use std::collections::{BTreeMap, BTreeSet};

use super::features;
use super::price;
use super::quantity::LARGEST;
use super::resources::offers;
use super::selector::labels;
use super::taints::taints;
use super::volumes::{attachments, limits};
use crate::crd::{GpuDevice, GpuNode, GpuNodePhase, GpuStatus};
use crate::names;
use crate::slim::{CsiNode, Node};

/// Largest memory of one GPU that the engine accepts, in MiB.
const LARGEST_GPU: u64 = 1 << 21;

/// Longest name that the engine accepts.
const LONGEST_NAME: usize = 253;

/// Suffix of the product label for time-sliced GPUs.
const SHARED_SUFFIX: &str = "-SHARED";

/// Part of the product label for MIG's single strategy, where slices count as GPUs.
pub(super) const SLICED: &str = "-MIG-";

/// Node description for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub node: agentaflow_engine::Node,
    pub health: Vec<(GpuId, GpuHealth)>,
    /// Utilization of GPUs, as far as known.
    pub readings: Vec<(GpuId, Percent)>,
    /// Time slices per device; 1 for whole devices.
    pub shared_units: u32,
    /// Dollars per hour of a unit, by resource.
    pub prices: BTreeMap<String, MicroDollars>,
}

/// Converts a node with the reports of its monitor and its CSI drivers. Call
/// [`Volumes::lift_limits`](super::Volumes::lift_limits) on the result if other nodes have limits that this one lacks.
pub fn node(node: &Node, devices: Option<&GpuNode>, csi: Option<&CsiNode>) -> NodeView {
    let offers = offers(node.status.allocatable.as_ref());
    let mut made = agentaflow_engine::Node::new(node.metadata.name.as_deref().unwrap_or_default());
    made.labels = labels(node.metadata.labels.as_ref());
    made.labels.extend(features::declared(node));
    made.taints = taints(node);
    made.cpu.0 = offers.cpu.0.min(LARGEST);
    made.memory.0 = offers.memory.0.min(LARGEST);
    made.storage.0 = offers.storage.0.min(LARGEST);
    made.device_selection = DeviceSelection::Node;
    made.resources = offers.resources;
    for (driver, limit) in csi.map(limits).unwrap_or_default() {
        made.resources.insert(attachments(&driver), limit);
    }
    let units = units(node, offers.gpus, devices);
    if units.shared == 1 && !units.gpus.is_empty() {
        made.resources.insert(names::EXCLUSIVE_RESOURCE.into(), units.gpus.len() as u64);
    }
    made.resources.values_mut().for_each(|amount| *amount = (*amount).min(LARGEST));
    let model = units.gpus.first().map(|gpu| gpu.model.as_str());
    let prices = price::charges(node, model, units.shared);
    made.price.gpu_hour = prices.get(names::GPU_RESOURCE).copied().unwrap_or_default();
    made.gpus = units.gpus;
    NodeView {
        node: made,
        health: units.health,
        readings: units.readings,
        shared_units: units.shared,
        prices,
    }
}

/// GPUs of a node, or their time slices.
#[derive(Default)]
struct Units {
    gpus: Vec<Gpu>,
    health: Vec<(GpuId, GpuHealth)>,
    readings: Vec<(GpuId, Percent)>,
    shared: u32,
}

fn units(node: &Node, allocatable: u64, devices: Option<&GpuNode>) -> Units {
    let label = |key| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let replicas = label(names::NVIDIA_REPLICAS).and_then(|text| text.parse::<u32>().ok());
    let shared = replicas.unwrap_or(1).max(1);
    let registered =
        node.status.allocatable.as_ref().is_some_and(|a| a.contains_key(names::GPU_RESOURCE));
    let sliced = label(names::NVIDIA_PRODUCT).is_some_and(|product| product.contains(SLICED));
    // The monitor names devices, not their slices.
    let mut units = devices
        .filter(|_| registered && !sliced)
        .and_then(|devices| monitored(devices, allocatable, shared))
        .unwrap_or_else(|| labelled(label, allocatable, shared));
    close(&mut units, node, shared);
    units.shared = shared;
    // The engine tracks at most this many; the rest stays unused.
    units.gpus.truncate(MAX_NODE_GPUS);
    let kept: BTreeSet<&GpuId> = units.gpus.iter().map(|gpu| &gpu.id).collect();
    units.health.retain(|(id, _)| kept.contains(id));
    units.readings.retain(|(id, _)| kept.contains(id));
    units
}

/// GPUs cordoned by an administrator, by id or index.
pub fn closed_gpus(node: &Node) -> BTreeSet<&str> {
    let annotations = node.metadata.annotations.as_ref();
    let listed = annotations.and_then(|all| all.get(names::NODE_CLOSED_GPUS));
    let listed = listed.map(String::as_str).unwrap_or_default().split(',').map(str::trim);
    listed.filter(|name| !name.is_empty()).collect()
}

/// Marks all units of cordoned GPUs.
fn close(units: &mut Units, node: &Node, shared: u32) {
    let closed = closed_gpus(node);
    if closed.is_empty() {
        return;
    }
    for (at, (id, health)) in units.health.iter_mut().enumerate() {
        let device = id.as_str().split("::").next().unwrap_or_default();
        let number = (at / shared as usize).to_string();
        let named = closed.contains(device) || closed.contains(number.as_str());
        if named && *health == GpuHealth::Healthy {
            *health = GpuHealth::Cordoned;
        }
    }
}

/// Units with the device names of the monitor; none if it lists fewer devices than allocatable, or invalid names.
///
/// A device that the kubelet no longer offers stays in the account for the pods that use it: the unhealthy devices,
/// else the last ones. Uncordoning has no effect on it.
fn monitored(devices: &GpuNode, allocatable: u64, shared: u32) -> Option<Units> {
    let listed = &devices.spec.gpu_devices;
    let ids: BTreeSet<&str> = listed.iter().map(|device| device.id.as_str()).collect();
    let named = |device: &GpuDevice| is_name(&device.id) && is_name(&device.name);
    let count = (listed.len() as u64).saturating_mul(shared.into());
    if count < allocatable || count > MAX_NODE_GPUS as u64 || ids.len() < listed.len() {
        return None;
    }
    if !listed.iter().all(named) {
        return None;
    }
    let statuses =
        devices.status.as_ref().map(|status| status.gpu_status.as_slice()).unwrap_or_default();
    let statuses: BTreeMap<&str, &GpuStatus> =
        statuses.iter().map(|gpu| (gpu.id.as_str(), gpu)).collect();
    let phase = devices.status.as_ref().and_then(|status| status.phase);
    let mut usable = allocatable;
    let mut units = Units::default();
    for device in listed {
        let status = statuses.get(device.id.as_str()).copied();
        let unhealthy = status.is_some_and(|status| !status.available);
        for unit in 0..shared {
            let id = unit_id(device, unit, shared);
            let health = match () {
                () if unhealthy => GpuHealth::Failed,
                () if usable == 0 => GpuHealth::Degraded,
                () if phase == Some(GpuNodePhase::Maintenance) => GpuHealth::Cordoned,
                () => GpuHealth::Healthy,
            };
            usable = usable.saturating_sub(u64::from(!unhealthy));
            units.gpus.push(gpu(id.clone(), &device.name, device.memory_total, shared));
            units.health.push((id.clone(), health));
            let reading = status.and_then(|status| Percent::new(status.utilization).ok());
            units.readings.extend(reading.map(|reading| (id, reading)));
        }
    }
    Some(units)
}

/// Units according to the labels of NVIDIA's feature discovery; unnamed without labels. With MIG's single strategy
/// the labels describe the slices.
fn labelled<'a>(
    label: impl Fn(&'static str) -> Option<&'a String>,
    allocatable: u64,
    shared: u32,
) -> Units {
    let model = label(names::NVIDIA_PRODUCT).map(String::as_str).filter(|model| is_name(model));
    let model = model.map_or("unknown", |model| model.strip_suffix(SHARED_SUFFIX).unwrap_or(model));
    let memory = label(names::NVIDIA_MEMORY).and_then(|text| text.parse().ok()).unwrap_or(0);
    let count = allocatable.min(MAX_NODE_GPUS as u64);
    let gpus = (0..count).map(|number| gpu(number.to_string().into(), model, memory, shared));
    let gpus: Vec<Gpu> = gpus.collect();
    let health = gpus.iter().map(|gpu| (gpu.id.clone(), GpuHealth::Healthy)).collect();
    Units { gpus, health, ..Units::default() }
}

/// Unit id in the format of the device plugin.
fn unit_id(device: &GpuDevice, unit: u32, shared: u32) -> GpuId {
    if shared == 1 { device.id.as_str().into() } else { format!("{}::{unit}", device.id).into() }
}

/// One unit with its share of the memory. A GPU of unknown memory has so little that no memory request matches.
fn gpu(id: GpuId, model: &str, memory: u64, shared: u32) -> Gpu {
    let memory = MiB((memory / u64::from(shared)).clamp(1, LARGEST_GPU));
    Gpu { id, model: GpuModel::from(model), memory, nvlink: None, mig: MigMode::Off }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() < LONGEST_NAME - 12
}
