//! cgroups of tasks, on hosts that allow them: limits, exact accounting, and a kill that reaches every process.
//!
//! Requires cgroup v2 with the memory controller. Other hosts use process groups and a search for orphaned processes,
//! and the controllers of `cgroup_v1.rs`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use agentaflow_api::link::TaskKey;
use agentaflow_linux::device_filter::{DeniedDevice, DeviceFilter};

use super::device_rule::DeviceRule;
use super::wire::UsageRecord;

/// Parent of the cgroups of all tasks.
#[derive(Clone, Debug)]
pub(super) struct CgroupRoot {
    dir: PathBuf,
}

/// cgroup of one task; removed when dropped.
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

impl CgroupRoot {
    /// Creates the parent cgroup; `None` if the host does not allow it.
    pub(super) fn find(name: &str) -> Option<Self> {
        let mount = unified_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = mount.join(own_group(&groups)?.trim_start_matches('/'));
        let dir = [&own, &mount].into_iter().find_map(|parent| Self::below(parent, name))?;
        Some(Self { dir })
    }

    /// cgroup v2 beside the controllers of version 1, which has no controllers.
    #[cfg(test)]
    pub(super) fn without_controllers(name: &str) -> Option<Self> {
        let mount = unified_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)?;
        let dir = mount.join(name);
        make(&dir).ok()?;
        Some(Self { dir })
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

    /// Kills all processes in all task cgroups, and removes empty cgroups.
    pub(super) fn kill_all(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
            Cgroup(entry.path()).kill();
        }
    }

    /// Removes the parent cgroups if they are empty.
    pub(super) fn remove(&self) {
        if fs::remove_dir(&self.dir).is_ok()
            && let Some(shared) = self.dir.parent()
        {
            let _ = fs::remove_dir(shared);
        }
    }

    /// Creates the cgroup of a task. The controllers of CPU and processes may be missing.
    pub(super) fn group(
        &self,
        key: TaskKey,
        memory: u64,
        cpu_milli: u64,
        pids: u64,
    ) -> io::Result<Cgroup> {
        let group = Cgroup(self.dir.join(key.to_string()));
        make(&group.0)?;
        if memory > 0 {
            group.set("memory.max", &(memory << 20).to_string())?;
            // Without this a task over its limit swaps. Fails on hosts without swap.
            let _ = group.set("memory.swap.max", "0");
            let _ = group.set("memory.oom.group", "1");
        }
        if cpu_milli > 0 {
            group.set_existing("cpu.max", &format!("{} 100000", (cpu_milli * 100).max(1000)))?;
        }
        if pids > 0 {
            group.set_existing("pids.max", &pids.to_string())?;
        }
        Ok(group)
    }
}

impl Cgroup {
    pub(super) fn dir(&self) -> &Path {
        &self.0
    }

    pub(super) fn limits_pids(&self) -> bool {
        self.0.join("pids.max").exists()
    }

    /// Keeps all processes of the cgroup from opening device files.
    pub(super) fn deny_devices(&self, rules: &[DeviceRule]) -> io::Result<()> {
        let denied: Vec<DeniedDevice> = rules.iter().map(|rule| rule.denied()).collect();
        DeviceFilter::load(&denied)?.attach(File::open(&self.0)?)
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    pub(super) fn kill(&self) {
        // A kernel before 5.14 has no such file.
        if self.set("cgroup.kill", "1").is_err() {
            for pid in self.pids() {
                super::procs::signal(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// True if the OOM killer ended a process.
    pub(super) fn out_of_memory(&self) -> bool {
        self.field("memory.events", "oom_kill").is_some_and(|count| count > 0)
    }

    pub(super) fn usage(&self) -> UsageRecord {
        let bytes = |file: &str| {
            let text = fs::read_to_string(self.0.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let current = bytes("memory.current").unwrap_or(0);
        // The kernel frees the page cache before it ends a process.
        let cached = self.field("memory.stat", "inactive_file").unwrap_or(0);
        UsageRecord {
            cpu_ms: self.field("cpu.stat", "usage_usec").unwrap_or(0) / 1000,
            memory: bytes("memory.peak").unwrap_or(current).div_ceil(1 << 20),
            memory_now: current.saturating_sub(cached).div_ceil(1 << 20),
        }
    }

    fn field(&self, file: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.0.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.0.join(file), value)
    }

    fn set_existing(&self, file: &str, value: &str) -> io::Result<()> {
        if self.0.join(file).exists() { self.set(file, value) } else { Ok(()) }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while processes are left; the next guardian kills them.
        let _ = fs::remove_dir(&self.0);
    }
}

pub(super) fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Enables controllers one by one, since some may be missing.
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
    fn the_cgroup_v2_mount_is_found() {
        let text = "31 24 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n\
                    32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_mount(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(own_group("4:cpu:/a\n0::/user.slice/b\n"), Some("/user.slice/b"));
    }
}
