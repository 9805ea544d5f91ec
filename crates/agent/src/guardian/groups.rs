//! cgroups of a task in both hierarchies.

use std::path::PathBuf;

use tracing::warn;

use super::cgroup::{Cgroup, CgroupRoot};
use super::cgroup_v1::{V1Group, V1Root};
use super::procs;
use super::wire::ProcessSpec;

/// Parents of the cgroups of all tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupRoots {
    unified: Option<CgroupRoot>,
    v1: V1Root,
}

/// cgroups of one task, as far as the host has them.
#[derive(Debug, Default)]
pub(super) struct TaskGroups {
    /// Limits memory and CPU, and accounts for them.
    pub(super) unified: Option<Cgroup>,
    pub(super) v1: Option<V1Group>,
}

impl GroupRoots {
    pub(super) fn find(name: &str) -> Self {
        Self { unified: CgroupRoot::find(name), v1: V1Root::find(name) }
    }

    pub(super) fn has_unified(&self) -> bool {
        self.unified.is_some()
    }

    pub(super) fn create(&self, spec: &ProcessSpec) -> TaskGroups {
        let key = spec.key;
        let unified = self.unified.as_ref().and_then(|root| {
            let group = root.group(key, spec.memory, spec.cpu_milli, spec.pids);
            group
                .inspect_err(|error| warn!(%key, %error, "cannot create the cgroup of a task"))
                .ok()
        });
        let v1 = self.v1.group(key, spec.pids, &spec.denied_devices);
        let v1 = v1.inspect_err(|error| warn!(%key, %error, "cannot limit processes and devices"));
        TaskGroups { unified, v1: v1.ok() }
    }

    pub(super) fn kill_all(&self) {
        self.unified.iter().for_each(CgroupRoot::kill_all);
        self.v1.kill_all();
    }

    /// Removes the parents if they are empty.
    pub(super) fn remove(&self) {
        self.unified.iter().for_each(CgroupRoot::remove);
        self.v1.remove();
    }
}

impl TaskGroups {
    /// Directories that the first process enters.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        let unified = self.unified.iter().map(|group| group.dir().to_owned());
        unified.chain(self.v1.iter().flat_map(V1Group::dirs)).collect()
    }

    pub(super) fn limit_pids(&self) -> bool {
        self.unified.as_ref().is_some_and(Cgroup::limits_pids)
            || self.v1.as_ref().is_some_and(V1Group::limits_pids)
    }

    /// Adds a process and its children that did not enter the cgroups themselves.
    pub(super) fn add(&self, pid: u32) {
        let known = self.pids();
        let all = std::iter::once(pid).chain(procs::children(pid));
        for pid in all.filter(|pid| !known.contains(pid)) {
            let _ = self.unified.as_ref().map(|group| group.add(pid));
            self.v1.iter().for_each(|group| group.add(pid));
        }
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids = self.unified.as_ref().map(Cgroup::pids).unwrap_or_default();
        pids.extend(self.v1.as_ref().map(V1Group::pids).unwrap_or_default());
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    pub(super) fn kill(&self) {
        self.unified.iter().for_each(Cgroup::kill);
        self.v1.iter().for_each(V1Group::kill);
    }
}
