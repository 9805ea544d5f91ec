//! Wait reasons of many workloads at one moment, from one copy of the scheduler.

use rustc_hash::FxHashMap;

use crate::model::name::WorkloadId;
use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::state::pending::GroupIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadPhase;

/// Computes wait reasons on a copy of the scheduler; one trial per group.
#[derive(Debug)]
pub struct WaitReasons {
    copy: Scheduler,
    known: FxHashMap<GroupIdx, Option<WaitReason>>,
}

impl Scheduler {
    /// Prepares wait reasons of many workloads. Changes nothing.
    pub fn wait_reasons(&self, now: Time) -> WaitReasons {
        let mut copy = self.clone();
        copy.advance(now);
        WaitReasons { copy, known: FxHashMap::default() }
    }
}

impl WaitReasons {
    /// The same reason as [`Scheduler::explain`]; `None` when the workload is placed, or would start in the
    /// next pass.
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
        // The trial suspends the workload's hold; restore it for the next one.
        self.copy.resume_hold(workload);
        if let Some(group) = group {
            self.known.insert(group, reason.clone());
        }
        reason
    }
}
