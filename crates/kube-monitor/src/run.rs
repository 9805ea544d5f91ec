//! The loop: look, report, write; again every interval. Nothing that fails ends it.

use agentaflow_kube_core::{names, slim};
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

use super::eyes::{Eyes, Opener, Sight};
use super::kubelet::{Kubelet, KubeletError, Told};
use super::metrics::Metrics;
use super::observe::{Known, Memory, Report, observe, restore};
use super::publish::Publisher;
use super::seen::{Allocation, Holders, NodeFacts, Seen};
use super::serve::{self, Pulse};
use super::watch::{self, Watch};
use super::{MonitorError, usage};

/// The first wait after a failed write; it doubles up to the interval.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// How long `once` waits for the API server.
const PATIENCE: Duration = Duration::from_secs(30);

/// How to monitor.
#[derive(Clone)]
pub struct Settings {
    /// The node that this machine is.
    pub node: String,
    /// Where `GPUNodes` live.
    pub namespace: String,
    /// How often to look.
    pub interval: Duration,
    /// The longest time between two writes of the status; [`super::REFRESH`] but for tests.
    pub refresh: Duration,
    /// Percent of utilisation to aim at.
    pub goal: u32,
    /// Finds the GPUs.
    pub gpus: Opener,
    /// The kubelet's socket.
    pub pod_resources: PathBuf,
    /// Where the host's processes are listed: `/proc`, in the host's process namespace.
    pub proc: PathBuf,
    /// Where to answer `/healthz` and `/readyz`.
    pub health: Option<SocketAddr>,
    /// Where to answer `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// Publish once and end.
    pub once: bool,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("node", &self.node).finish_non_exhaustive()
    }
}

/// A client for the cluster of this kubeconfig, else of `KUBECONFIG`, else the one that we run in.
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

/// Monitors until told to stop; with `once`, until everything was published.
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
    let (mut next, mut wait) = (Instant::now(), None);
    let mut retry: Option<Instant> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(retry.unwrap_or(next).min(next)) => {}
        }
        let interval = monitor.settings.interval;
        let due = Instant::now() >= next;
        let looked = if due { monitor.look().await } else { Ok(()) };
        let seen = looked.is_ok();
        let done = match looked {
            Ok(()) => monitor.publish().await,
            failed => failed,
        };
        monitor.pulse.beat();
        let now = Instant::now();
        if due {
            next = (next + interval).max(now);
        }
        (retry, wait) = match done {
            Ok(()) => (None, None),
            Err(error) => {
                monitor.failed(&error);
                let pause = wait.map_or(FIRST_WAIT, |last: Duration| last * 2).min(interval);
                if !seen {
                    next = now + pause;
                }
                (Some(now + pause), Some(pause))
            }
        };
    }
}

struct Monitor {
    settings: Settings,
    eyes: Eyes,
    kubelet: Kubelet,
    watch: Watch,
    publisher: Publisher,
    pulse: Arc<Pulse>,
    metrics: Arc<Metrics>,
    memory: Option<Memory>,
    /// What the last look gave.
    report: Option<Report>,
    /// Who has which device by the kubelet's own word.
    told: Holders,
    /// What was complained about, so that it is said once.
    complaints: BTreeSet<String>,
}

impl Monitor {
    async fn start(
        client: Client,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Result<Self, MonitorError> {
        let pulse = Arc::new(Pulse::new(settings.interval));
        let metrics = Arc::new(Metrics::default());
        metrics.update(|now| now.node.clone_from(&settings.node));
        if let Some(address) = settings.health {
            let listener = serve::listen(address).await?;
            tokio::spawn(serve::health(listener, Arc::clone(&pulse), stop.clone()));
        }
        if let Some(address) = settings.metrics {
            let listener = serve::listen(address).await?;
            tokio::spawn(serve::metrics(listener, Arc::clone(&metrics), stop.clone()));
        }
        Ok(Self {
            eyes: Eyes::new(Arc::clone(&settings.gpus), settings.proc.clone()),
            kubelet: Kubelet::new(&settings.pod_resources),
            watch: Watch::start(&client, &settings.node, stop),
            publisher: Publisher::new(client, &settings, Arc::clone(&pulse)),
            settings,
            pulse,
            metrics,
            memory: None,
            report: None,
            told: Holders::default(),
            complaints: BTreeSet::new(),
        })
    }

    /// One turn, for scripts: what fails is the answer.
    async fn once(&mut self) -> Result<(), MonitorError> {
        self.watch.listed(PATIENCE).await;
        self.look().await?;
        self.publish().await?;
        match self.report.as_ref().and_then(|report| report.line.message.clone()) {
            Some(words) => Err(MonitorError::Gpus(words)),
            None => Ok(()),
        }
    }

    /// Looks at everything and makes a report of it.
    async fn look(&mut self) -> Result<(), MonitorError> {
        if !self.watch.listed(self.settings.interval.min(PATIENCE)).await {
            return Err(MonitorError::Slow("list the node and its pods".into()));
        }
        let node = self.node()?;
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => self.remember(&node).await?,
        };
        let facts = NodeFacts::read(&node);
        let sight = self.eyes.look().await;
        self.pulse.beat();
        let without = match &sight {
            Ok(sight) => sight.gpus.devices.is_empty(),
            Err(error) => matches!(error, GpuError::NoDriver),
        };
        if without && !facts.claims_gpus && memory.devices.is_empty() {
            self.complain_once("this node has no GPUs; nothing is published until that changes");
            self.memory = Some(memory);
            self.report = None;
            return Ok(());
        }
        let (sight, failed) = match sight {
            Ok(sight) => (sight, None),
            Err(error) => (Sight::default(), Some(error.to_string())),
        };
        let told = self.ask_kubelet().await;
        let pods = self.watch.pods();
        let owner = |pid| sight.owners.get(&pid).cloned();
        let used = usage::by_pod(&sight.processes, &sight.loads, owner, &watch::by_uid(&pods));
        let facts = NodeFacts { replicas: replicas(&facts, told.as_ref()), ..facts };
        let devices = devices(&sight, &memory);
        let holders = self.holders(&devices, told.as_ref(), &used, &pods, facts.replicas);
        let seen = Seen {
            node: facts,
            gpus: failed.clone().map_or_else(|| Ok(sight.gpus), Err),
            holders: holders.clone(),
            goal: self.settings.goal,
            boot: boot(&self.settings.proc),
        };
        let now = seconds(Timestamp::now());
        let report = observe(&memory, &seen, now);
        self.metrics.update(|last| {
            let devices = report.spec.gpu_devices.iter().cloned();
            last.devices = devices.zip(report.status.gpu_status.iter().cloned()).collect();
            last.line = report.line.clone();
            last.used = used;
            last.holders = holders.clone();
            last.failed_looks += u64::from(failed.is_some());
        });
        match failed {
            Some(words) => self.complain_once(&words),
            None if told.is_some() => self.complaints.clear(),
            None => {}
        }
        self.told = if told.is_some() { holders } else { Holders::default() };
        self.memory = Some(report.memory.clone());
        self.publisher.tell(report.events.clone(), now);
        self.report = Some(report);
        Ok(())
    }

    /// Writes what the last look gave.
    async fn publish(&mut self) -> Result<(), MonitorError> {
        let node = self.node()?;
        if let Some(report) = &self.report {
            let now = seconds(Timestamp::now());
            self.publisher.publish(&node, report, now).await?;
            self.publisher.annotate(&self.watch.pods(), &self.told).await?;
        }
        self.pulse.published();
        Ok(())
    }

    fn node(&self) -> Result<Arc<slim::Node>, MonitorError> {
        self.watch.node().ok_or_else(|| MonitorError::NoNode(self.settings.node.clone()))
    }

    /// What an earlier monitor knew; without it lost devices would be forgotten by every restart.
    async fn remember(&self, node: &slim::Node) -> Result<Memory, MonitorError> {
        let published = self.publisher.read(&self.settings.node).await?;
        let line = node.metadata.annotations.as_ref().and_then(|all| all.get(names::NODE_STATUS));
        Ok(restore(published.as_ref(), line.map(String::as_str)))
    }

    async fn ask_kubelet(&mut self) -> Option<Told> {
        match self.kubelet.ask().await {
            Ok(told) => Some(told),
            Err(error @ KubeletError::Absent(_)) => {
                self.complain_once(&format!("{error}; who has which GPU is judged by processes"));
                None
            }
            Err(error) => {
                self.complain_once(&error.to_string());
                None
            }
        }
    }

    /// Who has which device: by the kubelet, else by the processes on it. Simulated GPUs believe the plan.
    fn holders(
        &self,
        devices: &[Device],
        told: Option<&Told>,
        used: &usage::PodUse,
        pods: &[Arc<slim::Pod>],
        replicas: u32,
    ) -> Holders {
        if let Some(told) = told {
            return Holders::of(&told.allocations, devices, replicas);
        }
        if !devices.iter().any(|device| device.simulated) {
            return Holders::of(&usage::holders(used), devices, replicas);
        }
        let planned: Vec<Allocation> = pods.iter().filter_map(|pod| planned(pod)).collect();
        let holders = Holders::of(&planned, devices, replicas);
        self.eyes.pretend(&load(&holders, devices));
        holders
    }

    fn failed(&mut self, error: &MonitorError) {
        let source = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        tracing::warn!("{error}{}; it is tried again", source.unwrap_or_default());
        self.metrics.update(|now| now.failed_writes += 1);
    }

    fn complain_once(&mut self, words: &str) {
        if self.complaints.insert(words.to_owned()) {
            tracing::warn!("{words}");
        }
    }
}

/// What the scheduler meant for a pod: `node/gpu-id`, comma-separated.
fn planned(pod: &slim::Pod) -> Option<Allocation> {
    let plan = pod.metadata.annotations.as_ref()?.get(names::POD_ASSIGNED_GPU)?;
    let id = |gpu: &str| gpu.rsplit_once('/').map_or(gpu, |(_, id)| id).trim().to_owned();
    Some(Allocation { pod: watch::name(pod), ids: plan.split(',').map(id).collect() })
}

/// The devices that are there, and those that were: a lost one still belongs to its pod.
fn devices(sight: &Sight, memory: &Memory) -> Vec<Device> {
    let mut devices: Vec<Device> = sight.gpus.devices.iter().map(|(gpu, _)| gpu.clone()).collect();
    for Known { device, .. } in &memory.devices {
        if !devices.iter().any(|gpu| gpu.uuid == device.id) {
            let (uuid, name) = (device.id.clone(), device.name.clone());
            devices.push(Device { uuid, name, index: u32::MAX, ..Device::default() });
        }
    }
    devices
}

/// The load of simulated GPUs: what pods have is busy, and most of its memory in use, as training is.
fn load(holders: &Holders, devices: &[Device]) -> Vec<(String, u32, u64)> {
    let memory: BTreeMap<&str, u64> =
        devices.iter().map(|device| (&*device.uuid, device.memory)).collect();
    let each = holders.pods.values().flatten().map(|(device, milli)| {
        let memory = memory.get(&**device).copied().unwrap_or(0);
        (device.clone(), milli * 95 / 100, memory * 3 / 4 * u64::from(*milli) / 1_000)
    });
    each.collect()
}

/// Time slices of each device: by the node's label, else by how the kubelet numbers what it can give.
fn replicas(facts: &NodeFacts, told: Option<&Told>) -> u32 {
    if facts.replicas > 1 {
        return facts.replicas;
    }
    let mut slices: BTreeMap<&str, u32> = BTreeMap::new();
    for id in told.map(|told| &told.allocatable).into_iter().flatten() {
        if let Some((device, _)) = id.split_once("::") {
            *slices.entry(device).or_default() += 1;
        }
    }
    slices.into_values().max().unwrap_or(1)
}

/// Which start of the machine this is.
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
