//! What the guardian has in its care, and what it does about it. No sockets here.

mod lease;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use tracing::warn;

use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::cgroup::Root;
use super::record::{self, StartRecord};
use super::running::Running;
use super::spawn::spawn;
use super::wire::{Answer, ExitRecord, Order, TaskState};
use super::{leftovers, procs};
use crate::clock::{boot_ms, until};
pub(super) use lease::Overdue;

/// The usual time between two signs of life, for an agent that does not say its own.
const INTERVAL_MS: u64 = 30_000;

/// An end that the agent may not know yet.
#[derive(Debug)]
struct Ended {
    state: TaskState,
    written: bool,
}

/// Everything in the guardian's care.
#[derive(Debug)]
pub(super) struct Keeper {
    tasks: PathBuf,
    running: BTreeMap<TaskKey, Running>,
    ended: BTreeMap<TaskKey, Ended>,
    containers: BTreeMap<TaskKey, PathBuf>,
    /// Those of them that are being stopped.
    stopping: BTreeSet<TaskKey>,
    /// Processes that no task answered for at the last look, and when they were born.
    suspects: BTreeSet<(u32, u64)>,
    lease_until_ms: Option<u64>,
    interval_ms: u64,
    groups: Option<Root>,
    boot: String,
    oom_kills: u64,
    leaving: bool,
}

impl Keeper {
    /// Takes over a folder: kills what an earlier guardian left, and learns what has ended.
    pub(super) fn new(tasks: PathBuf, groups: Option<Root>) -> Self {
        let ended = leftovers::settle(&tasks, groups.as_ref());
        let ended =
            ended.into_iter().map(|state| (state.key, Ended { state, written: true })).collect();
        Self {
            tasks,
            running: BTreeMap::new(),
            ended,
            containers: BTreeMap::new(),
            stopping: BTreeSet::new(),
            suspects: BTreeSet::new(),
            lease_until_ms: None,
            interval_ms: INTERVAL_MS,
            groups,
            boot: procs::boot_id(),
            oom_kills: procs::oom_kills(),
            leaving: false,
        }
    }

    /// Starts a task, once.
    pub(super) fn start(&mut self, order: &Order) -> Answer {
        self.leaving = false;
        if let Some(state) = self.state(order.key) {
            return Answer::Started { at: state.started_at };
        }
        let dir = record::folder(&self.tasks, order.key);
        if !dir.is_dir() {
            let detail = format!("the folder of task {} is gone", order.key);
            return Answer::Failed { job: false, detail };
        }
        if order.leased && boot_ms() >= self.lease() {
            // The server may have given it to another by now.
            let detail = "the lease has run out: this node has lost touch with the server";
            return Answer::Failed { job: false, detail: detail.to_owned() };
        }
        match self.launch(order, dir) {
            Ok(running) => {
                let at = running.started_at;
                self.running.insert(order.key, running);
                Answer::Started { at }
            }
            Err(refused) => Answer::Failed { job: refused.job, detail: refused.detail },
        }
    }

    fn launch(&self, order: &Order, dir: PathBuf) -> Result<Running, super::spawn::Refused> {
        let group = self.groups.as_ref().and_then(|root| {
            let group = root.group(order.key, order.memory, order.cpu_milli, order.pids);
            group.inspect_err(|error| warn!(key = %order.key, %error, "no control group")).ok()
        });
        let (pid, output) = match self.groups.as_ref().zip(group.as_ref()) {
            Some((root, group)) => root.inside(group, || spawn(order, &dir))?,
            None => spawn(order, &dir)?,
        };
        tokio::spawn(output.clone().pump());
        let (since, started_at) = (Instant::now(), Stamp::now());
        if let Some(group) = &group {
            // Where it was not started inside: what it forked in the meantime is taken in as well.
            for pid in std::iter::once(pid).chain(procs::children(pid)) {
                let _ = group.add(pid);
            }
        }
        let born = procs::stat(pid).map_or(0, |stat| stat.born);
        let start = StartRecord { pid, born, boot: self.boot.clone(), started_at };
        if let Err(error) = record::write_start(&dir, &start) {
            // A full disk must not stop a task that runs; the marker in its environment still tells whose it is.
            warn!(key = %order.key, %error, "cannot note the start of a task");
        }
        Ok(Running {
            key: order.key,
            pid,
            started_at,
            since,
            grace: Duration::from_millis(order.grace_ms),
            leased: order.leased,
            output,
            stopped: None,
            kill_at: None,
            group,
            marker: order
                .env
                .get(super::MARKER)
                .map(|value| value.expose().to_owned())
                .unwrap_or_default(),
            dir,
            peak: 0,
            family: BTreeSet::new(),
            ended: None,
        })
    }

    /// Stops a task; an unknown one is fine.
    pub(super) fn stop(&mut self, key: TaskKey, cause: StopCause, grace: Duration) {
        let strays = self.strays_of(key);
        let before = self.oom_kills;
        if let Some(running) = self.running.get_mut(&key)
            // One that has come to its end by itself was not stopped.
            && !running.look(|| procs::oom_kills() > before)
        {
            running.stop(cause, grace, &strays);
        }
    }

    /// Stops everything.
    pub(super) fn stop_all(&mut self, cause: StopCause) {
        let all: Vec<_> =
            self.running.values().map(|running| (running.key, running.grace)).collect();
        for (key, grace) in all {
            self.stop(key, cause, grace);
        }
    }

    /// Everything it has.
    pub(super) fn list(&self) -> Vec<TaskState> {
        let ended = self.ended.values().map(|ended| ended.state.clone());
        self.running.values().map(Running::state).chain(ended).collect()
    }

    /// What a task has used.
    pub(super) fn used(&self, key: TaskKey) -> (u64, u64) {
        if let Some(running) = self.running.get(&key) {
            return running.used(&self.strays_of(key));
        }
        let record = self.ended.get(&key).and_then(|ended| ended.state.ended.as_ref());
        record.map_or((0, 0), |record| (record.cpu_ms, record.memory))
    }

    /// The processes of a task.
    pub(super) fn pids(&self, key: TaskKey) -> Vec<u32> {
        self.running.get(&key).map(|running| running.pids(&self.strays_of(key))).unwrap_or_default()
    }

    /// The agent knows the end of this task, or its container is gone.
    pub(super) fn forget(&mut self, key: TaskKey) {
        self.ended.remove(&key);
        self.containers.remove(&key);
        self.stopping.remove(&key);
    }

    /// Leaves nothing behind but files.
    pub(super) fn close(&self) {
        self.groups.iter().for_each(Root::remove);
    }

    /// The agent does not need it any more.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    /// It was told to go, and nothing holds it.
    pub(super) fn may_leave(&self) -> bool {
        self.leaving && self.is_idle()
    }

    /// Nothing runs that it has to look after.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.containers.is_empty()
            && self.ended.values().all(|ended| ended.written)
    }

    /// Looks which tasks have ended, and sweeps up after them. Called whenever a child has died.
    pub(super) fn reap(&mut self) -> Vec<TaskState> {
        let before = self.oom_kills;
        let dead: Vec<TaskKey> = self
            .running
            .values_mut()
            .filter_map(|running| {
                running.look(|| procs::oom_kills() > before).then_some(running.key)
            })
            .collect();
        if dead.is_empty() {
            return Vec::new();
        }
        let strays = self.strays();
        dead.into_iter().filter_map(|key| self.sweep(key, &strays)).collect()
    }

    fn sweep(&mut self, key: TaskKey, strays: &[u32]) -> Option<TaskState> {
        let running = self.running.get(&key)?;
        let own: Vec<u32> = strays.iter().copied().filter(|pid| running.owns(*pid)).collect();
        if !running.sweep(&own) {
            return None;
        }
        let running = self.running.remove(&key)?;
        let record = running.finish()?;
        let written = write_exit(&running.dir, &record);
        let state = TaskState { key, started_at: running.started_at, ended: Some(record) };
        self.ended.insert(key, Ended { state: state.clone(), written });
        Some(state)
    }

    /// Once a second: what tasks use, and what could not be written.
    pub(super) fn tick(&mut self) {
        let strays = self.strays();
        for running in self.running.values_mut().filter(|running| running.ended.is_none()) {
            let own: Vec<u32> = strays.iter().copied().filter(|pid| running.owns(*pid)).collect();
            running.sample(&own);
        }
        // What no task answers for got away from one that is over; but in the moment in which a process becomes another
        // program it does not say where it comes from, so that only a second look decides.
        let nobodys =
            strays.iter().filter(|pid| !self.running.values().any(|task| task.owns(**pid)));
        let nobodys: BTreeSet<(u32, u64)> =
            nobodys.filter_map(|pid| Some((*pid, procs::stat(*pid)?.born))).collect();
        for (pid, _) in nobodys.intersection(&self.suspects) {
            procs::signal(*pid, Signal::KILL);
        }
        self.suspects = nobodys;
        if !self.running.is_empty() {
            self.oom_kills = procs::oom_kills();
        }
        for ended in self.ended.values_mut().filter(|ended| !ended.written) {
            if let Some(record) = &ended.state.ended {
                ended.written = write_exit(&record::folder(&self.tasks, ended.state.key), record);
            }
        }
    }

    /// Kills what had its grace.
    pub(super) fn kill_due(&mut self) {
        let now = boot_ms();
        let due: Vec<TaskKey> = self
            .running
            .values()
            .filter(|r| r.kill_at.is_some_and(|at| at <= now))
            .map(|r| r.key)
            .collect();
        for key in due {
            let strays = self.strays_of(key);
            if let Some(running) = self.running.get_mut(&key) {
                running.signal(Signal::KILL, &strays);
                running.kill_at = Some(now + 1000);
            }
        }
    }

    /// How long it is until the next kill is due.
    pub(super) fn next_kill(&self) -> Option<Duration> {
        self.running.values().filter_map(|running| running.kill_at).min().map(until)
    }

    /// Something is dead and not yet swept up.
    pub(super) fn is_sweeping(&self) -> bool {
        self.running.values().any(|running| running.ended.is_some())
    }

    fn state(&self, key: TaskKey) -> Option<TaskState> {
        let ended = || self.ended.get(&key).map(|ended| ended.state.clone());
        self.running.get(&key).map(Running::state).or_else(ended)
    }

    /// Children that are no task's first process: those whose own parents have died. Dead ones are let go.
    fn strays(&self) -> Vec<u32> {
        let first: BTreeSet<u32> = self
            .running
            .values()
            .filter(|running| running.ended.is_none())
            .map(|running| running.pid)
            .collect();
        let others =
            procs::children(std::process::id()).into_iter().filter(|pid| !first.contains(pid));
        others.filter(|pid| !let_go(*pid)).collect()
    }

    fn strays_of(&self, key: TaskKey) -> Vec<u32> {
        let Some(running) = self.running.get(&key) else { return Vec::new() };
        self.strays().into_iter().filter(|pid| running.owns(*pid)).collect()
    }
}

/// Takes leave of a child if it is dead.
fn let_go(pid: u32) -> bool {
    let Some(pid) = Pid::from_raw(pid as i32) else { return true };
    !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

fn write_exit(dir: &Path, record: &ExitRecord) -> bool {
    match record::write_exit(dir, record) {
        Ok(()) => true,
        // A folder that is gone has nobody who would read it.
        Err(_) if !dir.exists() => true,
        Err(error) => {
            warn!(folder = %dir.display(), %error, "cannot note the end of a task; trying again");
            false
        }
    }
}
