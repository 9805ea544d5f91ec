//! Runs tasks as Jobs of a cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use agentaflow_agent::runtime::stop_record::{self, StopRecord};
use agentaflow_agent::runtime::{
    Exit, FoundTask, Launch, Progress, Runtime, StartError, TaskUsage,
};
use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{KubernetesObjects, StopCause, TaskKey};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Gpu;
use async_trait::async_trait;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::warn;

use crate::clock::ServerClock;
use crate::follow::{FollowedTask, Follower};
use crate::offer::NodeClosed;
use crate::stop::JobDeleter;
use crate::watch::{ClusterWatch, key_of};
use crate::{Settings, WorkerError, fault, lease, names, object, pod_status};

/// Jobs of the agent on its node.
pub(crate) struct Jobs {
    pub(crate) settings: Settings,
    /// Value of the label `names::AGENT`.
    pub(crate) owner: String,
    pub(crate) watch: Arc<ClusterWatch>,
    pub(crate) renewal: Notify,
    pub(crate) clock: ServerClock,
    lease_end: Mutex<Instant>,
    logged_closed: Mutex<Option<NodeClosed>>,
    known_gpus: Mutex<Vec<Gpu>>,
    tasks: Mutex<HashMap<TaskKey, JobTask>>,
}

/// Cached state of a task.
#[derive(Debug, Default)]
pub(crate) struct JobTask {
    /// `start` is in progress.
    pub(crate) starting: bool,
    /// Assigned GPUs, by the agent's names.
    gpus: Vec<String>,
    follower: Option<Follower>,
    pub(crate) stopped: Arc<OnceLock<StopRecord>>,
}

impl Jobs {
    pub(crate) async fn connect(settings: Settings) -> Result<Arc<Self>, WorkerError> {
        let owner = names::owner(&settings.server, &settings.node);
        let watch =
            ClusterWatch::start(&settings.client, &settings.namespace, &settings.node, &owner);
        let watch = Arc::new(watch);
        watch.wait_until_listed().await;
        if watch.node().is_none() {
            return Err(WorkerError::NoNode(settings.node));
        }
        let jobs = Arc::new(Self {
            lease_end: Mutex::new(Instant::now() + settings.lease),
            settings,
            owner,
            watch,
            renewal: Notify::new(),
            clock: ServerClock::default(),
            logged_closed: Mutex::default(),
            known_gpus: Mutex::default(),
            tasks: Mutex::default(),
        });
        jobs.wait_for_gpus().await;
        tokio::spawn(lease::extend_deadlines(Arc::clone(&jobs)));
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

    pub(crate) fn tasks(&self) -> MutexGuard<'_, HashMap<TaskKey, JobTask>> {
        lock(&self.tasks)
    }

    /// Last cordon state that was logged.
    pub(crate) fn logged_closed(&self) -> MutexGuard<'_, Option<NodeClosed>> {
        lock(&self.logged_closed)
    }

    /// GPUs that the node has reported so far.
    pub(crate) fn known_gpus(&self) -> MutexGuard<'_, Vec<Gpu>> {
        lock(&self.known_gpus)
    }

    pub(crate) fn lease_end(&self) -> Instant {
        *lock(&self.lease_end)
    }

    /// GPUs assigned to tasks of the agent with existing or upcoming Jobs.
    pub(crate) fn granted(&self) -> BTreeSet<String> {
        let jobs = self.watch.jobs();
        let live = jobs.iter().filter(|job| !job.labels().contains_key(names::DONE));
        let annotated = live.filter_map(|job| job.annotations().get(names::GPUS));
        let annotated = annotated.flat_map(|gpus| gpus.split(',').map(str::to_owned));
        let tasks = self.tasks();
        annotated.chain(tasks.values().flat_map(|task| task.gpus.iter().cloned())).collect()
    }

    pub(crate) fn folder(&self, key: TaskKey) -> PathBuf {
        self.settings.state_dir.join("tasks").join(key.to_string())
    }

    /// Job of a task, also if the watch has not seen it yet.
    pub(crate) async fn job(&self, key: TaskKey) -> Result<Option<Job>, kube::Error> {
        if let Some(job) = self.watch.task(key).job {
            return Ok(Some(job.as_ref().clone()));
        }
        let found = self.jobs_api().get_opt(&names::job(key)).await?;
        Ok(found.filter(|job| self.is_ours(job, key)))
    }

    /// True for a Job of this agent and task.
    pub(crate) fn is_ours(&self, job: &Job, key: TaskKey) -> bool {
        job.labels().get(names::AGENT) == Some(&self.owner) && key_of(job) == Some(key)
    }

    fn follower(&self, key: TaskKey) -> Follower {
        let mut tasks = self.tasks();
        let task = tasks.entry(key).or_default();
        let stopped = Arc::clone(&task.stopped);
        let followed = || FollowedTask {
            key,
            watch: Arc::clone(&self.watch),
            pods: self.pods_api(),
            folder: self.folder(key),
            limit: self.settings.log_limit,
            stopped,
            copying: AtomicBool::new(false),
        };
        task.follower.get_or_insert_with(|| Follower::start(followed())).clone()
    }

    pub(crate) fn deleter(&self) -> JobDeleter {
        JobDeleter { jobs: self.jobs_api(), pods: self.pods_api(), owner: self.owner.clone() }
    }

    pub(crate) async fn remove_secrets(&self, job: &str) {
        for name in [format!("{job}-env"), format!("{job}-pull")] {
            match self.secrets_api().delete(&name, &kube::api::DeleteParams::default()).await {
                Err(error) if !fault::is_missing(&error) => {
                    warn!(secret = name, %error, "cannot delete a Secret; it is deleted with its Job");
                }
                _ => {}
            }
        }
    }

    /// Keeps a finished Job for inspection until its TTL, without its Secrets.
    async fn mark_done(&self, name: &str) {
        self.remove_secrets(name).await;
        let done = Patch::Merge(json!({"metadata": {"labels": {names::DONE: "true"}}}));
        if let Err(error) = self.jobs_api().patch(name, &PatchParams::default(), &done).await
            && !fault::is_missing(&error)
        {
            warn!(job = name, %error, "cannot label a finished Job as done");
        }
    }

    async fn found(&self) -> Result<Vec<FoundTask>, kube::Error> {
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
            let started_at = mine().find_map(pod_status::started_at);
            let ended = mine().any(|pod| pod_status::exit(pod, None).is_some());
            match job {
                // The task never started; the server assigns it again.
                Some(_) if started_at.is_none() && !ended => self.deleter().delete(key, None).await,
                _ => all.push(FoundTask { key, started_at, ended }),
            }
        }
        Ok(all)
    }
}

#[async_trait]
impl Runtime for Jobs {
    fn kind(&self) -> RuntimeKind {
        RuntimeKind::Docker
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
            // The next call starts a new follower.
            task.follower = None;
        }
        exit.map_err(StartError::Node)
    }

    async fn stop(&self, key: TaskKey, cause: StopCause, grace: Duration) {
        let stopped = StopRecord::now(cause, grace);
        if let Some(task) = self.tasks().get(&key) {
            // The first reason counts.
            let _ = task.stopped.set(stopped);
        }
        if self.folder(key).exists() {
            stop_record::save(&self.folder(key), stopped);
        }
        self.deleter().spawn_delete(key, grace);
    }

    async fn list(&self) -> Result<Vec<FoundTask>, StartError> {
        self.found().await.map_err(|error| fault::node(&error))
    }

    /// Without readings: the metrics of the cluster measure usage.
    async fn used(&self, _key: TaskKey) -> TaskUsage {
        TaskUsage::default()
    }

    async fn pids(&self, _key: TaskKey) -> Vec<u32> {
        Vec::new()
    }

    fn kubernetes_objects(&self, key: TaskKey) -> Option<KubernetesObjects> {
        let task = self.watch.task(key);
        Some(KubernetesObjects {
            namespace: self.settings.namespace.clone(),
            job_name: task.job.map_or_else(|| names::job(key), |job| job.name_any()),
            pod_name: task.pod?.name_any(),
        })
    }

    fn renew_lease(&self, left: Duration) {
        *lock(&self.lease_end) = Instant::now() + left;
        self.renewal.notify_one();
    }

    async fn remove(&self, key: TaskKey) {
        let ended =
            self.watch.task(key).pod.is_some_and(|pod| pod_status::exit(&pod, None).is_some());
        match self.job(key).await {
            Ok(Some(job)) if ended => self.mark_done(&job.name_any()).await,
            Ok(Some(_)) => self.deleter().delete(key, None).await,
            Ok(None) => {}
            Err(error) => warn!(%key, %error, "cannot find the Job of a task"),
        }
        self.tasks().remove(&key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
