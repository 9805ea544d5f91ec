//! Used GPU time and peak memory of tasks, kept over restarts of the agent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use agentaflow_api::job::GpuUsage;
use agentaflow_api::link::TaskKey;
use agentaflow_gpu::{GpuUse, Sample};

/// A longer time between two readings is a gap of the agent: nothing was measured in it.
const LONGEST_STEP: Duration = Duration::from_mins(2);
/// Time over which [`GpuUsage::busiest_minute`] is a mean.
const MINUTE_MS: f64 = 60_000.0;

/// Meters of all tasks.
#[derive(Debug, Default)]
pub(super) struct Meters {
    last: Option<Instant>,
    tasks: BTreeMap<TaskKey, TaskMeter>,
}

/// Use of GPUs by one task; content of a file in its folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TaskMeter {
    gpus: BTreeMap<String, GpuMeter>,
    /// Peak over all GPUs in MiB; none while processes cannot be seen.
    peak: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct GpuMeter {
    allocated_ms: f64,
    used_ms: f64,
    /// Peak in MiB.
    memory: u64,
    /// Percent.
    busiest: f64,
    minute: Minute,
}

/// The minute that is being measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Minute {
    ms: f64,
    used_ms: f64,
}

/// Readings of one tick. UUIDs name GPUs, not MIG slices.
pub(super) struct Readings<'a> {
    pub(super) uses: &'a [GpuUse<TaskKey>],
    pub(super) samples: &'a BTreeMap<String, Sample>,
    /// MiB by task and GPU; none if processes cannot be seen.
    pub(super) held: Option<&'a BTreeMap<(TaskKey, String), u64>>,
}

impl Meters {
    pub(super) fn observe(&mut self, readings: &Readings<'_>, now: Instant) {
        let step = self.last.replace(now).map(|last| now.saturating_duration_since(last));
        let step = step.filter(|step| *step <= LONGEST_STEP).map_or(0.0, |step| step.as_secs_f64());
        for entry in readings.uses {
            let Some(percent) = utilization(entry, readings) else { continue };
            let meter = self.tasks.entry(entry.workload).or_default();
            meter.gpus.entry(entry.uuid.clone()).or_default().add(
                step * 1_000.0,
                f64::from(entry.milli) / 1_000.0,
                percent,
            );
        }
        let Some(held) = readings.held else { return };
        let mut sums: BTreeMap<TaskKey, u64> = BTreeMap::new();
        for ((key, uuid), memory) in held {
            *sums.entry(*key).or_default() += memory;
            let meter = self.tasks.entry(*key).or_default();
            let gpu = meter.gpus.entry(uuid.clone()).or_default();
            gpu.memory = gpu.memory.max(*memory);
        }
        for entry in readings.uses {
            sums.entry(entry.workload).or_default();
        }
        for (key, sum) in sums {
            let peak = &mut self.tasks.entry(key).or_default().peak;
            *peak = Some(peak.unwrap_or(0).max(sum));
        }
    }

    pub(super) fn get(&self, key: TaskKey) -> Option<&TaskMeter> {
        self.tasks.get(&key)
    }

    /// Continues a meter of an earlier agent.
    pub(super) fn resume(&mut self, key: TaskKey, meter: TaskMeter) {
        self.tasks.entry(key).or_insert(meter);
    }

    pub(super) fn forget(&mut self, key: TaskKey) {
        self.tasks.remove(&key);
    }
}

/// Percent of a GPU that a workload uses. Without a reading for each process, the workloads with a grant divide the reading
/// of the device by their shares; then use by other programs counts in favour of the workloads.
fn utilization(entry: &GpuUse<TaskKey>, readings: &Readings<'_>) -> Option<f64> {
    let here = || readings.uses.iter().filter(|other| other.uuid == entry.uuid);
    if here().any(|other| other.utilization.is_some()) {
        return Some(f64::from(entry.utilization.unwrap_or(0)));
    }
    let device = readings.samples.get(&entry.uuid)?.utilization?;
    let granted: u32 = here().map(|other| other.milli).sum();
    Some(f64::from(device) * f64::from(entry.milli) / f64::from(granted.max(1)))
}

impl GpuMeter {
    /// `share` is the allocated part of the GPU.
    fn add(&mut self, ms: f64, share: f64, percent: f64) {
        let used = ms * percent / 100.0;
        self.allocated_ms += ms * share;
        self.used_ms += used;
        self.minute.ms += ms;
        self.minute.used_ms += used;
        if self.minute.ms >= MINUTE_MS {
            self.busiest = self.busiest.max(self.minute.percent());
            self.minute = Minute::default();
        }
    }

    /// Highest mean of a minute; of the whole time of a shorter task.
    fn busiest(&self) -> f64 {
        if self.busiest > 0.0 { self.busiest } else { self.minute.percent() }
    }
}

impl Minute {
    fn percent(self) -> f64 {
        if self.ms > 0.0 { (self.used_ms / self.ms * 1_000.0).round() / 10.0 } else { 0.0 }
    }
}

impl TaskMeter {
    pub(crate) fn peak(&self) -> Option<u64> {
        self.peak
    }

    /// None if nothing was measured.
    pub(crate) fn usage(&self) -> Option<GpuUsage> {
        let sum = |value: fn(&GpuMeter) -> f64| self.gpus.values().map(value).sum::<f64>();
        let allocated_ms = sum(|gpu| gpu.allocated_ms) as u64;
        let used = self.gpus.values().filter(|gpu| gpu.used_ms >= 1.0 || gpu.memory > 0);
        (allocated_ms > 0).then(|| GpuUsage {
            allocated_ms,
            used_ms: sum(|gpu| gpu.used_ms) as u64,
            gpus_used: used.count() as u32,
            memory_peak: self.peak.and_then(|_| self.gpus.values().map(|gpu| gpu.memory).max()),
            memory_peaks: self.peak.map(|_| self.gpus.values().map(|gpu| gpu.memory).sum()),
            busiest_minute: self.gpus.values().map(GpuMeter::busiest).fold(0.0, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::JobId;

    use super::*;

    fn key(job: i64) -> TaskKey {
        TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
    }

    fn entry(job: i64, uuid: &str, utilization: Option<u32>, milli: u32) -> GpuUse<TaskKey> {
        GpuUse { workload: key(job), uuid: uuid.into(), utilization, milli }
    }

    fn samples(utilization: u32) -> BTreeMap<String, Sample> {
        let sample = |uuid: &str| Sample {
            uuid: uuid.into(),
            utilization: Some(utilization),
            ..Sample::default()
        };
        ["a", "b"].map(|uuid| (uuid.to_owned(), sample(uuid))).into()
    }

    /// Meters after this number of seconds with the same readings.
    fn after(seconds: u64, readings: &Readings<'_>) -> Meters {
        let (mut meters, start) = (Meters::default(), Instant::now());
        (0..=seconds).for_each(|at| meters.observe(readings, start + Duration::from_secs(at)));
        meters
    }

    #[test]
    fn used_time_is_the_utilisation_of_the_processes_over_time() {
        let uses =
            [entry(1, "a", Some(30), 500), entry(2, "a", Some(60), 250), entry(3, "a", None, 250)];
        let meters = after(10, &Readings { uses: &uses, samples: &samples(90), held: None });
        let usage = |job| meters.get(key(job)).unwrap().usage().unwrap();
        assert_eq!((usage(1).allocated_ms, usage(1).used_ms), (5_000, 3_000));
        assert_eq!((usage(2).allocated_ms, usage(2).used_ms), (2_500, 6_000));
        assert_eq!((usage(3).allocated_ms, usage(3).used_ms, usage(3).gpus_used), (2_500, 0, 0));
    }

    #[test]
    fn without_readings_of_processes_the_grants_divide_the_reading_of_the_device() {
        let uses = [entry(1, "a", None, 500), entry(2, "a", None, 250), entry(2, "b", None, 1000)];
        let meters = after(10, &Readings { uses: &uses, samples: &samples(60), held: None });
        let usage = |job| meters.get(key(job)).unwrap().usage().unwrap();
        assert_eq!((usage(1).allocated_ms, usage(1).used_ms), (5_000, 4_000));
        assert_eq!((usage(2).allocated_ms, usage(2).used_ms), (12_500, 8_000));
        assert_eq!((usage(2).gpus_used, usage(2).memory_peak), (2, None));
    }

    #[test]
    fn a_gpu_without_any_reading_is_not_measured() {
        let uses = [entry(1, "a", None, 1000)];
        let meters = after(10, &Readings { uses: &uses, samples: &BTreeMap::new(), held: None });
        assert!(meters.get(key(1)).is_none());
    }

    #[test]
    fn the_busiest_minute_is_a_mean_and_idle_gpus_are_not_counted_as_used() {
        let start = Instant::now();
        let mut meters = Meters::default();
        let held = [((key(1), "a".to_owned()), 700)].into();
        for at in 0..=180 {
            let percent = if (61..=90).contains(&at) { 80 } else { 10 };
            let uses = [entry(1, "a", Some(percent), 1000), entry(1, "b", Some(0), 1000)];
            let readings = Readings { uses: &uses, samples: &samples(0), held: Some(&held) };
            meters.observe(&readings, start + Duration::from_secs(at));
        }
        let usage = meters.get(key(1)).unwrap().usage().unwrap();
        assert!((44.9..45.1).contains(&usage.busiest_minute), "{usage:?}");
        assert_eq!((usage.gpus_used, usage.memory_peak), (1, Some(700)));
        assert_eq!(usage.allocated_ms, 360_000);
    }

    #[test]
    fn a_gap_of_the_agent_is_not_measured_and_a_saved_meter_continues() {
        let uses = [entry(1, "a", Some(50), 1000)];
        let readings = Readings { uses: &uses, samples: &samples(0), held: None };
        let mut meters = after(10, &readings);
        let saved = serde_json::to_vec(meters.get(key(1)).unwrap()).unwrap();
        meters.observe(&readings, Instant::now() + Duration::from_hours(3));
        assert_eq!(meters.get(key(1)).unwrap().usage().unwrap().used_ms, 5_000);
        let mut next = Meters::default();
        next.resume(key(1), serde_json::from_slice(&saved).unwrap());
        let start = Instant::now();
        next.observe(&readings, start);
        next.observe(&readings, start + Duration::from_secs(2));
        assert_eq!(next.get(key(1)).unwrap().usage().unwrap().used_ms, 6_000);
    }
}
