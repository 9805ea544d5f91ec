//! The guardian: one small process for each agent, which outlives it. It owns process jobs, so that an agent can be
//! killed and come back without its jobs noticing; and it stops leased work when nobody renews the lease.
//!
//! Everything of value is in files: output in `tasks/<key>/output.log`, ends in `tasks/<key>/exit.json`.

mod book;
mod cgroup;
pub(crate) mod client;
mod conn;
mod keeper;
mod leftovers;
mod output;
mod procs;
pub(crate) mod record;
mod running;
mod socket;
mod spawn;
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
use rustix::thread::set_no_new_privs;
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::{debug, info, warn};

use agentaflow_api::link::{StopCause, TaskKey};

use crate::backoff::RECONNECT;
use crate::clock::boot_ms;
use crate::runtime::docker::stop_leased;
use cgroup::Root;
use conn::Conns;
use keeper::{Keeper, Overdue};
use wire::Say;

/// The variable by which a process says which task it comes from.
pub(crate) const MARKER: &str = "AGENTAFLOW_OUTPUT";

/// The folder of the tasks, below the agent's.
pub(crate) const TASKS: &str = "tasks";

/// Without an agent and without tasks, it goes after this long.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// How often it looks around.
const TICK: Duration = Duration::from_secs(1);

/// How often it looks whether killed processes are gone.
const SWEEP_TICK: Duration = Duration::from_millis(10);

/// Why a guardian cannot work.
#[derive(Debug, Error)]
pub enum GuardianError {
    /// Its folder cannot be used.
    #[error("cannot guard `{}`", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system refuses something it needs.
    #[error("the guardian cannot {what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Guards the tasks of the agent whose state is in this folder, until there is nothing to guard. Returns at once if
/// another guardian does already.
pub fn run(dir: &Path) -> Result<(), GuardianError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| GuardianError::System { what: "start", source })?;
    runtime.block_on(guard(dir))
}

async fn guard(dir: &Path) -> Result<(), GuardianError> {
    let folder = |source| GuardianError::Folder { dir: dir.to_owned(), source };
    // Out of the agent's session, so that its terminal does not take us along. Fails if that is so already.
    let _ = setsid();
    let Some(_lock) = socket::lock(dir).map_err(folder)? else {
        info!("another guardian is there already");
        return Ok(());
    };
    // Signals are caught before the first child exists. Caught ones, unlike ignored ones, are not passed on.
    let signals =
        Signals::new().map_err(|source| GuardianError::System { what: "catch signals", source })?;
    raise_file_limit();
    // Tasks inherit it: programs that make their caller root, such as sudo, are of no use to them.
    set_no_new_privs(true).map_err(|error| GuardianError::System {
        what: "give up privileges",
        source: error.into(),
    })?;
    set_child_subreaper(Some(getpid()))
        .map_err(|error| GuardianError::System { what: "adopt orphans", source: error.into() })?;
    let tasks = fs::canonicalize(dir.join(TASKS)).map_err(folder)?;
    let groups = fs::metadata(dir)
        .ok()
        .and_then(|meta| Root::find(&format!("{:x}-{:x}", meta.dev(), meta.ino())));
    debug!(groups = groups.is_some(), "guarding");
    let keeper = Keeper::new(tasks, groups);
    let listener = socket::bind(dir).map_err(folder)?;
    let dir = dir.to_owned();
    let (stopped, released) = mpsc::unbounded_channel();
    let guardian = Guardian {
        dir,
        keeper,
        stopped,
        conns: Conns::default(),
        alone_since: Instant::now(),
        ending: false,
    };
    guardian.serve(&listener, signals, released).await;
    Ok(())
}

/// Every task needs an open pipe and an open file, and the usual limit is a thousand.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, fewer tasks can run at a time, and are refused in words.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The signals that matter.
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
    keeper: Keeper,
    /// Containers that were stopped.
    stopped: UnboundedSender<BTreeSet<TaskKey>>,
    conns: Conns,
    alone_since: Instant,
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
        let mut look = every(self.keeper.pace());
        while !self.is_over() {
            if look.period() != self.keeper.pace() {
                look = every(self.keeper.pace());
            }
            let soon = self.next_look();
            tokio::select! {
                Ok((stream, _)) = listener.accept() => self.conns.open(stream, requests.clone()),
                Some((conn, request)) = inbox.recv() => self.conns.answer(conn, request, &mut self.keeper),
                _ = signals.child.recv() => self.reap(),
                () = tokio::time::sleep(soon) => {
                    self.keeper.kill_due();
                    self.reap();
                }
                _ = look.tick() => self.look(),
                Some(keys) = released.recv() => self.keeper.release(&keys),
                _ = tick.tick() => self.tick(),
                _ = signals.term.recv() => {
                    info!("told to end: stopping every task");
                    self.ending = true;
                    self.keeper.stop_all(StopCause::Shutdown);
                }
                // A terminal is none of its business.
                _ = signals.interrupt.recv() => {}
                _ = signals.hangup.recv() => {}
            }
        }
        self.keeper.close();
    }

    fn next_look(&self) -> Duration {
        if self.keeper.is_sweeping() {
            return SWEEP_TICK;
        }
        self.keeper.next_kill().map_or(TICK, |left| left.min(TICK))
    }

    fn reap(&mut self) {
        for task in self.keeper.reap() {
            self.conns.tell(&Say::Ended { task });
        }
    }

    /// Looks at the lease, and at what has to die; also while requests come without a pause.
    fn look(&mut self) {
        for overdue in self.keeper.check_lease() {
            tokio::spawn(stop_containers(overdue, self.dir.clone(), self.stopped.clone()));
        }
        self.keeper.kill_due();
        self.reap();
    }

    fn tick(&mut self) {
        self.keeper.tick();
        self.reap();
        if self.conns.any() || !self.keeper.is_idle() {
            self.alone_since = Instant::now();
        }
    }

    fn is_over(&self) -> bool {
        let unused = self.ending || self.alone_since.elapsed() > IDLE_LIMIT;
        // An agent that said goodbye is still there until it has heard the answer.
        unused && self.keeper.is_idle() || self.keeper.may_leave() && !self.conns.any()
    }
}

/// Beats evenly, and does not catch up after a pause.
fn every(time: Duration) -> Interval {
    let mut interval = interval(time);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    interval
}

/// Stops containers that have outlived their lease: for ever, until they are stopped.
async fn stop_containers(
    overdue: Overdue,
    dir: PathBuf,
    stopped: UnboundedSender<BTreeSet<TaskKey>>,
) {
    let Overdue { engine, keys, since_ms } = overdue;
    info!("the lease ran out: stopping leased containers");
    let mut backoff = RECONNECT.start();
    loop {
        let late = Duration::from_millis(boot_ms().saturating_sub(since_ms));
        match stop_leased(&engine, &dir, &keys, late).await {
            Ok(()) => break,
            Err(error) => warn!(%error, "containers cannot be stopped yet; trying again"),
        }
        backoff.sleep().await;
    }
    // Nobody listens when the guardian is going.
    let _ = stopped.send(keys);
}
