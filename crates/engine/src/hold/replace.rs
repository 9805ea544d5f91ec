//! Lost tasks of running workloads: their places stay reserved for replacements until a deadline; then the
//! workload restarts as a whole.
//!
//! A reserved place is the allocation of the lost task: it counts in quota, on its node and in affinity terms
//! like the task itself.

use std::collections::BTreeMap;

use crate::model::adopted::AdoptedLoss;
use crate::model::decision::{Decision, Fault, Placement};
use crate::model::units::Time;
use crate::model::workload::{OnFault, Topology};
use crate::pass::decide::Pass;
use crate::pass::find::Domain;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{LostTask, Replacement, TaskAllocation, WorkloadIdx, WorkloadPhase};

impl Scheduler {
    /// Keeps the place of a task that ended, unless the place is closed. A second loss before the
    /// replacement is confirmed does not extend the deadline.
    pub(crate) fn lose_task(&mut self, index: WorkloadIdx, task: u32) {
        if self.workloads.get(index).phase != WorkloadPhase::Placed {
            self.task_stopped(index, task);
            return;
        }
        self.record_loss(index, task, None);
        self.reserve_own_place(index, task);
        // A terminating task excluded the workload from preemption.
        let workload = self.workloads.get(index);
        let terminating = workload.allocations().any(|(_, on)| on.terminating_since.is_some());
        if workload.spec.preemptible && !terminating {
            self.preemptible.insert(index);
        }
        self.retry_blocked = true;
    }

    fn record_loss(&mut self, index: WorkloadIdx, task: u32, until: Option<Time>) {
        let wait = self.workloads.get(index).spec.replacement_wait;
        let wait = wait.unwrap_or(self.policy.replacement_wait);
        let until = until.unwrap_or(self.now.after(wait));
        let slot = &mut self.workloads.get_mut(index).tasks[task as usize];
        let lost = slot.lost.take();
        let until = lost.map_or(until, |lost| lost.until);
        let lost_task = LostTask { until, replacement: Replacement::Missing, reported: false };
        slot.lost = Some(Box::new(lost_task));
        self.incomplete.insert(index);
    }

    /// Books the place of a lost task again, as a place without a task. No hold can take it in between.
    fn reserve_own_place(&mut self, index: WorkloadIdx, task: u32) {
        let slot = &self.workloads.get(index).tasks[task as usize];
        let Some(TaskAllocation { node, claim, .. }) = slot.allocation.clone() else { return };
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        self.release_task(index, task);
        self.book_task(index, task, node, claim);
        if !self.is_valid_place(index, task) {
            self.release_task(index, task);
        }
        self.holds.frozen = frozen;
        self.refill_holds(node);
    }

    /// Reserves the preferred place of an adopted loss, if a task can start there; else the next pass finds a place.
    pub(crate) fn adopt_loss(&mut self, index: WorkloadIdx, loss: &AdoptedLoss) {
        self.record_loss(index, loss.task, loss.until);
        let node = loss.node.as_ref().and_then(|node| self.cluster.find_node(node));
        if let Some(node) = node {
            self.cluster.sort();
            let domain = self.cluster.domains("node").of[node as usize];
            let domain = domain.map(|domain| Domain::Only("node".into(), domain));
            self.find_place(index, loss.task, domain.unwrap_or(Domain::Any));
        }
    }

    /// Records that a replacement exists; returns false if the task waits for none.
    pub(crate) fn replace_task(&mut self, index: WorkloadIdx, task: u32) -> bool {
        let slot = &mut self.workloads.get_mut(index).tasks[task as usize];
        match slot.lost.as_mut() {
            Some(lost) if lost.replacement == Replacement::Missing => {
                lost.replacement = Replacement::Waiting { not_before: self.now };
                lost.reported &= slot.allocation.is_some();
                true
            }
            _ => false,
        }
    }

    /// The rest of the gang runs on, and the place stays reserved until the next attempt.
    pub(crate) fn refuse_replacement(&mut self, index: WorkloadIdx, task: u32, not_before: Time) {
        self.reserve_own_place(index, task);
        if let Some(lost) = &mut self.workloads.get_mut(index).tasks[task as usize].lost {
            lost.replacement = Replacement::Waiting { not_before };
            lost.reported = false;
        }
    }

    /// Moves the place of a refused replacement to another node, if one has room.
    fn leave_avoided_node(&mut self, index: WorkloadIdx, task: u32) {
        let workload = self.workloads.get(index);
        let place = workload.tasks[task as usize].allocation.clone();
        let Some(place) = place.filter(|place| workload.avoid == Some(place.node)) else { return };
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        self.release_task(index, task);
        let domain = self.domain_of_gang(index, task);
        self.find_place(index, task, domain);
        self.holds.frozen = frozen;
        self.refill_holds(place.node);
    }

    /// For forecasts: a replacement of every lost task with a place exists.
    pub(crate) fn assume_replacements(&mut self) {
        for (index, task) in self.reserved_places() {
            self.replace_task(index, task);
        }
    }

    pub(crate) fn forget_loss(&mut self, index: WorkloadIdx, task: u32) {
        let workload = self.workloads.get_mut(index);
        workload.tasks[task as usize].lost = None;
        if workload.lost().next().is_none() {
            self.incomplete.remove(&index);
        }
    }

    /// Ends all reservations of a workload that stops. A replacement that is being started stops like the other tasks.
    pub(crate) fn release_places(&mut self, index: WorkloadIdx) {
        let lost: Vec<u32> = self.workloads.get(index).lost().map(|(task, _)| task).collect();
        for task in lost {
            if !self.workloads.get(index).tasks[task as usize].is_occupied() {
                self.release_task(index, task);
            }
            self.forget_loss(index, task);
        }
    }

    /// Releases the places on a node where no task can start now.
    pub(crate) fn release_closed_places(&mut self, node: NodeIdx) {
        for (index, task) in self.reserved_places() {
            let slot = &self.workloads.get(index).tasks[task as usize];
            let is_closed =
                |place: &TaskAllocation| place.node == node && !self.is_open_place(place);
            if slot.allocation.as_ref().is_some_and(is_closed) {
                self.release_place(index, task);
            }
        }
    }

    pub(crate) fn release_places_on(&mut self, node: NodeIdx) {
        for (index, task) in self.reserved_places() {
            let slot = &self.workloads.get(index).tasks[task as usize];
            if slot.allocation.as_ref().is_some_and(|place| place.node == node) {
                self.release_place(index, task);
            }
        }
    }

    fn release_place(&mut self, index: WorkloadIdx, task: u32) {
        self.release_task(index, task);
        self.retry_blocked = true;
        if let Some(lost) = &mut self.workloads.get_mut(index).tasks[task as usize].lost {
            lost.reported = false;
        }
    }

    /// Places without a task.
    fn reserved_places(&self) -> Vec<(WorkloadIdx, u32)> {
        let lost = self.incomplete.iter().flat_map(|index| {
            let workload = self.workloads.get(*index);
            let reserved = |task: &u32| {
                let slot = &workload.tasks[*task as usize];
                slot.allocation.is_some() && !slot.is_occupied()
            };
            workload.lost().map(|(task, _)| task).filter(reserved).map(move |task| (*index, task))
        });
        lost.collect()
    }

    /// Node and devices accept new tasks.
    pub(crate) fn is_open_place(&self, place: &TaskAllocation) -> bool {
        let room = self.cluster.room(place.node);
        let mut devices = place.claim.devices.iter();
        room.open && devices.all(|part| room.devices[usize::from(part.device)].open)
    }

    /// The place is open, the node still satisfies the request, and is not overcommitted.
    fn is_valid_place(&self, index: WorkloadIdx, task: u32) -> bool {
        let workload = self.workloads.get(index);
        let Some(place) = &workload.tasks[task as usize].allocation else { return false };
        let room = self.cluster.room(place.node);
        let shape = self.cluster.shape(workload.shape_of(task));
        let spec = &self.cluster.node_state(place.node).spec;
        self.is_open_place(place)
            && !room.overcommitted()
            && matches!(fit::eligibility(shape, spec, room), Eligibility::Eligible(_))
    }

    /// One step for every lost task, oldest workload first.
    pub(crate) fn process_lost_tasks(&mut self, pass: &mut Pass) {
        let mut incomplete: Vec<WorkloadIdx> = self.incomplete.iter().copied().collect();
        incomplete.sort_unstable_by_key(|index| self.workloads.get(*index).serial);
        for index in incomplete {
            let is_overdue = |(_, lost): &(u32, &LostTask)| {
                lost.until <= self.now && lost.replacement != Replacement::Starting
            };
            let overdue = self.workloads.get(index).lost().find(is_overdue).map(|(task, _)| task);
            if let Some(task) = overdue {
                self.restart(index, task, pass);
                continue;
            }
            let lost: Vec<u32> = self.workloads.get(index).lost().map(|(task, _)| task).collect();
            for task in lost {
                self.process_lost_task(index, task, pass);
            }
        }
    }

    /// Stops a workload whose replacement did not start in time; it is pending again when its tasks have stopped.
    fn restart(&mut self, index: WorkloadIdx, task: u32, pass: &mut Pass) {
        self.stop_workload(index);
        pass.decisions.push(Decision::Displace {
            workload: self.workloads.get(index).spec.id.clone(),
            cause: Fault::ReplacementMissing { task },
            action: OnFault::Requeue,
        });
        self.requeue_when_stopped(index);
    }

    /// Reserves a place for a lost task if it has none, and starts its replacement there.
    fn process_lost_task(&mut self, index: WorkloadIdx, task: u32, pass: &mut Pass) {
        let slot = &self.workloads.get(index).tasks[task as usize];
        let Some(lost) = slot.lost.clone() else { return };
        let waits = match lost.replacement {
            Replacement::Starting => return,
            Replacement::Missing => false,
            Replacement::Waiting { not_before } if not_before > self.now => return,
            Replacement::Waiting { .. } => self.workloads.get(index).spec.gate.is_none(),
        };
        if slot.allocation.is_some() && !self.is_valid_place(index, task) {
            self.release_place(index, task);
        }
        if waits {
            self.leave_avoided_node(index, task);
        }
        if self.workloads.get(index).tasks[task as usize].allocation.is_none() {
            let domain = self.domain_of_gang(index, task);
            self.find_place(index, task, domain);
        }
        let slot = &mut self.workloads.get_mut(index).tasks[task as usize];
        let Some(lost) = &mut slot.lost else { return };
        if waits && slot.allocation.is_some() {
            lost.replacement = Replacement::Starting;
            self.push_placement(index, task, pass);
            return;
        }
        if !std::mem::replace(&mut lost.reported, true) {
            let until = lost.until;
            let node = slot.allocation.as_ref().map(|place| place.node);
            pass.decisions.push(Decision::AwaitReplacement {
                workload: self.workloads.get(index).spec.id.clone(),
                task,
                node: node.map(|node| self.cluster.node_state(node).spec.id.clone()),
                until,
            });
        }
    }

    fn push_placement(&self, index: WorkloadIdx, task: u32, pass: &mut Pass) {
        let workload = self.workloads.get(index);
        if let Some(place) = &workload.tasks[task as usize].allocation {
            pass.decisions.push(Decision::Place(Placement {
                workload: workload.spec.id.clone(),
                task,
                node: self.cluster.node_state(place.node).spec.id.clone(),
                gpus: self.gpu_assignment(place),
            }));
        }
    }

    /// Books a place for a lost task within quota, if there is one.
    fn find_place(&mut self, index: WorkloadIdx, task: u32, domain: Domain) {
        let workload = self.workloads.get(index);
        let (request, shape) = (workload.spec.request_of(task).clone(), workload.shape_of(task));
        let mut search = self.search(index, request, shape);
        search.domain = domain;
        if self.place_task(index, task, &mut search).is_ok()
            && let Some(lost) = &mut self.workloads.get_mut(index).tasks[task as usize].lost
        {
            lost.reported = false;
        }
    }

    /// Topology domain in which a lost task of a gang may run.
    fn domain_of_gang(&mut self, index: WorkloadIdx, task: u32) -> Domain {
        let spec = self.workloads.get(index).spec.clone();
        let others: Vec<(u32, NodeIdx)> = self
            .workloads
            .get(index)
            .allocations()
            .filter(|(other, _)| *other != task)
            .map(|(other, allocation)| (other, allocation.node))
            .collect();
        match &spec.topology {
            Some(Topology::Same(key)) => {
                let of = &self.cluster.domains(key).of;
                let domain = others.iter().find_map(|(_, node)| of[*node as usize]);
                domain.map_or(Domain::Any, |domain| Domain::Only(key.as_str().into(), domain))
            }
            Some(Topology::Spread(key)) => {
                let mut domain = Domain::Fewest(key.as_str().into(), BTreeMap::new());
                for (other, _) in others {
                    self.count_domain(index, other, &mut domain);
                }
                domain
            }
            None => Domain::Any,
        }
    }

    /// Next deadline or retry of a lost task.
    pub(crate) fn next_replacement_time(&self) -> Option<Time> {
        let lost = self.incomplete.iter().flat_map(|index| self.workloads.get(*index).lost());
        let times = lost.filter_map(|(_, lost)| match lost.replacement {
            Replacement::Starting => None,
            Replacement::Waiting { not_before } if not_before > self.now => {
                Some(lost.until.min(not_before))
            }
            Replacement::Missing | Replacement::Waiting { .. } => Some(lost.until),
        });
        times.min()
    }
}
