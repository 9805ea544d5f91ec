//! The tasks of this node: what the server wants, and what is there.

mod folder;
mod launch;
mod life;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{Assignment, Ended, Message, News, Stop, StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use crate::gpus::GpuWatch;
use crate::guardian::client::Guardian;
use crate::guardian::record;
use crate::report::Outbox;
use crate::runtime::user::JobUser;
use crate::runtime::{Found, Runtime};

pub(crate) use folder::{prepare_root, tidy_root};

/// So many tasks are remembered after their end, so that a message that comes twice does not run them twice.
const REMEMBERED: usize = 50_000;

/// What every task needs to know of the agent.
pub(crate) struct Host {
    /// The folder of all tasks.
    pub(crate) dir: PathBuf,
    pub(crate) runtimes: Vec<Arc<dyn Runtime>>,
    pub(crate) guardian: Option<Guardian>,
    /// The socket of the container engine.
    pub(crate) engine: Option<PathBuf>,
    pub(crate) job_user: Option<JobUser>,
    pub(crate) log_limit: u64,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) gpus: Arc<GpuWatch>,
    /// `API_ENDPOINT` of jobs.
    pub(crate) server: String,
    /// The agent is going: its tasks stay, but it looks after them no longer.
    pub(crate) closed: CancellationToken,
}

/// That and how a task is to be stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    cause: StopCause,
    grace: Duration,
}

/// How a task came to this agent.
#[derive(Clone, Copy, Debug)]
enum Birth {
    /// From the server; it is to be started.
    Fresh,
    /// From an earlier agent; it may run, since this moment if that is known, or be over.
    Adopted(Option<Stamp>),
}

/// One task of this node.
pub(crate) struct Task {
    pub(crate) key: TaskKey,
    pub(crate) assignment: Assignment,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) started: OnceLock<Stamp>,
    order: watch::Sender<Option<Order>>,
    /// The server does not want to hear of it any more.
    forgotten: AtomicBool,
}

#[derive(Default)]
struct Table {
    live: BTreeMap<TaskKey, Arc<Task>>,
    done: HashSet<TaskKey>,
    order: VecDeque<TaskKey>,
}

/// All tasks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tasks {
    host: Arc<Host>,
    table: Arc<Mutex<Table>>,
}

impl Task {
    fn new(assignment: Assignment, runtime: Arc<dyn Runtime>) -> Self {
        Self {
            key: assignment.key,
            assignment,
            runtime,
            started: OnceLock::new(),
            order: watch::Sender::new(None),
            forgotten: AtomicBool::new(false),
        }
    }

    /// Stops it. A later order can only make it sooner, which the runtime sees to.
    pub(crate) fn stop(&self, cause: StopCause, grace: Duration) {
        self.order.send_replace(Some(Order { cause, grace }));
    }

    fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
        self.stop(StopCause::Replaced, Duration::ZERO);
    }

    fn is_forgotten(&self) -> bool {
        self.forgotten.load(Ordering::Relaxed)
    }
}

impl Tasks {
    pub(crate) fn new(host: Host) -> Self {
        Self { host: Arc::new(host), table: Arc::default() }
    }

    /// Does what the server says.
    pub(crate) fn obey(&self, message: Message) {
        match message {
            Message::Assign(assignment) => self.assign(*assignment),
            Message::Stop(stop) => self.stop(&stop),
            Message::Sync { assignments, stops } => self.sync(assignments, &stops),
        }
    }

    /// The tasks that are there.
    pub(crate) fn live(&self) -> Vec<Arc<Task>> {
        self.table().live.values().cloned().collect()
    }

    /// Stops every task that must not outlive the lease.
    pub(crate) fn lose_lease(&self) {
        for task in self
            .live()
            .iter()
            .filter(|task| task.assignment.leased && task.order.borrow().is_none())
        {
            info!(key = %task.key, "the lease ran out: stopping");
            task.stop(StopCause::LeaseLost, Duration::from_millis(task.assignment.grace_ms));
        }
    }

    /// Stops a task that holds well more GPU memory than its share, and says so in words.
    pub(crate) fn stop_over_share(&self, key: TaskKey, detail: String) {
        let task = self.table().live.get(&key).cloned();
        if let Some(task) = task.filter(|task| task.order.borrow().is_none()) {
            self.host.outbox.tell(key, News::Progress { kind: "Warning".to_owned(), detail });
            let grace = Duration::from_millis(task.assignment.grace_ms);
            task.stop(StopCause::GpuMemoryExceeded, grace);
        }
    }

    /// Kills tasks that the server has given to others or no longer knows.
    pub(crate) fn forget_stale(&self, keys: &[TaskKey]) {
        for key in keys {
            let task = self.table().live.get(key).cloned();
            if let Some(task) = task {
                warn!(%key, "the server no longer counts on this task: killing it");
                task.forget();
                self.host.outbox.drop_task(*key);
            }
        }
    }

    /// Takes over the tasks of an earlier agent.
    pub(crate) async fn adopt(&self) {
        let mut unknown: BTreeSet<TaskKey> = record::folders(&self.host.dir).into_iter().collect();
        for runtime in &self.host.runtimes {
            let found = runtime.list().await;
            if let Err(error) = &found {
                warn!(runtime = runtime.kind().as_str(), %error, "cannot see which tasks there are");
            }
            self.adopt_found(runtime, found.as_deref().unwrap_or_default(), &mut unknown);
            if found.is_err() {
                self.adopt_unseen(runtime, &mut unknown);
            }
        }
        for key in unknown {
            info!(%key, "was never started: forgetting it");
            let _ = std::fs::remove_dir_all(record::folder(&self.host.dir, key));
        }
    }

    fn adopt_found(
        &self,
        runtime: &Arc<dyn Runtime>,
        found: &[Found],
        unknown: &mut BTreeSet<TaskKey>,
    ) {
        for found in found {
            unknown.remove(&found.key);
            let assignment = folder::assignment(&record::folder(&self.host.dir, found.key));
            match assignment.filter(|assignment| assignment.key == found.key) {
                Some(assignment) => {
                    let birth = Birth::Adopted(found.started_at);
                    self.spawn(Task::new(assignment, Arc::clone(runtime)), birth);
                }
                None => self.bury(Arc::clone(runtime), found.key),
            }
        }
    }

    /// The runtime does not answer now; its tasks may still be there.
    fn adopt_unseen(&self, runtime: &Arc<dyn Runtime>, unknown: &mut BTreeSet<TaskKey>) {
        unknown.retain(|key| {
            let assignment = folder::assignment(&record::folder(&self.host.dir, *key));
            let Some(assignment) = assignment.filter(|found| found.runtime == runtime.kind())
            else {
                return true;
            };
            self.spawn(Task::new(assignment, Arc::clone(runtime)), Birth::Adopted(None));
            false
        });
    }

    /// Kills a task of which nothing is known.
    fn bury(&self, runtime: Arc<dyn Runtime>, key: TaskKey) {
        warn!(%key, "nothing is known of this task: killing it");
        let dir = record::folder(&self.host.dir, key);
        self.look_after(async move {
            runtime.stop(key, StopCause::Replaced, Duration::ZERO).await;
            let _ = runtime.wait(key).await;
            runtime.remove(key).await;
            let _ = std::fs::remove_dir_all(dir);
        });
    }

    fn assign(&self, assignment: Assignment) {
        let key = assignment.key;
        let runtime = self.host.runtime(assignment.runtime);
        let known = {
            let table = self.table();
            table.live.contains_key(&key) || table.done.contains(&key)
        };
        match runtime {
            _ if known => {}
            Some(runtime) => self.spawn(Task::new(assignment, runtime), Birth::Fresh),
            None => self.answer(key, News::Refused { detail: no_runtime(assignment.runtime) }),
        }
    }

    fn stop(&self, stop: &Stop) {
        let (task, done) = {
            let table = self.table();
            (table.live.get(&stop.key).cloned(), table.done.contains(&stop.key))
        };
        match task {
            Some(task) => task.stop(stop.cause, Duration::from_millis(stop.grace_ms)),
            // It never came here, and now it never will.
            None if !done => {
                let ended = Ended { stopped: Some(stop.cause), ..Ended::default() };
                self.answer(stop.key, News::Ended(Box::new(ended)));
            }
            None => {}
        }
    }

    fn sync(&self, assignments: Vec<Assignment>, stops: &[Stop]) {
        let wanted: BTreeSet<TaskKey> =
            assignments.iter().map(|assignment| assignment.key).collect();
        let stopping: BTreeSet<TaskKey> = stops.iter().map(|stop| stop.key).collect();
        let there: Vec<TaskKey> = self.table().live.keys().copied().collect();
        let extra: Vec<TaskKey> = there
            .into_iter()
            .filter(|key| !wanted.contains(key) && !stopping.contains(key))
            .collect();
        self.forget_stale(&extra);
        for stop in stops {
            self.stop(stop);
        }
        for assignment in
            assignments.into_iter().filter(|assignment| !stopping.contains(&assignment.key))
        {
            self.assign(assignment);
        }
    }

    /// Begins the life of a task.
    fn spawn(&self, task: Task, birth: Birth) {
        let task = Arc::new(task);
        self.table().live.insert(task.key, Arc::clone(&task));
        let tasks = self.clone();
        self.look_after(async move {
            life::live(&tasks.host, &task, birth).await;
            tasks.done(task.key);
        });
    }

    /// Tells the end of a task that has no life here.
    fn answer(&self, key: TaskKey, news: News) {
        let tasks = self.clone();
        self.look_after(async move {
            tasks.host.outbox.finish(key, news).await;
            tasks.done(key);
        });
    }

    /// Runs beside everything else, until the agent goes.
    fn look_after(&self, life: impl Future<Output = ()> + Send + 'static) {
        let closed = self.host.closed.clone();
        tokio::spawn(async move { closed.run_until_cancelled(life).await });
    }

    fn done(&self, key: TaskKey) {
        let mut table = self.table();
        table.live.remove(&key);
        if table.done.insert(key) {
            table.order.push_back(key);
        }
        if table.order.len() > REMEMBERED
            && let Some(oldest) = table.order.pop_front()
        {
            table.done.remove(&oldest);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    fn runtime(&self, kind: Kind) -> Option<Arc<dyn Runtime>> {
        self.runtimes.iter().find(|runtime| runtime.kind() == kind).cloned()
    }

    /// The user whom a task of this kind runs as.
    fn user(&self, kind: Kind) -> Option<&JobUser> {
        self.job_user.as_ref().filter(|_| kind == Kind::Process)
    }
}

fn no_runtime(kind: Kind) -> String {
    match kind {
        Kind::Docker => "this node has no Docker engine that the agent can use".to_owned(),
        Kind::Process => "the operator of this node does not allow process jobs".to_owned(),
    }
}
