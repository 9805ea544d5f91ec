//! GPUs that do not exist, for machines without any: what they read is believable and the same for the same
//! seed, load and time.
//!
//! Nothing is stepped: a load is constant until it changes, so every reading is computed from the moment of the
//! last change. It does not matter how often somebody looks.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::models::{self, Model};
use crate::types::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};

/// What is simulated when nobody says.
pub const DEFAULT_MODEL: &str = "NVIDIA H200";

/// More than any machine has; a typing error should not fill the screen.
pub const MAX_GPUS: u32 = 64;

/// The least and the most MiB that are believed: half a GiB, and 4 TiB.
const MEMORY: std::ops::RangeInclusive<u64> = 512..=4 << 20;

/// Seconds in which a cooler brings a GPU two thirds of the way to its final temperature.
const INERTIA: f64 = 45.0;

/// Degrees that full power adds to an idle GPU.
const HEAT: f64 = 42.0;

/// The driver that simulated GPUs pretend to have.
const NO_DRIVER: &str = "simulated";

/// What to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedSpec {
    /// How many, at most [`MAX_GPUS`].
    pub count: u32,
    /// Which model: `H200`, `NVIDIA A100`, …
    pub model: String,
    /// MiB of memory of each; the model's own when absent.
    pub memory: Option<u64>,
    /// The same seed gives the same GPUs.
    pub seed: u64,
}

impl Default for SimulatedSpec {
    fn default() -> Self {
        Self { count: 1, model: DEFAULT_MODEL.to_owned(), memory: None, seed: 1 }
    }
}

impl FromStr for SimulatedSpec {
    type Err = GpuError;

    /// Reads `8xA100`, `A100` or `8`.
    fn from_str(text: &str) -> Result<Self, GpuError> {
        let wrong = || {
            let words = format!(
                "`{text}` says nothing about simulated GPUs: write their number and model, such as 8xA100"
            );
            GpuError::Simulation(words)
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

/// Simulated GPUs.
#[derive(Debug)]
pub struct Simulated {
    devices: Vec<Device>,
    model: Model,
    seed: u64,
    begun: Instant,
    state: Mutex<Vec<State>>,
}

/// A GPU since its load last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    /// Thousandths of the device that are in use.
    milli: u32,
    /// MiB in use.
    memory: u64,
    /// Seconds on the simulation's clock.
    since: f64,
    /// Degrees at that moment; none before the first load, when it has always been idle.
    temperature: Option<f64>,
}

impl Simulated {
    /// Makes them; says in words what cannot be.
    pub fn new(spec: &SimulatedSpec) -> Result<Self, GpuError> {
        let model = check(spec)?;
        let devices: Vec<Device> =
            (0..spec.count).map(|index| device(spec, &model, index)).collect();
        let state = Mutex::new(vec![State::default(); devices.len()]);
        Ok(Self { devices, model, seed: spec.seed, begun: Instant::now(), state })
    }

    /// The readings so many seconds after the beginning.
    fn sample_at(&self, seconds: f64) -> Vec<Sample> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let each = self.devices.iter().zip(state.iter());
        each.map(|(gpu, state)| self.reading(gpu, state, seconds)).collect()
    }

    /// Changes the load so many seconds after the beginning.
    fn pretend_at(&self, load: &[(String, u32, u64)], seconds: f64) {
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
            memory_used: Some(state.memory),
            memory_free: Some(gpu.memory - state.memory),
            temperature: Some(self.temperature(gpu, state, seconds).round() as u32),
            power: Some((power * 100.0).round() / 100.0),
            sm_clock: Some(match (loaded, capped) {
                (false, _) => idle,
                (true, false) => best,
                // A power cap takes some steps of 15 MHz.
                (true, true) => best - 15 * (1 + (self.noise(gpu, seconds, 3) * 6.0) as u32),
            }),
            memory_clock: Some(if loaded {
                self.model.memory_clock.1
            } else {
                self.model.memory_clock.0
            }),
            ecc_errors: Some(0),
            throttled: if capped { vec!["power cap".into()] } else { Vec::new() },
            fault: None,
            xid: None,
        }
    }

    /// Percent: work waits for data now and then, so even a full GPU is not always busy.
    fn utilization(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let busy = 0.88 + 0.12 * self.noise(gpu, seconds, 1);
        f64::from(state.milli) / 10.0 * busy
    }

    fn power(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let Model { idle_power, power_limit, .. } = self.model;
        let waver = 1.0 + 0.04 * (self.noise(gpu, seconds, 2) - 0.5);
        let share = self.utilization(gpu, state, seconds) / 100.0;
        // A GPU that does anything at all leaves its idle state.
        let awake = if state.milli > 0 { 0.08 } else { 0.0 };
        let drawn = idle_power + (power_limit - idle_power) * (awake + 0.9 * share);
        (drawn * waver).min(power_limit)
    }

    /// It nears the temperature that its load will give it, fast at first.
    fn temperature(&self, gpu: &Device, state: &State, seconds: f64) -> f64 {
        let idle = 26.0 + f64::from(hash(self.seed, gpu.index, 0, 9) as u32 % 6);
        let load = f64::from(state.milli) / 1_000.0;
        let target = idle + HEAT * load.sqrt() * if state.milli > 0 { 0.95 } else { 0.0 };
        let passed = (seconds - state.since).max(0.0);
        target + (state.temperature.unwrap_or(idle) - target) * (-passed / INERTIA).exp()
    }

    /// Between 0 and 1, a smooth wave through a random value for every two seconds.
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
        Ok(self.sample_at(self.begun.elapsed().as_secs_f64()))
    }

    /// None: no process can be on a GPU that does not exist.
    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }

    fn pretend(&self, load: &[(String, u32, u64)]) {
        self.pretend_at(load, self.begun.elapsed().as_secs_f64());
    }
}

fn check(spec: &SimulatedSpec) -> Result<Model, GpuError> {
    let refuse = |words: String| Err(GpuError::Simulation(words));
    let name = spec.model.trim();
    if !(1..=MAX_GPUS).contains(&spec.count) {
        return refuse(format!(
            "{} simulated GPUs: between 1 and {MAX_GPUS} can be simulated",
            spec.count
        ));
    }
    let odd = name.chars().any(|c| c.is_control() || c == ',');
    if name.is_empty() || name.chars().count() > 100 || odd {
        return refuse(format!(
            "the model of simulated GPUs is a name of 1 to 100 characters without commas, such as {}",
            models::SOME
        ));
    }
    if let Some(memory) = spec.memory
        && !MEMORY.contains(&memory)
    {
        return refuse(format!(
            "{memory} MiB of memory for a simulated GPU: give MiB between {} and {}",
            MEMORY.start(),
            MEMORY.end()
        ));
    }
    match (models::find(name, spec.memory), spec.memory) {
        (Some(model), memory) => Ok(Model { memory: memory.unwrap_or(model.memory), ..model }),
        (None, Some(memory)) => Ok(models::unknown(memory)),
        (None, None) => refuse(format!(
            "the GPU model `{name}` is not known: say how many MiB of memory it has, or take a known one, such \
             as {}",
            models::SOME
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

/// A value that looks random and is the same for the same arguments (the finisher of `SplitMix64`).
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
