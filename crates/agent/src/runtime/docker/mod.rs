//! Runs tasks as Docker containers through the socket of the daemon.
//!
//! | file | content |
//! |---|---|
//! | `settings.rs` | settings of the operator |
//! | `connect.rs` | connection to the daemon, selection of the agent's containers |
//! | `create.rs` | create request: limits, capabilities, devices, mounts |
//! | `kill.rs` | kill of containers when the daemon does not answer |
//! | `launch.rs` | start of a container, or adoption of one that an earlier agent started |
//! | `mounts.rs` | volumes: host directories below the allowed roots, opened without links |
//! | `network.rs`, `firewall.rs` | network of a job, rules that keep its containers from the host |
//! | `pull.rs` | image pull with progress |
//! | `registry.rs`, `image_origins.rs` | access to images that are on the host already |
//! | `output.rs` | log stream of a container; `runtime/transcript.rs` stores each byte once |
//! | `watch.rs` | wait for the end of a container |
//! | `stop.rs` | stop of containers; the guardian uses it too |
//! | `fault.rs` | classification of Docker errors, without secrets |
//!
//! The daemon is the source of truth. State in memory may be lost: containers are found again by their labels, the
//! reason for a stop and the position in the output by small files in the task folder.
//!
//! `bollard` logs requests with their environment through the `log` crate at debug level. No part of this project may
//! forward `log` records.

mod connect;
mod create;
mod fault;
mod firewall;
mod image_origins;
mod kill;
mod launch;
mod mounts;
mod network;
mod output;
mod pull;
mod registry;
mod settings;
mod stop;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker as DockerClient;
use bollard::errors::Error as DockerError;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum as State};
use bollard::query_parameters::{
    InspectContainerOptions, RemoveContainerOptions, StatsOptions, TopOptions,
};
use futures_util::StreamExt;

use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::stop_record::{self, StopRecord};
use super::{Exit, FoundTask, Launch, Progress, Runtime, StartError, TaskUsage};
use crate::lease::Lease;
use crate::storage::disk_usage;
use connect::{agent_label, by_labels, connect};
use image_origins::ImageOrigins;
use watch::Watcher;

pub use connect::ConnectError;
pub use create::{DATA_FILE, OUT_FOLDER};
pub use settings::{DockerSettings, MountRoot, NetworkMode, PullPolicy, Subnets};
pub use stop::{stop_containers, stop_leased, stop_overdue};

// Labels of containers.
const KEY: &str = "agentaflow.key";
const AGENT: &str = "agentaflow.agent";
const LEASED: &str = "agentaflow.leased";
/// Milliseconds between TERM and KILL.
const GRACE: &str = "agentaflow.grace";

#[derive(Debug)]
pub struct Docker {
    client: DockerClient,
    settings: DockerSettings,
    /// Value of the label `AGENT`: several agents may share one Docker daemon.
    agent: String,
    /// Leased containers start only while the lease is valid.
    lease: Option<Lease>,
    /// False once the daemon has refused a disk limit: its storage driver has no quotas.
    disk_quotas: AtomicBool,
    image_origins: ImageOrigins,
    /// Held while networks are created and removed.
    networks: tokio::sync::Mutex<()>,
    tasks: Mutex<HashMap<TaskKey, ContainerTask>>,
}

/// Cached state of a task.
#[derive(Debug, Default)]
struct ContainerTask {
    container: Option<String>,
    /// `start` is in progress.
    starting: bool,
    watcher: Option<Watcher>,
    stopped: Arc<OnceLock<StopRecord>>,
    usage: TaskUsage,
}

impl Docker {
    /// Connects to the daemon; `None` if the socket does not exist.
    pub async fn connect(settings: DockerSettings) -> Result<Option<Self>, ConnectError> {
        if !settings.socket.exists() {
            return Ok(None);
        }
        let client = connect(&settings.socket).await?;
        let agent = agent_label(&settings.state_dir);
        let docker = Self::new(client, settings, agent);
        docker.sweep_networks().await;
        if let Err(StartError::Node(problem)) = docker.restrict_host_access().await {
            tracing::warn!("no container starts on this host: {problem}");
        }
        Ok(Some(docker))
    }

    fn new(client: DockerClient, settings: DockerSettings, agent: String) -> Self {
        Self {
            client,
            image_origins: ImageOrigins::load(&settings.state_dir),
            settings,
            agent,
            lease: None,
            disk_quotas: AtomicBool::new(true),
            networks: tokio::sync::Mutex::default(),
            tasks: Mutex::default(),
        }
    }

    /// Starts leased containers only while this lease is valid.
    pub(crate) fn with_lease(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// The lease expired, so the server may have assigned the task to another node.
    fn is_expired(&self, launch: &Launch) -> bool {
        let expired = |lease: &Lease| lease.expired_at().is_some();
        launch.assignment.leased && self.lease.as_ref().is_some_and(expired)
    }

    pub async fn version(&self) -> Option<String> {
        self.client.version().await.ok()?.version
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<TaskKey, ContainerTask>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, key: TaskKey) -> PathBuf {
        self.settings.state_dir.join("tasks").join(key.to_string())
    }

    /// Container id of a task.
    async fn container(&self, key: TaskKey) -> Result<Option<String>, DockerError> {
        let known = self.tasks().get(&key).and_then(|task| task.container.clone());
        if known.is_some() {
            return Ok(known);
        }
        let labels = vec![format!("{AGENT}={}", self.agent), format!("{KEY}={key}")];
        let found = self.client.list_containers(Some(by_labels(labels))).await?;
        let id = found.into_iter().find_map(|container| container.id);
        if let Some(id) = &id {
            self.tasks().entry(key).or_default().container = Some(id.clone());
        }
        Ok(id)
    }

    async fn watcher(&self, key: TaskKey) -> Result<Watcher, StartError> {
        if let Some(watcher) = self.tasks().get(&key).and_then(|task| task.watcher.clone()) {
            return Ok(watcher);
        }
        let container = self.container(key).await.map_err(|error| fault::node(&error))?;
        let id = container
            .ok_or_else(|| StartError::Node(format!("Docker has no container of task {key}")))?;
        Ok(self.watch(key, id))
    }

    fn watch(&self, key: TaskKey, id: String) -> Watcher {
        let mut tasks = self.tasks();
        let task = tasks.entry(key).or_default();
        let stopped = Arc::clone(&task.stopped);
        let limit = self.settings.log_limit;
        let start = || Watcher::start(self.client.clone(), id, self.folder(key), limit, stopped);
        task.watcher.get_or_insert_with(start).clone()
    }

    async fn remove_container(&self, id: &str) {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        match self.client.remove_container(id, Some(options)).await {
            // Already removed, or being removed.
            Err(error) if fault::is_missing(&error) || fault::is_conflict(&error) => {}
            Err(error) => tracing::warn!("cannot remove container {id}: {error}"),
            Ok(()) => {}
        }
    }

    fn forget_container(&self, key: TaskKey) {
        if let Some(task) = self.tasks().get_mut(&key) {
            task.container = None;
        }
    }

    async fn found(&self, key: TaskKey, id: &str) -> Result<Option<FoundTask>, DockerError> {
        let found = match self.client.inspect_container(id, None).await {
            Err(error) if fault::is_missing(&error) => return Ok(None),
            found => found?,
        };
        let starting = self.tasks().get(&key).is_some_and(|task| task.starting);
        match status(&found) {
            State::REMOVING => Ok(None),
            State::CREATED if starting => Ok(None),
            State::CREATED => {
                self.remove_container(id).await;
                self.forget_container(key);
                Ok(None)
            }
            status => {
                let ended = matches!(status, State::EXITED | State::DEAD);
                Ok(Some(FoundTask { key, started_at: watch::started_at(&found), ended }))
            }
        }
    }
}

#[async_trait]
impl Runtime for Docker {
    fn kind(&self) -> RuntimeKind {
        RuntimeKind::Docker
    }

    fn files(&self, _dir: &Path) -> io::Result<[String; 2]> {
        Ok([format!("{OUT_FOLDER}/output.json"), DATA_FILE.to_owned()])
    }

    /// If the future is dropped early, `remove` cleans up.
    async fn start(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError> {
        let key = launch.assignment.key;
        self.tasks().entry(key).or_default().starting = true;
        let started = self.launch(launch, progress).await;
        if let Some(task) = self.tasks().get_mut(&key) {
            task.starting = false;
        }
        if started.is_err() {
            let created = self.tasks().get(&key).is_some_and(|task| task.container.is_some());
            self.remove(key).await;
            if created {
                self.withdraw(key).await;
            }
        }
        started
    }

    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError> {
        let watcher = self.watcher(key).await?;
        let exit = watcher.end().await;
        if exit.is_err()
            && let Some(task) = self.tasks().get_mut(&key)
        {
            // The next call starts a new watcher.
            task.watcher = None;
            task.container = None;
        }
        exit.map_err(StartError::Node)
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        let container = self.container(key).await.unwrap_or_else(|error| {
            tracing::warn!("cannot find the container of task {key}: {error}");
            None
        });
        let stopped = StopRecord::now(cause, grace);
        if let Some(task) = self.tasks().get(&key) {
            // The first reason counts.
            let _ = task.stopped.set(stopped);
        }
        if let Some(id) = container {
            stop_record::save(&self.folder(key), stopped);
            stop::spawn_stop(self.client.clone(), id, grace);
        }
    }

    async fn list(&self) -> Result<Vec<FoundTask>, StartError> {
        let labels = vec![format!("{AGENT}={}", self.agent)];
        let listed = self.client.list_containers(Some(by_labels(labels))).await;
        let mut all = Vec::new();
        for container in listed.map_err(|error| fault::node(&error))? {
            let labels = container.labels.unwrap_or_default();
            let key = labels.get(KEY).and_then(|key| key.parse().ok());
            let (Some(key), Some(id)) = (key, container.id) else { continue };
            all.extend(self.found(key, &id).await.map_err(|error| fault::node(&error))?);
        }
        Ok(all)
    }

    async fn used(&self, key: TaskKey) -> TaskUsage {
        let now = match self.container(key).await {
            Ok(Some(id)) => {
                let options = StatsOptions { stream: false, one_shot: true };
                let stats = self.client.stats(&id, Some(options)).next().await;
                stats.and_then(Result::ok).map(|stats| watch::usage(&stats)).unwrap_or_default()
            }
            _ => TaskUsage::default(),
        };
        let mut tasks = self.tasks();
        let Some(task) = tasks.get_mut(&key) else { return now };
        // An ended container reports zeros: keep the maximum.
        task.usage.cpu = task.usage.cpu.max(now.cpu);
        task.usage.memory = task.usage.memory.max(now.memory);
        task.usage.memory_now = now.memory_now;
        task.usage
    }

    async fn pids(&self, key: TaskKey) -> Vec<u32> {
        let Ok(Some(id)) = self.container(key).await else { return Vec::new() };
        let options = TopOptions { ps_args: "-eo pid".to_owned() };
        if let Ok(top) = self.client.top_processes(&id, Some(options)).await {
            let rows = top.processes.unwrap_or_default();
            return rows.iter().filter_map(|row| row.first()?.trim().parse().ok()).collect();
        }
        // Without `ps` on the host, Docker knows only the first process.
        let found = self.client.inspect_container(&id, None).await.ok();
        let pid = found.and_then(|found| found.state?.pid).unwrap_or_default();
        u32::try_from(pid).ok().filter(|pid| *pid > 0).into_iter().collect()
    }

    async fn disk_used(&self, key: TaskKey) -> Option<u64> {
        let id = self.container(key).await.ok()??;
        let options = InspectContainerOptions { size: true };
        let found = self.client.inspect_container(&id, Some(options)).await.ok()?;
        let written = u64::try_from(found.size_rw.unwrap_or(0)).unwrap_or(0);
        let out = self.folder(key).join("out");
        let results = tokio::task::spawn_blocking(move || disk_usage(&out)).await.ok()?;
        Some(written.saturating_add(results.unwrap_or(0)))
    }

    async fn remove(&self, key: TaskKey) {
        match self.container(key).await {
            Ok(Some(id)) => self.remove_container(&id).await,
            Ok(None) => {}
            Err(error) => tracing::warn!("cannot find the container of task {key}: {error}"),
        }
        self.remove_network(key).await;
        self.tasks().remove(&key);
    }
}

fn status(found: &ContainerInspectResponse) -> State {
    found.state.as_ref().and_then(|state| state.status).unwrap_or(State::EMPTY)
}
