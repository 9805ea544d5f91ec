//! Control groups, where the machine lets us have them: limits, exact accounts, and an end that nothing escapes.
//!
//! Used only with the unified hierarchy and its memory controller. Elsewhere process groups and the sweep for
//! strays do the work, without limits.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tracing::warn;

use agentaflow_api::link::TaskKey;

/// The group under which every task gets its own.
#[derive(Clone, Debug)]
pub(super) struct Root {
    dir: PathBuf,
    /// The group that the guardian itself is in, if it can go back to it.
    home: Option<PathBuf>,
}

/// The group of one task; removed when dropped.
#[derive(Debug)]
pub(super) struct Group(PathBuf);

impl Root {
    /// Finds a place for our groups and makes it; none where that is not possible.
    pub(super) fn find(name: &str) -> Option<Self> {
        let mount = unified_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = mount.join(own_group(&groups)?.trim_start_matches('/'));
        let dir = [&own, &mount].into_iter().find_map(|parent| Self::below(parent, name))?;
        // To go where it is already shows whether it could come back from elsewhere.
        let home = enter(&own).is_ok().then_some(own);
        Some(Self { dir, home })
    }

    /// Runs this inside the group of a task, so that a process that it starts is never outside. Where the guardian
    /// may not go there, the process has to be taken in afterwards.
    pub(super) fn inside<T>(&self, group: &Group, start: impl FnOnce() -> T) -> T {
        let Some(home) = self.home.as_ref().filter(|_| enter(&group.0).is_ok()) else {
            return start();
        };
        let started = start();
        if let Err(error) = enter(home) {
            // It would be killed with the task otherwise; see `Group::kill`.
            warn!(%error, "cannot leave the control group of a task");
        }
        started
    }

    fn below(parent: &Path, name: &str) -> Option<PathBuf> {
        enable(parent);
        let shared = parent.join("agentaflow");
        make(&shared).ok()?;
        enable(&shared);
        let root = shared.join(name);
        make(&root).ok()?;
        enable(&root);
        let controllers = fs::read_to_string(root.join("cgroup.subtree_control")).ok()?;
        if controllers.split_whitespace().any(|controller| controller == "memory") {
            return Some(root);
        }
        let _ = fs::remove_dir(&root);
        let _ = fs::remove_dir(&shared);
        None
    }

    /// Kills everything in every group, and removes the groups as far as they are empty already.
    pub(super) fn kill_all(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            Group(entry.path()).kill();
        }
    }

    /// Removes it, as far as nobody else needs it.
    pub(super) fn remove(&self) {
        if fs::remove_dir(&self.dir).is_ok()
            && let Some(shared) = self.dir.parent()
        {
            let _ = fs::remove_dir(shared);
        }
    }

    /// Makes the group of a task, with its limits as far as the machine has them.
    pub(super) fn group(
        &self,
        key: TaskKey,
        memory: u64,
        cpu_milli: u64,
        pids: u64,
    ) -> io::Result<Group> {
        let group = Group(self.dir.join(key.to_string()));
        make(&group.0)?;
        if memory > 0 {
            group.set("memory.max", &(memory << 20).to_string())?;
            // Without this a task over its limit swaps instead of ending; there may be no swap at all.
            let _ = group.set("memory.swap.max", "0");
            let _ = group.set("memory.oom.group", "1");
        }
        if cpu_milli > 0 {
            let _ = group.set("cpu.max", &format!("{} 100000", (cpu_milli * 100).max(1000)));
        }
        if pids > 0 {
            let _ = group.set("pids.max", &pids.to_string());
        }
        Ok(group)
    }
}

impl Group {
    /// Takes a process in.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        self.set("cgroup.procs", &pid.to_string())
    }

    /// The processes in it.
    pub(super) fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills everything in it.
    pub(super) fn kill(&self) {
        let (pids, own) = (self.pids(), std::process::id());
        if pids.contains(&own) || self.set("cgroup.kill", "1").is_err() {
            for pid in pids.into_iter().filter(|pid| *pid != own) {
                super::procs::signal(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// The kernel killed something in it for lack of memory.
    pub(super) fn out_of_memory(&self) -> bool {
        self.field("memory.events", "oom_kill").is_some_and(|count| count > 0)
    }

    /// CPU time in milliseconds, and MiB of memory at most.
    pub(super) fn used(&self) -> (u64, u64) {
        let cpu = self.field("cpu.stat", "usage_usec").unwrap_or(0) / 1000;
        let peak = fs::read_to_string(self.0.join("memory.peak"))
            .or_else(|_| fs::read_to_string(self.0.join("memory.current")))
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok());
        (cpu, peak.unwrap_or(0).div_ceil(1 << 20))
    }

    fn field(&self, file: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.0.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.0.join(file), value)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails while something is in it, and then the next guardian finds it and kills it.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Moves this process into a group.
fn enter(group: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(group.join("cgroup.procs"))?.write_all(b"0")
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Hands controllers down, one by one since some may be missing.
fn enable(path: &Path) {
    for controller in ["+memory", "+cpu", "+pids"] {
        let _ = fs::write(path.join("cgroup.subtree_control"), controller);
    }
}

fn unified_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

fn own_group(cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_others() {
        let text = "31 24 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
                    32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_mount(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(own_group("4:cpu:/a\n0::/user.slice/b\n"), Some("/user.slice/b"));
    }

    #[test]
    fn the_guardian_is_in_the_group_of_a_task_only_while_it_starts_it() {
        let place = tempfile::tempdir().unwrap();
        let (home, dir) = (place.path().join("home"), place.path().join("root"));
        let said = |group: &Path| fs::read_to_string(group.join("cgroup.procs")).unwrap();
        for group in [&home, &dir.join("task")] {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join("cgroup.procs"), "").unwrap();
        }
        let group = Group(dir.join("task"));
        let root = Root { dir, home: Some(home.clone()) };
        let seen = root.inside(&group, || (said(&group.0), said(&home)));
        assert_eq!(seen, ("0".to_owned(), String::new()));
        assert_eq!(said(&home), "0");
        // Without a way back it stays where it is.
        fs::write(group.0.join("cgroup.procs"), "").unwrap();
        let stuck = Root { home: None, ..root };
        assert_eq!(stuck.inside(&group, || said(&group.0)), "");
    }
}
