//! Facts for counters and histograms.

use agentaflow_engine::{PreemptionReason, Time};
use std::time::Duration;

/// Activity since the last [`super::ClusterState::take_activity`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Times from submission to placement of workloads.
    pub queue_waits: Vec<Duration>,
    /// Preempted workloads.
    pub preemptions: Vec<PreemptionReason>,
    /// Pods of this scheduler that a kubelet rejected.
    pub kubelet_rejections: u64,
}

impl Activity {
    pub(super) fn placed(&mut self, submitted: Time, now: Time) {
        self.queue_waits.push(Duration::from_millis(now.0.saturating_sub(submitted.0)));
    }
}
