//! Reads processes from `/proc`.

use std::fs;

use super::TaskLoad;
use super::owners::{self, TaskMarks};

/// Deeper than any real process tree; ends a loop in inconsistent data.
const MAX_ANCESTORS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessOrigin {
    pub(super) pid: u32,
    /// Start time in ticks since boot: distinguishes a process from a later one with the same pid.
    pub(super) started: u64,
    /// Parent first.
    pub(super) ancestors: Vec<u32>,
    pub(super) cgroups: Vec<String>,
}

/// Without ancestors for a process that ended or lives in another pid namespace.
pub(super) fn origin(pid: u32) -> ProcessOrigin {
    let Some((mut parent, started)) = stat(pid) else {
        return ProcessOrigin { pid, ..ProcessOrigin::default() };
    };
    let mut ancestors = Vec::new();
    while parent > 1 && ancestors.len() < MAX_ANCESTORS {
        ancestors.push(parent);
        parent = stat(parent).map_or(0, |(parent, _)| parent);
    }
    ProcessOrigin { pid, started, ancestors, cgroups: cgroups(&pid.to_string()) }
}

pub(super) fn marks(tasks: &[TaskLoad]) -> Vec<TaskMarks> {
    let own = cgroups("self");
    let each = tasks.iter().map(|task| {
        // All processes of a task are in one cgroup or below; a few are enough even if one has just ended.
        let paths = task.pids.iter().take(4).flat_map(|pid| cgroups(&pid.to_string()));
        let groups = paths.filter_map(|path| owners::mark(&path, task.key)).collect();
        TaskMarks { key: task.key, pids: task.pids.iter().copied().collect(), groups }
    });
    owners::distinct(each.collect(), &own)
}

/// Parent pid and start time.
fn stat(pid: u32) -> Option<(u32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The command name is in parentheses and may contain any character, so parsing starts after the last parenthesis.
fn parse_stat(text: &str) -> Option<(u32, u64)> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some((parent, started))
}

fn cgroups(pid: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = |line: &str| Some(line.splitn(3, ':').nth(2)?.to_owned());
    let mut paths: Vec<String> = text.lines().filter_map(path).filter(|path| path != "/").collect();
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_the_command_name_do_not_break_parsing() {
        let text = "42 (a) S 1 (b) ) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 99";
        assert_eq!(parse_stat(text), Some((7, 12345)));
        assert_eq!(parse_stat("42 (a"), None);
        assert_eq!(parse_stat("42 (a) S"), None);
    }

    #[test]
    fn the_first_ancestor_of_a_child_is_this_process() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let origin = origin(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(origin.ancestors.first(), Some(&std::process::id()));
        assert!(origin.started > 0);
    }

    #[test]
    fn an_ended_process_has_no_ancestors() {
        let gone = u32::MAX - 1;
        assert_eq!(origin(gone), ProcessOrigin { pid: gone, ..ProcessOrigin::default() });
    }
}
