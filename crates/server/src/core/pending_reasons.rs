//! Pending reasons for lists of jobs: the ones that the last passes of the engine found.
//!
//! A list takes the core's lock for a few lookups per job and never for a trial or a copy of the engine, so that lists of
//! 100,000 jobs delay no heartbeat. The engine tries a blocked job again when room or quota is freed; the numbers in its
//! reason are of that time. `Core::explain` computes the current ones.

use std::sync::Arc;

use agentaflow_api::job::JobStatus;
use agentaflow_api::pending::PendingReason;
use agentaflow_engine::WaitReason;

use super::explain::pending_reason;
use super::handle::Core;
use super::job::workload::workload_id;
use crate::store::JobRow;

impl Core {
    /// Reasons of the pending jobs among these, in their order; none for a job that the next pass tries. `rows` is short.
    pub(super) fn pending_reasons(&self, rows: &[JobRow]) -> Vec<Option<PendingReason>> {
        let is_pending = |row: &JobRow| row.state.status == JobStatus::Pending;
        if !rows.iter().any(is_pending) {
            return vec![None; rows.len()];
        }
        let reasons: Vec<Option<Arc<WaitReason>>> = {
            let state = self.inner.lock();
            let engine = state.engine.scheduler();
            let last = |row: &JobRow| engine.last_reason(&workload_id(row.id));
            rows.iter().map(|row| is_pending(row).then(|| last(row)).flatten()).collect()
        };
        let shown = |(row, reason): (&JobRow, Option<Arc<WaitReason>>)| {
            reason.map(|reason| self.shown_reason(row, &reason))
        };
        rows.iter().zip(reasons).map(shown).collect()
    }

    fn shown_reason(&self, row: &JobRow, reason: &WaitReason) -> PendingReason {
        let context = self.inner.published.pending_context(row);
        pending_reason(reason, self.inner.clock.now(), &context)
    }
}
