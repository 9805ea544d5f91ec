//! Node events: utilization, foreign use, and devices that differ from the plan.

use std::sync::Arc;

use crate::model::error::{InvalidInput, Rejected};
use crate::model::name::{ForeignId, GpuId, NodeId};
use crate::model::node::{DeviceSelection, ForeignUse};
use crate::model::request::limit;
use crate::model::units::Percent;
use crate::quota::charge::Charge;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::scheduler::Scheduler;
use crate::state::terms::TaskTerms;
use crate::state::workloads::{TaskRef, WorkloadIdx};

/// Limit of foreign uses per node.
const MAX_FOREIGN: u64 = 1000;

impl Scheduler {
    pub(crate) fn read_utilization(
        &mut self,
        node: &NodeId,
        readings: Vec<(GpuId, Percent)>,
    ) -> Result<(), Rejected> {
        let number = self.node_index(node)?;
        for (gpu, _) in &readings {
            self.gpu_index(number, gpu)?;
        }
        let mut changed = false;
        for (gpu, reading) in readings {
            let before = self
                .cluster
                .node_state_mut(number)
                .utilization
                .insert(gpu, reading)
                .unwrap_or_default();
            changed |= before.step() != reading.step();
        }
        if changed {
            let retry_blocked = self.retry_blocked;
            self.refresh_state(number);
            self.retry_blocked = retry_blocked;
        }
        Ok(())
    }

    pub(crate) fn update_foreign_use(
        &mut self,
        node: &NodeId,
        id: ForeignId,
        uses: ForeignUse,
    ) -> Result<(), Rejected> {
        let number = self.node_index(node)?;
        id.validate()?;
        uses.validate()?;
        let others =
            self.cluster.node_state(number).foreign.keys().filter(|known| **known != id).count()
                as u64;
        limit("the number of foreign uses of a node", others + 1, MAX_FOREIGN)?;
        for gpu in uses.gpus.keys() {
            self.gpu_index(number, gpu)?;
        }
        self.release_foreign_use(number, &id);
        // Blocked groups may have affinity to the foreign task.
        self.retry_blocked |= self.terms.is_selected(&uses.labels);
        let named: Vec<usize> = uses
            .gpus
            .keys()
            .filter_map(|gpu| self.cluster.node_state(number).device(gpu))
            .collect();
        // Actual use has precedence over reservations.
        self.free_hold_bookings(number);
        self.book_foreign_use(number, id, uses, &[]);
        self.reassign_tasks_off(number, None, &named, Vec::new());
        self.refill_holds(number);
        self.replan_reservation_on(number);
        Ok(())
    }

    /// Releases the reservation on a node: it may wait for room that foreign use now occupies.
    pub(crate) fn replan_reservation_on(&mut self, node: NodeIdx) {
        let planned = |workload| self.holds.get(workload).is_some_and(|hold| hold.is_on(node));
        if let Some(workload) = self.holds.reserved.filter(|workload| planned(*workload)) {
            self.release_hold(workload);
        }
    }

    /// Books foreign use. `assumed` lists GPUs for the unnamed ones.
    pub(crate) fn book_foreign_use(
        &mut self,
        node: NodeIdx,
        id: ForeignId,
        uses: ForeignUse,
        assumed: &[GpuId],
    ) {
        let claim = self.cluster.foreign_claim(node, &uses, assumed);
        self.terms.count_task(node, foreign_terms(&uses), 1);
        self.regroup_by_labels();
        self.cluster.book(node, &claim);
        self.cluster.node_state_mut(node).foreign.insert(id, (uses, claim));
        if self.cluster.room(node).overcommitted() {
            self.cluster.node_state_mut(node).overcommitted_externally = true;
        }
    }

    pub(crate) fn remove_foreign_use(
        &mut self,
        node: &NodeId,
        id: ForeignId,
    ) -> Result<(), Rejected> {
        let number = self.node_index(node)?;
        if self.release_foreign_use(number, &id) {
            Ok(())
        } else {
            Err(Rejected::UnknownForeign { node: node.clone(), foreign: id })
        }
    }

    pub(crate) fn release_foreign_use(&mut self, node: NodeIdx, id: &ForeignId) -> bool {
        let Some((uses, claim)) = self.cluster.node_state_mut(node).foreign.remove(id) else {
            return false;
        };
        self.cluster.release(node, &claim);
        self.terms.count_task(node, foreign_terms(&uses), -1);
        self.regroup_by_labels();
        self.room_freed(node);
        self.retry_blocked = true;
        true
    }

    /// Records the reported devices of a task. On a node that chooses devices itself, tasks with assumed
    /// devices exchange them.
    pub(crate) fn set_devices(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
        gpus: &[GpuId],
    ) -> Result<(), Rejected> {
        let allocation = self.workloads.get(workload).tasks[task as usize]
            .allocation
            .clone()
            .ok_or_else(|| Rejected::NotPlaced {
                workload: self.workloads.get(workload).spec.id.clone(),
                task,
            })?;
        if gpus.len() != allocation.claim.devices.len() {
            return Err(Rejected::DeviceCount {
                workload: self.workloads.get(workload).spec.id.clone(),
                task,
                asked: allocation.claim.devices.len(),
                given: gpus.len(),
            });
        }
        let node = allocation.node;
        let mut wanted = Vec::new();
        for gpu in gpus {
            let number = self.gpu_index(node, gpu)?;
            // Only MIG slices of one task may share a GPU.
            let slices = allocation.claim.devices.iter().any(|part| part.slice.is_some());
            if wanted.contains(&number) && !slices {
                return Err(InvalidInput::DuplicateGpu(gpu.clone()).into());
            }
            wanted.push(number);
        }
        let given_up: Vec<usize> =
            allocation.claim.devices.iter().map(|part| usize::from(part.device)).collect();
        self.rebook_devices(workload, task, &wanted, true);
        self.reassign_tasks_off(node, Some(TaskRef { workload, task }), &wanted, given_up);
        if self.cluster.room(node).overcommitted() {
            self.cluster.node_state_mut(node).overcommitted_externally = true;
        }
        self.room_freed(node);
        self.retry_blocked = true;
        Ok(())
    }

    /// Moves tasks with assumed devices off the taken ones, first to the devices that were given up.
    pub(crate) fn reassign_tasks_off(
        &mut self,
        node: NodeIdx,
        by: Option<TaskRef>,
        taken: &[usize],
        given_up: Vec<usize>,
    ) {
        if self.cluster.node_state(node).spec.device_selection == DeviceSelection::Engine
            || taken.is_empty()
        {
            return;
        }
        self.free_hold_bookings(node);
        let unused = self.cluster.room(node).devices.iter().enumerate().rev();
        let unused =
            unused.filter(|(index, device)| device.users == 0 && !given_up.contains(index));
        let mut spare: Vec<usize> = unused.map(|(index, _)| index).collect();
        spare.extend(given_up);
        spare.retain(|device| !taken.contains(device));
        let mut guests: Vec<TaskRef> = self.cluster.node_state(node).tasks.clone();
        guests
            .sort_unstable_by_key(|guest| (self.workloads.get(guest.workload).serial, guest.task));
        for guest in guests.into_iter().filter(|guest| Some(*guest) != by) {
            self.move_task_off_devices(guest, taken, &mut spare);
        }
        self.move_assumed_foreign_use(node, taken);
        if !self.cluster.room(node).overcommitted() {
            self.cluster.node_state_mut(node).overcommitted_externally = false;
        }
    }

    /// Moves foreign use with unnamed GPUs to other devices.
    pub(crate) fn move_assumed_foreign_use(&mut self, node: NodeIdx, taken: &[usize]) {
        let node_state = self.cluster.node_state(node);
        let is_taken = |part: &DeviceClaim| taken.contains(&usize::from(part.device));
        let gpu = |part: &DeviceClaim| node_state.spec.gpus[usize::from(part.device)].id.clone();
        let assumed = |uses: &ForeignUse, claim: &Claim| -> Vec<DeviceClaim> {
            let parts = claim.devices.iter().copied();
            parts.filter(|part| !uses.gpus.contains_key(&gpu(part))).collect()
        };
        let mut moving: Vec<(ForeignId, Vec<GpuId>)> = Vec::new();
        for (id, (uses, claim)) in &node_state.foreign {
            let parts = assumed(uses, claim);
            if parts.iter().any(is_taken) {
                let stay = parts.iter().filter(|part| !is_taken(part)).map(gpu).collect();
                moving.push((id.clone(), stay));
            }
        }
        for (id, stay) in moving {
            let Some((uses, claim)) = self.cluster.node_state_mut(node).foreign.remove(&id) else {
                continue;
            };
            self.cluster.release(node, &claim);
            let claim = self.cluster.foreign_claim(node, &uses, &stay);
            self.cluster.book(node, &claim);
            self.cluster.node_state_mut(node).foreign.insert(id, (uses, claim));
        }
    }

    fn move_task_off_devices(&mut self, guest: TaskRef, taken: &[usize], spare: &mut Vec<usize>) {
        let Some(allocation) =
            self.workloads.get(guest.workload).tasks[guest.task as usize].allocation.as_ref()
        else {
            return;
        };
        if allocation.devices_known
            || !allocation
                .claim
                .devices
                .iter()
                .any(|part| taken.contains(&usize::from(part.device)))
        {
            return;
        }
        let mut devices: Vec<usize> =
            allocation.claim.devices.iter().map(|part| usize::from(part.device)).collect();
        for device in &mut devices {
            if taken.contains(device)
                && let Some(free) = spare.pop()
            {
                *device = free;
            }
        }
        self.rebook_devices(guest.workload, guest.task, &devices, false);
    }

    /// Moves a task to other devices of its node.
    fn rebook_devices(&mut self, workload: WorkloadIdx, task: u32, devices: &[usize], known: bool) {
        let queue = self.workloads.get(workload).queue;
        let half_life = self.policy.half_life;
        let Some(allocation) = self.workloads.get(workload).tasks[task as usize].allocation.clone()
        else {
            return;
        };
        self.cluster.release(allocation.node, &allocation.claim);
        self.queues.charge(queue, &Charge::of(&allocation.claim), -1, self.now, half_life);
        let mut room = self.cluster.room(allocation.node).clone();
        let mut claim = allocation.claim.clone();
        for (part, device) in claim.devices.iter_mut().zip(devices) {
            // A slice without a free position is counted without its slots.
            *part = moved_to_device(part, *device, &room).unwrap_or(DeviceClaim {
                device: *device as u16,
                model: room.devices[*device].model,
                slice: None,
                ..*part
            });
            room.book(&Claim { need: Arc::default(), devices: [*part].into_iter().collect() });
        }
        self.cluster.book(allocation.node, &claim);
        self.queues.charge(queue, &Charge::of(&claim), 1, self.now, half_life);
        if let Some(allocation) =
            self.workloads.get_mut(workload).tasks[task as usize].allocation.as_mut()
        {
            allocation.claim = claim;
            allocation.devices_known = known;
        }
    }

    pub(crate) fn gpu_index(&self, node: NodeIdx, gpu: &GpuId) -> Result<usize, Rejected> {
        let node_state = self.cluster.node_state(node);
        node_state.device(gpu).ok_or_else(|| Rejected::UnknownGpu {
            node: node_state.spec.id.clone(),
            gpu: gpu.clone(),
        })
    }
}

/// The same share on another device; `None` when the device has no position for the slice.
pub(crate) fn moved_to_device(
    part: &DeviceClaim,
    device: usize,
    room: &crate::state::cluster::room::Room,
) -> Option<DeviceClaim> {
    let found = &room.devices[device];
    let mut part = DeviceClaim { device: device as u16, model: found.model, ..*part };
    if part.slice.is_none() && part.milli >= 1000 {
        part.mib = found.total;
    }
    if let Some((profile, start)) = part.slice {
        let same = found.geometry.filter(|g| found.slots.fits_at(g, profile, start)).map(|_| start);
        part.slice = Some((profile, same.or_else(|| found.place_for(profile, found.slots))?));
    }
    Some(part)
}

fn foreign_terms(uses: &ForeignUse) -> TaskTerms<'_> {
    let ForeignUse { labels, anti_affinity: affinity, tokens, terminating, .. } = uses;
    TaskTerms { labels, affinity, tokens, terminating: *terminating }
}
