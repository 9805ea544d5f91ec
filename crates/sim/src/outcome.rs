//! What a run found out.

use agentaflow_engine::WaitReason;
use serde::Serialize;

/// The result of one run: one strategy, one order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The strategy's name.
    pub strategy: String,
    /// The queue order's name.
    pub order: String,
    /// Thousandths of a GPU allocated: at the end of the packing experiment, at the peak of a replay.
    pub allocated_milli: i64,
    /// Thousandths of a GPU that the cluster has.
    pub capacity_milli: i64,
    /// Workloads that were never placed.
    pub dropped: u64,
    /// Decisions made: arrivals placed or dropped in the packing experiment, placements of tasks and
    /// preemptions in a replay.
    pub decisions: u64,
    /// Seconds of real time spent deciding, and on nothing else.
    pub seconds: f64,
    /// Workloads that were handed in.
    pub jobs: u64,
    /// Workloads that ran to their end.
    pub finished: u64,
    /// How often running work was stopped for other work.
    pub preemptions: u64,
    /// Allocated share of all GPUs: the time average of a replay, the final value of the experiment.
    pub allocation_percent: f64,
    /// Share of the idle GPUs that the typical demand cannot use, averaged likewise.
    pub fragmentation_percent: f64,
    /// From being handed in to the first start.
    pub wait_seconds: Stats,
    /// From being handed in to the end.
    pub completion_seconds: Stats,
    /// From the first arrival to the last end.
    pub makespan_seconds: f64,
    /// Who was never placed in a replay and why: each reason once, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropped_because: Vec<Dropped>,
    /// What was left when a replay was stopped before its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
    /// How the cluster filled and emptied; see [`Outcome::without_curve`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<Sample>,
}

impl Outcome {
    /// The same without its curve, which is then left out of JSON too.
    #[must_use]
    pub fn without_curve(mut self) -> Self {
        self.curve = Vec::new();
        self
    }

    /// Decisions a second of deciding; zero when nothing could be measured.
    pub fn decisions_per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.decisions as f64 / self.seconds } else { 0.0 }
    }
}

/// Reasons that an outcome keeps.
const REASONS: usize = 3;

/// Work that was never placed, for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// The first of it.
    pub workload: String,
    /// How many more there are.
    pub others: u64,
    /// What the scheduler said last.
    pub reason: WaitReason,
}

impl Dropped {
    /// Puts equal reasons together and keeps the first few.
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

/// Workloads that were left when a replay was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CutOff {
    /// Ran.
    pub running: u64,
    /// Waited, and could have been placed some time.
    pub waiting: u64,
    /// Had not been handed in.
    pub to_come: u64,
}

/// A distribution in three numbers; zeros when nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// The mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
}

impl Stats {
    /// Summarises values; quantiles are values that occurred (nearest rank).
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

/// The cluster at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Virtual seconds since the first arrival; in the packing experiment, arrived GPU demand in
    /// percent of the capacity.
    pub at_seconds: f64,
    /// Allocated share of all GPUs.
    pub allocated_percent: f64,
    /// Share of the idle GPUs that the typical demand cannot use.
    pub fragmentation_percent: f64,
    /// Workloads that run.
    pub running: u32,
    /// Workloads that wait.
    pub waiting: u32,
}

/// How far a run has come, in workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Done.
    pub done: u64,
    /// In all.
    pub total: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let stats = Stats::of((1..=100).map(f64::from).collect());
        assert_eq!(stats, Stats { mean: 50.5, p50: 50.0, p99: 99.0 });
        assert_eq!(Stats::of(vec![7.0]), Stats { mean: 7.0, p50: 7.0, p99: 7.0 });
        assert_eq!(Stats::of(Vec::new()), Stats::default());
    }
}
