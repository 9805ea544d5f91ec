//! Who holds how much of which GPU, and who is well over his share.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use agentaflow_api::link::TaskKey;
use agentaflow_gpu::{Device, DeviceProcess, Sample};

use super::TaskLoad;
use super::owners::Owner;

/// Frameworks round up and keep caches: so many percent over the share harm nobody.
const SLACK_PERCENT: u64 = 5;

/// A small share needs more room than that: a CUDA context alone was seen to hold 610 MiB on an H200, and people who
/// ask for memory think of their tensors.
const SLACK_MIB: u64 = 1024;

/// A peak that is over before somebody could be harmed does not end a job.
const OVER_FOR: Duration = Duration::from_secs(5);

/// MiB that the driver uses on a GPU without saying for whom.
const DRIVER_MIB: u64 = 512;

/// MiB that each task holds on each GPU or slice.
pub(super) type Held = BTreeMap<(TaskKey, String), u64>;

/// A task that is well over its share of a GPU's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverShare {
    /// Which.
    pub key: TaskKey,
    /// The GPU.
    pub uuid: String,
    /// MiB that it holds there.
    pub used: u64,
    /// MiB that it was given there; 0 where it was given nothing.
    pub share: u64,
}

impl fmt::Display for OverShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uuid, used, share, .. } = self;
        if *share == 0 {
            return write!(
                f,
                "it held {used} MiB of the memory of {uuid}, a GPU that it was not given"
            );
        }
        write!(
            f,
            "it held {used} MiB of the memory of {uuid}; its share is {share} MiB: ask for more"
        )
    }
}

/// Since when tasks have been over.
#[derive(Debug, Default)]
pub(super) struct OverCounter(BTreeMap<(TaskKey, String), Instant>);

impl OverCounter {
    /// Takes those that are over now; returns those that have been at every look for long enough.
    pub(super) fn observe(&mut self, over: Vec<OverShare>, now: Instant) -> Vec<OverShare> {
        let place = |over: &OverShare| (over.key, over.uuid.clone());
        let mut since = BTreeMap::new();
        for over in &over {
            let began = self.0.get(&place(over)).copied().unwrap_or(now);
            since.insert(place(over), began);
        }
        self.0 = since;
        let long =
            |over: &OverShare| now.saturating_duration_since(self.0[&place(over)]) >= OVER_FOR;
        over.into_iter().filter(long).collect()
    }
}

/// The GPU of each MIG slice.
pub(super) fn parents(devices: &[Device]) -> BTreeMap<String, String> {
    let slices = devices.iter().flat_map(|gpu| gpu.mig.iter().flatten().map(move |s| (s, gpu)));
    slices.map(|(slice, gpu)| (slice.uuid.clone(), gpu.uuid.clone())).collect()
}

/// What tasks hold.
pub(super) fn held(processes: &[(DeviceProcess, Owner)]) -> Held {
    let mut held = Held::new();
    for (process, owner) in processes {
        if let Owner::Task(key) = owner {
            *held.entry((*key, process.uuid.clone())).or_default() += process.memory;
        }
    }
    held
}

/// Those who hold well more than their share now.
pub(super) fn over(
    held: &Held,
    tasks: &[TaskLoad],
    parents: &BTreeMap<String, String>,
) -> Vec<OverShare> {
    let over = |((key, uuid), used): (&(TaskKey, String), &u64)| {
        let task = tasks.iter().find(|task| task.key == *key)?;
        let share = share(task, uuid, parents)?;
        let limit = share.saturating_add(SLACK_MIB.max(share / 100 * SLACK_PERCENT));
        (*used > limit).then(|| OverShare { key: *key, uuid: uuid.clone(), used: *used, share })
    };
    held.iter().filter_map(over).collect()
}

/// MiB that a task may hold there; none where nothing has to be watched: the device is its alone, or the
/// hardware keeps it within its slice.
fn share(task: &TaskLoad, uuid: &String, parents: &BTreeMap<String, String>) -> Option<u64> {
    let mut sum = 0_u64;
    for grant in &task.grants {
        // Tools that do not know slices name the GPU of a slice, and the other way round.
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

/// MiB on each real GPU that are held by nobody we know: by processes, or by something that is not told and that
/// is more than the driver and our tasks can account for.
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
        let told = sum(&|owner| *owner == Owner::Foreign);
        let used = samples.get(&gpu.uuid).and_then(|sample| sample.memory_used).unwrap_or(0);
        let untold = used.saturating_sub(sum(&|_| true));
        let room =
            grants_on(tasks, gpu).saturating_sub(sum(&|owner| matches!(owner, Owner::Task(_))));
        let hidden = match gpu.mig {
            Some(_) => 0,
            None => untold.saturating_sub(room.saturating_add(DRIVER_MIB)),
        };
        foreign.insert(gpu.uuid.clone(), told + hidden);
    }
    foreign
}

/// MiB that our tasks may hold there.
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
