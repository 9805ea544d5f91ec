//! Whose a process is. A doubt never counts against a task: such a process is foreign.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use agentaflow_api::link::TaskKey;

use super::processes::Origin;

/// A process of a task that is over may need this long to give its memory back; after that it is foreign.
const LEAVING: Duration = Duration::from_secs(15);

/// What the processes of a task are known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) key: TaskKey,
    pub(super) pids: BTreeSet<u32>,
    /// Control groups that hold nothing else.
    pub(super) groups: BTreeSet<String>,
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A task's.
    Task(TaskKey),
    /// It belonged to a task that is over, and is expected to end.
    Leaving,
    /// Nobody's that we know.
    Foreign,
}

/// Remembers whose processes were, so that one that cut itself off from its parents stays its task's.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<(u32, u64), (TaskKey, Instant)>);

impl Owners {
    /// Whose it is.
    pub(super) fn owner(&mut self, origin: &Origin, tasks: &[Marks], now: Instant) -> Owner {
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

    /// To be called after each round.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < LEAVING);
    }

    fn before(&self, origin: &Origin) -> Option<TaskKey> {
        if origin.started > 0 {
            return self.0.get(&(origin.pid, origin.started)).map(|(key, _)| *key);
        }
        // It is gone from /proc but still on the GPU.
        self.0.range((origin.pid, 0)..=(origin.pid, u64::MAX)).next_back().map(|(_, (key, _))| *key)
    }
}

/// By its number, by its control group, by the nearest ancestor that is known.
fn owner(origin: &Origin, tasks: &[Marks]) -> Option<TaskKey> {
    let by_pid = |pid: u32| tasks.iter().find(|task| task.pids.contains(&pid));
    let by_group = || tasks.iter().find(|task| task.groups.iter().any(|mark| inside(origin, mark)));
    by_pid(origin.pid)
        .or_else(by_group)
        .or_else(|| origin.ancestors.iter().find_map(|pid| by_pid(*pid)))
        .map(|task| task.key)
}

fn inside(origin: &Origin, mark: &str) -> bool {
    origin.cgroups.iter().any(|path| is_below(path, mark))
}

fn is_below(path: &str, mark: &str) -> bool {
    path.strip_prefix(mark).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The part of a task's control group that is its own: up to the container's identifier, or up to the name
/// that the guardian gives (`…/agentaflow/<agent>/<task>`).
pub(super) fn mark(path: &str, key: TaskKey) -> Option<String> {
    let name = key.to_string();
    let parts: Vec<&str> = path.split('/').collect();
    let ours = parts.iter().position(|part| *part == "agentaflow");
    let by_name = ours.and_then(|at| (at + 1..parts.len()).find(|place| parts[*place] == name));
    let place = by_name.or_else(|| parts.iter().rposition(|part| is_container(part)))?;
    Some(parts[..=place].join("/"))
}

/// `<64 hex digits>`, `docker-<64 hex digits>.scope`.
fn is_container(part: &str) -> bool {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit('-').next().unwrap_or(name);
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Without groups that say nothing: the agent's own, and those that two tasks share.
pub(super) fn distinct(mut tasks: Vec<Marks>, own: &[String]) -> Vec<Marks> {
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
