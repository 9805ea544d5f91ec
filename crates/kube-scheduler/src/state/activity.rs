//! Facts for counters and histograms.

use agentaflow_api::pending::PendingCode;
use agentaflow_engine::{PreemptionReason, Time};
use std::time::Duration;

/// Activity since the last [`super::ClusterState::take_activity`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Times from submission to placement of workloads.
    pub queue_waits: Vec<Duration>,
    /// Differences between the first ETA that a caller was given, and the placement.
    pub eta_errors: Vec<Duration>,
    /// New pending reasons.
    pub waits: Vec<PendingCode>,
    /// Workloads that lost a node or a GPU.
    pub displacements: u64,
    /// Preempted workloads.
    pub preemptions: Vec<PreemptionReason>,
    /// Pods of this scheduler that a kubelet rejected.
    pub kubelet_rejections: u64,
}

impl Activity {
    /// `eta` is the first ETA that a caller was given.
    pub(super) fn placed(&mut self, submitted: Time, eta: Option<Time>, now: Time) {
        self.queue_waits.push(Duration::from_millis(now.0.saturating_sub(submitted.0)));
        self.eta_errors.extend(eta.map(|eta| Duration::from_millis(now.0.abs_diff(eta.0))));
    }
}
