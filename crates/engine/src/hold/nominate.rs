//! Preemptions across driver restarts: nodes reported to the driver and restored from it.

use crate::hold::holds::HoldPurpose;
use crate::model::error::Rejected;
use crate::model::name::{GpuId, NodeId, WorkloadId};
use crate::state::cluster::room::DeviceClaim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

impl Scheduler {
    /// Nodes of the preemption hold of a workload, by task; empty without one.
    pub fn nominated_nodes(&self, workload: &WorkloadId) -> Vec<NodeId> {
        let hold = self.workloads.find(workload).and_then(|index| self.holds.get(index));
        let hold = hold.filter(|hold| matches!(hold.purpose, HoldPurpose::Preemption { .. }));
        let nodes = hold.into_iter().flat_map(|hold| &hold.planned);
        nodes.map(|(node, _)| self.cluster.node_state(*node).spec.id.clone()).collect()
    }

    /// GPUs booked by holds: node and thousandths.
    pub fn reserved_gpus(&self) -> Vec<(NodeId, i64)> {
        let booked = self.holds.iter().flat_map(|(_, hold)| hold.booked());
        let kept = booked.map(|(node, claim)| {
            let milli = claim.devices.iter().map(DeviceClaim::charge).sum();
            (self.cluster.node_state(*node).spec.id.clone(), milli)
        });
        kept.filter(|(_, milli)| *milli > 0).collect()
    }

    /// Reported or assumed GPUs of a task; empty when the task is not placed.
    pub fn assumed_gpus(&self, workload: &WorkloadId, task: u32) -> Vec<GpuId> {
        let index = self.workloads.find(workload).map(|index| self.workloads.get(index));
        let slot = index.and_then(|index| index.tasks.get(task as usize));
        let Some(allocation) = slot.and_then(|slot| slot.allocation.as_ref()) else {
            return Vec::new();
        };
        let gpus = &self.cluster.node_state(allocation.node).spec.gpus;
        let devices = allocation.claim.devices.iter();
        devices.filter_map(|part| Some(gpus.get(usize::from(part.device))?.id.clone())).collect()
    }

    /// Restores a preemption after a driver restart: reserves the room of the terminating tasks on these
    /// nodes again.
    pub(crate) fn nominate(
        &mut self,
        workload: &WorkloadId,
        nodes: &[NodeId],
    ) -> Result<(), Rejected> {
        let index = self.workload_index(workload)?;
        let victims = self.terminating_on(nodes);
        if !self.is_queued(index) || victims.is_empty() {
            return Err(Rejected::NotPlaced { workload: workload.clone(), task: 0 });
        }
        self.cluster.sort();
        self.suspend_hold(index);
        let Some(claims) = self.claims_without(index, &victims) else {
            self.resume_hold(index);
            return Err(Rejected::NotPlaced { workload: workload.clone(), task: 0 });
        };
        let until = self.hold_deadline(&victims);
        self.dequeue(index);
        self.workloads.get_mut(index).phase = WorkloadPhase::Preempting;
        self.timers.insert(until);
        let reason = self.preempting_reason(&victims, until);
        self.place_hold(index, HoldPurpose::Preemption { victims, until }, claims);
        // The previous driver may have stopped before it reported the reason.
        self.report_wait_reason_later(index, reason);
        Ok(())
    }

    /// Workloads with a terminating task on one of these nodes, oldest first.
    fn terminating_on(&self, nodes: &[NodeId]) -> Vec<WorkloadIdx> {
        let is_meant = |node: u32| nodes.contains(&self.cluster.node_state(node).spec.id);
        let leaves = self.workloads.iter().filter(|(_, workload)| {
            workload.allocations().any(|(_, allocation)| {
                allocation.terminating_since.is_some() && is_meant(allocation.node)
            })
        });
        let mut victims: Vec<WorkloadIdx> = leaves.map(|(index, _)| index).collect();
        victims.sort_unstable_by_key(|victim| self.workloads.get(*victim).serial);
        victims
    }
}
