//! Energy of GPUs, and its division among the workloads that share a GPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::types::Sample;

/// A longer time between two observations is a gap of the program, not use.
const LONGEST_STEP: Duration = Duration::from_mins(2);

/// Use of one GPU by one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuUse<K> {
    pub workload: K,
    pub uuid: String,
    /// Percent of the time of the multiprocessors; none if the driver does not report it.
    pub utilization: Option<u32>,
    /// Thousandths of the GPU that the workload was granted.
    pub milli: u32,
}

/// Joules by workload and GPU since the workload was first observed.
#[derive(Debug)]
pub struct EnergyMeter<K> {
    last: Option<(Instant, BTreeMap<String, f64>)>,
    joules: BTreeMap<(K, String), f64>,
}

impl<K> Default for EnergyMeter<K> {
    fn default() -> Self {
        Self { last: None, joules: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> EnergyMeter<K> {
    /// Adds the energy since the previous call, and drops workloads without any use.
    ///
    /// The energy of a GPU is divided by use of the multiprocessors. While none is reported, the workloads get their
    /// granted shares of it, and the rest belongs to no workload.
    pub fn observe(
        &mut self,
        now: Instant,
        samples: &BTreeMap<String, Sample>,
        uses: &[GpuUse<K>],
    ) {
        let counters = samples.iter().filter_map(|(uuid, gpu)| Some((uuid.clone(), gpu.energy?)));
        let counters: BTreeMap<String, f64> = counters.collect();
        if let Some((before, earlier)) = self.last.take() {
            let step = now.saturating_duration_since(before).min(LONGEST_STEP).as_secs_f64();
            for (uuid, gpu) in samples {
                let counted = counters.get(uuid).zip(earlier.get(uuid));
                // A counter that fell was reset with the driver.
                let counted =
                    counted.map(|(after, before)| after - before).filter(|joules| *joules >= 0.0);
                let Some(joules) = counted.or_else(|| Some(gpu.power? * step)) else { continue };
                self.divide(uuid, joules, uses);
            }
        }
        self.joules.retain(|(workload, uuid), _| {
            uses.iter().any(|entry| entry.workload == *workload && entry.uuid == *uuid)
        });
        self.last = Some((now, counters));
    }

    pub fn joules(&self, workload: &K, uuid: &str) -> Option<f64> {
        self.joules.get(&(workload.clone(), uuid.to_owned())).copied()
    }

    fn divide(&mut self, uuid: &str, joules: f64, uses: &[GpuUse<K>]) {
        let here = || uses.iter().filter(|entry| entry.uuid == uuid);
        let busy: u64 = here().filter_map(|entry| entry.utilization).map(u64::from).sum();
        let granted: u64 = here().map(|entry| u64::from(entry.milli)).sum();
        for entry in here() {
            let share = if busy > 0 {
                f64::from(entry.utilization.unwrap_or(0)) / busy as f64
            } else {
                f64::from(entry.milli) / granted.max(1_000) as f64
            };
            let key = (entry.workload.clone(), uuid.to_owned());
            *self.joules.entry(key).or_default() += joules * share;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(power: f64, energy: Option<f64>) -> BTreeMap<String, Sample> {
        let sample =
            Sample { uuid: "GPU-a".into(), power: Some(power), energy, ..Sample::default() };
        [("GPU-a".to_owned(), sample)].into()
    }

    fn entry(workload: &'static str, utilization: Option<u32>, milli: u32) -> GpuUse<&'static str> {
        GpuUse { workload, uuid: "GPU-a".into(), utilization, milli }
    }

    /// Joules of `a` and `b` after ten seconds at 300 W.
    fn after_ten_seconds(
        uses: &[GpuUse<&'static str>],
        energy: [Option<f64>; 2],
    ) -> [Option<f64>; 2] {
        let (mut meter, start) = (EnergyMeter::default(), Instant::now());
        meter.observe(start, &gpu(300.0, energy[0]), uses);
        meter.observe(start + Duration::from_secs(10), &gpu(300.0, energy[1]), uses);
        ["a", "b"].map(|name| meter.joules(&name, "GPU-a"))
    }

    #[test]
    fn a_shared_gpu_is_divided_by_use_of_its_multiprocessors() {
        let uses = [entry("a", Some(60), 500), entry("b", Some(20), 500)];
        assert_eq!(after_ten_seconds(&uses, [None; 2]), [Some(2_250.0), Some(750.0)]);
    }

    #[test]
    fn idle_workloads_get_their_granted_shares_and_the_rest_belongs_to_none() {
        let uses = [entry("a", None, 500), entry("b", Some(0), 250)];
        assert_eq!(after_ten_seconds(&uses, [None; 2]), [Some(1_500.0), Some(750.0)]);
    }

    #[test]
    fn the_counter_of_the_driver_is_preferred_to_the_power_unless_it_was_reset() {
        let uses = [entry("a", Some(1), 1_000)];
        assert_eq!(after_ten_seconds(&uses, [Some(100.0), Some(350.0)])[0], Some(250.0));
        assert_eq!(after_ten_seconds(&uses, [Some(350.0), Some(1.0)])[0], Some(3_000.0));
    }

    #[test]
    fn an_ended_workload_is_dropped_and_a_gap_is_not_counted_whole() {
        let (mut meter, start) = (EnergyMeter::default(), Instant::now());
        let uses = [entry("a", None, 1_000)];
        meter.observe(start, &gpu(1.0, None), &uses);
        meter.observe(start + Duration::from_hours(10), &gpu(1.0, None), &uses);
        assert_eq!(meter.joules(&"a", "GPU-a"), Some(120.0));
        meter.observe(start + Duration::from_hours(11), &gpu(1.0, None), &[]);
        assert_eq!(meter.joules(&"a", "GPU-a"), None);
    }
}
