//! Saving: quota that is kept for a workload whose queue cannot pay for it yet. After some patience nobody who comes
//! later spends it; otherwise a stream of small work could use up what large work waits for, for ever.

use crate::model::name::WorkloadId;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

impl Scheduler {
    /// Its queue cannot pay for it: from now on quota is kept for it, if it has waited long enough, could ever be
    /// paid for and ever fits. Two who save from the same limit would keep each other waiting: one of them does.
    pub(crate) fn start_saving(&mut self, workload: WorkloadIdx) {
        let (queue, charge) = (self.workloads.get(workload).queue, self.charge_of(workload));
        let due = self.workloads.get(workload).submitted.after(self.policy.patience);
        if due > self.now {
            self.timers.insert(due);
        } else if !self.queues.could_ever_fit_limits(&self.cluster, queue, &charge)
            || !self.fits_when_empty(workload)
        {
            self.stop_saving(workload);
        } else if self.savers.contains(&workload) || !self.queues.is_pledged(queue) {
            self.savers.insert(workload);
            self.queues.pledge(workload, queue, charge);
        }
    }

    /// Nothing is saved for it any more.
    pub(crate) fn stop_saving(&mut self, workload: WorkloadIdx) {
        if self.savers.remove(&workload) {
            self.queues.release_pledge(workload);
            self.retry_blocked = true;
        }
    }

    /// What is saved for it is its own to spend, and so is what is saved for those who come after it, until it is
    /// [returned](Self::return_savings).
    pub(crate) fn suspend_savings(&mut self, workload: WorkloadIdx) -> Vec<WorkloadIdx> {
        let is_after =
            |saver: &WorkloadIdx| *saver == workload || self.is_ahead_of(workload, *saver);
        let lifted: Vec<WorkloadIdx> = self.savers.iter().copied().filter(is_after).collect();
        for saver in &lifted {
            self.queues.release_pledge(*saver);
        }
        lifted
    }

    /// Who saves, oldest first.
    pub(crate) fn saver_names(&self) -> Vec<WorkloadId> {
        let mut savers: Vec<_> =
            self.savers.iter().map(|saver| self.workloads.get(*saver)).collect();
        savers.sort_unstable_by_key(|saver| saver.serial);
        savers.into_iter().map(|saver| saver.spec.id.clone()).collect()
    }

    pub(crate) fn resume_savings(&mut self, lifted: Vec<WorkloadIdx>) {
        for saver in lifted {
            if self.savers.contains(&saver) {
                let (queue, charge) = (self.workloads.get(saver).queue, self.charge_of(saver));
                self.queues.pledge(saver, queue, charge);
            }
        }
    }
}
