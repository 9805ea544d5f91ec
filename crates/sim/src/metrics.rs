//! Measurements during a replay.

use agentaflow_engine::{Placement, Request, Time, WorkloadId};

use crate::curve::Curve;
use crate::meter::{Meter, percent};
use crate::{Load, Outcome, Stats};

/// Counters, time sums and the curve.
#[derive(Debug)]
pub(crate) struct ReplayMetrics {
    meter: Meter,
    curve: Curve,
    first: Time,
    now: Time,
    sums: Sums,
    /// Sums at the last completion; later idle time does not count.
    measured: Sums,
    last_end: Time,
    peak: i64,
    waits: Vec<f64>,
    completions: Vec<f64>,
    running: u32,
    waiting: u32,
    preemptions: u64,
}

/// GPU thousandths times milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    allocated: f64,
    idle: f64,
    unusable: f64,
}

impl ReplayMetrics {
    pub(crate) fn new(load: &Load) -> Self {
        let demand =
            load.jobs.iter().map(|job| (&*job.workload.request, u64::from(job.workload.tasks)));
        let first = load.jobs.iter().map(|job| job.at).min().unwrap_or_default();
        Self {
            meter: Meter::new(&load.nodes, demand),
            curve: Curve::default(),
            first,
            now: first,
            sums: Sums::default(),
            measured: Sums::default(),
            last_end: first,
            peak: 0,
            waits: Vec::new(),
            completions: Vec::new(),
            running: 0,
            waiting: 0,
            preemptions: 0,
        }
    }

    pub(crate) fn finished(&self) -> u64 {
        self.completions.len() as u64
    }

    /// Advances the time sums.
    pub(crate) fn advance(&mut self, to: Time) {
        let span = to.since(self.now).0 as f64;
        self.sums.allocated += span * self.meter.allocated as f64;
        self.sums.idle += span * self.meter.idle() as f64;
        self.sums.unusable += span * self.meter.unusable();
        self.now = self.now.max(to);
        if self.running > 0 {
            self.measured = self.sums;
            self.last_end = self.now;
        }
    }

    /// Adds a sample to the curve.
    pub(crate) fn sample(&mut self) {
        self.curve.note(self.seconds_since(self.first), &self.meter, self.running, self.waiting);
    }

    pub(crate) fn arrived(&mut self) {
        self.waiting += 1;
    }

    pub(crate) fn place(&mut self, placement: &Placement, request: &Request) {
        self.meter.place(placement, request);
        self.peak = self.peak.max(self.meter.allocated);
    }

    /// All tasks of a workload are placed.
    pub(crate) fn started(&mut self, submitted: Time, first: bool) {
        self.running += 1;
        self.waiting = self.waiting.saturating_sub(1);
        if first {
            self.waits.push(self.seconds_since(submitted));
        }
    }

    pub(crate) fn stopped(&mut self, workload: &WorkloadId) {
        self.meter.leave(workload);
        self.running = self.running.saturating_sub(1);
        self.waiting += 1;
    }

    pub(crate) fn preempted(&mut self, workloads: u64) {
        self.preemptions += workloads;
    }

    pub(crate) fn finished_one(&mut self, workload: &WorkloadId, submitted: Time) {
        self.meter.leave(workload);
        self.running = self.running.saturating_sub(1);
        self.completions.push(self.seconds_since(submitted));
    }

    /// The measured part of the outcome; the caller fills in the rest.
    pub(crate) fn outcome(self) -> Outcome {
        let at = self.seconds_since(self.first);
        let makespan = self.last_end.since(self.first).0 as f64;
        Outcome {
            strategy: String::new(),
            order: String::new(),
            allocated_milli: self.peak,
            capacity_milli: self.meter.capacity,
            dropped: 0,
            decisions: 0,
            seconds: 0.0,
            jobs: 0,
            finished: self.finished(),
            preemptions: self.preemptions,
            allocation_percent: percent(
                self.measured.allocated,
                self.meter.capacity as f64 * makespan,
            ),
            fragmentation_percent: percent(self.measured.unusable, self.measured.idle),
            wait_seconds: Stats::of(self.waits),
            completion_seconds: Stats::of(self.completions),
            makespan_seconds: makespan / 1000.0,
            dropped_because: Vec::new(),
            cut_off: None,
            curve: self.curve.finish(at, &self.meter, self.running, self.waiting),
        }
    }

    fn seconds_since(&self, earlier: Time) -> f64 {
        self.now.since(earlier).0 as f64 / 1000.0
    }
}
