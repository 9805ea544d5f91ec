//! Watches the GPUs: readings, memory per task, and tasks far over their share.
//!
//! I/O is in this file, in `gpus/processes.rs` and in the file of `gpus/health.rs`; pure functions determine the owner of a process (`gpus/owners.rs`)
//! and the tasks over their share (`gpus/shares.rs`).

pub(crate) mod device_files;
mod environment;
mod health;
mod meter;
mod owners;
mod processes;
mod readings;
mod shares;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_api::job::GpuUsage;
use agentaflow_api::link::{GpuGrant, TaskKey};
use agentaflow_api::node::{GpuInstance, GpuStatus, MigSlice};
use agentaflow_gpu::{
    Device, DeviceProcess, GpuError, GpuSource, Host, ProcessLoad, Sample, XidCounts,
};

pub use environment::{Mps, device_env};
pub use shares::OverShare;

pub(crate) use health::ApplicationFault;
pub(crate) use meter::TaskMeter;

use health::HealthTable;
use meter::{Meters, Readings};
use owners::{Owner, Owners};
use processes::ProcessOrigin;
use shares::OverCounter;
use usage::{Tick, UsageTable};

/// Interval between reads of the device list: MIG slices change and GPUs fall off the bus. Not at every tick, since
/// part of the list comes from a program.
const DEVICE_INTERVAL: Duration = Duration::from_mins(1);

/// After this time the driver counts as hung. The blocked thread is never replaced.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(15);

/// Running task with its GPUs and processes.
#[derive(Clone, Debug)]
pub struct TaskLoad {
    pub key: TaskKey,
    pub grants: Vec<GpuGrant>,
    /// Process ids in the host's pid namespace; children may be omitted.
    pub pids: Vec<u32>,
}

pub struct GpuWatch {
    source: Arc<dyn GpuSource>,
    state: Mutex<GpuState>,
    reading: Arc<AtomicBool>,
}

/// Results of the last tick.
#[derive(Debug, Default)]
struct GpuState {
    devices: Vec<Device>,
    read_at: Option<Instant>,
    samples: BTreeMap<String, Sample>,
    foreign: BTreeMap<String, u64>,
    busy: BTreeSet<String>,
    meters: Meters,
    owners: Owners,
    over: OverCounter,
    usage: UsageTable,
    health: HealthTable,
    xids: XidCounts,
    application_faults: Vec<ApplicationFault>,
    /// Set when no GPU can be read.
    fault: Option<String>,
}

/// Data of one read of the driver and of `/proc`.
struct Reading {
    devices: Option<Vec<Device>>,
    samples: Vec<Sample>,
    processes: Vec<(DeviceProcess, ProcessOrigin)>,
    loads: Vec<ProcessLoad>,
    marks: Vec<owners::TaskMarks>,
}

impl std::fmt::Debug for GpuWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuWatch").field("host", &self.source.host()).finish_non_exhaustive()
    }
}

impl GpuWatch {
    /// Starts without devices; the first [`GpuWatch::tick`] reads them.
    pub fn new(source: Arc<dyn GpuSource>) -> Self {
        Self { source, state: Mutex::default(), reading: Arc::default() }
    }

    /// Starts with one tick; fails if the source cannot be read. Driver errors are kept in `dir`, the state directory.
    pub async fn open(source: Arc<dyn GpuSource>, dir: &Path) -> Result<Self, GpuError> {
        source.start_watches();
        let watch = Self::new(source);
        watch.state().health = HealthTable::load(dir);
        watch.tick(&[]).await;
        let fault = watch.state().fault.clone();
        fault.map_or(Ok(watch), |fault| Err(GpuError::Broken(fault)))
    }

    /// Facts common to all GPUs.
    pub fn host(&self) -> Host {
        self.source.host()
    }

    pub fn simulated(&self) -> bool {
        self.state().devices.iter().any(|gpu| gpu.simulated)
    }

    /// GPUs with their latest readings, for registrations and heartbeats.
    pub fn instances(&self) -> Vec<GpuInstance> {
        let state = self.state();
        // A GPU that could never be read has no memory; the source has logged a warning.
        state.devices.iter().filter(|gpu| gpu.memory > 0).map(|gpu| state.instance(gpu)).collect()
    }

    /// GPUs that an admin has cordoned, by index.
    pub fn set_cordoned(&self, cordoned: &[String]) {
        let mut state = self.state();
        let uuids: BTreeMap<String, String> =
            state.devices.iter().map(|gpu| (gpu.index.to_string(), gpu.uuid.clone())).collect();
        state
            .health
            .set_cordoned(cordoned.iter().cloned().collect(), |index| uuids.get(index).cloned());
    }

    /// Driver errors of applications since the last call.
    pub(crate) fn take_application_faults(&self) -> Vec<ApplicationFault> {
        std::mem::take(&mut self.state().application_faults)
    }

    /// True if no GPU of the machine works, although it has some: the driver fails, the machine must restart, or each GPU
    /// has a fault.
    pub fn is_unusable(&self) -> bool {
        let state = self.state();
        let mut gpus = state.devices.iter().filter(|gpu| gpu.memory > 0).peekable();
        gpus.peek().is_some() && gpus.all(|gpu| state.fault(gpu).is_some())
    }

    /// Peak GPU memory of a task over all its GPUs, in MiB.
    pub fn peak_memory(&self, key: TaskKey) -> Option<u64> {
        self.state().meters.get(key)?.peak()
    }

    /// Use of GPUs by a task since its start; none if it was not measured.
    pub fn usage(&self, key: TaskKey) -> Option<GpuUsage> {
        self.state().meters.get(key)?.usage()
    }

    /// Present GPU memory of a task in MiB, and its energy in joules since the start of the agent.
    pub(crate) fn present(&self, key: TaskKey) -> (Option<u64>, Option<f64>) {
        let state = self.state();
        let here = || state.usage.uses().iter().filter(|entry| entry.workload == key);
        let memory = here().map(|entry| state.usage.memory(key, &entry.uuid)).sum();
        let joules = here().filter_map(|entry| state.usage.joules(key, &entry.uuid)).sum();
        let any = here().next().is_some();
        let visible = !state.devices.iter().any(|gpu| gpu.simulated);
        (Some(memory).filter(|_| any && visible), Some(joules).filter(|_| any))
    }

    /// Meter of a task, to be saved.
    pub(crate) fn meter(&self, key: TaskKey) -> Option<TaskMeter> {
        self.state().meters.get(key).cloned()
    }

    /// Continues the meter of a task that an earlier agent started.
    pub(crate) fn resume_meter(&self, key: TaskKey, meter: TaskMeter) {
        self.state().meters.resume(key, meter);
    }

    /// Drops the meter of a task whose end is reported.
    pub fn forget(&self, key: TaskKey) {
        self.state().meters.forget(key);
    }

    /// Reads the GPUs and returns the tasks that have been far over their share for some seconds, again at every tick
    /// until they end. To be called about once a second with all running tasks.
    pub async fn tick(&self, tasks: &[TaskLoad]) -> Vec<OverShare> {
        let reading = self.read(tasks.to_vec()).await;
        let mut state = self.state();
        match reading {
            Ok(reading) => state.apply(reading, tasks, Instant::now()),
            Err(fault) => {
                state.fail(fault);
                Vec::new()
            }
        }
    }

    /// Reads on a blocking thread, as the driver may be slow.
    async fn read(&self, tasks: Vec<TaskLoad>) -> Result<Reading, String> {
        if self.reading.swap(true, Ordering::AcqRel) {
            return Err(
                "the NVIDIA driver does not answer; check `dmesg` and restart the host".into()
            );
        }
        let (source, reading) = (Arc::clone(&self.source), Arc::clone(&self.reading));
        let due = self.state().read_at.is_none_or(|at| at.elapsed() >= DEVICE_INTERVAL);
        let read = tokio::task::spawn_blocking(move || {
            let result = read(&*source, &tasks, due);
            reading.store(false, Ordering::Release);
            result.map_err(|error| error.to_string())
        });
        match tokio::time::timeout(DRIVER_TIMEOUT, read).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the read of the GPUs was cancelled".into()),
            Err(_) => Err(format!(
                "the NVIDIA driver did not answer within {} seconds",
                DRIVER_TIMEOUT.as_secs()
            )),
        }
    }

    fn state(&self) -> MutexGuard<'_, GpuState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(source: &dyn GpuSource, tasks: &[TaskLoad], due: bool) -> Result<Reading, GpuError> {
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
    // Without processes no owners are needed: an idle or simulated host costs nothing.
    let marks = if processes.is_empty() { Vec::new() } else { processes::marks(tasks) };
    let loads = if processes.is_empty() { Vec::new() } else { source.process_loads() };
    Ok(Reading { devices, samples, processes, loads, marks })
}

impl GpuState {
    fn apply(&mut self, reading: Reading, tasks: &[TaskLoad], now: Instant) -> Vec<OverShare> {
        self.fault = None;
        if let Some(devices) = reading.devices {
            self.devices = devices;
            self.read_at = Some(now);
        }
        self.samples = reading.samples.into_iter().map(|s| (s.uuid.clone(), s)).collect();
        self.xids.observe(self.samples.values());
        self.application_faults.extend(self.health.observe(&self.samples, now));
        let owned: Vec<(DeviceProcess, Owner)> = reading
            .processes
            .into_iter()
            .map(|(process, origin)| {
                let owner = self.owners.owner(&origin, &reading.marks, now);
                (process, owner)
            })
            .collect();
        self.owners.forget_old(now);
        let parents = shares::parents(&self.devices);
        let tick = Tick {
            tasks,
            processes: &owned,
            loads: &reading.loads,
            parents: &parents,
            samples: &self.samples,
        };
        self.usage.record(&tick, now);
        // No process uses a simulated GPU.
        let visible = !self.devices.iter().any(|gpu| gpu.simulated);
        let readings = Readings {
            uses: self.usage.uses(),
            samples: &self.samples,
            held: visible.then(|| self.usage.held()),
        };
        self.meters.observe(&readings, now);
        let held = shares::held(&owned);
        self.mark_busy(tasks, &parents);
        self.foreign = shares::foreign(&self.devices, &self.samples, &owned, tasks);
        self.over.observe(shares::over(&held, tasks, &parents), now)
    }

    fn mark_busy(&mut self, tasks: &[TaskLoad], parents: &BTreeMap<String, String>) {
        let uuids = tasks.iter().flat_map(|task| &task.grants).map(|grant| &grant.uuid);
        self.busy = uuids.map(|uuid| parents.get(uuid).unwrap_or(uuid).clone()).collect();
    }

    fn fail(&mut self, fault: String) {
        if self.fault.as_ref() != Some(&fault) {
            tracing::warn!(%fault, "cannot read the GPUs");
        }
        self.fault = Some(fault);
        // Without a reading no task counts as over its share.
        self.over = OverCounter::default();
    }

    /// Reason for which a GPU does not work.
    fn fault(&self, gpu: &Device) -> Option<String> {
        let broken = self.health.status(&gpu.uuid) == Some(GpuStatus::Error);
        let own = self.health.message(&gpu.uuid).filter(|_| broken);
        self.silence(gpu).or(own).or_else(|| self.health.machine_problem())
    }

    /// Reason for which a GPU has no readings.
    fn silence(&self, gpu: &Device) -> Option<String> {
        let own = self.samples.get(&gpu.uuid).and_then(|sample| sample.fault.clone());
        self.fault.clone().or(own)
    }

    fn status(&self, gpu: &Device) -> GpuStatus {
        if self.fault(gpu).is_some() {
            return GpuStatus::Error;
        }
        let busy = self.busy.contains(&gpu.uuid);
        let usable = if busy { GpuStatus::Busy } else { GpuStatus::Available };
        self.health.status(&gpu.uuid).unwrap_or(usable)
    }

    fn instance(&self, gpu: &Device) -> GpuInstance {
        let faulty = self.silence(gpu).is_some();
        // The readings of a faulty GPU are old, and the server must not place work there.
        let sample = self.samples.get(&gpu.uuid).filter(|_| !faulty).cloned().unwrap_or_default();
        let used = sample.memory_used.unwrap_or(0);
        let free = sample.memory_free.unwrap_or_else(|| gpu.memory.saturating_sub(used));
        GpuInstance {
            gpu_index: Some(gpu.index),
            gpu_uuid: Some(gpu.uuid.clone()),
            gpu_name: Some(gpu.name.clone()),
            gpu_type: Some(gpu.name.clone()),
            gpu_memory: Some(gpu.memory),
            gpu_memory_available: Some(if self.fault(gpu).is_some() { 0 } else { free }),
            utilization: sample.utilization.map(f64::from),
            temperature: sample.temperature.map(f64::from),
            power_usage: sample.power,
            power_limit: gpu.power_limit,
            status: Some(self.status(gpu)),
            gpu_memory_foreign: self.foreign.get(&gpu.uuid).copied(),
            nvlink_group: gpu.nvlink_group,
            pci_bus_id: gpu.pci_bus_id.clone(),
            mig: gpu.mig.as_ref().map(|slices| slices.iter().map(slice).collect()),
            sm_clock: sample.sm_clock,
            ecc_errors: sample.ecc_errors,
            throttled: sample.throttled,
            problem: self.fault(gpu).or_else(|| self.health.message(&gpu.uuid)),
            xid: self.health.xid(&gpu.uuid),
        }
    }
}

fn slice(slice: &agentaflow_gpu::MigDevice) -> MigSlice {
    MigSlice { profile: slice.profile.clone(), start: slice.start, uuid: slice.uuid.clone() }
}

#[cfg(test)]
mod tests;
