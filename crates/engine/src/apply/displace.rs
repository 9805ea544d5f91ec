//! Lost nodes, failed GPUs, drains and refused placements, and the displacement of the affected workloads.

use std::sync::Arc;

use crate::model::decision::{Decision, Fault};
use crate::model::name::GpuId;
use crate::model::node::GpuHealth;
use crate::model::units::{Span, Time};
use crate::model::wait::WaitReason;
use crate::model::workload::OnFault;
use crate::state::cluster::{Change, NodeIdx, NodeState, Reachability};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

impl Scheduler {
    pub(crate) fn mark_node_lost(&mut self, node: NodeIdx) {
        self.cluster.node_state_mut(node).reach = Reachability::Lost;
        self.refresh_state(node);
        self.release_holds_on(node);
        let fault = Fault::NodeLost(self.cluster.node_state(node).spec.id.clone());
        for workload in self.jobs_on(node, |_| true) {
            self.displace(workload, &fault);
        }
    }

    /// Requeues every workload on the node, regardless of its `OnFault`, and removes the node.
    pub(crate) fn remove_node(&mut self, node: NodeIdx) {
        self.release_holds_on(node);
        self.release_places_on(node);
        let fault = Fault::NodeLost(self.cluster.node_state(node).spec.id.clone());
        self.cluster.node_state_mut(node).reach = Reachability::Lost;
        for workload in self.jobs_on(node, |_| true) {
            self.displace_now(workload, &fault);
        }
        let foreign: Vec<_> = self.cluster.node_state(node).foreign.keys().cloned().collect();
        for id in foreign {
            self.release_foreign_use(node, &id);
        }
        let avoiding: Vec<WorkloadIdx> = self
            .workloads
            .iter()
            .filter(|(_, workload)| workload.avoid == Some(node))
            .map(|(index, _)| index)
            .collect();
        for workload in avoiding {
            // The avoided node is part of the group key.
            let queued = self.is_queued(workload);
            if queued {
                self.dequeue(workload);
            }
            self.workloads.get_mut(workload).avoid = None;
            if queued {
                self.enqueue(workload);
            }
        }
        self.cluster.remove(node);
        self.retry_blocked = true;
    }

    pub(crate) fn drain(&mut self, node: NodeIdx, on: bool) {
        self.cluster.node_state_mut(node).draining = on;
        self.refresh_state(node);
        if on {
            self.release_holds_on(node);
            let fault = Fault::Draining(self.cluster.node_state(node).spec.id.clone());
            for workload in self.jobs_on(node, |_| true) {
                self.displace(workload, &fault);
            }
        }
    }

    pub(crate) fn reclaim_spot(&mut self, node: NodeIdx, at: Time) {
        self.cluster.node_state_mut(node).reclaimed = Some(at);
        self.refresh_state(node);
        self.release_holds_on(node);
        let fault = Fault::SpotReclaim { node: self.cluster.node_state(node).spec.id.clone(), at };
        for workload in self.jobs_on(node, |_| true) {
            self.displace(workload, &fault);
        }
    }

    pub(crate) fn set_health(&mut self, node: NodeIdx, gpu: &GpuId, health: GpuHealth) {
        self.cluster.node_state_mut(node).health.insert(gpu.clone(), health);
        self.refresh_state(node);
        if health != GpuHealth::Healthy {
            self.release_holds_on(node);
        }
        self.displace_from(node, gpu);
    }

    /// Displaces the workloads on a failed or draining GPU.
    pub(crate) fn displace_from(&mut self, node: NodeIdx, gpu: &GpuId) {
        let node_state = self.cluster.node_state(node);
        let Some(device) = node_state.device(gpu) else { return };
        let Some(fault) = fault_of(node_state, gpu) else { return };
        for workload in self.jobs_on(node, |part| usize::from(part) == device) {
            self.displace(workload, &fault);
        }
    }

    /// Displaces an adopted workload when its node or GPU is already lost, draining or failed.
    pub(crate) fn displace_if_due(&mut self, workload: WorkloadIdx) {
        let entry = self.workloads.get(workload);
        let fault = entry.allocations().find_map(|(task, allocation)| {
            if !entry.tasks[task as usize].is_occupied() {
                return None;
            }
            let node_state = self.cluster.node_state(allocation.node);
            let node = node_state.spec.id.clone();
            let mut parts = allocation.claim.devices.iter();
            if node_state.reach == Reachability::Lost {
                Some(Fault::NodeLost(node))
            } else if node_state.draining {
                Some(Fault::Draining(node))
            } else if let Some(at) = node_state.reclaimed {
                Some(Fault::SpotReclaim { node, at })
            } else {
                parts.find_map(|part| {
                    fault_of(node_state, &node_state.spec.gpus[usize::from(part.device)].id)
                })
            }
        });
        if let Some(fault) = fault {
            self.displace(workload, &fault);
        }
    }

    /// Updates the room after a change of the node's condition.
    pub(crate) fn refresh_state(&mut self, node: NodeIdx) {
        self.cluster.apply_state(node);
        self.cluster.touch(node, Change::Freed);
        self.release_closed_places(node);
        self.retry_blocked = true;
    }

    /// Workloads with a task on the node and a matching device; tasks without GPUs match `u16::MAX`.
    fn jobs_on(&self, node: NodeIdx, device: impl Fn(u16) -> bool) -> Vec<WorkloadIdx> {
        let mut workloads: Vec<(u64, WorkloadIdx)> = Vec::new();
        for on in &self.cluster.node_state(node).tasks {
            let workload = self.workloads.get(on.workload);
            let slot = &workload.tasks[on.task as usize];
            let allocation = slot.allocation.as_ref().filter(|_| slot.is_occupied());
            let devices = allocation.map(|allocation| &allocation.claim.devices);
            if devices.is_some_and(|parts| {
                parts.is_empty() && device(u16::MAX) || parts.iter().any(|p| device(p.device))
            }) {
                workloads.push((workload.serial, on.workload));
            }
        }
        workloads.sort_unstable();
        workloads.dedup();
        workloads.into_iter().map(|(_, workload)| workload).collect()
    }

    /// Requeues or keeps the workload according to its `OnFault`.
    pub(crate) fn displace(&mut self, workload: WorkloadIdx, fault: &Fault) {
        if self.workloads.get(workload).spec.on_fault == OnFault::Requeue {
            self.displace_now(workload, fault);
        } else if self.workloads.get(workload).phase == WorkloadPhase::Placed {
            self.queue_displacement(workload, fault, OnFault::Keep);
        }
    }

    fn displace_now(&mut self, workload: WorkloadIdx, fault: &Fault) {
        let was_placed = self.workloads.get(workload).phase == WorkloadPhase::Placed;
        if was_placed {
            self.stop_workload(workload);
            self.queue_displacement(workload, fault, OnFault::Requeue);
        }
        // Tasks on a lost node are released at once, because no event will report their end.
        let lost: Vec<u32> = self
            .workloads
            .get(workload)
            .allocations()
            .filter(|(_, allocation)| {
                self.cluster.node_state(allocation.node).reach == Reachability::Lost
            })
            .map(|(task, _)| task)
            .collect();
        for task in lost {
            self.release_task(workload, task);
        }
        self.requeue_when_stopped(workload);
    }

    fn queue_displacement(&mut self, index: WorkloadIdx, fault: &Fault, action: OnFault) {
        let workload = self.workloads.get(index).spec.id.clone();
        self.queued_decisions.push(Decision::Displace { workload, cause: fault.clone(), action });
    }

    /// Marks all tasks as terminating; they keep their bookings until they stop.
    pub(crate) fn stop_workload(&mut self, workload: WorkloadIdx) {
        self.unmark_placed(workload);
        self.release_places(workload);
        self.workloads.get_mut(workload).phase = WorkloadPhase::Stopping;
        for task in 0..self.workloads.get(workload).count() {
            self.mark_terminating(workload, task);
        }
    }

    /// Makes a workload pending again after its last terminating task stopped. The submission time stays.
    pub(crate) fn requeue_when_stopped(&mut self, index: WorkloadIdx) {
        let workload = self.workloads.get_mut(index);
        if workload.phase != WorkloadPhase::Stopping || workload.allocations().next().is_some() {
            return;
        }
        workload.phase = WorkloadPhase::Pending;
        workload.reported_class = None;
        for slot in &mut workload.tasks {
            slot.finished = false;
        }
        let (gated, later) = (workload.spec.gate.is_some(), workload.not_before > self.now);
        if !later {
            workload.not_before = Time(0);
        }
        self.holds.remove_victim(index);
        self.retry_blocked = true;
        if later {
            self.back_off(index);
        }
        if gated {
            self.report_gate(index);
        } else if !later {
            self.enqueue(index);
        }
    }

    /// Releases a refused task and schedules a retry with exponential backoff, on another node if possible.
    /// The rest of the gang is stopped.
    pub(crate) fn refuse_placement(&mut self, index: WorkloadIdx, task: u32) {
        let slot = &self.workloads.get(index).tasks[task as usize];
        let node = slot.allocation.as_ref().map(|allocation| allocation.node);
        let is_replacement = slot.lost.is_some();
        let workload = self.workloads.get_mut(index);
        workload.refusals += 1;
        workload.avoid = node;
        let doublings = workload.refusals.min(32) - 1;
        let wait =
            self.policy.backoff.0.saturating_mul(1 << doublings).min(self.policy.max_backoff.0);
        let not_before = self.now.after(Span(wait));
        if is_replacement {
            self.refuse_replacement(index, task, not_before);
            return;
        }
        workload.not_before = not_before;
        self.release_task(index, task);
        self.retry_blocked = true;
        if self.workloads.get(index).phase == WorkloadPhase::Placed {
            self.stop_workload(index);
            self.notify_gang_broken(index, task);
        }
        self.requeue_when_stopped(index);
    }

    /// Asks the driver to stop the rest of the gang.
    pub(crate) fn notify_gang_broken(&mut self, workload: WorkloadIdx, task: u32) {
        if self.workloads.get(workload).allocations().next().is_some() {
            self.queue_displacement(workload, &Fault::GangBroken { task }, OnFault::Requeue);
        }
    }

    /// Keeps the workload outside its queue until the backoff ends.
    fn back_off(&mut self, index: WorkloadIdx) {
        let workload = self.workloads.get(index);
        let (until, refusals) = (workload.not_before, workload.refusals);
        self.backoffs.insert((until, index));
        self.report_wait_reason_later(index, WaitReason::BackingOff { until, refusals });
    }

    /// Adds a wait reason to the next plan.
    pub(crate) fn report_wait_reason_later(&mut self, index: WorkloadIdx, reason: WaitReason) {
        let mut queued_decisions = std::mem::take(&mut self.queued_decisions);
        self.report_wait_reason(index, &Arc::new(reason), &mut queued_decisions);
        self.queued_decisions = queued_decisions;
    }

    pub(crate) fn report_gate(&mut self, index: WorkloadIdx) {
        if let Some(gate) = self.workloads.get(index).spec.gate.clone() {
            self.report_wait_reason_later(index, WaitReason::Gated(gate));
        }
    }
}

/// Fault of workloads on this GPU; `None` when they may stay.
fn fault_of(node_state: &NodeState, gpu: &GpuId) -> Option<Fault> {
    let (node, gpu) = (node_state.spec.id.clone(), gpu.clone());
    match node_state.health.get(&gpu)? {
        GpuHealth::Healthy | GpuHealth::Cordoned | GpuHealth::Degraded => None,
        GpuHealth::Draining => Some(Fault::GpuDraining { node, gpu }),
        GpuHealth::Failed => Some(Fault::GpuFailed { node, gpu }),
    }
}
