//! Tasks of this node: compares the server's assignments with the running tasks, starts and stops tasks.

mod adopt;
mod folder;
mod folder_remover;
mod gpu_errors;
mod launch;
mod lifecycle;
mod root;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use agentaflow_api::job::Runtime as RuntimeKind;
use agentaflow_api::link::{Assignment, Ended, Message, Stop, StopCause, TaskKey, TaskUpdate};
use agentaflow_api::units::Stamp;

use crate::clock;
use crate::gpus::{GpuWatch, OverShare};
use crate::guardian::client::Guardian;
use crate::guardian::record;
use crate::lease::Lease;
use crate::report::Outbox;
use crate::runtime::Runtime;
use crate::runtime::user::{JobUser, JobUsers};
use crate::storage::OverStorage;
use crate::usage::UsageTable;

pub(crate) use adopt::left_containers;
pub(crate) use folder_remover::FolderRemover;
pub(crate) use gpu_errors::Restarts;
pub(crate) use root::{prepare_root, remove_orphans, tidy_root};

/// Number of ended tasks whose keys the agent remembers, so that a repeated assignment does not run again.
const FINISHED_KEYS: usize = 50_000;

/// Parts of the agent that every task uses.
pub(crate) struct Host {
    /// Parent directory of the task folders.
    pub(crate) dir: PathBuf,
    pub(crate) runtimes: Vec<Arc<dyn Runtime>>,
    pub(crate) guardian: Option<Guardian>,
    pub(crate) lease: Lease,
    /// Set when the Docker daemon starts after the agent.
    pub(crate) late_docker: OnceLock<Arc<dyn Runtime>>,
    pub(crate) docker_socket: Option<PathBuf>,
    pub(crate) job_users: JobUsers,
    pub(crate) log_limit: u64,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) gpus: Arc<GpuWatch>,
    pub(crate) usage: UsageTable,
    pub(crate) folder_remover: Arc<FolderRemover>,
    /// Value of `API_ENDPOINT` in the environment of jobs.
    pub(crate) server: String,
    /// Cancelled at shutdown: the tasks keep running, but the agent no longer manages them.
    pub(crate) closed: CancellationToken,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StopOrder {
    cause: StopCause,
    grace: Duration,
}

#[derive(Clone, Copy, Debug)]
enum TaskOrigin {
    /// The server assigned the task; it is not started yet.
    Assigned,
    /// An earlier agent started the task, at this time if known. The task may run or have ended.
    Adopted(Option<Stamp>),
}

pub(crate) struct Task {
    pub(crate) key: TaskKey,
    pub(crate) assignment: Assignment,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) started: OnceLock<Stamp>,
    stop_order: watch::Sender<Option<StopOrder>>,
    /// The server no longer tracks this task: the agent sends no update about it.
    stale: AtomicBool,
}

#[derive(Default)]
struct TaskTable {
    live: BTreeMap<TaskKey, Arc<Task>>,
    finished: HashSet<TaskKey>,
    /// Keys of `finished`, oldest first.
    finished_order: VecDeque<TaskKey>,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tasks {
    host: Arc<Host>,
    table: Arc<Mutex<TaskTable>>,
}

impl Task {
    fn new(assignment: Assignment, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            key: assignment.key,
            assignment,
            runtime,
            started: OnceLock::new(),
            stop_order: watch::Sender::new(None),
            stale: AtomicBool::new(false),
        }
    }

    /// Stops the task. A second order can only shorten the grace; the runtime ensures that.
    pub(crate) fn stop(&self, cause: StopCause, grace: Duration) {
        self.stop_order.send_replace(Some(StopOrder { cause, grace }));
    }

    fn kill_stale(&self) {
        self.stale.store(true, Ordering::Relaxed);
        self.stop(StopCause::Replaced, Duration::ZERO);
    }

    fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }
}

impl Tasks {
    pub(crate) fn new(host: Host) -> Self {
        Self { host: Arc::new(host), table: Arc::default() }
    }

    pub(crate) fn handle(&self, message: Message) {
        match message {
            Message::Assign(assignment) => self.assign(*assignment),
            Message::Stop(stop) => self.stop(&stop, false),
            Message::Sync { assignments, stops } => self.sync(assignments, &stops),
        }
    }

    /// Tasks that have not ended.
    pub(crate) fn live(&self) -> Vec<Arc<Task>> {
        self.table().live.values().cloned().collect()
    }

    pub(crate) fn usage(&self) -> &UsageTable {
        &self.host.usage
    }

    pub(crate) fn gpus(&self) -> &GpuWatch {
        &self.host.gpus
    }

    pub(crate) fn folder(&self, key: TaskKey) -> PathBuf {
        record::folder(&self.host.dir, key)
    }

    /// Stops every leased task after the lease expired at this moment of the boot-time clock.
    pub(crate) fn stop_leased(&self, expired_ms: u64) {
        for task in self
            .live()
            .iter()
            .filter(|task| task.assignment.leased && task.stop_order.borrow().is_none())
        {
            info!(key = %task.key, "the lease expired; stopping the task");
            // The grace period starts at the expiry, as on the server, even if the agent notices the expiry late.
            let grace = clock::until(expired_ms.saturating_add(task.assignment.grace_ms));
            task.stop(StopCause::LeaseLost, grace);
        }
    }

    /// Stops a task that holds far more GPU memory than its share, and reports the numbers as a warning.
    pub(crate) fn stop_over_share(&self, over: &OverShare) {
        if self.stop_own(over.key, StopCause::GpuMemoryExceeded) {
            self.host.outbox.warn(over.key, over.to_string());
        }
    }

    /// Stops a task above its disk limit, and reports the numbers as a warning.
    pub(crate) fn stop_over_storage(&self, over: &OverStorage) {
        if self.stop_own(over.key, StopCause::StorageExceeded) {
            self.host.outbox.warn(over.key, over.to_string());
        }
    }

    /// Stops a live task by a decision of the agent; false if the task is being stopped already.
    fn stop_own(&self, key: TaskKey, cause: StopCause) -> bool {
        let task = self.table().live.get(&key).cloned();
        let task = task.filter(|task| task.stop_order.borrow().is_none());
        if let Some(task) = &task {
            task.stop(cause, Duration::from_millis(task.assignment.grace_ms));
        }
        task.is_some()
    }

    /// Kills tasks that the server assigned to another node or no longer knows.
    pub(crate) fn kill_stale(&self, keys: &[TaskKey]) {
        for key in keys {
            let task = self.table().live.get(key).cloned();
            if let Some(task) = task {
                warn!(%key, "the server no longer tracks this task; killing it");
                task.kill_stale();
                self.host.outbox.drop_task(*key);
            }
        }
    }

    fn assign(&self, assignment: Assignment) {
        let key = assignment.key;
        let runtime = self.host.runtime(assignment.runtime);
        let known = {
            let table = self.table();
            table.live.contains_key(&key) || table.finished.contains(&key)
        };
        match runtime {
            _ if known => {}
            Some(runtime) => self.spawn(Task::new(assignment, runtime), TaskOrigin::Assigned),
            None => {
                self.report_end(
                    key,
                    TaskUpdate::Refused { detail: no_runtime(assignment.runtime) },
                );
            }
        }
    }

    /// Stops a task. `full_sync`: the server does not know that the task ended, so the agent reports its end again.
    fn stop(&self, stop: &Stop, full_sync: bool) {
        let (task, finished) = {
            let table = self.table();
            (table.live.get(&stop.key).cloned(), table.finished.contains(&stop.key))
        };
        match task {
            Some(task) => task.stop(stop.cause, Duration::from_millis(stop.grace_ms)),
            // The assignment never reached this node.
            None if full_sync || !finished => self.report_stopped(stop.key, stop.cause),
            None => {}
        }
    }

    fn sync(&self, assignments: Vec<Assignment>, stops: &[Stop]) {
        let wanted: BTreeSet<TaskKey> =
            assignments.iter().map(|assignment| assignment.key).collect();
        let stopping: BTreeSet<TaskKey> = stops.iter().map(|stop| stop.key).collect();
        let is_extra = |key: &&TaskKey| !wanted.contains(*key) && !stopping.contains(*key);
        let extra: Vec<TaskKey> = self.table().live.keys().filter(is_extra).copied().collect();
        self.kill_stale(&extra);
        for stop in stops {
            self.stop(stop, true);
        }
        for assignment in
            assignments.into_iter().filter(|assignment| !stopping.contains(&assignment.key))
        {
            let key = assignment.key;
            let (live, finished) = {
                let table = self.table();
                (table.live.contains_key(&key), table.finished.contains(&key))
            };
            if live {
                continue;
            }
            if finished || assignment.running {
                warn!(%key, "the server tracks a task that this node no longer has; reporting its end");
                self.report_stopped(key, StopCause::LeaseLost);
            } else {
                self.assign(assignment);
            }
        }
    }

    /// Reports a task that this node does not have as stopped.
    fn report_stopped(&self, key: TaskKey, cause: StopCause) {
        let ended = Ended { stopped: Some(cause), ..Ended::default() };
        self.report_end(key, TaskUpdate::Ended(Box::new(ended)));
    }

    fn spawn(&self, task: Task, origin: TaskOrigin) {
        let task = Arc::new(task);
        self.table().live.insert(task.key, Arc::clone(&task));
        let tasks = self.clone();
        self.spawn_until_shutdown(async move {
            lifecycle::run(&tasks.host, &task, origin).await;
            tasks.finish(task.key);
        });
    }

    /// Reports the end of a task that does not run on this node.
    fn report_end(&self, key: TaskKey, update: TaskUpdate) {
        let tasks = self.clone();
        self.spawn_until_shutdown(async move {
            tasks.host.outbox.finish(key, update).await;
            tasks.finish(key);
        });
    }

    fn spawn_until_shutdown(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closed = self.host.closed.clone();
        tokio::spawn(async move { closed.run_until_cancelled(work).await });
    }

    fn finish(&self, key: TaskKey) {
        let mut table = self.table();
        table.live.remove(&key);
        if table.finished.insert(key) {
            table.finished_order.push_back(key);
        }
        if table.finished_order.len() > FINISHED_KEYS
            && let Some(oldest) = table.finished_order.pop_front()
        {
            table.finished.remove(&oldest);
        }
    }

    fn table(&self) -> MutexGuard<'_, TaskTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    fn runtime(&self, kind: RuntimeKind) -> Option<Arc<dyn Runtime>> {
        let mut all = self.runtimes.iter().chain(self.late_docker.get());
        all.find(|runtime| runtime.kind() == kind).cloned()
    }

    fn remove_folder(&self, dir: &Path) {
        if let Err(error) = self.folder_remover.remove(dir) {
            warn!(folder = %dir.display(), %error, "cannot remove the task folder");
        }
    }

    /// User of a task; `None` means the user of the agent.
    fn user(&self, assignment: &Assignment) -> Result<Option<JobUser>, String> {
        match assignment.runtime {
            RuntimeKind::Process => self.job_users.of(assignment.user_id),
            RuntimeKind::Docker => Ok(None),
        }
    }
}

fn no_runtime(kind: RuntimeKind) -> String {
    match kind {
        RuntimeKind::Docker => "Docker is not running on the node".to_owned(),
        RuntimeKind::Process => "process jobs are not allowed on the node".to_owned(),
    }
}
