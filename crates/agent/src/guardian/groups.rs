//! cgroups of a task in both hierarchies.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use tracing::{info, warn};

use agentaflow_linux::device_filter::DeviceFilter;

use super::cgroup::{Cgroup, CgroupRoot};
use super::cgroup_v1::{V1Group, V1Root};
use super::device_rule::DeviceControl;
use super::spawn::Place;
use super::wire::ProcessSpec;

/// Parents of the cgroups of all tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupRoots {
    unified: Option<CgroupRoot>,
    v1: V1Root,
    device_control: DeviceControl,
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
        Self::new(CgroupRoot::find(name), V1Root::find(name))
    }

    pub(super) fn new(unified: Option<CgroupRoot>, v1: V1Root) -> Self {
        let device_control = device_control(unified.is_some(), &v1);
        Self { unified, v1, device_control }
    }

    pub(super) fn device_control(&self) -> DeviceControl {
        self.device_control
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
        if self.device_control == DeviceControl::CgroupV2
            && !spec.denied_devices.is_empty()
            && let Some(Err(error)) =
                unified.as_ref().map(|group| group.deny_devices(&spec.denied_devices))
        {
            warn!(%key, %error, "cannot limit the devices of a task");
        }
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
    /// Opens the cgroups for the first process, which enters them.
    pub(super) fn open(&self) -> io::Result<Place> {
        let open = |dir: &Path| File::open(dir).map(OwnedFd::from);
        Ok(Place {
            unified_cgroup: self.unified.as_ref().map(|group| open(group.dir())).transpose()?,
            cgroups: self.v1.iter().flat_map(V1Group::dirs).map(open).collect::<io::Result<_>>()?,
            pids_limited: self.limit_pids(),
            oom_score: None,
        })
    }

    fn limit_pids(&self) -> bool {
        self.unified.as_ref().is_some_and(Cgroup::limits_pids)
            || self.v1.as_ref().is_some_and(V1Group::limits_pids)
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

/// Loads a filter to learn if this guardian may do so.
fn device_control(has_unified: bool, v1: &V1Root) -> DeviceControl {
    if v1.filters_devices() {
        return DeviceControl::CgroupV1;
    }
    if !has_unified {
        return DeviceControl::Monitoring;
    }
    match DeviceFilter::load(&[]) {
        Ok(_) => DeviceControl::CgroupV2,
        Err(error) => {
            info!(%error, "cannot filter device files; the agent monitors GPU memory instead");
            DeviceControl::Monitoring
        }
    }
}
