//! Wait reasons that the last passes found, without a trial.

use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::name::WorkloadId;
use crate::model::wait::WaitReason;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadPhase;

impl Scheduler {
    /// Wait reason of a pending workload, with the numbers of the last pass that tried it: a constant number of lookups.
    /// [`Scheduler::explain`] computes the current numbers. `None` when the workload is placed, or the next pass tries it.
    pub fn last_reason(&self, id: &WorkloadId) -> Option<Arc<WaitReason>> {
        let workload = self.workloads.find(id)?;
        let this = self.workloads.get(workload);
        match this.phase {
            WorkloadPhase::Placed | WorkloadPhase::Stopping => return None,
            WorkloadPhase::Preempting => {
                let HoldPurpose::Preemption { victims, until } = &self.holds.get(workload)?.purpose
                else {
                    return None;
                };
                return Some(Arc::new(self.preempting_reason(victims, *until)));
            }
            WorkloadPhase::Pending => {}
        }
        if let Some(gate) = &this.spec.gate {
            return Some(Arc::new(WaitReason::Gated(gate.clone())));
        }
        if this.not_before > self.now {
            let (until, refusals) = (this.not_before, this.refusals);
            return Some(Arc::new(WaitReason::BackingOff { until, refusals }));
        }
        let group = self.pending.find(&self.group_key(workload))?;
        self.pending.group(group).blocked.clone()
    }
}
