//! Facts for counters and histograms. They start at zero with the server, as counters of Prometheus may.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agentaflow_api::ids::{JobId, MicroUsd};
use agentaflow_api::job::JobStatus;
use agentaflow_api::pending::PendingCode;
use agentaflow_api::units::Stamp;
use agentaflow_engine::PreemptionReason;
use agentaflow_metrics::{Counter, Decisions, Histogram, HistogramFamily, PreemptionRight};

/// Upper bounds in seconds.
pub(crate) const PASS_BUCKETS: [f64; 12] =
    [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0];
pub(crate) const COMMIT_BUCKETS: [f64; 10] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5];
pub(crate) const REQUEST_BUCKETS: [f64; 9] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Pending jobs whose given ETA is remembered.
const MOST_ETAS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Activity {
    pub(crate) passes: Histogram<{ PASS_BUCKETS.len() }>,
    pub(crate) decisions: Decisions,
    pub(crate) commits: Histogram<{ COMMIT_BUCKETS.len() }>,
    pub(crate) failed_commits: Counter,
    /// By route, method and class of the status.
    pub(crate) requests: HistogramFamily<3, { REQUEST_BUCKETS.len() }>,
    pub(crate) completed: Counter,
    pub(crate) failed: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) billed: Counter,
    /// Time at which the committer last began a turn, in milliseconds since 1970.
    last_turn: AtomicI64,
    etas: Mutex<BTreeMap<JobId, Stamp>>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            passes: Histogram::new(PASS_BUCKETS),
            decisions: Decisions::new(PendingCode::ALL.iter().map(|code| code.as_str())),
            commits: Histogram::new(COMMIT_BUCKETS),
            failed_commits: Counter::default(),
            requests: HistogramFamily::new(REQUEST_BUCKETS),
            completed: Counter::default(),
            failed: Counter::default(),
            cancelled: Counter::default(),
            billed: Counter::default(),
            last_turn: AtomicI64::new(0),
            etas: Mutex::default(),
        }
    }
}

impl Activity {
    pub(crate) fn count_preemption(&self, reason: PreemptionReason) {
        self.decisions.count_preemption(match reason {
            PreemptionReason::Priority => PreemptionRight::Priority,
            PreemptionReason::Reclaim => PreemptionRight::Reclaim,
        });
    }

    pub(crate) fn count_end(&self, status: JobStatus) {
        match status {
            JobStatus::Completed => self.completed.inc(),
            JobStatus::Failed => self.failed.inc(),
            JobStatus::Cancelled => self.cancelled.inc(),
            JobStatus::Pending | JobStatus::Scheduled | JobStatus::Running => {}
        }
    }

    pub(crate) fn count_cost(&self, cost: MicroUsd) {
        self.billed.add(cost.0.max(0) as u64);
    }

    pub(crate) fn record_turn(&self, now: Stamp) {
        self.last_turn.store(now.0, Ordering::Relaxed);
    }

    /// Time at which the committer last began a turn; none before the first one.
    pub(crate) fn last_turn(&self) -> Option<Stamp> {
        Some(Stamp(self.last_turn.load(Ordering::Relaxed))).filter(|turn| turn.0 > 0)
    }

    /// Keeps the first ETA sent to a caller.
    pub(crate) fn record_eta(&self, job: JobId, eta: Stamp) {
        let mut etas = self.etas.lock().unwrap_or_else(PoisonError::into_inner);
        if etas.len() < MOST_ETAS {
            etas.entry(job).or_insert(eta);
        }
    }

    /// Records the placement of a job that was created at `created`.
    pub(crate) fn record_placement(&self, job: JobId, created: Stamp, now: Stamp) {
        self.decisions.count_placement(between(created, now));
        let eta = self.etas.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
        if let Some(eta) = eta {
            self.decisions.observe_eta_error(between(eta.min(now), eta.max(now)));
        }
    }

    /// Forgets the ETA of a job that ended without a placement.
    pub(crate) fn forget_eta(&self, job: JobId) {
        self.etas.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
    }
}

fn between(earlier: Stamp, later: Stamp) -> Duration {
    Duration::from_millis(u64::try_from(later.0 - earlier.0).unwrap_or(0))
}
