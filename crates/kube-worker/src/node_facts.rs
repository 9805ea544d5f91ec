//! Registration and heartbeat data of the node, and its GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentaflow_agent::NodeFacts;
use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Heartbeat, NodeRegistration};
use agentaflow_api::units::{Cores, Dollars};
use agentaflow_engine::Gpu;
use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};
use agentaflow_kube_core::{names as kube_names, slim, translate};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::offer::{NodeClosed, Offer, offer};
use crate::runtime::Jobs;

/// A change must last this long: resources fluctuate while a device plugin restarts.
const SETTLE_TIME: Duration = Duration::from_secs(5);

/// Longest wait for a restarting device plugin when the agent starts.
const DEVICE_PLUGIN_LIMIT: Duration = Duration::from_mins(2);

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Jobs {
    pub(crate) fn offer(&self) -> Offer {
        let now = match self.watch.node() {
            Some(node) => offer(&node, &self.watch.pods(), &self.owner),
            None => Offer { closed: Some(NodeClosed::Removed), ..Offer::default() },
        };
        let mut known = self.known_gpus();
        let now = now.with_known(&known);
        known.clone_from(&now.gpus);
        now
    }

    /// Waits until the node reports the GPUs of Jobs that an earlier agent started: a registration without them would
    /// lose these Jobs. The wait is limited, since a GPU may be removed for good.
    pub(crate) async fn wait_for_gpus(&self) {
        let begun = Instant::now();
        while begun.elapsed() < DEVICE_PLUGIN_LIMIT {
            let present: BTreeSet<String> =
                self.offer().gpus.iter().map(|gpu| self.uuid(gpu)).collect();
            if self.granted().is_subset(&present) {
                return;
            }
            info!("the node reports fewer GPUs than its Jobs use; waiting for its device plugin");
            sleep(CHECK_INTERVAL).await;
        }
    }

    pub(crate) async fn changed(&self) {
        let all = |offer: &Offer| {
            (offer.gpus.clone(), offer.cpu.total, offer.memory.total, offer.storage.total >> 10)
        };
        let registered = all(&self.offer());
        let mut since = None;
        loop {
            let differs = self.watch.node().is_some() && all(&self.offer()) != registered;
            let begun = *since.get_or_insert_with(Instant::now);
            match differs {
                true if begun.elapsed() >= SETTLE_TIME => break,
                true => {}
                false => since = None,
            }
            sleep(CHECK_INTERVAL).await;
        }
        info!("the resources of the node changed; registering again");
    }

    /// Marks GPUs that foreign pods use or that are cordoned.
    fn mark(&self, offer: &Offer, instances: &mut [GpuInstance]) {
        let ours = self.granted();
        let at = |(index, gpu): (usize, &Gpu)| ours.contains(&self.uuid(gpu)).then_some(index);
        let ours: BTreeSet<usize> = offer.gpus.iter().enumerate().filter_map(at).collect();
        let gone = offer.unavailable(&ours);
        for instance in instances {
            let at = instance.gpu_index.and_then(|index| usize::try_from(index).ok());
            if at.is_some_and(|at| gone.contains(&at)) {
                instance.gpu_memory_foreign = instance.gpu_memory;
                instance.gpu_memory_available = Some(0);
                instance.status = Some(GpuStatus::Busy);
            }
        }
    }

    /// Name of a GPU in the agent's reports.
    fn uuid(&self, gpu: &Gpu) -> String {
        format!("{}/{}", self.settings.node, gpu.id)
    }
}

impl NodeFacts for Jobs {
    fn complete_registration(&self, registration: &mut NodeRegistration) {
        let offer = self.offer();
        let node = self.watch.node();
        let labels = node.as_ref().and_then(|node| node.metadata.labels.clone());
        let label = |key: &str| labels.as_ref().and_then(|labels| labels.get(key)).cloned();
        self.mark(&offer, &mut registration.gpu_instances);
        registration.hostname = Some(self.settings.node.clone());
        registration.cpu_cores = Some(Cores(offer.cpu.total));
        registration.memory_total = Some(offer.memory.total);
        registration.storage_total = Some(offer.storage.total >> 10);
        registration.region =
            registration.region.take().or_else(|| label("topology.kubernetes.io/region"));
        registration.zone =
            registration.zone.take().or_else(|| label("topology.kubernetes.io/zone"));
        registration.k8s_node_name = Some(self.settings.node.clone());
        registration.k8s_cluster.clone_from(&self.settings.cluster);
        registration.k8s_namespace = Some(self.settings.namespace.clone());
        registration.k8s_labels = Some(json!(labels));
        registration.k8s_taints =
            node.as_ref().and_then(|node| Some(json!(node.spec.taints.as_ref()?)));
        registration.price_per_gpu_hour =
            registration.price_per_gpu_hour.or_else(|| price(node.as_deref()?));
    }

    fn complete_heartbeat(&self, heartbeat: &mut Heartbeat) {
        let offer = self.offer();
        if let Some(instances) = &mut heartbeat.gpu_instances {
            self.mark(&offer, instances);
            let free = instances.iter().filter_map(|gpu| gpu.gpu_memory_available);
            heartbeat.gpu_memory_available = Some(free.sum());
        }
        heartbeat.cpu_cores_available = Some(Cores(offer.cpu.free));
        heartbeat.memory_available = Some(offer.memory.free);
        heartbeat.storage_available = Some(offer.storage.free >> 10);
        let health = if offer.closed.is_some() { Health::Unhealthy } else { Health::Healthy };
        heartbeat.health_status = Some(health);
        let mut logged = self.logged_closed();
        if *logged != offer.closed {
            let node = &self.settings.node;
            if let Some(closed) = &offer.closed {
                warn!(node, "{closed}; no new jobs");
            } else {
                info!(node, "the node accepts jobs again");
            }
            *logged = offer.closed;
        }
    }
}

impl GpuSource for Jobs {
    fn host(&self) -> Host {
        let node = self.watch.node();
        let labels = node.and_then(|node| node.metadata.labels.clone()).unwrap_or_default();
        Host {
            driver: version(&labels, &["driver.major", "driver.minor", "driver.rev"]),
            cuda: version(&labels, &["runtime.major", "runtime.minor"]),
            source: "kubernetes",
        }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        let gpus = self.offer().gpus;
        let device = |(index, gpu): (usize, &Gpu)| Device {
            index: index as u32,
            uuid: self.uuid(gpu),
            name: gpu.model.to_string(),
            memory: gpu.memory.0,
            ..Device::default()
        };
        Ok(gpus.iter().enumerate().map(device).collect())
    }

    /// Without readings: the node monitor measures GPUs.
    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        let gpus = self.offer().gpus;
        Ok(gpus.iter().map(|gpu| Sample { uuid: self.uuid(gpu), ..Sample::default() }).collect())
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }
}

/// Version from the labels of NVIDIA's GPU feature discovery.
fn version(labels: &BTreeMap<String, String>, parts: &[&str]) -> Option<String> {
    let parts = parts.iter().map(|part| labels.get(&format!("nvidia.com/cuda.{part}")));
    let parts: Option<Vec<&str>> = parts.map(|part| part.map(String::as_str)).collect();
    parts.map(|parts| parts.join("."))
}

/// GPU price from the annotation of the node.
fn price(node: &slim::Node) -> Option<Dollars> {
    let price = node.metadata.annotations.as_ref()?.get(kube_names::NODE_PRICE)?;
    let micros = translate::micro_dollars(price)?;
    i64::try_from(micros.0).ok().map(Dollars)
}
