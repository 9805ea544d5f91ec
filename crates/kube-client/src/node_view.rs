//! Nodes of a cluster as nodes of the REST API.

use agentaflow_api::ids::NodeId;
use agentaflow_api::node::{GpuInstance, Health, Node, NodeSpec, NodeStatus, PriceSource};
use agentaflow_api::{Cores, Dollars, Stamp};
use agentaflow_engine::GpuHealth;
use agentaflow_kube_core::crd::{GpuNode, GpuNodePhase, GpuStatus, MONITOR_TIMEOUT};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{self, Pod};
use agentaflow_kube_core::translate::{
    self, Namespaces, NodeView, TranslationContext, Volumes, gpu_resources,
};
use k8s_openapi::api::core::v1 as core;
use std::collections::{BTreeMap, BTreeSet};

use super::Failure;
use super::show::{condition, gpus, stamp};

/// Node with the report of its monitor and its pods.
pub(super) struct Seen {
    node: core::Node,
    slim: slim::Node,
    devices: Option<GpuNode>,
    pods: Vec<Pod>,
    view: NodeView,
    /// The last report of the monitor is too old, by the clock of the API server.
    monitor_lost: bool,
}

impl Seen {
    pub(super) fn new(node: core::Node, devices: Option<slim::GpuNode>, pods: Vec<Pod>) -> Self {
        let slim = serde_json::to_value(&node).ok();
        let slim: slim::Node =
            slim.and_then(|node| serde_json::from_value(node).ok()).unwrap_or_default();
        let devices = devices.and_then(slim::GpuNode::readable);
        let view = translate::node(&slim, devices.as_ref(), None);
        Self { node, slim, devices, pods, view, monitor_lost: false }
    }

    /// Judges the age of the monitor's report at this time of the API server: a scheduler that does not run marks no monitor as
    /// lost.
    pub(super) fn at(mut self, now: Option<Stamp>) -> Self {
        let status = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        let reported = status.and_then(|status| status.last_updated.as_ref()).map(stamp);
        let timeout = MONITOR_TIMEOUT.as_millis() as i64;
        self.monitor_lost =
            now.zip(reported).is_some_and(|(now, reported)| now.0 - reported.0 > timeout);
        self
    }

    /// Node as a scheduler watches it: without addresses and heartbeats of the kubelet.
    pub(super) fn watched(slim: &slim::Node, devices: Option<&GpuNode>, pods: Vec<Pod>) -> Self {
        let view = translate::node(slim, devices, None);
        let (node, slim, devices) = (whole(slim), slim.clone(), devices.cloned());
        // The scheduler itself marks lost monitors.
        Self { node, slim, devices, pods, view, monitor_lost: false }
    }

    pub(super) fn slim(&self) -> &slim::Node {
        &self.slim
    }

    pub(super) fn version(&self) -> Option<String> {
        self.node.metadata.resource_version.clone()
    }

    /// True for a GPU node.
    pub(super) fn has_gpus(&self) -> bool {
        let offers = self.slim.status.allocatable.iter().flatten();
        let offers = offers.into_iter().any(|(name, _)| name.starts_with("nvidia.com/"));
        offers || self.devices.is_some() || self.label(names::NODE_ENABLED) == Some("true")
    }

    /// Index and id of a GPU named by either.
    pub(super) fn find_gpu(&self, name: &str) -> Result<(usize, String), Failure> {
        let instances = self.instances();
        let found = instances.iter().position(|gpu| {
            gpu.gpu_uuid.as_deref() == Some(name)
                || gpu.gpu_index.map(|index| index.to_string()).as_deref() == Some(name)
        });
        let id = found.and_then(|at| Some((at, instances[at].gpu_uuid.clone()?)));
        id.ok_or_else(|| {
            let known: Vec<String> = (0..instances.len()).map(|at| at.to_string()).collect();
            let node = self.node.metadata.name.as_deref().unwrap_or_default();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::NotFound(format!("node `{node}` has no GPU `{name}`; it has {known}"))
        })
    }

    /// Devices of a pod on this node: as assigned by the kubelet if a monitor reports them, otherwise from the pod's
    /// annotation; `None` if unknown.
    pub(super) fn gpus_of(&self, pod: &Pod) -> Option<BTreeSet<String>> {
        let whole = whole_name(pod);
        let holds = |gpu: &&GpuStatus| {
            let holders = gpu.current_workload.iter().flat_map(|holders| holders.split(','));
            holders.into_iter().any(|holder| holder == whole)
        };
        let status = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        let read = status.into_iter().flat_map(|status| &status.gpu_status).filter(holds);
        let read: BTreeSet<String> = read.map(|gpu| gpu.id.clone()).collect();
        if !read.is_empty() {
            return Some(read);
        }
        let message = devices_of(pod);
        let instances = self.instances();
        let is_known = |id: &String| instances.iter().any(|gpu| gpu.gpu_uuid.as_ref() == Some(id));
        (!message.is_empty() && message.iter().all(is_known)).then_some(message)
    }

    pub(super) fn show(&self) -> Node {
        let name = self.node.metadata.name.clone().unwrap_or_default();
        let spec = self.spec(&name);
        let created = self.node.metadata.creation_timestamp.as_ref().map(stamp).unwrap_or_default();
        let beat = self.heartbeat();
        let (volumes, namespaces) = (Volumes::default(), Namespaces::default());
        let around = TranslationContext { volumes: &volumes, namespaces: &namespaces };
        let (mut cpu, mut memory, mut storage) = (0_u64, 0_u64, 0_u64);
        for pod in &self.pods {
            let uses = translate::foreign(pod, &around);
            cpu = cpu.saturating_add(uses.cpu.0);
            memory = memory.saturating_add(uses.memory.0);
            storage = storage.saturating_add(uses.storage.0);
        }
        let node = &self.view.node;
        let free = spec
            .gpu_instances
            .iter()
            .filter(|gpu| gpu.status == Some(agentaflow_api::node::GpuStatus::Available));
        let jobs = self.pods.iter().filter(|pod| !gpu_resources(pod).is_empty()).count();
        Node {
            id: NodeId::default(),
            node_id: name,
            gpu_memory_available: free
                .filter_map(|gpu| gpu.gpu_memory_available.or(gpu.gpu_memory))
                .sum(),
            cpu_cores_available: Cores(node.cpu.0.saturating_sub(cpu)),
            memory_available: node.memory.0.saturating_sub(memory),
            storage_available: node.storage.0.saturating_sub(storage) / 1024,
            status: self.status(),
            health_status: self.health(),
            last_heartbeat: beat,
            current_jobs: u32::try_from(jobs).unwrap_or(u32::MAX),
            registered_at: created,
            last_seen: beat,
            created_at: created,
            updated_at: beat.unwrap_or(created),
            price_source: self.price_source(),
            cordoned: self.is_cordoned(),
            draining: false,
            cordoned_gpus: self.closed_gpus(),
            draining_gpus: Vec::new(),
            reachable: self.is_ready(),
            lease_ms: None,
            pending_registration: None,
            api_key: None,
            spec,
        }
    }

    /// Cordoned GPUs, from the annotation of the node.
    fn closed_gpus(&self) -> Vec<String> {
        let named = self.node.metadata.annotations.as_ref();
        let named = named.and_then(|all| all.get(names::NODE_CLOSED_GPUS)).map(String::as_str);
        let gpus = named.unwrap_or_default().split(',').map(str::trim);
        gpus.filter(|gpu| !gpu.is_empty()).map(str::to_owned).collect()
    }

    fn spec(&self, name: &str) -> NodeSpec {
        let instances = self.instances();
        let status = self.node.status.as_ref();
        let address = |kind: &str| {
            let listed = status?.addresses.as_ref()?;
            Some(listed.iter().find(|address| address.type_ == kind)?.address.clone())
        };
        let device = self.devices.as_ref().and_then(|devices| devices.spec.gpu_devices.first());
        let driver = device.map(|device| device.driver_version.clone());
        let labels = self.node.metadata.labels.clone().unwrap_or_default();
        let taints = self.node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let node = &self.view.node;
        NodeSpec {
            node_name: name.to_owned(),
            hostname: address("Hostname"),
            ip_address: address("InternalIP"),
            region: self.label("topology.kubernetes.io/region").map(str::to_owned),
            zone: self.label("topology.kubernetes.io/zone").map(str::to_owned),
            cluster_name: "kubernetes".to_owned(),
            gpu_count: u32::try_from(instances.len()).unwrap_or(u32::MAX),
            gpu_type: instances.first().and_then(|gpu| gpu.gpu_type.clone()),
            gpu_memory_total: instances.iter().filter_map(|gpu| gpu.gpu_memory).sum(),
            gpu_driver_version: driver.filter(|driver| !driver.is_empty()),
            cpu_cores: Cores(node.cpu.0),
            memory_total: node.memory.0,
            storage_total: node.storage.0 / 1024,
            price_per_gpu_hour: self.price(),
            k8s_node_name: Some(name.to_owned()),
            k8s_labels: serde_json::to_value(&labels).ok(),
            k8s_taints: taints.and_then(|taints| serde_json::to_value(taints).ok()),
            gpu_instances: instances,
            runtimes: vec!["kubernetes".to_owned()],
            labels,
            ..NodeSpec::default()
        }
    }

    /// One entry for each device; time slices are not listed.
    fn instances(&self) -> Vec<GpuInstance> {
        let shared = self.view.shared_units.max(1) as usize;
        let status = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        let statuses: BTreeMap<&str, &GpuStatus> = status
            .into_iter()
            .flat_map(|status| &status.gpu_status)
            .map(|gpu| (gpu.id.as_str(), gpu))
            .collect();
        if self.view.node.gpus.is_empty() {
            return self.unlisted(&statuses);
        }
        let busy = self.busy();
        let units = self.view.node.gpus.chunks(shared).zip(self.view.health.chunks(shared));
        let shown = units.enumerate().map(|(at, (units, health))| {
            let id = units[0].id.as_str().split("::").next().unwrap_or_default();
            let reading = statuses.get(id).copied();
            let memory: u64 = units.iter().map(|unit| unit.memory.0).sum();
            let closed = match health.first().map(|(_, health)| *health) {
                Some(GpuHealth::Healthy) | None => None,
                Some(GpuHealth::Failed) => Some(agentaflow_api::node::GpuStatus::Error),
                Some(_) => Some(agentaflow_api::node::GpuStatus::Maintenance),
            };
            let used =
                reading.is_some_and(|gpu| gpu.current_workload.is_some()) || busy.contains(id);
            let instance = instance(at, id, units[0].model.as_str(), memory, reading);
            let open = if used {
                agentaflow_api::node::GpuStatus::Busy
            } else {
                agentaflow_api::node::GpuStatus::Available
            };
            GpuInstance { status: Some(closed.unwrap_or(open)), ..instance }
        });
        let mut shown: Vec<GpuInstance> = shown.collect();
        self.count_unnamed(&mut shown, busy.len());
        shown
    }

    /// Devices that only the monitor reports, such as devices in MIG mode.
    fn unlisted(&self, statuses: &BTreeMap<&str, &GpuStatus>) -> Vec<GpuInstance> {
        let devices = self.devices.iter().flat_map(|devices| &devices.spec.gpu_devices);
        let shown = devices.enumerate().map(|(at, device)| {
            let reading = statuses.get(device.id.as_str()).copied();
            let status = match reading {
                Some(gpu) if !gpu.available => agentaflow_api::node::GpuStatus::Error,
                Some(gpu) if gpu.current_workload.is_some() => {
                    agentaflow_api::node::GpuStatus::Busy
                }
                _ => agentaflow_api::node::GpuStatus::Available,
            };
            let status = Some(status);
            let made = instance(at, &device.id, &device.name, device.memory_total, reading);
            GpuInstance { status, pci_bus_id: Some(device.pci_bus_id.clone()), ..made }
        });
        shown.collect()
    }

    /// GPUs that the annotations of pods on this node name.
    fn busy(&self) -> BTreeSet<String> {
        self.pods.iter().flat_map(devices_of).collect()
    }

    /// Marks as many GPUs busy as foreign pods request: foreign pods do not name their GPUs.
    fn count_unnamed(&self, shown: &mut [GpuInstance], named: usize) {
        let shared = u64::from(self.view.shared_units.max(1));
        let held = |pod: &Pod| gpu_resources(pod).get(names::GPU_RESOURCE).copied().unwrap_or(0);
        let held: u64 = self.pods.iter().filter(|pod| gpus(pod).is_empty()).map(held).sum();
        let more = usize::try_from(held.div_ceil(shared)).unwrap_or(usize::MAX);
        let monitored = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        if monitored.is_some() || named >= shown.len() {
            return;
        }
        let free = shown
            .iter_mut()
            .filter(|gpu| gpu.status == Some(agentaflow_api::node::GpuStatus::Available));
        free.take(more).for_each(|gpu| gpu.status = Some(agentaflow_api::node::GpuStatus::Busy));
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(name).map(String::as_str)
    }

    fn is_cordoned(&self) -> bool {
        self.slim.spec.unschedulable == Some(true)
    }

    fn is_ready(&self) -> bool {
        let conditions = self.slim.status.conditions.iter().flatten();
        conditions.into_iter().any(|one| one.kind == "Ready" && one.status == "True")
    }

    fn status(&self) -> NodeStatus {
        let annotations = self.node.metadata.annotations.as_ref();
        let message =
            annotations.and_then(|all| all.get(names::NODE_MAINTENANCE)).map(String::as_str);
        let message = message.or_else(|| self.label(names::NODE_MAINTENANCE)) == Some("true");
        let phase = self.devices.as_ref().and_then(|devices| devices.status.as_ref()?.phase);
        if self.is_cordoned() || message || phase == Some(GpuNodePhase::Maintenance) {
            NodeStatus::Maintenance
        } else if !self.is_ready() {
            NodeStatus::Inactive
        } else if phase == Some(GpuNodePhase::Unavailable) && self.health() != Health::Unknown {
            // With unknown health, the node's own conditions count.
            NodeStatus::Error
        } else {
            NodeStatus::Active
        }
    }

    fn health(&self) -> Health {
        let status = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        let healthy = status.and_then(|status| condition(&status.conditions, "Healthy"));
        match healthy.map(|healthy| healthy.status.as_str()) {
            _ if self.monitor_lost => Health::Unknown,
            Some("True") => Health::Healthy,
            Some("False") => Health::Unhealthy,
            // The monitor does not report any more.
            Some("Unknown") => Health::Unknown,
            _ if self.is_ready() => Health::Healthy,
            _ => Health::Unknown,
        }
    }

    fn heartbeat(&self) -> Option<Stamp> {
        let conditions = self.node.status.as_ref()?.conditions.iter().flatten();
        let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
        let beat = ready.and_then(|ready| ready.last_heartbeat_time.as_ref()).map(stamp);
        let monitor = self.devices.as_ref().and_then(|devices| devices.status.as_ref());
        let monitor = monitor.and_then(|status| status.last_updated.as_ref()).map(stamp);
        beat.max(monitor)
    }

    /// Price of a whole GPU per hour.
    fn price(&self) -> Dollars {
        let unit = self.view.prices.get(names::GPU_RESOURCE).copied().unwrap_or_default();
        let whole = unit.0.saturating_mul(u64::from(self.view.shared_units.max(1)));
        Dollars(i64::try_from(whole).unwrap_or(i64::MAX))
    }

    fn price_source(&self) -> PriceSource {
        let annotations = self.node.metadata.annotations.as_ref();
        let message = annotations.and_then(|all| all.get(names::NODE_PRICE));
        let message = message.is_some_and(|text| translate::micro_dollars(text).is_some());
        match () {
            () if message => PriceSource::Node,
            () if self.view.prices.is_empty() => PriceSource::Default,
            () => PriceSource::Catalogue,
        }
    }
}

/// `namespace/name`.
pub(super) fn whole_name(pod: &Pod) -> String {
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    format!("{}/{}", part(&pod.metadata.namespace), part(&pod.metadata.name))
}

fn whole(slim: &slim::Node) -> core::Node {
    let conditions = slim.status.conditions.iter().flatten().map(|one| core::NodeCondition {
        type_: one.kind.clone(),
        status: one.status.clone(),
        ..core::NodeCondition::default()
    });
    core::Node {
        metadata: slim.metadata.clone(),
        spec: Some(core::NodeSpec {
            unschedulable: slim.spec.unschedulable,
            taints: slim.spec.taints.clone(),
            ..core::NodeSpec::default()
        }),
        status: Some(core::NodeStatus {
            allocatable: slim.status.allocatable.clone(),
            conditions: Some(conditions.collect()),
            ..core::NodeStatus::default()
        }),
    }
}

/// Devices that a pod's annotation names; a share counts as its device.
fn devices_of(pod: &Pod) -> BTreeSet<String> {
    let device = |gpu: String| gpu.split("::").next().unwrap_or_default().to_owned();
    gpus(pod).into_iter().map(device).collect()
}

fn instance(
    at: usize,
    id: &str,
    model: &str,
    memory: u64,
    reading: Option<&GpuStatus>,
) -> GpuInstance {
    GpuInstance {
        gpu_index: u32::try_from(at).ok(),
        gpu_uuid: Some(id.to_owned()),
        gpu_name: Some(model.to_owned()),
        gpu_type: Some(model.to_owned()),
        // The engine's minimum memory stands for an unknown GPU.
        gpu_memory: Some(memory).filter(|memory| *memory > 1),
        // Unknown without a reading.
        gpu_memory_available: reading
            .map(|gpu| memory.saturating_sub(gpu.memory_used))
            .filter(|_| memory > 1),
        utilization: reading.map(|gpu| gpu.utilization),
        temperature: reading.map(|gpu| gpu.temperature),
        power_usage: reading.map(|gpu| gpu.power_usage),
        problem: reading.and_then(|gpu| gpu.reason.clone()),
        ..GpuInstance::default()
    }
}

#[cfg(test)]
#[path = "node_view_tests.rs"]
mod tests;
