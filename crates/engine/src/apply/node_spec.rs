//! New nodes and changed node descriptions.
//!
//! On a node with `DeviceSelection::Engine`, workloads on a vanished GPU are displaced. A node with
//! `DeviceSelection::Node` may change its GPU list for other reasons: its monitor learned the real ids, or
//! its GPU driver restarts and shows none for a while. Tasks on such a node stay and keep their number of
//! GPUs.

use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::apply::adopt;
use crate::apply::node::moved_to_device;
use crate::hold::holds::HoldPurpose;
use crate::model::decision::Fault;
use crate::model::error::Rejected;
use crate::model::name::{ForeignId, GpuId};
use crate::model::node::{DeviceSelection, ForeignUse, Node};
use crate::model::workload::Topology;
use crate::quota::charge::Charge;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{Claim, Device, Room};
use crate::state::cluster::{Change, NodeIdx, Reachability};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, TaskRef, WorkloadIdx};

impl Scheduler {
    pub(crate) fn update_node(&mut self, node: Node) -> Result<(), Rejected> {
        node.validate()?;
        self.retry_blocked = true;
        let Some(number) = self.cluster.find_node(&node.id) else {
            self.cluster.add(&Arc::new(node));
            return Ok(());
        };
        // An update of a node under spot reclaim does not cancel the reclaim; the node's return does.
        let now = self.now;
        let node_state = self.cluster.node_state_mut(number);
        let returned = node_state.reach == Reachability::Lost;
        node_state.reach = Reachability::Up;
        node_state.reclaimed = node_state.reclaimed.filter(|at| !returned && *at > now);
        if *self.cluster.node_state(number).spec == node {
            self.refresh_state(number);
        } else if self.cluster.node_state(number).spec.has_same_room(&node) {
            self.relabel(number, node);
        } else {
            self.rebook_on_new_spec(number, node);
        }
        Ok(())
    }

    /// Applies changed labels, taints, rank or price. Bookings stay, and so do holds whose owners may still
    /// run on the node.
    fn relabel(&mut self, node: NodeIdx, spec: Node) {
        let old = self.cluster.node_state(node).spec.clone();
        self.cluster.relabel(node, &Arc::new(spec));
        for workload in self.hold_owners(|hold| hold.is_on(node)) {
            if self.must_replan_hold(workload, node, &old) {
                self.release_hold_and_requeue(workload);
            }
        }
    }

    /// The owner of a hold on this node may not run there any more, or must plan again.
    fn must_replan_hold(&mut self, workload: WorkloadIdx, node: NodeIdx, old: &Node) -> bool {
        let Some(hold) = self.holds.get(workload) else { return false };
        let (node_state, room) = (self.cluster.node_state(node), self.cluster.room(node));
        let mut here = hold.planned.iter().enumerate().filter(|(_, (on, _))| *on == node);
        let unfit = here.any(|(task, _)| {
            let shape = self.cluster.shape(self.workloads.get(workload).shape_of(task as u32));
            !matches!(fit::eligibility(shape, &node_state.spec, room), Eligibility::Eligible(_))
        });
        if unfit || node_state.spec.labels == old.labels {
            return unfit;
        }
        let spec = self.workloads.get(workload).spec.clone();
        if let Some(Topology::Same(key) | Topology::Spread(key)) = &spec.topology
            && spec.task_count() > 1
            && node_state.spec.labels.get(key.as_str()) != old.labels.get(key.as_str())
        {
            return true;
        }
        if spec.each_role().all(|(_, request)| self.terms.are_irrelevant_to(request)) {
            return false;
        }
        // Affinity may have changed. Tasks of a gang are checked one by one at its start.
        match hold.purpose.clone() {
            HoldPurpose::Reservation { .. } => true,
            HoldPurpose::Preemption { .. } if spec.task_count() > 1 => false,
            HoldPurpose::Preemption { victims, .. } => {
                self.cluster.sort();
                self.nodes_barred_by_terms(workload, &victims)
                    .is_some_and(|barred| barred[node as usize])
            }
        }
    }

    /// Books all tasks and foreign use on the new description: known devices first, then assumed ones, then
    /// tasks that lost GPUs. Displaces tasks on vanished GPUs where the engine chooses devices.
    fn rebook_on_new_spec(&mut self, node: NodeIdx, spec: Node) {
        self.release_holds_on(node);
        self.release_places_on(node);
        let old = self.cluster.node_state(node).spec.clone();
        let counted = old.device_selection == DeviceSelection::Node
            || spec.device_selection == DeviceSelection::Node;
        self.cluster.redescribe(node, &Arc::new(spec));
        let foreign = std::mem::take(&mut self.cluster.node_state_mut(node).foreign);
        let (unnamed, named): (BTreeMap<_, _>, BTreeMap<_, _>) =
            foreign.into_iter().partition(|(_, (uses, _))| uses.gpu_count > 0);
        let (known, assumed): (Vec<TaskRef>, Vec<TaskRef>) =
            self.tasks_on(node).into_iter().partition(|task| self.knows_devices(*task));
        let mut homeless: BTreeMap<(u64, WorkloadIdx), GpuId> = BTreeMap::new();
        for task in known {
            let lost = self.rebook(node, task, &old, counted).filter(|_| !counted);
            if let Some(gpu) = lost {
                homeless
                    .entry((self.workloads.get(task.workload).serial, task.workload))
                    .or_insert(gpu);
            }
        }
        self.rebook_foreign(node, named);
        for task in assumed {
            self.rebook(node, task, &old, true);
        }
        self.rebook_foreign(node, unnamed);
        self.complete_allocations(node, counted);
        self.cluster.node_state_mut(node).overcommitted_externally =
            self.cluster.room(node).overcommitted();
        self.cluster.touch(node, Change::Described);
        for ((_, workload), gpu) in homeless {
            let node = self.cluster.node_state(node).spec.id.clone();
            self.displace(workload, &Fault::GpuFailed { node, gpu });
        }
    }

    /// Books one task on the new description and returns a lost GPU. A task with assumed devices does not
    /// keep a device that is taken.
    fn rebook(&mut self, node: NodeIdx, on: TaskRef, old: &Node, stays: bool) -> Option<GpuId> {
        let allocation = self.allocation_of(on)?.clone();
        let mut claim = allocation.claim.clone();
        let mut lost = None;
        claim.devices.clear();
        let mut room = self.cluster.room(node).clone();
        let takes = |room: &Room, one: &Claim| allocation.devices_known || room.has(one);
        for part in &allocation.claim.devices {
            let gpu = &old.gpus[usize::from(part.device)].id;
            let kept = self
                .cluster
                .node_state(node)
                .device(gpu)
                .and_then(|index| moved_to_device(part, index, &room));
            let one = Claim { need: Arc::default(), devices: kept.into_iter().collect() };
            match kept.filter(|_| takes(&room, &one)) {
                Some(part) => {
                    room.book(&one);
                    claim.devices.push(part);
                }
                None => lost = Some(gpu.clone()),
            }
        }
        let known = allocation.devices_known && !(stays && lost.is_some());
        self.cluster.book(node, &claim);
        self.replace_claim(on, claim, known);
        lost
    }

    fn rebook_foreign(&mut self, node: NodeIdx, uses: BTreeMap<ForeignId, (ForeignUse, Claim)>) {
        for (id, (uses, _)) in uses {
            let claim = self.cluster.foreign_claim(node, &uses, &[]);
            self.cluster.book(node, &claim);
            self.cluster.node_state_mut(node).foreign.insert(id, (uses, claim));
        }
    }

    /// Assigns further devices to tasks that hold fewer GPUs than they run on, even beyond capacity. `all`
    /// includes tasks with known devices.
    pub(crate) fn complete_allocations(&mut self, node: NodeIdx, all: bool) {
        let all =
            all || self.cluster.node_state(node).spec.device_selection == DeviceSelection::Node;
        for on in self.tasks_on(node) {
            let shape = self.cluster.shape(self.workloads.get(on.workload).shape_of(on.task));
            let asked = shape.key.request.gpu_count() as usize;
            let Some(allocation) =
                self.allocation_of(on).filter(|allocation| all || !allocation.devices_known)
            else {
                continue;
            };
            let (had, before) = (allocation.claim.devices.len(), allocation.claim.clone());
            if had >= asked {
                continue;
            }
            let claim = adopt::complete_claim(shape, self.cluster.room(node), before.clone());
            if claim.devices.len() == had {
                continue;
            }
            let chosen =
                self.cluster.node_state(node).spec.device_selection == DeviceSelection::Engine;
            let known = chosen && claim.devices.len() >= asked;
            self.cluster.release(node, &before);
            self.cluster.book(node, &claim);
            self.replace_claim(on, claim, known);
            self.queues.mark_overcommitted(&self.cluster, self.workloads.get(on.workload).queue);
            if self.cluster.room(node).overcommitted() {
                self.cluster.node_state_mut(node).overcommitted_externally = true;
            }
        }
    }

    /// Moves tasks with assumed devices from overcommitted GPUs to free ones, on nodes that choose devices
    /// themselves.
    pub(crate) fn reassign_assumed_devices(&mut self, node: NodeIdx) {
        if self.cluster.node_state(node).spec.device_selection == DeviceSelection::Engine {
            return;
        }
        self.free_hold_bookings(node);
        for on in self.tasks_on(node) {
            let Some(allocation) =
                self.allocation_of(on).filter(|allocation| !allocation.devices_known)
            else {
                continue;
            };
            let before = allocation.claim.clone();
            let mut kept = Claim { need: before.need.clone(), devices: SmallVec::new() };
            let mut room = self.cluster.room(node).clone();
            room.release(&before);
            for part in &before.devices {
                let one = Claim { need: Arc::default(), devices: [*part].into_iter().collect() };
                if room.has(&one) {
                    room.book(&one);
                    kept.devices.push(*part);
                }
            }
            if kept.devices.len() < before.devices.len() {
                let shape = self.cluster.shape(self.workloads.get(on.workload).shape_of(on.task));
                let claim = adopt::complete_claim(shape, &room, kept);
                self.cluster.release(node, &before);
                self.cluster.book(node, &claim);
                self.replace_claim(on, claim, false);
                self.queues
                    .mark_overcommitted(&self.cluster, self.workloads.get(on.workload).queue);
            }
        }
        let doubled = |device: &Device| device.exclusive > 0 && device.users > 1;
        let devices = self.cluster.room(node).devices.iter().enumerate();
        let doubled: Vec<usize> =
            devices.filter(|(_, device)| doubled(device)).map(|(index, _)| index).collect();
        self.move_assumed_foreign_use(node, &doubled);
    }

    /// Replaces a task's claim and its quota charge; the caller updates the node's room.
    fn replace_claim(&mut self, on: TaskRef, claim: Claim, known: bool) {
        let (queue, half_life) = (self.workloads.get(on.workload).queue, self.policy.half_life);
        let slot = &mut self.workloads.get_mut(on.workload).tasks[on.task as usize];
        let Some(allocation) = slot.allocation.as_mut() else { return };
        self.queues.charge(queue, &Charge::of(&allocation.claim), -1, self.now, half_life);
        self.queues.charge(queue, &Charge::of(&claim), 1, self.now, half_life);
        allocation.claim = claim;
        allocation.devices_known = known;
    }

    /// Tasks on a node, oldest first.
    fn tasks_on(&self, node: NodeIdx) -> Vec<TaskRef> {
        let mut tasks = self.cluster.node_state(node).tasks.clone();
        tasks.sort_unstable_by_key(|on| (self.workloads.get(on.workload).serial, on.task));
        tasks
    }

    fn allocation_of(&self, on: TaskRef) -> Option<&TaskAllocation> {
        self.workloads.get(on.workload).tasks[on.task as usize].allocation.as_ref()
    }

    fn knows_devices(&self, on: TaskRef) -> bool {
        self.allocation_of(on).is_some_and(|allocation| allocation.devices_known)
    }
}
