//! cgroups of the old hierarchy, on hosts that mount its `pids` and `devices` controllers: a limit on the number of
//! processes, device files that a task may not open, and a list of all processes of a task.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use agentaflow_api::link::TaskKey;

use super::cgroup::make;
use super::device_rule::DeviceRule;
use super::procs;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Pids,
    Devices,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Devices => "devices",
        }
    }
}

/// Parents of the cgroups of all tasks, one per controller.
#[derive(Clone, Debug, Default)]
pub(super) struct V1Root(Vec<(Controller, PathBuf)>);

/// cgroups of one task; removed when dropped.
#[derive(Debug, Default)]
pub(super) struct V1Group(Vec<(Controller, PathBuf)>);

impl V1Root {
    pub(super) fn find(name: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let all = [Controller::Pids, Controller::Devices].into_iter();
        Self(all.filter_map(|one| Some((one, parent(one, &mounts, &groups, name)?))).collect())
    }

    pub(super) fn filters_devices(&self) -> bool {
        self.0.iter().any(|(controller, _)| *controller == Controller::Devices)
    }

    pub(super) fn group(
        &self,
        key: TaskKey,
        pids: u64,
        denied: &[DeviceRule],
    ) -> io::Result<V1Group> {
        let own = |(one, parent): &(Controller, PathBuf)| (*one, parent.join(key.to_string()));
        let group = V1Group(self.0.iter().map(own).collect());
        for (controller, dir) in &group.0 {
            make(dir)?;
            match controller {
                Controller::Pids if pids > 0 => {
                    fs::write(dir.join("pids.max"), pids.to_string())?;
                }
                Controller::Pids => {}
                Controller::Devices => deny(dir, denied)?,
            }
        }
        Ok(group)
    }

    pub(super) fn kill_all(&self) {
        for (_, parent) in &self.0 {
            let Ok(entries) = fs::read_dir(parent) else { continue };
            for dir in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
                V1Group(vec![(Controller::Pids, dir)]).kill();
            }
        }
    }

    /// Removes the parent cgroups if they are empty.
    pub(super) fn remove(&self) {
        for (_, parent) in &self.0 {
            if fs::remove_dir(parent).is_ok()
                && let Some(shared) = parent.parent()
            {
                let _ = fs::remove_dir(shared);
            }
        }
    }
}

impl V1Group {
    pub(super) fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(_, dir)| &**dir)
    }

    pub(super) fn limits_pids(&self) -> bool {
        self.0.iter().any(|(controller, _)| *controller == Controller::Pids)
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let files = self.0.iter().map(|(_, dir)| dir.join("cgroup.procs"));
        let text: String = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
        let mut pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    pub(super) fn kill(&self) {
        for pid in self.pids() {
            procs::signal(pid, Signal::KILL);
        }
    }
}

impl Drop for V1Group {
    fn drop(&mut self) {
        for (_, dir) in &self.0 {
            // Fails while processes are left; the next guardian kills them.
            let _ = fs::remove_dir(dir);
        }
    }
}

fn deny(dir: &Path, denied: &[DeviceRule]) -> io::Result<()> {
    denied.iter().try_for_each(|rule| fs::write(dir.join("devices.deny"), rule.to_string()))
}

/// Creates the parent below the guardian's own cgroup, or below the top.
fn parent(controller: Controller, mounts: &str, groups: &str, name: &str) -> Option<PathBuf> {
    let mount = mount(controller, mounts)?;
    let own = mount.join(own_group(controller, groups)?.trim_start_matches('/'));
    [own, mount].into_iter().find_map(|top| {
        let shared = top.join("agentaflow");
        make(&shared).ok()?;
        let parent = shared.join(name);
        make(&parent).ok()?;
        Some(parent)
    })
}

fn mount(controller: Controller, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (fs, options) = (kind.next()?, kind.next_back()?);
        let found = fs == "cgroup" && options.split(',').any(|name| name == controller.name());
        found.then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

fn own_group(controller: Controller, groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (names, path) = line.split_once(':')?.1.split_once(':')?;
        names.split(',').any(|name| name == controller.name()).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_own_groups_of_controllers_are_found() {
        let mounts = "31 24 0:27 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids\n\
                      32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mount(Controller::Pids, mounts), Some("/sys/fs/cgroup/pids".into()));
        assert_eq!(mount(Controller::Devices, mounts), None);
        let groups = "4:cpu,pids:/a:b\n0::/user.slice/b\n";
        assert_eq!(own_group(Controller::Pids, groups), Some("/a:b"));
    }
}
