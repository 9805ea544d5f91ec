//! Tasks as Jobs of a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use agentaflow_agent::runtime::stopped::{Stopped, remember};
use agentaflow_agent::runtime::{Exit, Found, Launch, Progress, Runtime, StartError, Used};
use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{KubernetesPlace, StopCause, TaskKey};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Gpu;
use agentaflow_manifest::catalogue::Catalogue;
use async_trait::async_trait;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use crate::clock::Clock;
use crate::follow::{Follower, Subject};
use crate::stop::Ends;
use crate::watch::{Watch, key_of};
use crate::{Settings, WorkerError, ending, fault, lease, names, object};

/// The Jobs of an agent on its node.
pub(crate) struct Jobs {
    pub(crate) settings: Settings,
    /// Tells our Jobs from those of other agents.
    pub(crate) owner: String,
    pub(crate) watch: Arc<Watch>,
    pub(crate) catalogue: Catalogue,
    pub(crate) renewal: Notify,
    pub(crate) clock: Clock,
    lease_end: Mutex<Instant>,
    said_closed: Mutex<Option<String>>,
    known: Mutex<Vec<Gpu>>,
    tasks: Mutex<HashMap<TaskKey, Task>>,
}

/// What is remembered of a task; all of it can be found again.
#[derive(Debug, Default)]
pub(crate) struct Task {
    /// `start` is at work on it.
    pub(crate) starting: bool,
    /// The GPUs that it was given.
    gpus: Vec<String>,
    follower: Option<Follower>,
    pub(crate) stopped: Arc<OnceLock<Stopped>>,
}

impl Jobs {
    pub(crate) async fn connect(settings: Settings) -> Result<Arc<Self>, WorkerError> {
        let catalogue = Catalogue::built_in();
        let catalogue = catalogue.map_err(|error| WorkerError::Catalogue(error.to_string()))?;
        let owner = names::owner(&settings.server, &settings.node);
        let watch = Watch::start(&settings.client, &settings.namespace, &settings.node, &owner);
        let watch = Arc::new(watch);
        watch.listed().await;
        if watch.node().is_none() {
            return Err(WorkerError::NoNode(settings.node));
        }
        let jobs = Arc::new(Self {
            lease_end: Mutex::new(Instant::now() + settings.lease),
            settings,
            owner,
            watch,
            catalogue,
            renewal: Notify::new(),
            clock: Clock::default(),
            said_closed: Mutex::default(),
            known: Mutex::default(),
            tasks: Mutex::default(),
        });
        jobs.until_complete().await;
        tokio::spawn(lease::keep(Arc::clone(&jobs)));
        Ok(jobs)
    }

    pub(crate) fn jobs_api(&self) -> Api<Job> {
        Api::namespaced(self.settings.client.clone(), &self.settings.namespace)
    }

    pub(crate) fn pods_api(&self) -> Api<Pod> {
        Api::namespaced(self.settings.client.clone(), &self.settings.namespace)
    }

    pub(crate) fn secrets_api(&self) -> Api<Secret> {
        Api::namespaced(self.settings.client.clone(), &self.settings.namespace)
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, HashMap<TaskKey, Task>> {
        held(&self.tasks)
    }

    pub(crate) fn said_closed(&self) -> MutexGuard<'_, Option<String>> {
        held(&self.said_closed)
    }

    /// The GPUs that the node had so far.
    pub(crate) fn known(&self) -> MutexGuard<'_, Vec<Gpu>> {
        held(&self.known)
    }

    pub(crate) fn lease_end(&self) -> Instant {
        *held(&self.lease_end)
    }

    /// The GPUs that tasks of ours were given, whose Jobs are there or about to be.
    pub(crate) fn granted(&self) -> BTreeSet<String> {
        let jobs = self.watch.jobs();
        let live = jobs.iter().filter(|job| !job.labels().contains_key(names::DONE));
        let noted = live.filter_map(|job| job.annotations().get(names::GPUS));
        let noted = noted.flat_map(|gpus| gpus.split(',').map(str::to_owned));
        let tasks = self.tasks();
        noted.chain(tasks.values().flat_map(|task| task.gpus.iter().cloned())).collect()
    }

    pub(crate) fn folder(&self, key: TaskKey) -> PathBuf {
        self.settings.state_dir.join("tasks").join(key.to_string())
    }

    /// Our Job of a task, also one that was made a moment ago.
    pub(crate) async fn job(&self, key: TaskKey) -> Result<Option<Job>, kube::Error> {
        if let Some(job) = self.watch.look(key).job {
            return Ok(Some(job.as_ref().clone()));
        }
        let found = self.jobs_api().get_opt(&job_name(key)).await?;
        Ok(found.filter(|job| self.is_ours(job, key)))
    }

    /// It carries the labels that we put there.
    pub(crate) fn is_ours(&self, job: &Job, key: TaskKey) -> bool {
        job.labels().get(names::AGENT) == Some(&self.owner) && key_of(job) == Some(key)
    }

    fn follower(&self, key: TaskKey) -> Follower {
        let mut tasks = self.tasks();
        let task = tasks.entry(key).or_default();
        let stopped = Arc::clone(&task.stopped);
        let subject = || Subject {
            key,
            watch: Arc::clone(&self.watch),
            pods: self.pods_api(),
            folder: self.folder(key),
            limit: self.settings.log_limit,
            stopped,
            copying: AtomicBool::new(false),
        };
        task.follower.get_or_insert_with(|| Follower::start(subject())).clone()
    }

    /// The ways to end what there is.
    pub(crate) fn ends(&self) -> Ends {
        Ends { jobs: self.jobs_api(), pods: self.pods_api(), owner: self.owner.clone() }
    }

    /// Removes the Secrets of a task.
    pub(crate) async fn remove_secrets(&self, job: &str) {
        for name in [format!("{job}-env"), format!("{job}-pull")] {
            match self.secrets_api().delete(&name, &kube::api::DeleteParams::default()).await {
                Err(error) if !fault::is_missing(&error) => {
                    warn!(secret = name, %error, "a Secret stays until its Job is removed");
                }
                _ => {}
            }
        }
    }

    /// Leaves a Job that is over to people, and to its time to live.
    async fn leave(&self, name: &str) {
        self.remove_secrets(name).await;
        let done = Patch::Merge(json!({"metadata": {"labels": {names::DONE: "true"}}}));
        if let Err(error) = self.jobs_api().patch(name, &PatchParams::default(), &done).await
            && !fault::is_missing(&error)
        {
            warn!(job = name, %error, "a Job that is over could not be marked as done");
        }
    }

    async fn found(&self) -> Result<Vec<Found>, kube::Error> {
        let ours = ListParams::default().labels(&format!("{}={}", names::AGENT, self.owner));
        let jobs = self.jobs_api().list(&ours).await?.items;
        let pods = self.pods_api().list(&ours).await?.items;
        let mut keys: BTreeMap<TaskKey, Option<&Job>> = BTreeMap::new();
        keys.extend(pods.iter().filter_map(|pod| Some((key_of(pod)?, None))));
        keys.extend(jobs.iter().filter_map(|job| Some((key_of(job)?, Some(job)))));
        let mut all = Vec::new();
        for (key, job) in keys {
            let done = |job: &Job| job.labels().contains_key(names::DONE);
            if job.is_some_and(done) || self.tasks().get(&key).is_some_and(|task| task.starting) {
                continue;
            }
            let mine = || pods.iter().filter(|pod| key_of(*pod) == Some(key));
            let started_at = mine().find_map(ending::began);
            let ended = mine().any(|pod| ending::exit(pod, None).is_some());
            match job {
                // It never began, and whoever waits for it begins anew.
                Some(_) if started_at.is_none() && !ended => self.ends().try_to(key, None).await,
                _ => all.push(Found { key, started_at, ended }),
            }
        }
        Ok(all)
    }
}

#[async_trait]
impl Runtime for Jobs {
    fn kind(&self) -> Kind {
        Kind::Docker
    }

    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn files(&self, _dir: &Path) -> io::Result<[String; 2]> {
        Ok([object::RESULT_FILE, object::DATA_FILE].map(str::to_owned))
    }

    async fn start(&self, launch: &Launch, progress: Progress<'_>) -> Result<Stamp, StartError> {
        let key = launch.assignment.key;
        {
            let mut tasks = self.tasks();
            let task = tasks.entry(key).or_default();
            task.starting = true;
            task.gpus = launch.assignment.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        }
        let started = Box::pin(self.launch(launch, progress)).await;
        if started.is_err() {
            self.withdraw(key).await;
        }
        if let Some(task) = self.tasks().get_mut(&key) {
            task.starting = false;
        }
        started
    }

    async fn wait(&self, key: TaskKey) -> Result<Exit, StartError> {
        let exit = self.follower(key).end().await;
        if exit.is_err()
            && let Some(task) = self.tasks().get_mut(&key)
        {
            // Whoever asks again gets a fresh look.
            task.follower = None;
        }
        exit.map_err(StartError::Node)
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        let stopped = Stopped::now(cause, grace);
        if let Some(task) = self.tasks().get(&key) {
            // The first reason counts.
            let _ = task.stopped.set(stopped);
        }
        if self.folder(key).exists() {
            remember(&self.folder(key), stopped);
        }
        self.ends().begin(key, grace);
    }

    async fn list(&self) -> Result<Vec<Found>, StartError> {
        self.found().await.map_err(|error| fault::node(&error))
    }

    /// Nobody measures it here; the cluster's own metrics do.
    async fn used(&self, _key: TaskKey) -> Used {
        Used::default()
    }

    async fn pids(&self, _key: TaskKey) -> Vec<u32> {
        Vec::new()
    }

    fn place(&self, key: TaskKey) -> Option<KubernetesPlace> {
        let seen = self.watch.look(key);
        Some(KubernetesPlace {
            namespace: self.settings.namespace.clone(),
            job_name: seen.job.map_or_else(|| job_name(key), |job| job.name_any()),
            pod_name: seen.pod?.name_any(),
        })
    }

    fn renewed(&self, left: Duration) {
        *held(&self.lease_end) = Instant::now() + left;
        self.renewal.notify_one();
    }

    async fn remove(&self, key: TaskKey) {
        let over = self.watch.look(key).pod.is_some_and(|pod| ending::exit(&pod, None).is_some());
        match self.job(key).await {
            Ok(Some(job)) if over => self.leave(&job.name_any()).await,
            Ok(Some(_)) => self.ends().try_to(key, None).await,
            Ok(None) => {}
            Err(error) => warn!(%key, %error, "cannot look for the Job of a task"),
        }
        self.tasks().remove(&key);
    }
}

/// The name that `create_gpu_job` gives to the Job of a task.
pub(crate) fn job_name(key: TaskKey) -> String {
    agentaflow_manifest::build::job_name(&key.to_string()).unwrap_or_default()
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
