//! The guardian: one small process per agent, which outlives the agent. The guardian is the parent of process jobs, so
//! that they survive a restart of the agent, and it stops leased tasks when the lease expires.
//!
//! Results are in files: output in `tasks/<key>/output.log`, ends in `tasks/<key>/exit.json`.

mod cgroup;
mod cgroup_v1;
pub(crate) mod client;
mod connections;
mod container_leases;
pub(crate) mod device_rule;
mod groups;
mod leftovers;
mod output;
pub(crate) mod procs;
pub(crate) mod record;
mod role;
mod running_task;
mod sentinel;
mod socket;
mod spawn;
mod supervisor;
mod task_cache;
mod temporary_files;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{
    Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit, setsid,
};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{debug, info};

use agentaflow_api::link::{StopCause, TaskKey};

use crate::runtime::docker::stop_overdue;
use connections::Connections;
use container_leases::LeaseFile;
use groups::GroupRoots;
use role::Role;
use sentinel::Sentinel;
use supervisor::{OverdueContainers, Reaped, Supervisor};
use wire::{ExitRecord, Message, Response, StartFault, TaskState};

/// Environment variable that identifies the task of a process.
pub(crate) const MARKER: &str = "AGENTAFLOW_OUTPUT";

/// Directory of the tasks in the state directory.
pub(crate) const TASKS: &str = "tasks";

/// Time without agent and tasks after which the guardian exits.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Longest wait for the lock: a sentinel kills processes for at most five seconds.
const LOCK_LIMIT: Duration = Duration::from_secs(8);

/// Exit code of a task whose program did not start, as of a shell.
const NOT_STARTED: i32 = 127;

const OOM_SCORE: &str = "/proc/self/oom_score_adj";
const PROTECTED_OOM_SCORE: i32 = -500;

const TICK: Duration = Duration::from_secs(1);

/// Interval between checks of killed processes.
const SWEEP_TICK: Duration = Duration::from_millis(10);

/// Error that keeps a guardian from starting.
#[derive(Debug, Error)]
pub enum GuardianError {
    #[error("cannot use the state directory `{}`", dir.display())]
    StateDir { dir: PathBuf, source: io::Error },
    #[error("the guardian cannot {operation}")]
    System { operation: &'static str, source: io::Error },
}

/// Supervises the tasks of the agent with this state directory until no task is left. Returns at once if another
/// guardian runs.
pub fn run(dir: &Path) -> Result<(), GuardianError> {
    if Role::current() == Role::Sentinel {
        return watch(dir);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| GuardianError::System { operation: "start", source })?;
    runtime.block_on(guard(dir))
}

/// Ends the tasks of a killed guardian; does nothing while a guardian runs. Returns before the lease of containers ends: a
/// process in the background stops them then.
pub fn sweep(dir: &Path) -> Result<(), GuardianError> {
    // A sentinel has the arguments of the program that started it.
    if Role::current() == Role::Sentinel {
        return watch(dir);
    }
    sentinel::sweep(dir).map_err(|source| GuardianError::StateDir { dir: dir.to_owned(), source })
}

fn watch(dir: &Path) -> Result<(), GuardianError> {
    sentinel::watch(dir)
        .map_err(|source| GuardianError::System { operation: "end leftover tasks", source })
}

async fn guard(dir: &Path) -> Result<(), GuardianError> {
    let folder = |source| GuardianError::StateDir { dir: dir.to_owned(), source };
    // Leaves the agent's session, so that signals of its terminal do not reach the guardian. Fails for a session
    // leader.
    let _ = setsid();
    let Some(_lock) = lock(dir).await.map_err(folder)? else {
        info!("another guardian is running");
        return Ok(());
    };
    // Handlers are installed before the first child exists. Children do not inherit handlers, unlike ignored signals.
    let signals = Signals::new()
        .map_err(|source| GuardianError::System { operation: "catch signals", source })?;
    // The sentinel inherits the protection.
    let oom_score = protect_from_oom();
    // Also takes over from the sentinel of a killed guardian.
    let sentinel = Sentinel::start();
    raise_file_limit();
    set_child_subreaper(Some(getpid())).map_err(|error| GuardianError::System {
        operation: "adopt orphans",
        source: error.into(),
    })?;
    let tasks = fs::canonicalize(dir.join(TASKS)).map_err(folder)?;
    let groups = task_groups(dir);
    debug!(
        cgroups = groups.has_unified(),
        devices = groups.device_control().as_str(),
        "guardian started"
    );
    let supervisor = Supervisor::new(tasks, groups).with_lease_file(LeaseFile::new(dir));
    let supervisor = supervisor.with_private_tmp(temporary_files::are_supported());
    let supervisor = supervisor.with_sentinel(sentinel, oom_score);
    let listener = socket::bind(dir).map_err(folder)?;
    tokio::spawn(crate::memory::release_start_pages());
    let dir = dir.to_owned();
    let (stopped, released) = mpsc::unbounded_channel();
    let guardian = Guardian {
        dir,
        supervisor,
        stopped,
        connections: Connections::default(),
        idle_since: Instant::now(),
        ending: false,
    };
    guardian.serve(&listener, signals, released).await;
    Ok(())
}

/// Locks the state directory; `None` if another guardian answers. A sentinel may hold the lock for a moment.
async fn lock(dir: &Path) -> io::Result<Option<socket::GuardianLock>> {
    let began = Instant::now();
    loop {
        if let Some(lock) = socket::lock(dir)? {
            return Ok(Some(lock));
        }
        if socket::connect(dir).await.is_ok() || began.elapsed() > LOCK_LIMIT {
            return Ok(None);
        }
        tokio::time::sleep(SWEEP_TICK).await;
    }
}

fn task_groups(dir: &Path) -> GroupRoots {
    let name = |meta: fs::Metadata| format!("{:x}-{:x}", meta.dev(), meta.ino());
    fs::metadata(dir).map(|meta| GroupRoots::find(&name(meta))).unwrap_or_default()
}

/// Makes the kernel prefer other processes when memory is short, where permitted. Returns the score of tasks.
fn protect_from_oom() -> Option<i32> {
    let score = fs::read_to_string(OOM_SCORE).ok()?.trim().parse().ok()?;
    let protected = i32::min(score, PROTECTED_OOM_SCORE);
    fs::write(OOM_SCORE, protected.to_string()).ok().map(|()| score)
}

/// Every task needs an open pipe and an open file, and the default limit is about a thousand.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // On failure fewer tasks can run at a time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

struct Signals {
    child: Signal,
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

struct Guardian {
    dir: PathBuf,
    supervisor: Supervisor,
    /// Keys of stopped containers.
    stopped: UnboundedSender<BTreeSet<TaskKey>>,
    connections: Connections,
    idle_since: Instant,
    ending: bool,
}

impl Guardian {
    async fn serve(
        mut self,
        listener: &UnixListener,
        mut signals: Signals,
        mut released: UnboundedReceiver<BTreeSet<TaskKey>>,
    ) {
        let (requests, mut inbox) = mpsc::channel(256);
        let mut tick = interval(TICK);
        let mut checks = every(self.supervisor.check_interval());
        while !self.is_over() {
            if checks.period() != self.supervisor.check_interval() {
                checks = every(self.supervisor.check_interval());
            }
            let soon = self.next_check();
            tokio::select! {
                Ok((stream, _)) = listener.accept() => self.connections.open(stream, requests.clone()),
                Some((connection, request)) = inbox.recv() => self.connections.handle(connection, request, &mut self.supervisor),
                _ = signals.child.recv() => self.reap(),
                Some((key, outcome)) = self.supervisor.next_start() => {
                    if let Some(response) = self.supervisor.finish_start(key, outcome) {
                        self.connections.answer_start(key, &response);
                    }
                    self.reap();
                }
                () = tokio::time::sleep(soon) => {
                    self.supervisor.kill_due();
                    self.reap();
                }
                _ = checks.tick() => self.check(),
                Some(keys) = released.recv() => self.supervisor.release(&keys),
                _ = tick.tick() => self.tick(),
                _ = signals.term.recv() => {
                    info!("received SIGTERM; stopping all tasks");
                    self.ending = true;
                    self.supervisor.stop_all(StopCause::Shutdown);
                }
                // Signals of a terminal are ignored.
                _ = signals.interrupt.recv() => {}
                _ = signals.hangup.recv() => {}
            }
        }
        self.supervisor.close();
    }

    fn next_check(&self) -> Duration {
        if self.supervisor.is_sweeping() {
            return SWEEP_TICK;
        }
        self.supervisor.next_kill().map_or(TICK, |left| left.min(TICK))
    }

    fn reap(&mut self) {
        for reaped in self.supervisor.reap() {
            match reaped {
                Reaped::Ended(task) => self.connections.broadcast(&Message::Ended { task }),
                Reaped::NotStarted(task, fault) => self.report_failure(task, fault),
            }
        }
    }

    /// An agent that connected during the start knows the task as a running one.
    fn report_failure(&mut self, mut task: TaskState, fault: StartFault) {
        if !self.connections.answer_start(task.key, &Response::Failed { fault }) {
            let started_at = task.started_at;
            let exit = ExitRecord { code: Some(NOT_STARTED), started_at, ..ExitRecord::default() };
            task.ended = Some(exit);
            self.connections.broadcast(&Message::Ended { task });
        }
    }

    /// Checks the lease and due kills, also under a constant stream of requests.
    fn check(&mut self) {
        for overdue in self.supervisor.check_lease() {
            tokio::spawn(stop_containers(overdue, self.dir.clone(), self.stopped.clone()));
        }
        self.supervisor.kill_due();
        self.reap();
    }

    fn tick(&mut self) {
        self.supervisor.tick();
        self.reap();
        if !self.connections.is_empty() || !self.supervisor.is_idle() {
            self.idle_since = Instant::now();
        }
    }

    fn is_over(&self) -> bool {
        let unused = self.ending || self.idle_since.elapsed() > IDLE_LIMIT;
        // An agent that leaves stays connected until it has the response.
        unused && self.supervisor.is_idle()
            || self.supervisor.may_leave() && self.connections.is_empty()
    }
}

/// Interval that skips missed ticks.
fn every(time: Duration) -> Interval {
    let mut interval = interval(time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Stops containers whose lease expired; retries until they are stopped.
async fn stop_containers(
    overdue: OverdueContainers,
    dir: PathBuf,
    stopped: UnboundedSender<BTreeSet<TaskKey>>,
) {
    let OverdueContainers { docker_socket, keys, since_ms } = overdue;
    info!("the lease expired; stopping leased containers");
    stop_overdue(&docker_socket, &dir, &keys, since_ms).await;
    // Fails only when the guardian exits.
    let _ = stopped.send(keys);
}
