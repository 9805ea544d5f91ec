//! What `/proc` tells about processes.

use std::fs;

use super::TaskLoad;
use super::owners::{self, Marks};

/// More generations than any real tree of processes has; a loop in what is read ends here.
const GENERATIONS: usize = 64;

/// Where a process comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) pid: u32,
    /// When it was started, in ticks since the boot: tells a process from a later one of the same number.
    pub(super) started: u64,
    /// Its parent, that one's parent, and so on.
    pub(super) ancestors: Vec<u32>,
    /// Its control groups.
    pub(super) cgroups: Vec<String>,
}

/// Where this process comes from; empty for one that is gone or in another's namespace.
pub(super) fn origin(pid: u32) -> Origin {
    let Some((mut parent, started)) = stat(pid) else { return Origin { pid, ..Origin::default() } };
    let mut ancestors = Vec::new();
    while parent > 1 && ancestors.len() < GENERATIONS {
        ancestors.push(parent);
        parent = stat(parent).map_or(0, |(parent, _)| parent);
    }
    Origin { pid, started, ancestors, cgroups: cgroups(&pid.to_string()) }
}

/// What the processes of each task can be known by.
pub(super) fn marks(tasks: &[TaskLoad]) -> Vec<Marks> {
    let own = cgroups("self");
    let each = tasks.iter().map(|task| {
        // All processes of a task are in the same group, or in groups below; a few tell it even if one just died.
        let paths = task.pids.iter().take(4).flat_map(|pid| cgroups(&pid.to_string()));
        let groups = paths.filter_map(|path| owners::mark(&path, task.key)).collect();
        Marks { key: task.key, pids: task.pids.iter().copied().collect(), groups }
    });
    owners::distinct(each.collect(), &own)
}

/// Parent and time of start.
fn stat(pid: u32) -> Option<(u32, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in parentheses and may hold anything, so what follows the last one counts.
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
    fn a_hostile_name_does_not_confuse_the_parent() {
        let text = "42 (a) S 1 (b) ) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 99";
        assert_eq!(parse_stat(text), Some((7, 12345)));
        assert_eq!(parse_stat("42 (a"), None);
        assert_eq!(parse_stat("42 (a) S"), None);
    }

    #[test]
    fn a_child_has_this_process_among_its_ancestors() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let origin = origin(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(origin.ancestors.first(), Some(&std::process::id()));
        assert!(origin.started > 0);
    }

    #[test]
    fn a_process_that_is_gone_comes_from_nowhere() {
        let gone = u32::MAX - 1;
        assert_eq!(origin(gone), Origin { pid: gone, ..Origin::default() });
    }
}
