//! Preemptions that outlive the scheduler: where room is kept, told to the body and taken back from it.

use crate::hold::holds::Purpose;
use crate::model::error::Rejected;
use crate::model::name::{GpuId, NodeId, WorkloadId};
use crate::state::cluster::room::DeviceClaim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{JobIdx, State};

impl Scheduler {
    /// The nodes on which others are being stopped for a workload, by task; empty when nobody is.
    pub fn nominated_nodes(&self, workload: &WorkloadId) -> Vec<NodeId> {
        let hold = self.jobs.find(workload).and_then(|job| self.holds.get(job));
        let hold = hold.filter(|hold| matches!(hold.purpose, Purpose::Preemption { .. }));
        let nodes = hold.into_iter().flat_map(|hold| &hold.planned);
        nodes.map(|(node, _)| self.cluster.host(*node).spec.id.clone()).collect()
    }

    /// Where GPUs are kept free for work that waits, in thousandths of one.
    pub fn reserved_gpus(&self) -> Vec<(NodeId, i64)> {
        let booked = self.holds.iter().flat_map(|(_, hold)| hold.booked());
        let kept = booked.map(|(node, claim)| {
            let milli = claim.devices.iter().map(DeviceClaim::charge).sum();
            (self.cluster.host(*node).spec.id.clone(), milli)
        });
        kept.filter(|(_, milli)| *milli > 0).collect()
    }

    /// The GPUs that a task has, or is assumed to have where its node chooses them; empty when it has no place.
    pub fn assumed_gpus(&self, workload: &WorkloadId, task: u32) -> Vec<GpuId> {
        let job = self.jobs.find(workload).map(|job| self.jobs.get(job));
        let slot = job.and_then(|job| job.tasks.get(task as usize));
        let Some(seat) = slot.and_then(|slot| slot.seat.as_ref()) else { return Vec::new() };
        let gpus = &self.cluster.host(seat.node).spec.gpus;
        let devices = seat.claim.devices.iter();
        devices.filter_map(|part| Some(gpus.get(usize::from(part.device))?.id.clone())).collect()
    }

    /// Others were being stopped on these nodes for a waiting workload when the body last stopped: the room that they
    /// leave is kept for it again.
    pub(crate) fn nominate(
        &mut self,
        workload: &WorkloadId,
        nodes: &[NodeId],
    ) -> Result<(), Rejected> {
        let job = self.job_number(workload)?;
        let victims = self.leaving(nodes);
        if !self.is_queued(job) || victims.is_empty() {
            return Err(Rejected::NotPlaced { workload: workload.clone(), task: 0 });
        }
        self.cluster.sort();
        self.lift_hold(job);
        let Some(seats) = self.seats_without(job, &victims) else {
            self.take_hold(job);
            return Err(Rejected::NotPlaced { workload: workload.clone(), task: 0 });
        };
        let until = self.kept_until(&victims);
        self.dequeue(job);
        self.jobs.get_mut(job).state = State::Preempting;
        self.timers.insert(until);
        let reason = self.preempting(&victims, until);
        self.hold(job, Purpose::Preemption { victims, until }, seats);
        // The body may have stopped before anybody was told.
        self.tell_later(job, reason);
        Ok(())
    }

    /// Workloads of which something is being stopped on one of these nodes.
    fn leaving(&self, nodes: &[NodeId]) -> Vec<JobIdx> {
        let is_meant = |node: u32| nodes.contains(&self.cluster.host(node).spec.id);
        let leaves = self.jobs.iter().filter(|(_, job)| {
            job.seats().any(|(_, seat)| seat.leaving.is_some() && is_meant(seat.node))
        });
        let mut victims: Vec<JobIdx> = leaves.map(|(index, _)| index).collect();
        victims.sort_unstable_by_key(|victim| self.jobs.get(*victim).serial);
        victims
    }
}
