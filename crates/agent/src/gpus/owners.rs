//! Determines the task that owns a process. A process without a certain owner is foreign and never counts against a
//! task.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use agentaflow_api::link::TaskKey;

use super::processes::ProcessOrigin;

/// Time for a process of an ended task to free its memory; after that the process is foreign.
const LEAVING: Duration = Duration::from_secs(15);

/// Attributes that identify the processes of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskMarks {
    pub(super) key: TaskKey,
    pub(super) pids: BTreeSet<u32>,
    /// cgroups that contain only processes of the task.
    pub(super) groups: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Task(TaskKey),
    /// Belonged to an ended task and is expected to end soon.
    Leaving,
    Foreign,
}

/// Known owners by pid and start time, so that a process that detaches from its parents keeps its owner.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<(u32, u64), (TaskKey, Instant)>);

impl Owners {
    pub(super) fn owner(
        &mut self,
        origin: &ProcessOrigin,
        tasks: &[TaskMarks],
        now: Instant,
    ) -> Owner {
        let before = self.before(origin);
        let known = before.filter(|key| tasks.iter().any(|task| task.key == *key));
        match known.or_else(|| owner(origin, tasks)) {
            Some(key) => {
                self.0.insert((origin.pid, origin.started), (key, now));
                Owner::Task(key)
            }
            None if before.is_some() => Owner::Leaving,
            None => Owner::Foreign,
        }
    }

    /// Drops processes that were not seen for `LEAVING`. Call after each round.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < LEAVING);
    }

    fn before(&self, origin: &ProcessOrigin) -> Option<TaskKey> {
        if origin.started > 0 {
            return self.0.get(&(origin.pid, origin.started)).map(|(key, _)| *key);
        }
        // The process is gone from `/proc` but still on the GPU.
        self.0.range((origin.pid, 0)..=(origin.pid, u64::MAX)).next_back().map(|(_, (key, _))| *key)
    }
}

/// Owner by cgroup, which a process cannot choose, by pid, or by the nearest known ancestor. A pid of two tasks identifies
/// neither.
fn owner(origin: &ProcessOrigin, tasks: &[TaskMarks]) -> Option<TaskKey> {
    let by_group = tasks.iter().find(|task| task.groups.iter().any(|mark| inside(origin, mark)));
    let by_pid = |pid: u32| {
        let mut claims = tasks.iter().filter(|task| task.pids.contains(&pid));
        claims.next().filter(|_| claims.next().is_none())
    };
    by_group
        .or_else(|| by_pid(origin.pid))
        .or_else(|| origin.ancestors.iter().find_map(|pid| by_pid(*pid)))
        .map(|task| task.key)
}

fn inside(origin: &ProcessOrigin, mark: &str) -> bool {
    origin.cgroups.iter().any(|path| is_below(path, mark))
}

fn is_below(path: &str, mark: &str) -> bool {
    path.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Prefix of a cgroup path that belongs to the task alone: up to the container id, or up to the name that the guardian
/// gives (`…/agentaflow/<agent>/<task>`).
pub(super) fn mark(path: &str, key: TaskKey) -> Option<String> {
    let name = key.to_string();
    let parts: Vec<&str> = path.split('/').collect();
    let ours = parts.iter().position(|part| *part == "agentaflow");
    let by_name = ours.and_then(|at| (at + 1..parts.len()).find(|index| parts[*index] == name));
    let last = by_name.or_else(|| parts.iter().rposition(|part| is_container(part)))?;
    Some(parts[..=last].join("/"))
}

/// `<64 hex digits>`, `docker-<64 hex digits>.scope`.
fn is_container(part: &str) -> bool {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit('-').next().unwrap_or(name);
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Removes groups that do not identify a task: the agent's own, and groups that two tasks share.
pub(super) fn distinct(mut tasks: Vec<TaskMarks>, own: &[String]) -> Vec<TaskMarks> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for group in tasks.iter().flat_map(|task| &task.groups) {
        *times.entry(group.clone()).or_default() += 1;
    }
    for task in &mut tasks {
        task.groups.retain(|mark| times[mark] == 1 && !own.iter().any(|path| is_below(path, mark)));
    }
    tasks
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;
