//! GPU memory per task, tasks far over their share, and foreign memory.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use agentaflow_api::link::TaskKey;
use agentaflow_gpu::{Device, DeviceProcess, Sample};

use super::TaskLoad;
use super::owners::Owner;

/// Tolerance in percent of the share: frameworks round up and keep caches.
const SLACK_PERCENT: u64 = 5;

/// Minimum tolerance: a CUDA context alone held 610 MiB on an H200, and memory requests count only tensors.
const SLACK_MIB: u64 = 1024;

/// A shorter peak does not end a task.
const OVER_FOR: Duration = Duration::from_secs(5);

/// MiB that the driver uses on a GPU without attributing them to a process.
const DRIVER_MIB: u64 = 512;

/// MiB that each task holds on each GPU or MIG slice.
pub(super) type Held = BTreeMap<(TaskKey, String), u64>;

/// Task far over its share of a GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverShare {
    pub key: TaskKey,
    /// UUID of the GPU.
    pub uuid: String,
    /// MiB held by the task.
    pub used: u64,
    /// MiB granted to the task; 0 for a GPU that was not assigned to it.
    pub share: u64,
}

impl fmt::Display for OverShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uuid, used, share, .. } = self;
        if *share == 0 {
            return write!(f, "Task used {used} MiB on GPU {uuid}, which is not assigned to it");
        }
        write!(f, "Task used {used} MiB on GPU {uuid}, limit {share} MiB; request more GPU memory")
    }
}

/// Start of the current excess per task and GPU.
#[derive(Debug, Default)]
pub(super) struct OverCounter(BTreeMap<(TaskKey, String), Instant>);

impl OverCounter {
    /// Records the tasks that are over their share now; returns the tasks over their share at every call for `OVER_FOR`.
    pub(super) fn observe(&mut self, over: Vec<OverShare>, now: Instant) -> Vec<OverShare> {
        let slot = |over: &OverShare| (over.key, over.uuid.clone());
        let mut since = BTreeMap::new();
        for over in &over {
            let began = self.0.get(&slot(over)).copied().unwrap_or(now);
            since.insert(slot(over), began);
        }
        self.0 = since;
        let long =
            |over: &OverShare| now.saturating_duration_since(self.0[&slot(over)]) >= OVER_FOR;
        over.into_iter().filter(long).collect()
    }
}

/// GPU UUID by MIG slice UUID.
pub(super) fn parents(devices: &[Device]) -> BTreeMap<String, String> {
    let slices = devices.iter().flat_map(|gpu| gpu.mig.iter().flatten().map(move |s| (s, gpu)));
    slices.map(|(slice, gpu)| (slice.uuid.clone(), gpu.uuid.clone())).collect()
}

pub(super) fn held(processes: &[(DeviceProcess, Owner)]) -> Held {
    let mut held = Held::new();
    for (process, owner) in processes {
        if let Owner::Task(key) = owner {
            *held.entry((*key, process.uuid.clone())).or_default() += process.memory;
        }
    }
    held
}

/// Tasks that hold more than their share plus tolerance now.
pub(super) fn over(
    held: &Held,
    tasks: &[TaskLoad],
    parents: &BTreeMap<String, String>,
) -> Vec<OverShare> {
    let over = |((key, uuid), used): (&(TaskKey, String), &u64)| {
        let task = tasks.iter().find(|task| task.key == *key)?;
        let share = share(task, uuid, parents)?;
        let slack = SLACK_MIB.max(share / 100 * SLACK_PERCENT);
        // A task without GPUs has no reason to use one.
        let limit = if task.grants.is_empty() { 0 } else { share.saturating_add(slack) };
        (*used > limit).then(|| OverShare { key: *key, uuid: uuid.clone(), used: *used, share })
    };
    held.iter().filter_map(over).collect()
}

/// MiB granted to a task on a device; `None` if no limit applies: the task has the device alone, or the hardware
/// isolates its MIG slice.
fn share(task: &TaskLoad, uuid: &String, parents: &BTreeMap<String, String>) -> Option<u64> {
    let mut sum = 0_u64;
    for grant in &task.grants {
        // Tools without MIG support report the GPU instead of the slice, and vice versa.
        let same = grant.uuid == *uuid;
        let slice =
            parents.get(&grant.uuid) == Some(uuid) || parents.get(uuid) == Some(&grant.uuid);
        let hardware = same && parents.contains_key(uuid);
        if slice || hardware || (same && !grant.shared) {
            return None;
        }
        if same {
            sum = sum.saturating_add(grant.memory);
        }
    }
    Some(sum)
}

/// Foreign MiB on each real GPU: memory of foreign processes, and unattributed memory beyond the driver's use and the
/// grants of the tasks.
pub(super) fn foreign(
    devices: &[Device],
    samples: &BTreeMap<String, Sample>,
    processes: &[(DeviceProcess, Owner)],
    tasks: &[TaskLoad],
) -> BTreeMap<String, u64> {
    let parents = parents(devices);
    let mut foreign = BTreeMap::new();
    for gpu in devices.iter().filter(|gpu| !gpu.simulated) {
        let here = |(process, _): &&(DeviceProcess, Owner)| {
            process.uuid == gpu.uuid || parents.get(&process.uuid) == Some(&gpu.uuid)
        };
        let sum = |wanted: &dyn Fn(&Owner) -> bool| -> u64 {
            let ours = processes.iter().filter(here).filter(|(_, owner)| wanted(owner));
            ours.map(|(process, _)| process.memory).sum()
        };
        let attributed = sum(&|owner| *owner == Owner::Foreign);
        let used = samples.get(&gpu.uuid).and_then(|sample| sample.memory_used).unwrap_or(0);
        let unattributed = used.saturating_sub(sum(&|_| true));
        let room =
            grants_on(tasks, gpu).saturating_sub(sum(&|owner| matches!(owner, Owner::Task(_))));
        let hidden = match gpu.mig {
            Some(_) => 0,
            None => unattributed.saturating_sub(room.saturating_add(DRIVER_MIB)),
        };
        foreign.insert(gpu.uuid.clone(), attributed + hidden);
    }
    foreign
}

/// MiB granted to tasks on a GPU.
fn grants_on(tasks: &[TaskLoad], gpu: &Device) -> u64 {
    let grants = tasks.iter().flat_map(|task| &task.grants).filter(|grant| grant.uuid == gpu.uuid);
    let may = |grant: &agentaflow_api::link::GpuGrant| {
        if grant.shared { grant.memory } else { gpu.memory }
    };
    grants.map(may).fold(0, u64::saturating_add)
}

#[cfg(test)]
#[path = "shares_tests.rs"]
mod tests;
