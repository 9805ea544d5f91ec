//! Tasks of the guardian: start, stop, reaping and the lease. Contains no socket code.

mod lease;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use tokio::task::JoinSet;
use tracing::warn;

use agentaflow_api::link::{StopCause, TaskKey};

use super::container_leases::LeaseFile;
use super::device_rule::DeviceControl;
use super::groups::GroupRoots;
use super::record;
use super::running_task::{RunningTask, StartState};
use super::sentinel::Sentinel;
use super::wire::{ExitRecord, StartFault, TaskState, UsageRecord};
use super::{leftovers, procs};
use crate::clock::{boot_ms, until};
pub(super) use lease::OverdueContainers;

/// Heartbeat interval of an agent that does not send its own.
const DEFAULT_INTERVAL_MS: u64 = 30_000;

/// End that the agent has not confirmed yet.
#[derive(Debug)]
struct EndedTask {
    state: TaskState,
    /// `exit.json` is written.
    saved: bool,
}

/// Task without remaining processes.
#[derive(Debug)]
pub(super) enum Reaped {
    Ended(TaskState),
    NotStarted(TaskState, StartFault),
}

#[derive(Debug)]
pub(super) struct Supervisor {
    tasks: PathBuf,
    running: BTreeMap<TaskKey, RunningTask>,
    starts: JoinSet<(TaskKey, Result<(), StartFault>)>,
    ended: BTreeMap<TaskKey, EndedTask>,
    /// Leased containers with the socket of their Docker daemon.
    containers: BTreeMap<TaskKey, PathBuf>,
    /// Containers that are being stopped.
    stopping: BTreeSet<TaskKey>,
    /// Processes without an owner at the last tick: pid and start time.
    unowned: BTreeSet<(u32, u64)>,
    lease_until_ms: Option<u64>,
    interval_ms: u64,
    /// Absent in tests.
    lease_file: Option<LeaseFile>,
    groups: GroupRoots,
    /// Tasks have their own temporary files.
    private_tmp: bool,
    /// Absent in tests.
    sentinel: Option<Sentinel>,
    /// Of the guardian before it protected itself.
    oom_score: Option<i32>,
    boot: String,
    oom_kills: u64,
    leaving: bool,
}

impl Supervisor {
    /// Kills processes that an earlier guardian left, and reads the saved ends.
    pub(super) fn new(tasks: PathBuf, groups: GroupRoots) -> Self {
        let ended = leftovers::settle(&tasks, &groups);
        let ended =
            ended.into_iter().map(|state| (state.key, EndedTask { state, saved: true })).collect();
        Self {
            tasks,
            running: BTreeMap::new(),
            starts: JoinSet::new(),
            ended,
            containers: BTreeMap::new(),
            stopping: BTreeSet::new(),
            unowned: BTreeSet::new(),
            lease_until_ms: None,
            interval_ms: DEFAULT_INTERVAL_MS,
            lease_file: None,
            groups,
            private_tmp: false,
            sentinel: None,
            oom_score: None,
            boot: procs::boot_id(),
            oom_kills: procs::oom_kills(),
            leaving: false,
        }
    }

    /// Protects the tasks against the death of this guardian.
    pub(super) fn with_sentinel(self, sentinel: Sentinel, oom_score: Option<i32>) -> Self {
        Self { sentinel: Some(sentinel), oom_score, ..self }
    }

    pub(super) fn with_private_tmp(self, private_tmp: bool) -> Self {
        Self { private_tmp, ..self }
    }

    /// Stops a task; ignores an unknown one.
    pub(super) fn stop(&mut self, key: TaskKey, cause: StopCause, grace: Duration) {
        let orphans = self.orphans_of(key);
        let before = self.oom_kills;
        if let Some(running) = self.running.get_mut(&key)
            // A task that has already ended was not stopped.
            && !running.check_exit(|| procs::oom_kills() > before)
        {
            running.stop(cause, grace, &orphans);
        }
    }

    pub(super) fn stop_all(&mut self, cause: StopCause) {
        let all: Vec<_> =
            self.running.values().map(|running| (running.key, running.grace)).collect();
        for (key, grace) in all {
            self.stop(key, cause, grace);
        }
    }

    pub(super) fn list(&self) -> Vec<TaskState> {
        let ended = self.ended.values().map(|ended| ended.state.clone());
        self.running.values().map(RunningTask::state).chain(ended).collect()
    }

    pub(super) fn device_control(&self) -> DeviceControl {
        self.groups.device_control()
    }

    pub(super) fn has_private_tmp(&self) -> bool {
        self.private_tmp
    }

    pub(super) fn usage(&self, key: TaskKey) -> UsageRecord {
        if let Some(running) = self.running.get(&key) {
            return running.usage(&self.orphans_of(key));
        }
        let record = self.ended.get(&key).and_then(|ended| ended.state.ended.as_ref());
        record.map(ExitRecord::usage).unwrap_or_default()
    }

    pub(super) fn pids(&self, key: TaskKey) -> Vec<u32> {
        self.running
            .get(&key)
            .map(|running| running.pids(&self.orphans_of(key)))
            .unwrap_or_default()
    }

    /// Drops a task whose end the agent has reported, or whose container is removed.
    pub(super) fn forget(&mut self, key: TaskKey) {
        self.ended.remove(&key);
        self.stopping.remove(&key);
        if self.containers.remove(&key).is_some() {
            self.save_leases();
        }
    }

    pub(super) fn close(&self) {
        self.groups.remove();
    }

    pub(super) fn leave(&mut self) {
        self.leaving = true;
    }

    pub(super) fn may_leave(&self) -> bool {
        self.leaving && self.is_idle()
    }

    /// True without running tasks, containers and unsaved ends.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.containers.is_empty()
            && self.ended.values().all(|ended| ended.saved)
    }

    /// Collects ended tasks and kills their remaining processes. Called after every death of a child.
    pub(super) fn reap(&mut self) -> Vec<Reaped> {
        let before = self.oom_kills;
        let ended: Vec<TaskKey> = self
            .running
            .values_mut()
            .filter_map(|running| {
                running.check_exit(|| procs::oom_kills() > before).then_some(running.key)
            })
            .collect();
        if ended.is_empty() {
            return Vec::new();
        }
        let orphans = self.orphans();
        ended.into_iter().filter_map(|key| self.sweep(key, &orphans)).collect()
    }

    fn sweep(&mut self, key: TaskKey, orphans: &[u32]) -> Option<Reaped> {
        let running = self.running.get(&key)?;
        let own: Vec<u32> = orphans.iter().copied().filter(|pid| running.owns(*pid)).collect();
        if !running.sweep(&own) {
            return None;
        }
        let running = self.running.remove(&key)?;
        if let StartState::Failed(fault) = &running.start {
            record::remove_start(&running.dir);
            return Some(Reaped::NotStarted(running.state(), fault.clone()));
        }
        let record = running.finish()?;
        let saved = write_exit(&running.dir, &record);
        let state = TaskState { key, started_at: running.started_at, ended: Some(record) };
        self.ended.insert(key, EndedTask { state: state.clone(), saved });
        Some(Reaped::Ended(state))
    }

    /// Samples usage, kills unowned processes and retries unsaved ends. Called once a second.
    pub(super) fn tick(&mut self) {
        self.sentinel.iter_mut().for_each(Sentinel::restart_if_dead);
        let orphans = self.orphans();
        for running in self.running.values_mut().filter(|running| running.ended.is_none()) {
            let own: Vec<u32> = orphans.iter().copied().filter(|pid| running.owns(*pid)).collect();
            running.sample(&own);
        }
        // A process without an owner escaped from an ended task. During `exec` a process has no environment, so only a
        // second sighting counts.
        let unowned =
            orphans.iter().filter(|pid| !self.running.values().any(|task| task.owns(**pid)));
        let unowned: BTreeSet<(u32, u64)> =
            unowned.filter_map(|pid| Some((*pid, procs::stat(*pid)?.started))).collect();
        for (pid, _) in unowned.intersection(&self.unowned) {
            procs::signal(*pid, Signal::KILL);
        }
        self.unowned = unowned;
        if !self.running.is_empty() {
            self.oom_kills = procs::oom_kills();
        }
        for ended in self.ended.values_mut().filter(|ended| !ended.saved) {
            if let Some(record) = &ended.state.ended {
                ended.saved = write_exit(&record::folder(&self.tasks, ended.state.key), record);
            }
        }
    }

    /// Kills tasks whose grace has passed.
    pub(super) fn kill_due(&mut self) {
        let now = boot_ms();
        let due: Vec<TaskKey> = self
            .running
            .values()
            .filter(|r| r.kill_at.is_some_and(|at| at <= now))
            .map(|r| r.key)
            .collect();
        for key in due {
            let orphans = self.orphans_of(key);
            if let Some(running) = self.running.get_mut(&key) {
                running.signal(Signal::KILL, &orphans);
                running.kill_at = Some(now + 1000);
            }
        }
    }

    /// Time until the next kill is due.
    pub(super) fn next_kill(&self) -> Option<Duration> {
        self.running.values().filter_map(|running| running.kill_at).min().map(until)
    }

    /// True while an ended task has remaining processes.
    pub(super) fn is_sweeping(&self) -> bool {
        self.running.values().any(|running| running.ended.is_some())
    }

    fn state(&self, key: TaskKey) -> Option<TaskState> {
        let ended = || self.ended.get(&key).map(|ended| ended.state.clone());
        self.running.get(&key).map(RunningTask::state).or_else(ended)
    }

    /// Children that are not the first process of a task: their own parents have died. Reaps dead ones.
    fn orphans(&self) -> Vec<u32> {
        let first: BTreeSet<u32> = self
            .running
            .values()
            .filter(|running| running.ended.is_none())
            .map(|running| running.pid)
            .collect();
        let sentinel = self.sentinel.as_ref().and_then(Sentinel::pid);
        let is_other = |pid: &u32| !first.contains(pid) && Some(*pid) != sentinel;
        let others = procs::children(std::process::id()).into_iter().filter(is_other);
        others.filter(|pid| !reap_if_dead(*pid)).collect()
    }

    fn orphans_of(&self, key: TaskKey) -> Vec<u32> {
        let Some(running) = self.running.get(&key) else { return Vec::new() };
        self.orphans().into_iter().filter(|pid| running.owns(*pid)).collect()
    }
}

/// True if the child has ended.
pub(super) fn reap_if_dead(pid: u32) -> bool {
    let Some(pid) = Pid::from_raw(pid as i32) else { return true };
    !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None))
}

fn write_exit(dir: &Path, record: &ExitRecord) -> bool {
    match record::write_exit(dir, record) {
        Ok(()) => true,
        // A removed folder has no reader.
        Err(_) if !dir.exists() => true,
        Err(error) => {
            warn!(folder = %dir.display(), %error, "cannot save the end of a task; retrying");
            false
        }
    }
}
