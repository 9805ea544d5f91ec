//! One process that the guardian has started, with everything that came of it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus, kill_process_group,
    test_kill_process_group, waitid, waitpid,
};

use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::cgroup::Group;
use super::output::Output;
use super::procs;
use super::wire::{ExitRecord, TaskState};
use crate::clock::{boot_ms, millis};

/// After this long without success, processes that cannot be killed (a dead network disk) no longer hold up the end.
const SWEEP_LIMIT: Duration = Duration::from_secs(30);

/// A task whose process was started.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) key: TaskKey,
    pub(super) pid: u32,
    pub(super) dir: PathBuf,
    pub(super) started_at: Stamp,
    pub(super) since: Instant,
    pub(super) grace: Duration,
    pub(super) leased: bool,
    pub(super) output: Output,
    pub(super) stopped: Option<StopCause>,
    /// When it is killed, by the boot-time clock.
    pub(super) kill_at: Option<u64>,
    pub(super) group: Option<Group>,
    /// Says in the environment of a process that it belongs to this task.
    pub(super) marker: String,
    /// MiB, at most, as far as was seen.
    pub(super) peak: u64,
    /// Processes seen below it, with their birth: they stay its own when their parents are gone.
    pub(super) family: BTreeSet<(u32, u64)>,
    /// How it ended, once its first process did, and since when the rest is being swept up.
    pub(super) ended: Option<(ExitRecord, Instant)>,
}

impl Running {
    /// How it stands.
    pub(super) fn state(&self) -> TaskState {
        TaskState { key: self.key, started_at: self.started_at, ended: None }
    }

    /// TERM now, KILL later. The first cause counts; an earlier KILL too.
    pub(super) fn stop(&mut self, cause: StopCause, grace: Duration, strays: &[u32]) {
        self.stopped.get_or_insert(cause);
        let at = boot_ms().saturating_add(millis(grace));
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        self.signal(Signal::TERM, strays);
    }

    /// Sends a signal to everything that belongs to it.
    pub(super) fn signal(&self, signal: Signal, strays: &[u32]) {
        if let (Signal::KILL, Some(group)) = (signal, &self.group) {
            group.kill();
        }
        if self.ended.is_none() || self.group_is_there() {
            self.signal_group(signal);
        }
        let grouped = self.group.as_ref().map(Group::pids).unwrap_or_default();
        for pid in strays.iter().chain(&grouped).filter(|pid| **pid != self.pid) {
            procs::signal(*pid, signal);
        }
    }

    /// Whether a stray child of the guardian comes from this task.
    pub(super) fn owns(&self, pid: u32) -> bool {
        let Some(stat) = procs::stat(pid) else { return false };
        self.family.contains(&(pid, stat.born))
            || stat.group == self.pid as i32
            || stat.session == self.pid as i32
            || procs::variable(pid, super::MARKER).is_some_and(|value| value == self.marker)
    }

    /// Looks whether its first process has ended, and takes leave of it.
    pub(super) fn look(&mut self, oom_killed: impl FnOnce() -> bool) -> bool {
        let Some(pid) = Pid::from_raw(self.pid as i32) else { return false };
        if self.ended.is_some() {
            return true;
        }
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), peek) {
            Ok(None) => return false,
            // While it is a zombie its number cannot be given to another, so its group is killed first.
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
        let out_of_memory = match &self.group {
            Some(group) => group.out_of_memory(),
            None => by_kernel && oom_killed(),
        };
        let ran_ms = self.since.elapsed().as_millis() as u64;
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

    /// Kills what the first process left behind. Whether nothing is left.
    pub(super) fn sweep(&self, strays: &[u32]) -> bool {
        let grouped = self.group.as_ref().is_some_and(|group| !group.pids().is_empty());
        if !grouped && strays.is_empty() && !self.group_is_there() {
            return true;
        }
        self.signal(Signal::KILL, strays);
        self.ended.as_ref().is_some_and(|(_, since)| since.elapsed() > SWEEP_LIMIT)
    }

    /// The whole end, once nothing is left.
    pub(super) fn finish(&self) -> Option<ExitRecord> {
        self.output.finish();
        let mut record = self.ended.as_ref()?.0.clone();
        let (cpu, peak) = self.group.as_ref().map_or((0, 0), Group::used);
        record.cpu_ms = record.cpu_ms.max(cpu);
        record.memory = self.peak.max(peak);
        record.stopped = self.stopped;
        record.started_at = self.started_at;
        Some(record)
    }

    /// Its processes.
    pub(super) fn pids(&self, strays: &[u32]) -> Vec<u32> {
        if let Some(group) = &self.group {
            return group.pids();
        }
        let mut pids = procs::tree(self.pid);
        for stray in strays {
            pids.extend(procs::tree(*stray));
        }
        pids.into_iter().collect()
    }

    /// Notes memory and family.
    pub(super) fn sample(&mut self, strays: &[u32]) {
        let seen: Vec<_> = self
            .pids(strays)
            .into_iter()
            .filter_map(|pid| Some((pid, procs::stat(pid)?)))
            .collect();
        let pages = seen.iter().map(|(_, stat)| stat.pages).sum();
        self.peak = self.peak.max(procs::pages_to_mib(pages));
        self.family = seen.iter().map(|(pid, stat)| (*pid, stat.born)).collect();
    }

    /// CPU milliseconds and MiB so far.
    pub(super) fn used(&self, strays: &[u32]) -> (u64, u64) {
        if let Some(group) = &self.group {
            return group.used();
        }
        let ticks = self
            .pids(strays)
            .iter()
            .filter_map(|pid| procs::stat(*pid))
            .map(|stat| stat.ticks)
            .sum();
        (procs::ticks_to_ms(ticks), self.peak)
    }

    fn signal_group(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid as i32) {
            // Fails only when nobody is left in the group.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn group_is_there(&self) -> bool {
        Pid::from_raw(self.pid as i32).is_some_and(|pid| test_kill_process_group(pid).is_ok())
    }
}
