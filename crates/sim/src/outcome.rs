//! Results of a run.

use agentaflow_engine::WaitReason;
use serde::Serialize;

/// Result of one run: one strategy, one order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    pub strategy: String,
    /// Name of the queue order.
    pub order: String,
    /// Allocated GPU thousandths: at the end of the packing experiment, at the peak of a replay.
    pub allocated_milli: i64,
    /// GPU thousandths of the cluster.
    pub capacity_milli: i64,
    /// Workloads never placed.
    pub dropped: u64,
    /// Decisions: arrivals placed or dropped in the packing experiment; placements and preemptions in a
    /// replay.
    pub decisions: u64,
    /// Real time of the decisions only, in seconds.
    pub seconds: f64,
    pub jobs: u64,
    pub finished: u64,
    /// Preemptions of running workloads.
    pub preemptions: u64,
    /// Allocated share of all GPUs: time average of a replay, final value of the experiment.
    pub allocation_percent: f64,
    /// Share of the idle GPUs that the typical demand cannot use, averaged likewise.
    pub fragmentation_percent: f64,
    /// From submission to first start.
    pub wait_seconds: Stats,
    /// From submission to completion.
    pub completion_seconds: Stats,
    /// From first arrival to last completion.
    pub makespan_seconds: f64,
    /// Workloads never placed in a replay, by reason; the first few reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped_because: Vec<Dropped>,
    /// Set when a replay was cut off before its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
    /// State over time; see [`Outcome::without_curve`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<Sample>,
}

impl Outcome {
    /// Removes the curve, also from JSON.
    #[must_use]
    pub fn without_curve(mut self) -> Self {
        self.curve = Vec::new();
        self
    }

    /// Decisions per second of decision time; zero when not measurable.
    pub fn decisions_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.decisions as f64 / self.seconds } else { 0.0 }
    }
}

/// Limit of reported reasons.
const REASONS: usize = 3;

/// Workloads never placed for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// The first workload.
    pub workload: String,
    /// Number of further workloads.
    pub others: u64,
    /// Last wait reason.
    pub reason: WaitReason,
}

impl Dropped {
    /// Groups equal reasons and keeps the first few.
    pub(crate) fn summary<'a>(
        dropped: impl Iterator<Item = (&'a str, &'a WaitReason)>,
    ) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for (workload, reason) in dropped {
            if let Some(known) = found.iter_mut().find(|known| known.reason == *reason) {
                known.others += 1;
            } else if found.len() < REASONS {
                let (workload, reason) = (workload.to_owned(), reason.clone());
                found.push(Self { workload, others: 0, reason });
            }
        }
        found
    }
}

/// Workloads left when a replay was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CutOff {
    pub running: u64,
    /// Pending, and placeable at some time.
    pub waiting: u64,
    /// Not submitted yet.
    pub to_come: u64,
}

/// A distribution in three numbers; zeros without values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    pub mean: f64,
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Stats {
    /// Quantiles are observed values (nearest rank).
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable_by(f64::total_cmp);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let rank = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values[rank.clamp(1, values.len()) - 1]
        };
        Self { mean, p50: rank(0.50), p99: rank(0.99) }
    }
}

/// State of the cluster at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Virtual seconds since the first arrival; in the packing experiment, arrived GPU demand in percent of
    /// the capacity.
    pub at_seconds: f64,
    /// Allocated share of all GPUs.
    pub allocated_percent: f64,
    /// Share of the idle GPUs that the typical demand cannot use.
    pub fragmentation_percent: f64,
    pub running: u32,
    pub waiting: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_observed_values() {
        let stats = Stats::of((1..=100).map(f64::from).collect());
        assert_eq!(stats, Stats { mean: 50.5, p50: 50.0, p99: 99.0 });
        assert_eq!(Stats::of(vec![7.0]), Stats { mean: 7.0, p50: 7.0, p99: 7.0 });
        assert_eq!(Stats::of(Vec::new()), Stats::default());
    }
}
