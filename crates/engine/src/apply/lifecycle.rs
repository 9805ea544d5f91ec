//! Changes of a workload after its submission: gate, end of tasks, requeue.

use std::sync::Arc;

use crate::model::workload::Gate;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

impl Scheduler {
    pub(crate) fn set_gate(&mut self, workload: WorkloadIdx, gate: Option<Gate>) {
        let closes = gate.is_some();
        if closes && self.workloads.get(workload).phase == WorkloadPhase::Preempting {
            self.release_hold_and_requeue(workload);
        }
        let waiting = self.workloads.get(workload).phase == WorkloadPhase::Pending;
        if closes && self.is_queued(workload) {
            self.dequeue(workload);
            if self.holds.reserved == Some(workload) {
                self.release_hold(workload);
            }
        }
        let was_gated = self.workloads.get(workload).spec.gate.is_some();
        Arc::make_mut(&mut self.workloads.get_mut(workload).spec).gate = gate;
        if closes && waiting {
            self.report_gate(workload);
        } else if was_gated && waiting && !self.is_backing_off(workload) {
            self.enqueue(workload);
        }
    }

    /// The workload is in its queue: neither gated nor backing off.
    pub(crate) fn is_queued(&self, workload: WorkloadIdx) -> bool {
        let waits = self.workloads.get(workload).phase == WorkloadPhase::Pending
            && self.workloads.get(workload).spec.gate.is_none();
        waits && !self.is_backing_off(workload)
    }

    fn is_backing_off(&self, workload: WorkloadIdx) -> bool {
        self.backoffs.contains(&(self.workloads.get(workload).not_before, workload))
    }

    /// Removes a workload in any phase and releases its tasks.
    pub(crate) fn finish(&mut self, workload: WorkloadIdx) {
        self.withdraw(workload);
        self.release_hold(workload);
        for task in 0..self.workloads.get(workload).count() {
            self.retry_blocked |= self.release_task(workload, task).is_some();
        }
        self.holds.remove_victim(workload);
        self.remove_workload(workload);
    }

    /// Removes a workload from its queue, its backoff, or the placed workloads.
    pub(crate) fn withdraw(&mut self, workload: WorkloadIdx) {
        match self.workloads.get(workload).phase {
            WorkloadPhase::Pending => {
                let not_before = self.workloads.get(workload).not_before;
                if !self.backoffs.remove(&(not_before, workload))
                    && self.workloads.get(workload).spec.gate.is_none()
                {
                    self.dequeue(workload);
                }
            }
            WorkloadPhase::Placed => self.unmark_placed(workload),
            WorkloadPhase::Preempting | WorkloadPhase::Stopping => {}
        }
    }

    pub(crate) fn finish_task(&mut self, workload: WorkloadIdx, task: u32) {
        self.release_task(workload, task);
        self.retry_blocked = true;
        self.forget_loss(workload, task);
        let slots = &mut self.workloads.get_mut(workload).tasks;
        slots[task as usize].finished = true;
        if slots.iter().all(|slot| slot.finished) {
            self.finish(workload);
        } else {
            self.requeue_when_stopped(workload);
        }
    }

    pub(crate) fn confirm_placement(&mut self, index: WorkloadIdx, task: u32) {
        self.forget_loss(index, task);
        let workload = self.workloads.get_mut(index);
        if let Some(allocation) = workload.tasks[task as usize].allocation.as_mut() {
            allocation.confirmed = true;
        }
        if workload.allocations().all(|(_, allocation)| allocation.confirmed) {
            workload.refusals = 0;
            workload.avoid = None;
        }
    }

    pub(crate) fn requeue(&mut self, workload: WorkloadIdx) {
        if self.workloads.get(workload).phase == WorkloadPhase::Placed {
            self.stop_workload(workload);
        }
        for task in 0..self.workloads.get(workload).count() {
            self.release_task(workload, task);
        }
        self.requeue_when_stopped(workload);
    }

    /// A task stopped. Without a preceding stop decision the gang is broken.
    pub(crate) fn task_stopped(&mut self, workload: WorkloadIdx, task: u32) {
        self.release_task(workload, task);
        self.retry_blocked = true;
        if self.workloads.get(workload).phase == WorkloadPhase::Placed {
            self.stop_workload(workload);
            self.notify_gang_broken(workload, task);
        }
        self.requeue_when_stopped(workload);
    }
}
