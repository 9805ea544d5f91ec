//! Restores a scheduler from a snapshot.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::decision::{GpuAllocation, GpuShare};
use crate::model::error::Rejected;
use crate::model::name::WorkloadId;
use crate::model::units::Time;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::shape::ShapeIdx;
use crate::state::cluster::{NodeIdx, Reachability};
use crate::state::scheduler::Scheduler;
use crate::state::snapshot::records::{
    HoldSnapshot, LostTaskSnapshot, NodeSnapshot, QueueSnapshot, Snapshot, TaskSnapshot,
    WorkloadSnapshot,
};
use crate::state::workloads::{LostTask, TaskAllocation, WorkloadIdx, WorkloadPhase};

impl Scheduler {
    /// Restores a scheduler. Live placements stay as they are.
    pub fn restore(snapshot: Snapshot) -> Result<Self, Rejected> {
        let mut scheduler = Self::new(snapshot.policy);
        scheduler.now = snapshot.now;
        for model in &snapshot.vocabulary.0 {
            scheduler.cluster.model(model);
        }
        for resource in &snapshot.vocabulary.1 {
            scheduler.cluster.resource(resource);
        }
        scheduler.restore_queues(&snapshot.queues)?;
        for facts in snapshot.nodes {
            scheduler.restore_node(facts)?;
        }
        scheduler.cluster.sort();
        for facts in snapshot.workloads {
            scheduler.restore_workload(facts)?;
        }
        for node in scheduler.cluster.ordered() {
            scheduler.complete_allocations(node, false);
        }
        for facts in &snapshot.queues {
            scheduler.restore_past_usage(facts);
        }
        for facts in &snapshot.holds {
            scheduler.restore_hold(facts)?;
        }
        for workload in &snapshot.savers {
            let index = scheduler.workload_index(workload)?;
            if !scheduler.is_queued(index) {
                return Err(inconsistent("saving workload", workload));
            }
            scheduler.savers.insert(index);
            scheduler.resume_savings(vec![index]);
        }
        for (workload, reason) in snapshot.blocked_groups {
            let index = scheduler.workload_index(&workload)?;
            let group = scheduler.pending.find(&scheduler.group_key(index));
            let group = group.ok_or_else(|| inconsistent("blocked workload", &workload))?;
            // All members count as unreported; the class of their last report prevents duplicates.
            scheduler.pending.block(group, reason, &mut scheduler.queues);
        }
        scheduler.budgets = snapshot.budgets;
        for (id, demand) in snapshot.foreign_demand {
            scheduler.set_foreign_demand(id, Some(demand))?;
        }
        scheduler.cursor = snapshot.cursor;
        scheduler.expectation.restore(snapshot.demand, &scheduler.cluster, &mut scheduler.scoring);
        scheduler.timers = snapshot.timers;
        scheduler.queued_decisions = snapshot.queued_decisions;
        scheduler.retry_blocked = snapshot.retry_blocked;
        Ok(scheduler)
    }

    fn restore_queues(&mut self, queues: &[QueueSnapshot]) -> Result<(), Rejected> {
        for facts in queues {
            facts.queue.validate()?;
            let id = facts.queue.id.clone();
            self.queues
                .set(facts.queue.clone())
                .map_err(|why| Rejected::Queue { queue: id, why })?;
        }
        Ok(())
    }

    fn restore_past_usage(&mut self, facts: &QueueSnapshot) {
        if let Some(queue) = self.queues.find(&facts.queue.id) {
            let state = self.queues.get_mut(queue);
            for (account, at) in [(&mut state.own, 0), (&mut state.total, 1)] {
                account.past = facts.past[at].map(|bits| f64::from_bits(bits).clamp(0.0, f64::MAX));
                account.as_of = facts.as_of[at];
            }
        }
    }

    fn restore_node(&mut self, facts: NodeSnapshot) -> Result<(), Rejected> {
        facts.node.validate()?;
        if self.cluster.find_node(&facts.node.id).is_some() {
            return Err(Rejected::Snapshot(format!("node `{}` appears twice", facts.node.id)));
        }
        let node = self.cluster.add(&Arc::new(facts.node));
        let node_state = self.cluster.node_state_mut(node);
        node_state.reach = if facts.lost { Reachability::Lost } else { Reachability::Up };
        node_state.cordoned = facts.cordoned;
        node_state.draining = facts.draining;
        node_state.reclaimed = facts.reclaimed;
        node_state.health = facts.health;
        node_state.utilization = facts.utilization;
        for (id, (uses, assumed)) in facts.foreign {
            uses.validate()?;
            self.book_foreign_use(node, id, uses, &assumed);
        }
        self.refresh_state(node);
        Ok(())
    }

    fn restore_workload(&mut self, facts: WorkloadSnapshot) -> Result<(), Rejected> {
        let WorkloadSnapshot { workload, phase, placed_at, tasks: claims, finished, .. } = facts;
        workload.validate()?;
        let id = workload.id.clone();
        if self.workloads.find(&id).is_some() {
            return Err(Rejected::DuplicateWorkload(id));
        }
        self.queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        let avoid = facts.avoid.as_ref().and_then(|node| self.cluster.find_node(node));
        self.learn_from(&workload);
        let index = self.insert_workload(Box::new(workload));
        let entry = self.workloads.get_mut(index);
        entry.refusals = facts.refusals;
        entry.not_before = facts.not_before;
        entry.avoid = avoid;
        entry.reported_class = facts.reported_class;
        for task in finished {
            let slot = entry
                .tasks
                .get_mut(task as usize)
                .ok_or_else(|| inconsistent("finished task of", &id))?;
            slot.finished = true;
        }
        for allocation in claims {
            self.restore_task(index, &allocation)?;
        }
        self.enter_phase(index, phase, placed_at);
        for LostTaskSnapshot { task, until, replacement, reported } in facts.lost {
            let slot = self.workloads.get_mut(index).tasks.get_mut(task as usize);
            let slot = slot.filter(|slot| phase == WorkloadPhase::Placed && !slot.finished);
            let slot = slot.ok_or_else(|| inconsistent("lost task of", &id))?;
            slot.lost = Some(Box::new(LostTask { until, replacement, reported }));
            self.incomplete.insert(index);
        }
        Ok(())
    }

    pub(crate) fn enter_phase(
        &mut self,
        index: WorkloadIdx,
        phase: WorkloadPhase,
        placed_at: Time,
    ) {
        let reported_class = self.workloads.get(index).reported_class;
        match phase {
            WorkloadPhase::Placed | WorkloadPhase::Stopping => {
                let now = std::mem::replace(&mut self.now, placed_at);
                self.mark_placed(index);
                self.now = now;
                let terminating = self
                    .workloads
                    .get(index)
                    .allocations()
                    .any(|(_, allocation)| allocation.terminating_since.is_some());
                if phase == WorkloadPhase::Stopping {
                    self.unmark_placed(index);
                    self.workloads.get_mut(index).phase = WorkloadPhase::Stopping;
                } else if terminating {
                    self.preemptible.remove(&index);
                }
            }
            WorkloadPhase::Preempting => {
                let workload = self.workloads.get_mut(index);
                workload.phase = WorkloadPhase::Preempting;
                workload.placed_at = placed_at;
            }
            WorkloadPhase::Pending => {
                let workload = self.workloads.get_mut(index);
                workload.placed_at = placed_at;
                let (gated, until) = (workload.spec.gate.is_some(), workload.not_before);
                if until > Time(0) {
                    self.backoffs.insert((until, index));
                } else if !gated {
                    self.enqueue(index);
                }
            }
        }
        self.workloads.get_mut(index).reported_class = reported_class;
    }

    fn restore_task(
        &mut self,
        workload: WorkloadIdx,
        facts: &TaskSnapshot,
    ) -> Result<(), Rejected> {
        let node = self.node_index(&facts.node)?;
        let id = self.workloads.get(workload).spec.id.clone();
        let free = self
            .workloads
            .get(workload)
            .tasks
            .get(facts.task as usize)
            .is_some_and(|slot| slot.allocation.is_none());
        if !free {
            return Err(inconsistent("task of", &id));
        }
        let shape = self.workloads.get(workload).shape_of(facts.task);
        let claim = self.restored_claim(shape, node, &facts.gpus, true)?;
        let TaskSnapshot { confirmed, terminating_since, devices_known, .. } = *facts;
        self.book_found(
            workload,
            facts.task,
            TaskAllocation { node, claim, confirmed, terminating_since, devices_known },
        );
        Ok(())
    }

    /// Books a running task even beyond capacity.
    pub(crate) fn book_found(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
        allocation: TaskAllocation,
    ) {
        let (node, leaving) = (allocation.node, allocation.terminating_since);
        self.book_task(workload, task, node, allocation.claim.clone());
        let staying = TaskAllocation { terminating_since: None, ..allocation };
        self.workloads.get_mut(workload).tasks[task as usize].allocation = Some(staying);
        if leaving.is_some() {
            self.mark_terminating(workload, task);
            if let Some(allocation) =
                self.workloads.get_mut(workload).tasks[task as usize].allocation.as_mut()
            {
                allocation.terminating_since = leaving;
            }
        }
        if self.cluster.room(node).overcommitted() {
            self.cluster.node_state_mut(node).overcommitted_externally = true;
        }
    }

    /// Claim of a task on these devices. With `runs`, its MIG slices must be free; a hold may still wait for
    /// them.
    fn restored_claim(
        &self,
        shape: ShapeIdx,
        node: NodeIdx,
        gpus: &[GpuAllocation],
        runs: bool,
    ) -> Result<Claim, Rejected> {
        let shape = self.cluster.shape(shape);
        let mut devices: SmallVec<[DeviceClaim; 1]> = SmallVec::new();
        for GpuAllocation { gpu, share: part } in gpus {
            let index = self.gpu_index(node, gpu)?;
            let device = &self.cluster.room(node).devices[index];
            let mut claim = DeviceClaim {
                device: index as u16,
                exclusive: shape.exclusive,
                model: device.model,
                milli: 1000,
                mib: device.total,
                slice: None,
            };
            match part {
                GpuShare::Whole => claim.exclusive = true,
                GpuShare::Fraction { milli, mib } => {
                    claim.milli = (*milli).min(1000) as i32;
                    claim.mib = mib.0.min(crate::model::units::MAX_GPU_MEMORY) as i32;
                }
                GpuShare::MigSlice { profile, start } => {
                    let known =
                        device.geometry.and_then(|g| Some((g, g.profile(profile.as_str())?)));
                    let known =
                        known.filter(|(g, id)| !runs || device.slots.fits_at(g, *id, *start));
                    let (_, id) = known.ok_or_else(|| {
                        Rejected::Snapshot(format!(
                            "no slice {} at {start} of GPU `{gpu}`",
                            profile.as_str()
                        ))
                    })?;
                    (claim.milli, claim.mib) = device.slice(id).unwrap_or_default();
                    claim.slice = Some((id, *start));
                }
            }
            devices.push(claim);
        }
        Ok(Claim { need: shape.need.clone(), devices })
    }

    fn restore_hold(&mut self, facts: &HoldSnapshot) -> Result<(), Rejected> {
        let workload = self.workload_index(&facts.workload)?;
        let mut claims = Vec::new();
        for (task, (node, gpus)) in facts.claims.iter().enumerate() {
            let node = self.node_index(node)?;
            let shape = self.workloads.get(workload).shape_of(task as u32);
            claims.push((node, self.restored_claim(shape, node, gpus, false)?));
        }
        let purpose = match &facts.victims {
            None => HoldPurpose::Reservation { start: facts.until },
            Some(names) => {
                let victims =
                    names.iter().map(|name| self.workload_index(name)).collect::<Result<_, _>>()?;
                HoldPurpose::Preemption { victims, until: facts.until.unwrap_or(self.now) }
            }
        };
        self.place_hold(workload, purpose, claims);
        Ok(())
    }
}

fn inconsistent(what: &str, workload: &WorkloadId) -> Rejected {
    Rejected::Snapshot(format!("{what} `{workload}`"))
}
