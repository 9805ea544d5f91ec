//! Why many workloads wait, as of one moment: one copy answers for all of them.

use rustc_hash::FxHashMap;

use crate::model::name::WorkloadId;
use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::state::pending::GroupIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadPhase;

/// Answers why workloads wait, as of the moment in which it was made. Workloads that ask for the same are tried once.
#[derive(Debug)]
pub struct WaitReasons {
    copy: Scheduler,
    known: FxHashMap<GroupIdx, Option<WaitReason>>,
}

impl Scheduler {
    /// Why each of many workloads waits, with the numbers of this moment. Changes nothing.
    pub fn wait_reasons(&self, now: Time) -> WaitReasons {
        let mut copy = self.clone();
        copy.advance(now);
        WaitReasons { copy, known: FxHashMap::default() }
    }
}

impl WaitReasons {
    /// Why it waits: what [`Scheduler::explain`] says, too. None when it does not, or would start in the next pass.
    pub fn of(&mut self, id: &WorkloadId) -> Option<WaitReason> {
        let workload = self.copy.workloads.find(id)?;
        let this = self.copy.workloads.get(workload);
        let alike = this.phase == WorkloadPhase::Pending
            && this.spec.gate.is_none()
            && this.not_before <= self.copy.now
            && self.copy.holds.reserved != Some(workload);
        let group = self.copy.pending.find(&self.copy.group_key(workload)).filter(|_| alike);
        if let Some(known) = group.and_then(|group| self.known.get(&group)) {
            return known.clone();
        }
        let reason = self.copy.current_reason(workload);
        // Asking lifts what is kept for it, and others are asked about after it.
        self.copy.resume_hold(workload);
        if let Some(group) = group {
            self.known.insert(group, reason.clone());
        }
        reason
    }
}
