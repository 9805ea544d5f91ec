//! The tasks of this node: what the server wants, and what is there.

mod adopt;
mod folder;
mod launch;
mod life;
mod root;
mod trash;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use agentaflow_api::event::EventKind;
use agentaflow_api::job::Runtime as Kind;
use agentaflow_api::link::{Assignment, Ended, Message, Stop, StopCause, TaskKey, TaskUpdate};
use agentaflow_api::units::Stamp;

use crate::clock;
use crate::gpus::GpuWatch;
use crate::guardian::client::Guardian;
use crate::lease::Lease;
use crate::report::Outbox;
use crate::runtime::Runtime;
use crate::runtime::user::JobUser;

pub(crate) use adopt::left_containers;
pub(crate) use root::{prepare_root, remove_orphans, tidy_root};
pub(crate) use trash::Trash;

/// So many tasks are remembered after their end, so that a message that comes twice does not run them twice.
const REMEMBERED: usize = 50_000;

/// What every task needs to know of the agent.
pub(crate) struct Host {
    /// The folder of all tasks.
    pub(crate) dir: PathBuf,
    pub(crate) runtimes: Vec<Arc<dyn Runtime>>,
    pub(crate) guardian: Option<Guardian>,
    pub(crate) lease: Lease,
    /// A Docker engine that was found only later.
    pub(crate) late_docker: OnceLock<Arc<dyn Runtime>>,
    /// The socket of the container engine.
    pub(crate) engine: Option<PathBuf>,
    pub(crate) job_user: Option<JobUser>,
    pub(crate) log_limit: u64,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) gpus: Arc<GpuWatch>,
    /// Where the folders of tasks go that are over.
    pub(crate) trash: Arc<Trash>,
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
            Message::Stop(stop) => self.stop(&stop, false),
            Message::Sync { assignments, stops } => self.sync(assignments, &stops),
        }
    }

    /// The tasks that are there.
    pub(crate) fn live(&self) -> Vec<Arc<Task>> {
        self.table().live.values().cloned().collect()
    }

    /// Stops every task that must not outlive the lease, which ran out at this moment of the boot-time clock.
    pub(crate) fn lose_lease(&self, end_ms: u64) {
        for task in self
            .live()
            .iter()
            .filter(|task| task.assignment.leased && task.order.borrow().is_none())
        {
            info!(key = %task.key, "the lease ran out: stopping");
            // The grace counts from the lease's end, however late that is seen: the server counts from there too.
            let grace = clock::until(end_ms.saturating_add(task.assignment.grace_ms));
            task.stop(StopCause::LeaseLost, grace);
        }
    }

    /// Stops a task that holds well more GPU memory than its share, and says so in words.
    pub(crate) fn stop_over_share(&self, key: TaskKey, detail: String) {
        let task = self.table().live.get(&key).cloned();
        if let Some(task) = task.filter(|task| task.order.borrow().is_none()) {
            self.host.outbox.tell(key, TaskUpdate::Progress { kind: EventKind::Warning, detail });
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
            None => {
                self.answer(key, TaskUpdate::Refused { detail: no_runtime(assignment.runtime) })
            }
        }
    }

    /// Stops a task. `again`: the server does not know that it is over, so that is told once more.
    fn stop(&self, stop: &Stop, again: bool) {
        let (task, done) = {
            let table = self.table();
            (table.live.get(&stop.key).cloned(), table.done.contains(&stop.key))
        };
        match task {
            Some(task) => task.stop(stop.cause, Duration::from_millis(stop.grace_ms)),
            // It never came here, and now it never will.
            None if again || !done => self.over(stop.key, stop.cause),
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
            self.stop(stop, true);
        }
        for assignment in
            assignments.into_iter().filter(|assignment| !stopping.contains(&assignment.key))
        {
            let key = assignment.key;
            let (live, done) = {
                let table = self.table();
                (table.live.contains_key(&key), table.done.contains(&key))
            };
            if live {
                continue;
            }
            if done || assignment.running {
                warn!(%key, "the server counts on a task that is not here any more: telling it so");
                self.over(key, StopCause::LeaseLost);
            } else {
                self.assign(assignment);
            }
        }
    }

    /// Tells that a task is over of which nothing is here.
    fn over(&self, key: TaskKey, cause: StopCause) {
        let ended = Ended { stopped: Some(cause), ..Ended::default() };
        self.answer(key, TaskUpdate::Ended(Box::new(ended)));
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
    fn answer(&self, key: TaskKey, update: TaskUpdate) {
        let tasks = self.clone();
        self.look_after(async move {
            tasks.host.outbox.finish(key, update).await;
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
        let mut all = self.runtimes.iter().chain(self.late_docker.get());
        all.find(|runtime| runtime.kind() == kind).cloned()
    }

    /// Removes the folder of a task that is over.
    fn throw(&self, dir: &Path) {
        if let Err(error) = self.trash.throw(dir) {
            warn!(folder = %dir.display(), %error, "cannot remove the folder of a task");
        }
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
