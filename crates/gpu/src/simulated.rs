//! Simulated GPUs for machines without a GPU. Readings are plausible and reproducible for the same seed, load and
//! time.
//!
//! No state advances between calls: a load is constant until it changes, and every reading is computed from the time
//! of the last change. Readings do not depend on the sampling rate.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::models::{self, Model};
use crate::simulated_faults::Faults;
use crate::types::{Device, DeviceProcess, GpuError, GpuSource, Host, RemappedRows, Sample};

pub const DEFAULT_MODEL: &str = "NVIDIA H200";

/// More than any machine has; bounds a typing error.
pub const MAX_GPUS: u32 = 64;

/// Accepted memory in MiB: half a GiB to 4 TiB.
const MEMORY: std::ops::RangeInclusive<u64> = 512..=4 << 20;

/// Time constant of the cooling, in seconds.
const INERTIA: f64 = 45.0;

/// Degrees that full power adds to the idle temperature.
const HEAT: f64 = 42.0;

/// Driver version of simulated GPUs.
const NO_DRIVER: &str = "simulated";

/// Simulated GPUs of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedSpec {
    /// At most [`MAX_GPUS`].
    pub count: u32,
    /// Model name: `H200`, `NVIDIA A100`, …
    pub model: String,
    /// MiB of each GPU; default: the model's memory.
    pub memory: Option<u64>,
    /// Equal seeds give equal GPUs.
    pub seed: u64,
}

impl Default for SimulatedSpec {
    fn default() -> Self {
        Self { count: 1, model: DEFAULT_MODEL.to_owned(), memory: None, seed: 1 }
    }
}

impl FromStr for SimulatedSpec {
    type Err = GpuError;

    /// Parses `8xA100`, `A100` or `8`.
    fn from_str(text: &str) -> Result<Self, GpuError> {
        let wrong = || {
            let message = format!(
                "`{text}` is not a specification of simulated GPUs: use a count and a model, such as 8xA100"
            );
            GpuError::Simulation(message)
        };
        let (count, model) = match text.split_once('x') {
            Some((count, model)) if count.trim().parse::<u32>().is_ok() => (count, model),
            _ if text.trim().parse::<u32>().is_ok() => (text, DEFAULT_MODEL),
            _ => ("1", text),
        };
        let count = count.trim().parse().map_err(|_| wrong())?;
        if model.trim().is_empty() {
            return Err(wrong());
        }
        Ok(Self { count, model: model.trim().to_owned(), ..Self::default() })
    }
}

#[derive(Debug)]
pub struct Simulated {
    devices: Vec<Device>,
    model: Model,
    seed: u64,
    begun: Instant,
    state: Mutex<Vec<State>>,
    faults: Faults,
}

/// Load of a GPU since the last change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    /// Thousandths of the device in use.
    milli: u32,
    /// MiB.
    memory: u64,
    /// Seconds since the start of the simulation.
    since: f64,
    /// Temperature at the last change; none before the first load.
    temperature: Option<f64>,
}

impl Simulated {
    pub fn new(spec: &SimulatedSpec) -> Result<Self, GpuError> {
        Self::with_faults(spec, Faults::from_environment())
    }

    pub(crate) fn with_faults(spec: &SimulatedSpec, faults: Faults) -> Result<Self, GpuError> {
        let model = check(spec)?;
        let devices: Vec<Device> =
            (0..spec.count).map(|index| device(spec, &model, index)).collect();
        let state = Mutex::new(vec![State::default(); devices.len()]);
        Ok(Self { devices, model, seed: spec.seed, begun: Instant::now(), state, faults })
    }

    /// `seconds` count from the start of the simulation.
    fn sample_at(&self, seconds: f64) -> Vec<Sample> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let each = self.devices.iter().zip(state.iter());
        each.map(|(gpu, state)| self.reading(gpu, state, seconds)).collect()
    }

    /// `seconds` count from the start of the simulation.
    fn set_load_at(&self, load: &[(String, u32, u64)], seconds: f64) {
        let mut sums: BTreeMap<&str, (u32, u64)> = BTreeMap::new();
        for (uuid, milli, memory) in load {
            let sum = sums.entry(uuid).or_default();
            *sum = (sum.0.saturating_add(*milli), sum.1.saturating_add(*memory));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (gpu, state) in self.devices.iter().zip(state.iter_mut()) {
            let (milli, memory) = sums.get(&*gpu.uuid).copied().unwrap_or_default();
            let (milli, memory) = (milli.min(1_000), memory.min(gpu.memory));
            if (milli, memory) != (state.milli, state.memory) {
                let temperature = Some(self.temperature(gpu, state, seconds));
                *state = State { milli, memory, since: seconds, temperature };
            }
        }
    }

    fn reading(&self, gpu: &Device, state: &State, seconds: f64) -> Sample {
        let utilization = self.utilization(gpu, state, seconds);
        let power = self.power(gpu, state, seconds);
        let (idle, best) = self.model.sm_clock;
        let capped = power >= 0.97 * self.model.power_limit;
        let loaded = state.milli > 0;
        Sample {
            uuid: gpu.uuid.clone(),
            utilization: Some(utilization.round() as u32),
            memory_utilization: Some((utilization * 0.6).round() as u32),
            engine_activity: Some(utilization.round()),
            tensor_activity: Some((utilization * 0.4 * 10.0).round() / 10.0),
            memory_used: Some(state.memory),
            memory_free: Some(gpu.memory - state.memory),
            temperature: Some(self.temperature(gpu, state, seconds).round() as u32),
            power: Some((power * 100.0).round() / 100.0),
            energy: None,
            sm_clock: Some(match (loaded, capped) {
                (false, _) => idle,
                (true, false) => best,
                // A power cap lowers the clock by a few steps of 15 MHz.
                (true, true) => best - 15 * (1 + (self.noise(gpu, seconds, 3) * 6.0) as u32),
            }),
            memory_clock: Some(if loaded {
                self.model.memory_clock.1
            } else {
                self.model.memory_clock.0
            }),
            ecc_errors: Some(0),
            corrected_ecc_errors: Some(0),
            remapped_rows: Some(RemappedRows::default()),
            throttled: if capped { vec!["power cap".into()] } else { Vec::new() },
            fault: None,
            xids: Vec::new(),
        }
    }

    /// Percent. Data loading interrupts the work now and then: even a fully loaded GPU is below 100.
    fn utilization(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let busy = 0.88 + 0.12 * self.noise(gpu, seconds, 1);
        f64::from(state.milli) / 10.0 * busy
    }

    fn power(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let Model { idle_power, power_limit, .. } = self.model;
        let waver = 1.0 + 0.04 * (self.noise(gpu, seconds, 2) - 0.5);
        let share = self.utilization(gpu, state, seconds) / 100.0;
        // Any load takes the GPU out of its idle state.
        let awake = if state.milli > 0 { 0.08 } else { 0.0 };
        let drawn = idle_power + (power_limit - idle_power) * (awake + 0.9 * share);
        (drawn * waver).min(power_limit)
    }

    /// Approaches the steady temperature of the load exponentially.
    fn temperature(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let idle = 26.0 + f64::from(hash(self.seed, gpu.index, 0, 9) as u32 % 6);
        let load = f64::from(state.milli) / 1_000.0;
        let target = idle + HEAT * load.sqrt() * if state.milli > 0 { 0.95 } else { 0.0 };
        let passed = (seconds - state.since).max(0.0);
        target + (state.temperature.unwrap_or(idle) - target) * (-passed / INERTIA).exp()
    }

    /// Smooth noise between 0 and 1, interpolated between random values every two seconds.
    fn noise(&self, gpu: &Device, seconds: f64, channel: u64) -> f64 {
        let place = seconds.max(0.0) / 2.0;
        let at = |step: u64| hash(self.seed, gpu.index, step, channel) as f64 / u64::MAX as f64;
        let (step, within) = (place as u64, place.fract());
        at(step) * (1.0 - within) + at(step + 1) * within
    }
}

impl GpuSource for Simulated {
    fn host(&self) -> Host {
        Host { driver: Some(NO_DRIVER.into()), cuda: None, source: "simulated" }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        Ok(self.devices.clone())
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        let samples = self.sample_at(self.begun.elapsed().as_secs_f64());
        self.faults.apply(&self.devices, samples)
    }

    /// Empty: no process uses a simulated GPU.
    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }

    fn set_simulated_load(&self, load: &[(String, u32, u64)]) {
        self.set_load_at(load, self.begun.elapsed().as_secs_f64());
    }
}

fn check(spec: &SimulatedSpec) -> Result<Model, GpuError> {
    let refuse = |message: String| Err(GpuError::Simulation(message));
    let name = spec.model.trim();
    if !(1..=MAX_GPUS).contains(&spec.count) {
        return refuse(format!("cannot simulate {} GPUs: use 1 to {MAX_GPUS}", spec.count));
    }
    let odd = name.chars().any(|c| c.is_control() || c == ',');
    if name.is_empty() || name.chars().count() > 100 || odd {
        return refuse(format!(
            "the model of simulated GPUs is a name of 1 to 100 characters without commas, such as {}",
            models::EXAMPLES
        ));
    }
    if let Some(memory) = spec.memory
        && !MEMORY.contains(&memory)
    {
        return refuse(format!(
            "cannot simulate a GPU with {memory} MiB of memory: use {} to {} MiB",
            MEMORY.start(),
            MEMORY.end()
        ));
    }
    match (models::find(name, spec.memory), spec.memory) {
        (Some(model), memory) => Ok(Model { memory: memory.unwrap_or(model.memory), ..model }),
        (None, Some(memory)) => Ok(models::unknown(memory)),
        (None, None) => refuse(format!(
            "unknown GPU model `{name}`: give its memory in MiB, or use a known model such as {}",
            models::EXAMPLES
        )),
    }
}

fn device(spec: &SimulatedSpec, model: &Model, index: u32) -> Device {
    let machine = hash(spec.seed, 0, 0, 7) as u32;
    Device {
        index,
        uuid: format!("SIM-{machine:08x}-{index}"),
        name: spec.model.trim().to_owned(),
        memory: model.memory,
        pci_bus_id: None,
        nvlink_group: (model.nvlink && spec.count > 1).then_some(0),
        power_limit: Some(model.power_limit),
        mig: None,
        simulated: true,
    }
}

/// Deterministic pseudo-random value (the finalizer of `SplitMix64`).
fn hash(seed: u64, index: u32, step: u64, channel: u64) -> u64 {
    let mut x = seed
        .wrapping_add(u64::from(index).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(step.wrapping_mul(0xd1b5_4a32_d192_ed03))
        .wrapping_add(channel.wrapping_mul(0x8cb9_2ba7_2f3d_8dd7));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
#[path = "simulated_tests.rs"]
mod tests;
