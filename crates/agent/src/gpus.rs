//! Watches the GPUs: their readings, whose memory is whose, and who is well over his share.
//!
//! I/O is in this file and in `gpus/processes.rs`; whose a process is (`gpus/owners.rs`) and who is over
//! (`gpus/shares.rs`) are decided by plain functions.

mod environment;
mod owners;
mod processes;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_api::link::{GpuGrant, TaskKey};
use agentaflow_api::node::{GpuInstance, GpuStatus, MigSlice};
use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};

pub use environment::{Mps, device_env};
pub use shares::OverShare;

use owners::{Owner, Owners};
use processes::Origin;
use shares::OverCounter;

/// Slices come and go, and GPUs fall off the bus: the list is read again after this time. Not at every tick,
/// since some of it is asked from a program.
const REREAD: Duration = Duration::from_mins(1);

/// A driver that has not answered by then hangs. It is waited for on a thread that is lost, so never on a second.
const PATIENCE: Duration = Duration::from_secs(15);

/// A task and what is known of it on this host.
#[derive(Clone, Debug)]
pub struct TaskLoad {
    /// Which.
    pub key: TaskKey,
    /// What it may use.
    pub grants: Vec<GpuGrant>,
    /// Its processes, as the host counts; children need not be named.
    pub pids: Vec<u32>,
}

/// Watches the GPUs of this host.
pub struct GpuWatch {
    source: Arc<dyn GpuSource>,
    view: Mutex<View>,
    looking: Arc<AtomicBool>,
}

/// What was seen last.
#[derive(Debug, Default)]
struct View {
    devices: Vec<Device>,
    read_at: Option<Instant>,
    samples: BTreeMap<String, Sample>,
    foreign: BTreeMap<String, u64>,
    busy: BTreeSet<String>,
    peaks: BTreeMap<TaskKey, u64>,
    owners: Owners,
    over: OverCounter,
    /// Why nothing can be read at all.
    fault: Option<String>,
}

/// What one look at the driver and at the processes gave.
struct Look {
    devices: Option<Vec<Device>>,
    samples: Vec<Sample>,
    processes: Vec<(DeviceProcess, Origin)>,
    marks: Vec<owners::Marks>,
}

impl std::fmt::Debug for GpuWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuWatch").field("host", &self.source.host()).finish_non_exhaustive()
    }
}

impl GpuWatch {
    /// Watches this source. Nothing is known before the first [`GpuWatch::tick`].
    pub fn new(source: Arc<dyn GpuSource>) -> Self {
        Self { source, view: Mutex::default(), looking: Arc::default() }
    }

    /// Watches this source and looks once, so that `instances` has something to tell; fails if that fails.
    pub async fn open(source: Arc<dyn GpuSource>) -> Result<Self, GpuError> {
        let watch = Self::new(source);
        watch.tick(&[]).await;
        let fault = watch.view().fault.clone();
        fault.map_or(Ok(watch), |words| Err(GpuError::Broken(words)))
    }

    /// What all GPUs have in common.
    pub fn host(&self) -> Host {
        self.source.host()
    }

    /// The GPUs are simulated.
    pub fn simulated(&self) -> bool {
        self.view().devices.iter().any(|gpu| gpu.simulated)
    }

    /// The GPUs with their latest readings, for registrations and heartbeats.
    pub fn instances(&self) -> Vec<GpuInstance> {
        let view = self.view();
        // One that could never be read has no memory to offer; a warning in the log told of it.
        view.devices.iter().filter(|gpu| gpu.memory > 0).map(|gpu| view.instance(gpu)).collect()
    }

    /// GPUs that are out of order: identifier and words. All of them when the driver fails.
    pub fn faults(&self) -> Vec<(String, String)> {
        let view = self.view();
        let each = view.devices.iter();
        each.filter_map(|gpu| Some((gpu.uuid.clone(), view.fault(gpu)?))).collect()
    }

    /// The most GPU memory that a task held at one time, in MiB, over all its GPUs.
    pub fn peak_memory(&self, key: TaskKey) -> Option<u64> {
        self.view().peaks.get(&key).copied()
    }

    /// Forgets a task that is over and reported.
    pub fn forget(&self, key: TaskKey) {
        self.view().peaks.remove(&key);
    }

    /// Looks at the GPUs and returns the tasks that have been well over their share for some seconds, again at
    /// every tick until they are gone. To be called about once a second with every task that runs.
    pub async fn tick(&self, tasks: &[TaskLoad]) -> Vec<OverShare> {
        let look = self.look(tasks.to_vec()).await;
        let mut view = self.view();
        match look {
            Ok(look) => view.apply(look, tasks, Instant::now()),
            Err(words) => {
                view.fail(words);
                Vec::new()
            }
        }
    }

    /// Looks on a thread of its own: the driver may take its time.
    async fn look(&self, tasks: Vec<TaskLoad>) -> Result<Look, String> {
        if self.looking.swap(true, Ordering::AcqRel) {
            return Err(
                "the NVIDIA driver does not answer; see `dmesg`, and restart the machine".into()
            );
        }
        let (source, looking) = (Arc::clone(&self.source), Arc::clone(&self.looking));
        let due = self.view().read_at.is_none_or(|at| at.elapsed() >= REREAD);
        let look = tokio::task::spawn_blocking(move || {
            let look = look(&*source, &tasks, due);
            looking.store(false, Ordering::Release);
            look.map_err(|error| error.to_string())
        });
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(Ok(look)) => look,
            Ok(Err(_)) => Err("reading the GPUs was interrupted".into()),
            Err(_) => Err(format!(
                "the NVIDIA driver did not answer within {} seconds",
                PATIENCE.as_secs()
            )),
        }
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look(source: &dyn GpuSource, tasks: &[TaskLoad], due: bool) -> Result<Look, GpuError> {
    let grants = tasks.iter().flat_map(|task| &task.grants);
    let load: Vec<_> = grants.map(|g| (g.uuid.clone(), g.milli, g.memory)).collect();
    source.set_simulated_load(&load);
    let devices = due.then(|| source.devices()).transpose()?;
    let samples = source.sample()?;
    let processes: Vec<_> = source
        .processes()?
        .into_iter()
        .map(|process| {
            let origin = processes::origin(process.pid);
            (process, origin)
        })
        .collect();
    // Nobody's processes need no owners: the common case of an idle or simulated host costs nothing.
    let marks = if processes.is_empty() { Vec::new() } else { processes::marks(tasks) };
    Ok(Look { devices, samples, processes, marks })
}

impl View {
    fn apply(&mut self, look: Look, tasks: &[TaskLoad], now: Instant) -> Vec<OverShare> {
        self.fault = None;
        if let Some(devices) = look.devices {
            self.devices = devices;
            self.read_at = Some(now);
        }
        self.samples = look.samples.into_iter().map(|s| (s.uuid.clone(), s)).collect();
        let owned: Vec<(DeviceProcess, Owner)> = look
            .processes
            .into_iter()
            .map(|(process, origin)| {
                let owner = self.owners.owner(&origin, &look.marks, now);
                (process, owner)
            })
            .collect();
        self.owners.forget_old(now);
        let parents = shares::parents(&self.devices);
        let held = shares::held(&owned);
        self.remember(&held, tasks, &parents);
        self.foreign = shares::foreign(&self.devices, &self.samples, &owned, tasks);
        self.over.observe(shares::over(&held, tasks, &parents), now)
    }

    fn remember(
        &mut self,
        held: &shares::Held,
        tasks: &[TaskLoad],
        parents: &BTreeMap<String, String>,
    ) {
        let mut sums: BTreeMap<TaskKey, u64> = BTreeMap::new();
        for ((key, _), memory) in held {
            *sums.entry(*key).or_default() += memory;
        }
        for (key, sum) in sums {
            let peak = self.peaks.entry(key).or_default();
            *peak = sum.max(*peak);
        }
        let uuids = tasks.iter().flat_map(|task| &task.grants).map(|grant| &grant.uuid);
        self.busy = uuids.map(|uuid| parents.get(uuid).unwrap_or(uuid).clone()).collect();
    }

    fn fail(&mut self, words: String) {
        if self.fault.as_ref() != Some(&words) {
            tracing::warn!("the GPUs cannot be read: {words}");
        }
        self.fault = Some(words);
        // Without a reading nobody is known to be over.
        self.over = OverCounter::default();
    }

    fn fault(&self, gpu: &Device) -> Option<String> {
        let own = self.samples.get(&gpu.uuid).and_then(|sample| sample.fault.clone());
        self.fault.clone().or(own)
    }

    fn status(&self, gpu: &Device) -> GpuStatus {
        match () {
            () if self.fault(gpu).is_some() => GpuStatus::Error,
            () if self.busy.contains(&gpu.uuid) => GpuStatus::Busy,
            () => GpuStatus::Available,
        }
    }

    fn instance(&self, gpu: &Device) -> GpuInstance {
        let faulty = self.fault(gpu).is_some();
        // Readings of a GPU that does not answer are old, and nobody is to be sent there.
        let sample = self.samples.get(&gpu.uuid).filter(|_| !faulty).cloned().unwrap_or_default();
        let used = sample.memory_used.unwrap_or(0);
        let free = sample.memory_free.unwrap_or_else(|| gpu.memory.saturating_sub(used));
        GpuInstance {
            gpu_index: Some(gpu.index),
            gpu_uuid: Some(gpu.uuid.clone()),
            gpu_name: Some(gpu.name.clone()),
            gpu_type: Some(gpu.name.clone()),
            gpu_memory: Some(gpu.memory),
            gpu_memory_available: Some(if faulty { 0 } else { free }),
            utilization: sample.utilization.map(f64::from),
            temperature: sample.temperature.map(f64::from),
            power_usage: sample.power,
            status: Some(self.status(gpu)),
            gpu_memory_foreign: self.foreign.get(&gpu.uuid).copied(),
            nvlink_group: gpu.nvlink_group,
            pci_bus_id: gpu.pci_bus_id.clone(),
            mig: gpu.mig.as_ref().map(|slices| slices.iter().map(slice).collect()),
            sm_clock: sample.sm_clock,
            ecc_errors: sample.ecc_errors,
            throttled: sample.throttled,
        }
    }
}

fn slice(slice: &agentaflow_gpu::MigDevice) -> MigSlice {
    MigSlice { profile: slice.profile.clone(), start: slice.start, uuid: slice.uuid.clone() }
}

#[cfg(test)]
mod tests;
