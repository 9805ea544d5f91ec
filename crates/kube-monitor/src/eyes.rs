//! Looks at the GPUs on a thread that may block, and opens the driver again after it failed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, ProcessLoad, Sample};

use super::seen::Gpus;
use super::usage;

/// Finds GPUs, again and again if need be.
pub type Opener = Arc<dyn Fn() -> Result<Box<dyn GpuSource>, GpuError> + Send + Sync>;

/// What devices are is asked this often; how they are, each turn. Listing MIG slices starts a program.
const LIST_AGAIN: Duration = Duration::from_mins(1);

/// What was seen of the GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    pub(super) gpus: Gpus,
    pub(super) processes: Vec<DeviceProcess>,
    pub(super) loads: Vec<ProcessLoad>,
    /// The pod UIDs of processes.
    pub(super) owners: BTreeMap<u32, String>,
}

/// Looks at GPUs.
pub(super) struct Eyes {
    opener: Opener,
    proc: PathBuf,
    open: Option<Open>,
}

#[derive(Clone)]
struct Open {
    source: Arc<dyn GpuSource>,
    devices: Vec<Device>,
    listed: Instant,
}

impl Eyes {
    pub(super) fn new(opener: Opener, proc: PathBuf) -> Self {
        Self { opener, proc, open: None }
    }

    /// Looks once.
    pub(super) async fn look(&mut self) -> Result<Sight, GpuError> {
        let (opener, proc, open) = (Arc::clone(&self.opener), self.proc.clone(), self.open.take());
        let looked = tokio::task::spawn_blocking(move || {
            let mut open = match open {
                Some(open) => open,
                None => open_source(&opener)?,
            };
            let sight = look(&mut open, &proc)?;
            Ok((open, sight))
        });
        let (open, sight) =
            looked.await.unwrap_or_else(|error| Err(GpuError::Broken(error.to_string())))?;
        self.open = Some(open);
        Ok(sight)
    }

    /// Tells simulated GPUs what load they have.
    pub(super) fn pretend(&self, load: &[(String, u32, u64)]) {
        if let Some(open) = &self.open {
            open.source.set_simulated_load(load);
        }
    }
}

fn open_source(opener: &Opener) -> Result<Open, GpuError> {
    let source: Arc<dyn GpuSource> = Arc::from(opener()?);
    source.watch_errors();
    let devices = source.devices()?;
    Ok(Open { source, devices, listed: Instant::now() })
}

fn look(open: &mut Open, proc: &std::path::Path) -> Result<Sight, GpuError> {
    let samples = open.source.sample()?;
    let same =
        samples.iter().map(|sample| &sample.uuid).eq(open.devices.iter().map(|gpu| &gpu.uuid));
    if !same || open.listed.elapsed() >= LIST_AGAIN {
        open.devices = open.source.devices()?;
        open.listed = Instant::now();
    }
    // Who uses a GPU is told where it can be; not knowing it is no reason to take GPUs out.
    let processes = open.source.processes().unwrap_or_default();
    let loads = open.source.process_loads();
    let pids = processes.iter().map(|process| process.pid).chain(loads.iter().map(|load| load.pid));
    let owners = pids.filter_map(|pid| Some((pid, usage::pod_of_process(proc, pid)?))).collect();
    let driver = open.source.host().driver.unwrap_or_default();
    let devices =
        open.devices.iter().filter_map(|gpu| Some((gpu.clone(), sample_of(gpu, &samples)?)));
    Ok(Sight { gpus: Gpus { driver, devices: devices.collect() }, processes, loads, owners })
}

fn sample_of(gpu: &Device, samples: &[Sample]) -> Option<Sample> {
    samples.iter().find(|sample| sample.uuid == gpu.uuid).cloned()
}
