//! Decisions of the part that decides, the error of its forecasts, and GPU time: the same series of servers and schedulers.

use std::time::Duration;

use crate::exposition::{Exposition, MetricType::Counter as CounterType};
use crate::values::{Counter, Histogram};

/// Upper bounds of waits, in seconds.
const WAITS: [f64; 12] =
    [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0];

/// Right by which a workload preempts another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionRight {
    Priority,
    /// The queue reclaims its guarantee.
    Reclaim,
}

#[derive(Debug)]
pub struct Decisions {
    placed: Counter,
    displaced: Counter,
    preempted_for_priority: Counter,
    preempted_for_quota: Counter,
    /// New pending reasons.
    waits: Vec<(&'static str, Counter)>,
    queue_waits: Histogram<{ WAITS.len() }>,
    eta_errors: Histogram<{ WAITS.len() }>,
    gpu_time: GpuTime,
}

/// In GPU milliseconds.
#[derive(Debug, Default)]
struct GpuTime {
    allocated: Counter,
    used: Counter,
}

impl Decisions {
    /// `reasons` are all pending reasons.
    pub fn new(reasons: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            placed: Counter::default(),
            displaced: Counter::default(),
            preempted_for_priority: Counter::default(),
            preempted_for_quota: Counter::default(),
            waits: reasons.into_iter().map(|reason| (reason, Counter::default())).collect(),
            queue_waits: Histogram::new(WAITS),
            eta_errors: Histogram::new(WAITS),
            gpu_time: GpuTime::default(),
        }
    }

    /// Counts a placed workload with its time in the queue.
    pub fn count_placement(&self, waited: Duration) {
        self.placed.inc();
        self.queue_waits.observe(waited);
    }

    /// Counts a workload that lost its node or GPU.
    pub fn count_displacement(&self) {
        self.displaced.inc();
    }

    pub fn count_preemption(&self, right: PreemptionRight) {
        match right {
            PreemptionRight::Priority => self.preempted_for_priority.inc(),
            PreemptionRight::Reclaim => self.preempted_for_quota.inc(),
        }
    }

    /// Counts a new pending reason; one that was not given to [`Decisions::new`] is ignored.
    pub fn count_wait(&self, reason: &str) {
        if let Some((_, counter)) = self.waits.iter().find(|(known, _)| *known == reason) {
            counter.inc();
        }
    }

    /// Records the difference between the first ETA that a caller was given, and the placement.
    pub fn observe_eta_error(&self, error: Duration) {
        self.eta_errors.observe(error);
    }

    /// Adds the time during which so many GPUs were allocated, and so many of them ran a kernel.
    pub fn add_gpu_time(&self, allocated: f64, used: f64, passed: Duration) {
        let milliseconds = passed.as_millis() as f64;
        self.gpu_time.allocated.add((allocated * milliseconds) as u64);
        self.gpu_time.used.add((used * milliseconds) as u64);
    }

    pub fn write(&self, text: &mut Exposition) {
        let decisions = [
            ("placed", "", self.placed.get()),
            ("displaced", "", self.displaced.get()),
            ("preempted", "priority", self.preempted_for_priority.get()),
            ("preempted", "reclaim", self.preempted_for_quota.get()),
        ];
        let waits = self.waits.iter().map(|(reason, count)| ("pending", *reason, count.get()));
        text.series(
            "agentaflow_decisions_total",
            CounterType,
            "Decisions by outcome and reason.",
            decisions.into_iter().chain(waits).map(|(outcome, reason, count)| {
                ([("outcome", outcome), ("reason", reason)], count)
            }),
        );
        let preemptions =
            decisions[2..].iter().map(|(_, reason, count)| ([("reason", *reason)], *count));
        let help = "Preempted workloads by the right of the preemptor.";
        text.series("agentaflow_preemptions_total", CounterType, help, preemptions);
        let help = "Time from the submission of a workload to its placement.";
        text.histogram("agentaflow_queue_wait_seconds", help, &self.queue_waits);
        let help = "Difference between the first ETA that a caller was given, and the placement.";
        text.histogram("agentaflow_eta_error_seconds", help, &self.eta_errors);
        let GpuTime { allocated, used } = &self.gpu_time;
        let help = "Allocated GPU time.";
        let seconds = allocated.get() / 1e3;
        text.value("agentaflow_gpu_allocated_seconds_total", CounterType, help, seconds);
        let help = "Allocated GPU time in which a kernel ran.";
        text.value("agentaflow_gpu_used_seconds_total", CounterType, help, used.get() / 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_decision_forecast_and_second_is_counted() {
        let decisions = Decisions::new(["NoRoom", "Quota"]);
        decisions.count_placement(Duration::from_secs(20));
        decisions.count_displacement();
        decisions.count_preemption(PreemptionRight::Reclaim);
        decisions.count_wait("Quota");
        decisions.count_wait("unknown");
        decisions.observe_eta_error(Duration::from_secs(90));
        decisions.add_gpu_time(2.5, 0.5, Duration::from_secs(4));
        let mut text = Exposition::default();
        decisions.write(&mut text);
        let text = text.into_text();
        for line in [
            "agentaflow_decisions_total{outcome=\"placed\",reason=\"\"} 1",
            "agentaflow_decisions_total{outcome=\"displaced\",reason=\"\"} 1",
            "agentaflow_decisions_total{outcome=\"preempted\",reason=\"priority\"} 0",
            "agentaflow_decisions_total{outcome=\"preempted\",reason=\"reclaim\"} 1",
            "agentaflow_decisions_total{outcome=\"pending\",reason=\"Quota\"} 1",
            "agentaflow_preemptions_total{reason=\"reclaim\"} 1",
            "agentaflow_queue_wait_seconds_sum 20",
            "agentaflow_eta_error_seconds_sum 90",
            "agentaflow_eta_error_seconds_bucket{le=\"60\"} 0",
            "agentaflow_gpu_allocated_seconds_total 10",
            "agentaflow_gpu_used_seconds_total 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("unknown"), "{text}");
    }
}
