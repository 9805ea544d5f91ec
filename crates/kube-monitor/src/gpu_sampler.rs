//! Samples the GPUs on a blocking thread, and opens the driver again after a failure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, ProcessLoad, Sample};

use super::observation::Gpus;
use super::usage;

/// Opens the GPU source; called again after a failure.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn GpuSource>, GpuError> + Send + Sync>;

/// Time between two listings of the devices, which start a program for MIG slices. Readings are sampled every
/// interval.
const LIST_INTERVAL: Duration = Duration::from_mins(1);

/// Result of one sample.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuReadings {
    pub(super) gpus: Gpus,
    pub(super) processes: Vec<DeviceProcess>,
    pub(super) loads: Vec<ProcessLoad>,
    /// Pod UIDs by process id.
    pub(super) owners: BTreeMap<u32, String>,
}

pub(super) struct GpuSampler {
    opener: Opener,
    proc: PathBuf,
    open: Option<OpenSource>,
}

#[derive(Clone)]
struct OpenSource {
    source: Arc<dyn GpuSource>,
    devices: Vec<Device>,
    listed: Instant,
}

impl GpuSampler {
    pub(super) fn new(opener: Opener, proc: PathBuf) -> Self {
        Self { opener, proc, open: None }
    }

    pub(super) async fn sample(&mut self) -> Result<GpuReadings, GpuError> {
        let (opener, proc, open) = (Arc::clone(&self.opener), self.proc.clone(), self.open.take());
        let looked = tokio::task::spawn_blocking(move || {
            let mut open = match open {
                Some(open) => open,
                None => open_source(&opener)?,
            };
            let readings = sample_gpus(&mut open, &proc)?;
            Ok((open, readings))
        });
        let (open, readings) =
            looked.await.unwrap_or_else(|error| Err(GpuError::Broken(error.to_string())))?;
        self.open = Some(open);
        Ok(readings)
    }

    pub(super) fn set_simulated_load(&self, load: &[(String, u32, u64)]) {
        if let Some(open) = &self.open {
            open.source.set_simulated_load(load);
        }
    }
}

fn open_source(opener: &Opener) -> Result<OpenSource, GpuError> {
    let source: Arc<dyn GpuSource> = Arc::from(opener()?);
    source.start_watches();
    let devices = source.devices()?;
    Ok(OpenSource { source, devices, listed: Instant::now() })
}

fn sample_gpus(open: &mut OpenSource, proc: &std::path::Path) -> Result<GpuReadings, GpuError> {
    let samples = open.source.sample()?;
    let same =
        samples.iter().map(|sample| &sample.uuid).eq(open.devices.iter().map(|gpu| &gpu.uuid));
    if !same || open.listed.elapsed() >= LIST_INTERVAL {
        open.devices = open.source.devices()?;
        open.listed = Instant::now();
    }
    // Process data is optional: GPUs stay available without it.
    let processes = open.source.processes().unwrap_or_default();
    let loads = open.source.process_loads();
    let pids = processes.iter().map(|process| process.pid).chain(loads.iter().map(|load| load.pid));
    let owners = pids.filter_map(|pid| Some((pid, usage::pod_of_process(proc, pid)?))).collect();
    let driver = open.source.host().driver.unwrap_or_default();
    let devices =
        open.devices.iter().filter_map(|gpu| Some((gpu.clone(), sample_of(gpu, &samples)?)));
    Ok(GpuReadings { gpus: Gpus { driver, devices: devices.collect() }, processes, loads, owners })
}

fn sample_of(gpu: &Device, samples: &[Sample]) -> Option<Sample> {
    samples.iter().find(|sample| sample.uuid == gpu.uuid).cloned()
}
