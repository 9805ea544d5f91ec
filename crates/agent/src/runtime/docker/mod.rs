//! Tasks as containers of a Docker engine, through its socket.
//!
//! | file | what it does |
//! |---|---|
//! | `settings.rs` | what the operator may choose |
//! | `connect.rs` | finds the engine, and our containers on it |
//! | `create.rs` | says what a container is made of: limits, rights, devices, folders |
//! | `mounts.rs` | decides which folders of the host a container may see |
//! | `pull.rs` | fetches images and tells how far it is |
//! | `output.rs` | reads a container's output; `runtime/transcript.rs` keeps each byte once |
//! | `watch.rs` | follows a container to its end |
//! | `stop.rs` | ends containers and remembers why; the guardian uses it too |
//! | `fault.rs` | turns what the engine says into words, without secrets |
//!
//! The engine keeps the truth. What is remembered here can be lost: containers are found again by their labels,
//! the reason for a stop and the place in the output by small files in the task's folder.
//!
//! `bollard` writes requests, with the environment in them, to the `log` crate at debug level. Nothing in this
//! project listens to `log`, and nothing may.

mod connect;
mod create;
mod fault;
mod mounts;
mod output;
mod pull;
mod settings;
mod stop;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker as Engine;
use bollard::errors::Error as EngineError;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum as State};
use bollard::query_parameters::{
    CreateContainerOptions, RemoveContainerOptions, StatsOptions, TopOptions,
};
use futures_util::StreamExt;

use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::stopped::{self, Stopped};
use super::{Exit, Found, Launch, Progress, Runtime, StartError, Used};
use crate::lease::Lease;
use connect::{agent_label, by_labels, connect};
use fault::Secrets;
use watch::Watcher;

pub use connect::ConnectError;
pub use create::{DATA_FILE, OUT_FOLDER};
pub use settings::{DockerSettings, Pull};
pub use stop::{stop_containers, stop_leased};

/// The label that holds a container's task.
const KEY: &str = "agentaflow.key";
/// The label that holds the agent a container belongs to.
const AGENT: &str = "agentaflow.agent";
/// The label that says whether a container must not outlive the lease.
const LEASED: &str = "agentaflow.leased";
/// The label with the milliseconds between TERM and KILL.
const GRACE: &str = "agentaflow.grace";

/// Runs tasks as containers.
#[derive(Debug)]
pub struct Docker {
    engine: Engine,
    settings: DockerSettings,
    /// Tells our containers from those of other agents on the same engine.
    agent: String,
    /// Without one, containers may be started at any time.
    lease: Option<Lease>,
    tasks: Mutex<HashMap<TaskKey, Task>>,
}

/// What is remembered of a task; all of it can be found again.
#[derive(Debug, Default)]
struct Task {
    container: Option<String>,
    /// `start` is at work on it.
    starting: bool,
    watcher: Option<Watcher>,
    stopped: Arc<OnceLock<Stopped>>,
    used: Used,
}

impl Docker {
    /// Connects to the engine. None: there is no socket.
    pub async fn connect(settings: DockerSettings) -> Result<Option<Self>, ConnectError> {
        if !settings.socket.exists() {
            return Ok(None);
        }
        let engine = connect(&settings.socket).await?;
        let agent = agent_label(&settings.state_dir);
        Ok(Some(Self { engine, settings, agent, lease: None, tasks: Mutex::default() }))
    }

    /// Starts leased containers only while this lease holds.
    pub(crate) fn heeding(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// The lease ran out, so the task may be somebody else's already.
    fn is_too_late(&self, launch: &Launch) -> bool {
        launch.assignment.leased && self.lease.as_ref().is_some_and(|lease| lease.lost().is_some())
    }

    /// The engine's version, for the node's facts.
    pub async fn version(&self) -> Option<String> {
        self.engine.version().await.ok()?.version
    }

    fn tasks(&self) -> MutexGuard<'_, HashMap<TaskKey, Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder(&self, key: TaskKey) -> PathBuf {
        self.settings.state_dir.join("tasks").join(key.to_string())
    }

    /// The container of a task, if there is one.
    async fn container(&self, key: TaskKey) -> Result<Option<String>, EngineError> {
        let known = self.tasks().get(&key).and_then(|task| task.container.clone());
        if known.is_some() {
            return Ok(known);
        }
        let labels = vec![format!("{AGENT}={}", self.agent), format!("{KEY}={key}")];
        let found = self.engine.list_containers(Some(by_labels(labels))).await?;
        let id = found.into_iter().find_map(|container| container.id);
        if let Some(id) = &id {
            self.tasks().entry(key).or_default().container = Some(id.clone());
        }
        Ok(id)
    }

    /// The watcher of a task that has a container, or what went wrong.
    async fn watcher(&self, key: TaskKey) -> Result<Watcher, StartError> {
        if let Some(watcher) = self.tasks().get(&key).and_then(|task| task.watcher.clone()) {
            return Ok(watcher);
        }
        let container = self.container(key).await.map_err(|error| fault::node(&error))?;
        let id = container.ok_or_else(|| {
            StartError::Node(format!("the Docker engine has no container of the task {key}"))
        })?;
        Ok(self.watch(key, id))
    }

    fn watch(&self, key: TaskKey, id: String) -> Watcher {
        let mut tasks = self.tasks();
        let task = tasks.entry(key).or_default();
        let stopped = Arc::clone(&task.stopped);
        let limit = self.settings.log_limit;
        let begin = || Watcher::start(self.engine.clone(), id, self.folder(key), limit, stopped);
        task.watcher.get_or_insert_with(begin).clone()
    }

    /// Makes and starts the container; the caller cleans up when this fails.
    async fn launch(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError> {
        let key = launch.assignment.key;
        let secrets = Secrets::of(launch);
        if let Some(began) = self.adopt(key).await.map_err(|error| fault::node(&error))? {
            return Ok(began);
        }
        create::prepare_folder(launch, &self.folder(key))?;
        let image = pull::reference(launch)?;
        let body = create::body(&self.settings, &self.agent, launch, &image)?;
        pull::ensure(&self.engine, self.settings.pull, launch, &image, progress, &secrets).await?;
        let id = self.create(key, body).await.map_err(|error| fault::start(&error, &secrets))?;
        self.tasks().entry(key).or_default().container = Some(id.clone());
        // The guardian stops what runs when the lease ends, but does not see what was made and not started yet.
        if self.is_too_late(launch) {
            return Err(StartError::Node(
                "the lease ran out before the container was started".to_owned(),
            ));
        }
        let started = self.engine.start_container(&id, None).await;
        started.map_err(|error| fault::start(&error, &secrets))?;
        let began = self.running(key, id).await.map_err(|error| fault::node(&error))?;
        if self.is_too_late(launch) {
            let grace = Duration::from_millis(launch.assignment.grace_ms);
            self.stop(key, StopCause::LeaseLost, grace).await;
        }
        Ok(began)
    }

    /// Takes over a container from before a crash. One that was made but never started is thrown away.
    async fn adopt(&self, key: TaskKey) -> Result<Option<Stamp>, EngineError> {
        let Some(id) = self.container(key).await? else { return Ok(None) };
        let found = match self.engine.inspect_container(&id, None).await {
            Err(error) if fault::is_missing(&error) => {
                self.forget_container(key);
                return Ok(None);
            }
            found => found?,
        };
        if status(&found) == State::CREATED {
            self.remove_container(&id).await;
            self.forget_container(key);
            return Ok(None);
        }
        self.running(key, id).await.map(Some)
    }

    /// The container runs: follow it, carry out a stop that came meanwhile, and tell when it began.
    async fn running(&self, key: TaskKey, id: String) -> Result<Stamp, EngineError> {
        let found = self.engine.inspect_container(&id, None).await?;
        self.watch(key, id.clone());
        let stop = self.tasks().get(&key).and_then(|task| task.stopped.get().copied());
        if let Some(stop) = stop {
            stop::begin(self.engine.clone(), id, stop.grace());
        }
        Ok(watch::began(&found).unwrap_or_else(Stamp::now))
    }

    /// Another agent on the same engine, of another server, may use the same key; then a longer name is taken.
    async fn create(
        &self,
        key: TaskKey,
        body: bollard::models::ContainerCreateBody,
    ) -> Result<String, EngineError> {
        let named = |name: String| {
            let options = CreateContainerOptions { name: Some(name), ..Default::default() };
            self.engine.create_container(Some(options), body.clone())
        };
        let created = match named(format!("agentaflow-{key}")).await {
            Err(error) if fault::is_conflict(&error) => {
                named(format!("agentaflow-{key}-{}", self.agent)).await?
            }
            created => created?,
        };
        Ok(created.id)
    }

    async fn remove_container(&self, id: &str) {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        match self.engine.remove_container(id, Some(options)).await {
            // Gone already, or on its way.
            Err(error) if fault::is_missing(&error) || fault::is_conflict(&error) => {}
            Err(error) => tracing::warn!("cannot remove the container {id}: {error}"),
            Ok(()) => {}
        }
    }

    fn forget_container(&self, key: TaskKey) {
        if let Some(task) = self.tasks().get_mut(&key) {
            task.container = None;
        }
    }

    async fn found(&self, key: TaskKey, id: &str) -> Result<Option<Found>, EngineError> {
        let found = match self.engine.inspect_container(id, None).await {
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
                Ok(Some(Found { key, started_at: watch::began(&found), ended }))
            }
        }
    }
}

#[async_trait]
impl Runtime for Docker {
    fn kind(&self) -> Kind {
        Kind::Docker
    }

    fn files(&self, _dir: &Path) -> io::Result<[String; 2]> {
        Ok([format!("{OUT_FOLDER}/output.json"), DATA_FILE.to_owned()])
    }

    /// When it is dropped before it is done, `remove` cleans up.
    async fn start(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError> {
        let key = launch.assignment.key;
        self.tasks().entry(key).or_default().starting = true;
        let started = self.launch(launch, progress).await;
        if let Some(task) = self.tasks().get_mut(&key) {
            task.starting = false;
        }
        if started.is_err() {
            let made = self.tasks().get(&key).is_some_and(|task| task.container.is_some());
            self.remove(key).await;
            if made {
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
            // Whoever asks again gets a fresh look.
            task.watcher = None;
            task.container = None;
        }
        exit.map_err(StartError::Node)
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        let container = self.container(key).await.unwrap_or_else(|error| {
            tracing::warn!("cannot look for the container of the task {key}: {error}");
            None
        });
        let stopped = Stopped::now(cause, grace);
        if let Some(task) = self.tasks().get(&key) {
            // The first reason counts.
            let _ = task.stopped.set(stopped);
        }
        if let Some(id) = container {
            stopped::remember(&self.folder(key), stopped);
            stop::begin(self.engine.clone(), id, grace);
        }
    }

    async fn list(&self) -> Result<Vec<Found>, StartError> {
        let labels = vec![format!("{AGENT}={}", self.agent)];
        let listed = self.engine.list_containers(Some(by_labels(labels))).await;
        let mut all = Vec::new();
        for container in listed.map_err(|error| fault::node(&error))? {
            let labels = container.labels.unwrap_or_default();
            let key = labels.get(KEY).and_then(|key| key.parse().ok());
            let (Some(key), Some(id)) = (key, container.id) else { continue };
            all.extend(self.found(key, &id).await.map_err(|error| fault::node(&error))?);
        }
        Ok(all)
    }

    async fn used(&self, key: TaskKey) -> Used {
        let now = match self.container(key).await {
            Ok(Some(id)) => {
                let options = StatsOptions { stream: false, one_shot: true };
                let stats = self.engine.stats(&id, Some(options)).next().await;
                stats.and_then(Result::ok).map(|stats| watch::used(&stats)).unwrap_or_default()
            }
            _ => Used::default(),
        };
        let mut tasks = self.tasks();
        let Some(task) = tasks.get_mut(&key) else { return now };
        // A container that is over reports zeros: the most that was seen stays.
        task.used.cpu = task.used.cpu.max(now.cpu);
        task.used.memory = task.used.memory.max(now.memory);
        task.used
    }

    async fn pids(&self, key: TaskKey) -> Vec<u32> {
        let Ok(Some(id)) = self.container(key).await else { return Vec::new() };
        let options = TopOptions { ps_args: "-eo pid".to_owned() };
        if let Ok(top) = self.engine.top_processes(&id, Some(options)).await {
            let rows = top.processes.unwrap_or_default();
            return rows.iter().filter_map(|row| row.first()?.trim().parse().ok()).collect();
        }
        // Without `ps` on the host, the engine knows the first process only.
        let found = self.engine.inspect_container(&id, None).await.ok();
        let pid = found.and_then(|found| found.state?.pid).unwrap_or_default();
        u32::try_from(pid).ok().filter(|pid| *pid > 0).into_iter().collect()
    }

    async fn remove(&self, key: TaskKey) {
        match self.container(key).await {
            Ok(Some(id)) => self.remove_container(&id).await,
            Ok(None) => {}
            Err(error) => tracing::warn!("cannot look for the container of {key}: {error}"),
        }
        self.tasks().remove(&key);
    }
}

fn status(found: &ContainerInspectResponse) -> State {
    found.state.as_ref().and_then(|state| state.status).unwrap_or(State::EMPTY)
}
