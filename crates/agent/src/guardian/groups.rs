//! cgroups of a task in both hierarchies.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use tracing::info;

use agentaflow_linux::device_filter::DeviceFilter;

use super::cgroup::{Cgroup, CgroupRoot};
use super::cgroup_v1::{V1Group, V1Root};
use super::device_rule::DeviceControl;
use super::spawn::{SpawnOptions, node_fault};
use super::wire::{ProcessSpec, StartFault};

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
    pub(super) v1: V1Group,
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

    /// Fails if a control that this host has does not work: the task would start without it.
    pub(super) fn create(&self, spec: &ProcessSpec) -> Result<TaskGroups, StartFault> {
        let unified = self.unified.as_ref();
        let unified = unified
            .map(|root| root.group(spec.key, spec.memory, spec.cpu_milli, spec.pids))
            .transpose()
            .map_err(|error| node_fault("create the cgroup of a task", &error))?;
        if self.device_control == DeviceControl::CgroupV2
            && !spec.denied_devices.is_empty()
            && let Some(group) = &unified
        {
            group
                .deny_devices(&spec.denied_devices)
                .map_err(|error| node_fault("limit the devices of a task", &error))?;
        }
        let v1 = self.v1.group(spec.key, spec.pids, &spec.denied_devices);
        let v1 = v1.map_err(|error| node_fault("limit processes and devices of a task", &error))?;
        Ok(TaskGroups { unified, v1 })
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
    pub(super) fn open(&self) -> io::Result<SpawnOptions> {
        let open = |dir: &Path| File::open(dir).map(OwnedFd::from);
        Ok(SpawnOptions {
            unified_cgroup: self.unified.as_ref().map(|group| open(group.dir())).transpose()?,
            cgroups: self.v1.dirs().map(open).collect::<io::Result<_>>()?,
            pids_limited: self.limit_pids(),
            oom_score: None,
            private_tmp: false,
        })
    }

    fn limit_pids(&self) -> bool {
        self.unified.as_ref().is_some_and(Cgroup::limits_pids) || self.v1.limits_pids()
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids = self.unified.as_ref().map(Cgroup::pids).unwrap_or_default();
        pids.extend(self.v1.pids());
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    pub(super) fn kill(&self) {
        self.unified.iter().for_each(Cgroup::kill);
        self.v1.kill();
    }

    /// True if the task has a cgroup of its own.
    pub(super) fn exist(&self) -> bool {
        self.unified.is_some() || self.v1.dirs().next().is_some()
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
