//! Savings: quota pledged to a pending workload that its queue cannot serve yet. Without savings, a stream of
//! small workloads could use up the quota of a large one forever.

use crate::model::name::WorkloadId;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

impl Scheduler {
    /// Pledges quota to a workload that its queue cannot serve yet, after the policy's patience, if limits
    /// and nodes could ever fit the workload. Only one workload saves from a limit, because two would block
    /// each other.
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

    pub(crate) fn stop_saving(&mut self, workload: WorkloadIdx) {
        if self.savers.remove(&workload) {
            self.queues.release_pledge(workload);
            self.retry_blocked = true;
        }
    }

    /// Releases the pledges of the workload and of the savers behind it until
    /// [`resume_savings`](Self::resume_savings).
    pub(crate) fn suspend_savings(&mut self, workload: WorkloadIdx) -> Vec<WorkloadIdx> {
        let is_after =
            |saver: &WorkloadIdx| *saver == workload || self.is_ahead_of(workload, *saver);
        let lifted: Vec<WorkloadIdx> = self.savers.iter().copied().filter(is_after).collect();
        for saver in &lifted {
            self.queues.release_pledge(*saver);
        }
        lifted
    }

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
