//! Main loop: sample, report and write every interval. Failures do not end it.

use agentaflow_backoff::BackoffPolicy;
use agentaflow_kube_core::{names, slim};
use agentaflow_metrics::{Access, Endpoint};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentaflow_gpu::{Device, GpuError};
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::gpu_sampler::{GpuReadings, GpuSampler, Opener};
use super::kubelet::{Kubelet, KubeletDevices, KubeletError};
use super::metrics::{Interval, Metrics};
use super::observation::{Allocation, NodeFacts, Observation, PodDevices};
use super::observe::{DeviceRecord, MonitorState, Report, observe, restore};
use super::publish::Publisher;
use super::serve::{self, Liveness};
use super::watch::{self, Watch};
use super::{MonitorError, usage};

/// First delay after a failed write; grows up to the interval.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Timeout of `once` for the API server.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Settings {
    /// Name of this node.
    pub node: String,
    /// Namespace of the `GPUNode` objects.
    pub namespace: String,
    pub interval: Duration,
    /// Longest time between two writes of the status: [`super::REFRESH`], except in tests.
    pub refresh: Duration,
    /// Target utilization in percent.
    pub goal: u32,
    pub gpus: Opener,
    /// Socket of the kubelet.
    pub pod_resources: PathBuf,
    /// `/proc` of the host's process namespace.
    pub proc: PathBuf,
    /// Address of `/healthz` and `/readyz`.
    pub health: Option<SocketAddr>,
    /// Address of `/metrics`.
    pub metrics: Option<SocketAddr>,
    pub metrics_access: Access,
    /// Also export the metric names of `dcgm-exporter`.
    pub dcgm_names: bool,
    /// Publish once and end.
    pub once: bool,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Client for the cluster of this kubeconfig, otherwise of `KUBECONFIG`, otherwise of the pod's service account.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, MonitorError> {
    let wrong = |error: &dyn std::error::Error| MonitorError::Cluster(error.to_string());
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| wrong(&error))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| wrong(&error))?
        }
        None => Config::infer().await.map_err(|error| wrong(&error))?,
    };
    Client::try_from(config).map_err(|error| wrong(&error))
}

/// Runs until `stop`; with `once`, until everything is published.
pub async fn run(
    client: Client,
    settings: Settings,
    stop: CancellationToken,
) -> Result<(), MonitorError> {
    let mut monitor = Monitor::start(client, settings, &stop).await?;
    let _guard = stop.clone().drop_guard();
    if monitor.settings.once {
        return monitor.once().await;
    }
    let mut next = Instant::now();
    let mut backoff = BackoffPolicy::new(FIRST_RETRY, monitor.settings.interval).start();
    let mut retry: Option<Instant> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(retry.unwrap_or(next).min(next)) => {}
        }
        let interval = monitor.settings.interval;
        let due = Instant::now() >= next;
        let looked = if due { monitor.observe_node().await } else { Ok(()) };
        let seen = looked.is_ok();
        let done = match looked {
            Ok(()) => monitor.publish().await,
            failed => failed,
        };
        monitor.liveness.record();
        let now = Instant::now();
        if due {
            next = (next + interval).max(now);
        }
        retry = match done {
            Ok(()) => {
                backoff.reset();
                None
            }
            Err(error) => {
                monitor.failed(&error);
                let delay = backoff.next_delay();
                if !seen {
                    next = now + delay;
                }
                Some(now + delay)
            }
        };
    }
}

struct Monitor {
    settings: Settings,
    sampler: GpuSampler,
    kubelet: Kubelet,
    watch: Watch,
    publisher: Publisher,
    liveness: Arc<Liveness>,
    metrics: Arc<Metrics>,
    memory: Option<MonitorState>,
    /// Last report.
    report: Option<Report>,
    /// Devices of pods as reported by the kubelet.
    kubelet_devices: PodDevices,
    /// Warnings already logged.
    warned: BTreeSet<String>,
}

impl Monitor {
    async fn start(
        client: Client,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Result<Self, MonitorError> {
        let liveness = Arc::new(Liveness::new(settings.interval));
        let metrics = Arc::new(Metrics::new(&settings.node, settings.dcgm_names));
        if let Some(address) = settings.health {
            let listener = serve::listen(address).await?;
            tokio::spawn(serve::health(listener, Arc::clone(&liveness), stop.clone()));
        }
        if let Some(address) = settings.metrics {
            let listener = serve::listen(address).await?;
            let access = settings.metrics_access.clone();
            let endpoint = Endpoint { access, sources: vec![metrics.clone()] };
            tokio::spawn(serve::metrics(listener, endpoint, stop.clone()));
        }
        Ok(Self {
            sampler: GpuSampler::new(Arc::clone(&settings.gpus), settings.proc.clone()),
            kubelet: Kubelet::new(&settings.pod_resources),
            watch: Watch::start(&client, &settings.node, stop),
            publisher: Publisher::new(client, &settings, Arc::clone(&liveness)),
            settings,
            liveness,
            metrics,
            memory: None,
            report: None,
            kubelet_devices: PodDevices::default(),
            warned: BTreeSet::new(),
        })
    }

    /// Runs one interval, for scripts; returns its error.
    async fn once(&mut self) -> Result<(), MonitorError> {
        self.watch.listed(PATIENCE).await;
        self.observe_node().await?;
        self.publish().await?;
        match self.report.as_ref().and_then(|report| report.line.message.clone()) {
            Some(message) => Err(MonitorError::Gpus(message)),
            None => Ok(()),
        }
    }

    /// Samples the node and builds a report.
    async fn observe_node(&mut self) -> Result<(), MonitorError> {
        if !self.watch.listed(self.settings.interval.min(PATIENCE)).await {
            return Err(MonitorError::Slow("list the node and its pods".into()));
        }
        let node = self.node()?;
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => self.remember(&node).await?,
        };
        let facts = NodeFacts::read(&node);
        let readings = self.sampler.sample().await;
        self.liveness.record();
        let without = match &readings {
            Ok(readings) => readings.gpus.devices.is_empty(),
            Err(error) => matches!(error, GpuError::NoDriver),
        };
        if without && !facts.claims_gpus && memory.devices.is_empty() {
            self.warn_once("this node has no GPUs; nothing is published");
            self.memory = Some(memory);
            self.report = None;
            return Ok(());
        }
        let (readings, failed) = match readings {
            Ok(readings) => (readings, None),
            Err(error) => (GpuReadings::default(), Some(error.to_string())),
        };
        let text = self.ask_kubelet().await;
        let pods = self.watch.pods();
        let owner = |pid| readings.owners.get(&pid).cloned();
        let used =
            usage::by_pod(&readings.processes, &readings.loads, owner, &watch::by_uid(&pods));
        let facts = NodeFacts { replicas: replicas(&facts, text.as_ref()), ..facts };
        let devices = devices(&readings, &memory);
        let holders = self.holders(&devices, text.as_ref(), &used, &pods, facts.replicas);
        let seen = Observation {
            node: facts,
            gpus: failed.clone().map_or_else(|| Ok(readings.gpus.clone()), Err),
            holders: holders.clone(),
            goal: self.settings.goal,
            boot: boot(&self.settings.proc),
        };
        let now = seconds(Timestamp::now());
        let report = observe(&memory, &seen, now);
        let interval = Interval {
            readings: failed.is_none().then_some(&readings),
            report: &report,
            used: &used,
            holders: &holders,
        };
        self.metrics.record(&interval, Instant::now().into_std());
        match failed {
            Some(message) => self.warn_once(&message),
            None if text.is_some() => self.warned.clear(),
            None => {}
        }
        self.kubelet_devices = if text.is_some() { holders } else { PodDevices::default() };
        self.memory = Some(report.memory.clone());
        self.publisher.tell(report.events.clone(), now);
        self.report = Some(report);
        Ok(())
    }

    /// Writes the last report.
    async fn publish(&mut self) -> Result<(), MonitorError> {
        let node = self.node()?;
        if let Some(report) = &self.report {
            let now = seconds(Timestamp::now());
            self.publisher.publish(&node, report, now).await?;
            self.publisher.annotate(&self.watch.pods(), &self.kubelet_devices).await?;
        }
        self.liveness.published();
        Ok(())
    }

    fn node(&self) -> Result<Arc<slim::Node>, MonitorError> {
        self.watch.node().ok_or_else(|| MonitorError::NoNode(self.settings.node.clone()))
    }

    /// State of an earlier monitor: keeps lost devices across restarts.
    async fn remember(&self, node: &slim::Node) -> Result<MonitorState, MonitorError> {
        let published = self.publisher.read(&self.settings.node).await?;
        let line = node.metadata.annotations.as_ref().and_then(|all| all.get(names::NODE_STATUS));
        Ok(restore(published.as_ref(), line.map(String::as_str)))
    }

    async fn ask_kubelet(&mut self) -> Option<KubeletDevices> {
        match self.kubelet.query_devices().await {
            Ok(message) => Some(message),
            Err(error @ KubeletError::Absent(_)) => {
                self.warn_once(&format!("{error}; GPU owners are derived from processes"));
                None
            }
            Err(error) => {
                self.warn_once(&error.to_string());
                None
            }
        }
    }

    /// Devices of pods: from the kubelet, else from GPU processes. For simulated GPUs, from the scheduler's
    /// assignment.
    fn holders(
        &self,
        devices: &[Device],
        message: Option<&KubeletDevices>,
        used: &usage::PodUse,
        pods: &[Arc<slim::Pod>],
        replicas: u32,
    ) -> PodDevices {
        if let Some(message) = message {
            return PodDevices::of(&message.allocations, devices, replicas);
        }
        if !devices.iter().any(|device| device.simulated) {
            return PodDevices::of(&usage::holders(used), devices, replicas);
        }
        let planned: Vec<Allocation> = pods.iter().filter_map(|pod| planned(pod)).collect();
        let holders = PodDevices::of(&planned, devices, replicas);
        self.sampler.set_simulated_load(&load(&holders, devices));
        holders
    }

    fn failed(&mut self, error: &MonitorError) {
        let source = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        tracing::warn!("{error}{}; retrying", source.unwrap_or_default());
        self.metrics.count_failed_write();
    }

    fn warn_once(&mut self, message: &str) {
        if self.warned.insert(message.to_owned()) {
            tracing::warn!("{message}");
        }
    }
}

/// Scheduler's assignment of a pod: `node/gpu-id`, comma-separated.
fn planned(pod: &slim::Pod) -> Option<Allocation> {
    let plan = pod.metadata.annotations.as_ref()?.get(names::POD_ASSIGNED_GPU)?;
    let id = |gpu: &str| gpu.rsplit_once('/').map_or(gpu, |(_, id)| id).trim().to_owned();
    Some(Allocation { pod: watch::name(pod), ids: plan.split(',').map(id).collect() })
}

/// Present and lost devices: a lost one still belongs to its pod.
fn devices(readings: &GpuReadings, memory: &MonitorState) -> Vec<Device> {
    let mut devices: Vec<Device> =
        readings.gpus.devices.iter().map(|(gpu, _)| gpu.clone()).collect();
    for DeviceRecord { device, .. } in &memory.devices {
        if !devices.iter().any(|gpu| gpu.uuid == device.id) {
            let (uuid, name) = (device.id.clone(), device.name.clone());
            devices.push(Device { uuid, name, index: u32::MAX, ..Device::default() });
        }
    }
    devices
}

/// Load of simulated GPUs: GPUs assigned to pods are busy and use most of their memory, as in training.
fn load(holders: &PodDevices, devices: &[Device]) -> Vec<(String, u32, u64)> {
    let memory: BTreeMap<&str, u64> =
        devices.iter().map(|device| (&*device.uuid, device.memory)).collect();
    let each = holders.pods.values().flatten().map(|(device, milli)| {
        let memory = memory.get(&**device).copied().unwrap_or(0);
        (device.clone(), milli * 95 / 100, memory * 3 / 4 * u64::from(*milli) / 1_000)
    });
    each.collect()
}

/// Time slices of each device: from the node's label, else from the kubelet's device ids.
fn replicas(facts: &NodeFacts, message: Option<&KubeletDevices>) -> u32 {
    if facts.replicas > 1 {
        return facts.replicas;
    }
    let mut slices: BTreeMap<&str, u32> = BTreeMap::new();
    for id in message.map(|message| &message.allocatable).into_iter().flatten() {
        if let Some((device, _)) = id.split_once("::") {
            *slices.entry(device).or_default() += 1;
        }
    }
    slices.into_values().max().unwrap_or(1)
}

/// Boot id.
fn boot(proc: &Path) -> String {
    let text = std::fs::read_to_string(proc.join("sys/kernel/random/boot_id"));
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Kubernetes writes whole seconds.
fn seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
