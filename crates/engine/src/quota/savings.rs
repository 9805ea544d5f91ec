//! Saving: quota that is kept for a workload whose queue cannot pay for it yet. After some patience nobody who comes
//! later spends it; otherwise a stream of small work could use up what large work waits for, for ever.

use crate::model::name::WorkloadId;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::JobIdx;

impl Scheduler {
    /// Its queue cannot pay for it: from now on quota is kept for it, if it has waited long enough, could ever be
    /// paid for and ever fits. Two who save from the same limit would keep each other waiting: one of them does.
    pub(crate) fn save_for(&mut self, job: JobIdx) {
        let (queue, charge) = (self.jobs.get(job).queue, self.charge_of(job));
        let due = self.jobs.get(job).submitted.after(self.policy.patience);
        if due > self.now {
            self.timers.insert(due);
        } else if !self.queues.could_pay(&self.cluster, queue, &charge) || !self.ever_fits(job) {
            self.forget_savings(job);
        } else if self.savers.contains(&job) || !self.queues.is_pledged(queue) {
            self.savers.insert(job);
            self.queues.pledge(job, queue, charge);
        }
    }

    /// Nothing is saved for it any more.
    pub(crate) fn forget_savings(&mut self, job: JobIdx) {
        if self.savers.remove(&job) {
            self.queues.release_pledge(job);
            self.improved = true;
        }
    }

    /// What is saved for it is its own to spend, and so is what is saved for those who come after it, until it is
    /// [returned](Self::return_savings).
    pub(crate) fn lift_savings(&mut self, job: JobIdx) -> Vec<JobIdx> {
        let is_after = |saver: &JobIdx| *saver == job || self.comes_before(job, *saver);
        let lifted: Vec<JobIdx> = self.savers.iter().copied().filter(is_after).collect();
        for saver in &lifted {
            self.queues.release_pledge(*saver);
        }
        lifted
    }

    /// Who saves, oldest first.
    pub(crate) fn saver_names(&self) -> Vec<WorkloadId> {
        let mut savers: Vec<_> = self.savers.iter().map(|saver| self.jobs.get(*saver)).collect();
        savers.sort_unstable_by_key(|saver| saver.serial);
        savers.into_iter().map(|saver| saver.spec.id.clone()).collect()
    }

    pub(crate) fn return_savings(&mut self, lifted: Vec<JobIdx>) {
        for saver in lifted {
            if self.savers.contains(&saver) {
                let (queue, charge) = (self.jobs.get(saver).queue, self.charge_of(saver));
                self.queues.pledge(saver, queue, charge);
            }
        }
    }
}
