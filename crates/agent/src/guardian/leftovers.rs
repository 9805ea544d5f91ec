//! Kills the processes of an earlier guardian that was killed itself, and records the ends of their tasks.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tracing::warn;

use agentaflow_api::link::{StopCause, TaskKey};

use super::groups::GroupRoots;
use super::procs;
use super::record::{self, StartRecord};
use super::wire::{ExitRecord, TaskState};

/// Longest wait for killed processes to end.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Returns the ends of all tasks in the directory that were ever started.
pub(super) fn settle(tasks: &Path, groups: &GroupRoots) -> Vec<TaskState> {
    groups.kill_all();
    let keys = record::folders(tasks);
    let open: Vec<(TaskKey, StartRecord)> = keys
        .iter()
        .filter(|key| record::read_exit(&record::folder(tasks, **key)).is_none())
        .filter_map(|key| Some((*key, record::read_start(&record::folder(tasks, *key))?)))
        .collect();
    let uids = keys.iter().filter_map(|key| record::read_start(&record::folder(tasks, *key))?.uid);
    kill_orphans(tasks, &open, &uids.collect());
    for (key, start) in &open {
        warn!(%key, "the guardian of this task was killed; the task was killed too");
        let exit = orphaned(start);
        if let Err(error) = record::write_exit(&record::folder(tasks, *key), &exit) {
            warn!(%key, %error, "cannot save the end of a task");
        }
    }
    keys.iter().filter_map(|key| ended(tasks, *key, &open)).collect()
}

fn ended(tasks: &Path, key: TaskKey, open: &[(TaskKey, StartRecord)]) -> Option<TaskState> {
    let orphan = open.iter().find(|(other, _)| *other == key).map(|(_, start)| orphaned(start));
    let exit = record::read_exit(&record::folder(tasks, key)).or(orphan)?;
    Some(TaskState { key, started_at: exit.started_at, ended: Some(exit) })
}

/// End of a task whose guardian was killed: the same as for a lost node.
fn orphaned(start: &StartRecord) -> ExitRecord {
    let kill = Signal::KILL.as_raw();
    ExitRecord {
        code: Some(128 + kill),
        signal: Some(kill),
        stopped: Some(StopCause::LeaseLost),
        started_at: start.started_at,
        ran_ms: start.age_ms(),
        ..ExitRecord::default()
    }
}

/// Kills until no process that was started from this directory is left. `uids` are users that only tasks have: without
/// cgroups, a process can hide from its task, but not change its user.
fn kill_orphans(tasks: &Path, open: &[(TaskKey, StartRecord)], uids: &BTreeSet<u32>) {
    let begun = Instant::now();
    let ours = format!("{}/", tasks.display());
    let ancestors = ancestors(std::process::id());
    loop {
        let mut found: Vec<u32> =
            procs::all().into_iter().filter(|pid| is_ours(*pid, &ours)).collect();
        if !uids.is_empty() {
            found.extend(procs::all().into_iter().filter(|pid| is_stray(*pid, uids, &ancestors)));
        }
        for (_, start) in open {
            found.extend(start.alive().map(procs::tree).unwrap_or_default());
        }
        found.retain(|pid| procs::stat(*pid).is_some_and(|stat| !stat.zombie));
        if found.is_empty() || begun.elapsed() > KILL_LIMIT {
            return;
        }
        for pid in found {
            procs::signal(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(5));
    }
}

/// True if the environment of the process contains a marker of this directory.
fn is_ours(pid: u32, tasks: &str) -> bool {
    pid != std::process::id()
        && procs::variable(pid, super::MARKER).is_some_and(|value| value.starts_with(tasks))
}

/// True if the process has one of these users, and so have all its ancestors up to one of this guardian. Another agent may
/// run jobs of the same users; their ancestors include its own guardian, which adopts their orphans.
fn is_stray(pid: u32, uids: &BTreeSet<u32>, ancestors: &BTreeSet<u32>) -> bool {
    let mut current = pid;
    while procs::user(current).is_some_and(|uid| uids.contains(&uid)) {
        let Some(stat) = procs::stat(current) else { return false };
        current = stat.parent;
    }
    current != pid && ancestors.contains(&current)
}

/// Ancestors of a process, one of which adopts the orphans of a dead guardian.
fn ancestors(pid: u32) -> BTreeSet<u32> {
    let parents = std::iter::successors(Some(pid), |pid| procs::stat(*pid).map(|stat| stat.parent));
    parents.skip(1).take_while(|pid| *pid > 0).collect()
}
