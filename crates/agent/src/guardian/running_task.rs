//! One task that the guardian has started, with all its processes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group,
    test_kill_process_group, waitid, waitpid,
};

use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::cgroup::Cgroup;
use super::groups::TaskGroups;
use super::output::Output;
use super::procs;
use super::wire::{ExitRecord, StartFault, TaskState, UsageRecord};
use crate::clock::{boot_ms, millis};

/// After this time, processes that cannot be killed (a hung network disk) no longer delay the end of the task.
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum StartState {
    /// The program of the first process may not run yet.
    Pending,
    Failed(StartFault),
    Done,
}

#[derive(Debug)]
pub(super) struct RunningTask {
    pub(super) key: TaskKey,
    pub(super) pid: u32,
    pub(super) start: StartState,
    /// Real user of the task's processes, which no process can change; `None` means the guardian's.
    pub(super) user: Option<u32>,
    pub(super) dir: PathBuf,
    pub(super) started_at: Stamp,
    pub(super) since: Instant,
    pub(super) grace: Duration,
    pub(super) leased: bool,
    pub(super) output: Output,
    pub(super) stopped: Option<StopCause>,
    /// Boot-time clock, in milliseconds.
    pub(super) kill_at: Option<u64>,
    pub(super) groups: TaskGroups,
    /// Value of `MARKER` in the environment of the task's processes.
    pub(super) marker: String,
    /// Peak memory in MiB over all samples.
    pub(super) peak: u64,
    /// Memory in MiB at the last sample.
    pub(super) memory_now: u64,
    /// Descendants at the last sample (pid and start time): they stay owned when their parents end.
    pub(super) descendants: BTreeSet<(u32, u64)>,
    /// Exit of the first process, and the start of the removal of the remaining processes.
    pub(super) ended: Option<(ExitRecord, Instant)>,
}

impl RunningTask {
    pub(super) fn state(&self) -> TaskState {
        TaskState { key: self.key, started_at: self.started_at, ended: None }
    }

    /// Sends TERM now and KILL after the grace. The first cause counts, and the earliest KILL.
    pub(super) fn stop(&mut self, cause: StopCause, grace: Duration, orphans: &[u32]) {
        self.stopped.get_or_insert(cause);
        let at = boot_ms().saturating_add(millis(grace));
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        self.signal(Signal::TERM, orphans);
    }

    /// Sends a signal to all processes of the task.
    pub(super) fn signal(&self, signal: Signal, orphans: &[u32]) {
        if signal == Signal::KILL {
            self.groups.kill();
        }
        if self.ended.is_none() || self.group_exists() {
            self.signal_group(signal);
        }
        if self.start == StartState::Pending {
            // The process may not lead its group yet.
            procs::signal(self.pid, signal);
        }
        let grouped = self.groups.pids();
        for pid in orphans.iter().chain(&grouped).filter(|pid| **pid != self.pid) {
            procs::signal(*pid, signal);
        }
    }

    /// True if an orphaned process belongs to this task. A process of another user cannot leave its cgroup, and cannot
    /// pose as a process of this task; the marker counts only among processes of one user.
    pub(super) fn owns(&self, pid: u32) -> bool {
        let Some(stat) = procs::stat(pid) else { return false };
        if self.user.is_some() && self.groups.exist() {
            return self.groups.pids().contains(&pid);
        }
        if self.user.is_some() && self.user != procs::user(pid) {
            return false;
        }
        self.descendants.contains(&(pid, stat.started))
            || stat.group == self.pid as i32
            || stat.session == self.pid as i32
            || procs::variable(pid, super::MARKER).is_some_and(|value| value == self.marker)
    }

    /// Reaps the first process if it has ended. Returns true once it has.
    pub(super) fn check_exit(&mut self, oom_killed: impl FnOnce() -> bool) -> bool {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return false };
        if self.start == StartState::Pending {
            return false;
        }
        if self.ended.is_some() {
            return true;
        }
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), peek) {
            Ok(None) => return false,
            // The pid of a zombie is not reused, so the process group is killed before reaping.
            Ok(Some(_)) => self.signal_group(Signal::KILL),
            Err(_) => {}
        }
        let cpu = procs::stat(self.pid).map_or(0, |stat| procs::ticks_to_ms(stat.ticks));
        let status =
            waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten().map(|(_, status)| status);
        let signal = status.and_then(WaitStatus::terminating_signal);
        let code =
            status.and_then(WaitStatus::exit_status).or_else(|| signal.map(|signal| 128 + signal));
        let by_kernel = signal == Some(Signal::KILL.as_raw()) && self.stopped.is_none();
        let out_of_memory = match &self.groups.unified {
            Some(group) => group.out_of_memory(),
            None => by_kernel && oom_killed(),
        };
        let ran_ms = Some(self.since.elapsed().as_millis() as u64);
        let record = ExitRecord {
            code,
            signal,
            out_of_memory,
            ran_ms,
            cpu_ms: cpu,
            ..ExitRecord::default()
        };
        self.ended = Some((record, Instant::now()));
        true
    }

    /// Kills the remaining processes. Returns true when none is left or `SWEEP_LIMIT` has passed.
    pub(super) fn sweep(&self, orphans: &[u32]) -> bool {
        let grouped = !self.groups.pids().is_empty();
        if !grouped && orphans.is_empty() && !self.group_exists() {
            return true;
        }
        self.signal(Signal::KILL, orphans);
        self.ended.as_ref().is_some_and(|(_, since)| since.elapsed() > SWEEP_LIMIT)
    }

    /// Complete exit record, after `sweep` has returned true.
    pub(super) fn finish(&self) -> Option<ExitRecord> {
        self.output.finish();
        let mut record = self.ended.as_ref()?.0.clone();
        let usage = self.groups.unified.as_ref().map(Cgroup::usage).unwrap_or_default();
        record.cpu_ms = record.cpu_ms.max(usage.cpu_ms);
        record.memory = self.peak.max(usage.memory);
        record.stopped = self.stopped;
        record.started_at = self.started_at;
        Some(record)
    }

    pub(super) fn pids(&self, orphans: &[u32]) -> Vec<u32> {
        if let Some(group) = &self.groups.unified {
            return group.pids();
        }
        let mut pids = procs::tree(self.pid);
        for orphan in orphans {
            pids.extend(procs::tree(*orphan));
        }
        pids.extend(self.groups.pids());
        pids.into_iter().collect()
    }

    /// Records peak memory and descendants.
    pub(super) fn sample(&mut self, orphans: &[u32]) {
        let seen: Vec<_> = self
            .pids(orphans)
            .into_iter()
            .filter_map(|pid| Some((pid, procs::stat(pid)?)))
            .collect();
        let pages = seen.iter().map(|(_, stat)| stat.pages).sum();
        self.memory_now = procs::pages_to_mib(pages);
        self.peak = self.peak.max(self.memory_now);
        self.descendants = seen.iter().map(|(pid, stat)| (*pid, stat.started)).collect();
    }

    pub(super) fn usage(&self, orphans: &[u32]) -> UsageRecord {
        if let Some(group) = &self.groups.unified {
            return group.usage();
        }
        let ticks = self
            .pids(orphans)
            .iter()
            .filter_map(|pid| procs::stat(*pid))
            .map(|stat| stat.ticks)
            .sum();
        let (memory, memory_now) = (self.peak, self.memory_now);
        UsageRecord { cpu_ms: procs::ticks_to_ms(ticks), memory, memory_now }
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            // Fails only for an empty group.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn group_exists(&self) -> bool {
        Pid::from_raw(self.pid as i32).is_some_and(|pid| test_kill_process_group(pid).is_ok())
    }
}
