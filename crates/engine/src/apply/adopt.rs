//! Adoption of workloads that already run: found when a driver starts, or placed by a previous leader.
//!
//! The engine books their tasks on their nodes, even beyond capacity, and decides nothing about them.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::model::adopted::{AdoptedTask, AdoptedWorkload};
use crate::model::decision::Decision;
use crate::model::error::{InvalidInput, Rejected};
use crate::model::name::WorkloadId;
use crate::model::node::DeviceSelection;
use crate::model::workload::Workload;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit;
use crate::state::cluster::room::{Claim, Device, DeviceClaim, Room, WHOLE};
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, TaskRef, WorkloadIdx, WorkloadPhase};

/// A validated task: number, node and, when known, devices.
type ResolvedTask = (u32, NodeIdx, Option<Vec<usize>>);

impl Scheduler {
    /// Books a workload on the nodes of its tasks.
    pub(crate) fn adopt(&mut self, adopted: AdoptedWorkload) -> Result<(), Rejected> {
        let waiting = self.check_adoptable(&adopted.workload)?;
        let found = self.resolve_tasks(&adopted)?;
        let index = if let Some(index) = waiting {
            self.withdraw_displacement(&adopted.workload.id);
            self.replace_pending(index, adopted.workload)
        } else {
            self.learn_from(&adopted.workload);
            self.insert_workload(Box::new(adopted.workload))
        };
        for task in adopted.finished {
            self.workloads.get_mut(index).tasks[task as usize].finished = true;
        }
        for ((task, node, devices), allocation) in found.into_iter().zip(&adopted.tasks) {
            self.book_adopted_task(index, task, node, devices.as_deref());
            if let Some(new) =
                self.workloads.get_mut(index).tasks[task as usize].allocation.as_mut()
            {
                new.confirmed = allocation.confirmed;
            }
            if allocation.terminating {
                self.mark_terminating(index, task);
            }
        }
        self.enter_phase(index, WorkloadPhase::Placed, adopted.placed_at.min(self.now));
        for loss in adopted.lost {
            self.adopt_loss(index, &loss);
        }
        self.queues.mark_overcommitted(&self.cluster, self.workloads.get(index).queue);
        // Blocked groups may have affinity to the adopted tasks.
        let spec = self.workloads.get(index).spec.clone();
        let mut roles = spec.each_role();
        self.retry_blocked |= roles.any(|(_, request)| self.terms.is_selected(&request.labels));
        self.displace_if_due(index);
        Ok(())
    }

    /// A displacement that the driver has not received concerns the last run.
    fn withdraw_displacement(&mut self, id: &WorkloadId) {
        let concerns = |decision: &Decision| matches!(decision, Decision::Displace { workload, .. } if workload == id);
        self.queued_decisions.retain(|decision| !concerns(decision));
    }

    /// Validates the workload; returns its index when it is pending.
    fn check_adoptable(&self, workload: &Workload) -> Result<Option<WorkloadIdx>, Rejected> {
        workload.validate()?;
        self.queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        let known = self.workloads.find(&workload.id);
        match known.map(|index| self.workloads.get(index).phase) {
            Some(WorkloadPhase::Placed | WorkloadPhase::Stopping) => {
                Err(Rejected::DuplicateWorkload(workload.id.clone()))
            }
            None | Some(WorkloadPhase::Pending | WorkloadPhase::Preempting) => Ok(known),
        }
    }

    /// Resolves all names before any change of the state.
    fn resolve_tasks(&self, adopted: &AdoptedWorkload) -> Result<Vec<ResolvedTask>, Rejected> {
        let AdoptedWorkload { workload, tasks: allocations, finished, lost, .. } = adopted;
        let (id, tasks) = (&workload.id, workload.task_count());
        let mut open = vec![true; tasks as usize];
        let placed = allocations.iter().map(|allocation| allocation.task);
        let lost = lost.iter().map(|loss| loss.task);
        for task in finished.iter().copied().chain(placed).chain(lost) {
            let slot = open.get_mut(task as usize).ok_or_else(|| Rejected::UnknownTask {
                workload: id.clone(),
                task,
                tasks,
            })?;
            if !std::mem::replace(slot, false) {
                return Err(Rejected::Incomplete { workload: id.clone(), task });
            }
        }
        if let Some(task) = open.iter().position(|open| *open) {
            return Err(Rejected::Incomplete { workload: id.clone(), task: task as u32 });
        }
        if allocations.is_empty() {
            return Err(InvalidInput::Zero("the number of tasks with a place").into());
        }
        allocations.iter().map(|allocation| self.resolve_task(workload, allocation)).collect()
    }

    fn resolve_task(
        &self,
        workload: &Workload,
        allocation: &AdoptedTask,
    ) -> Result<ResolvedTask, Rejected> {
        let node = self.node_index(&allocation.node)?;
        let Some(gpus) = &allocation.devices else { return Ok((allocation.task, node, None)) };
        let request = workload.request_of(allocation.task);
        let asked = request.gpu_count() as usize;
        if gpus.len() != asked {
            return Err(Rejected::DeviceCount {
                workload: workload.id.clone(),
                task: allocation.task,
                asked,
                given: gpus.len(),
            });
        }
        let slices = matches!(request.gpu, crate::model::request::GpuRequest::Mig { .. });
        let mut devices = Vec::new();
        for gpu in gpus {
            let device = self.gpu_index(node, gpu)?;
            if devices.contains(&device) && !slices {
                return Err(InvalidInput::DuplicateGpu(gpu.clone()).into());
            }
            devices.push(device);
        }
        Ok((allocation.task, node, Some(devices)))
    }

    /// Moves a pending workload out of its queue; it keeps its submission time.
    fn replace_pending(&mut self, index: WorkloadIdx, mut workload: Workload) -> WorkloadIdx {
        self.withdraw(index);
        self.release_hold(index);
        let before = self.remove_workload(index);
        workload.submitted = Some(before.submitted);
        let serial = std::mem::replace(&mut self.serial, before.serial - 1);
        let index = self.insert_workload(Box::new(workload));
        self.serial = serial;
        index
    }

    fn book_adopted_task(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
        node: NodeIdx,
        devices: Option<&[usize]>,
    ) {
        self.free_hold_bookings(node);
        let shape = self.cluster.shape(self.workloads.get(workload).shape_of(task));
        let room = self.cluster.room(node);
        let claim = adopted_claim(shape, room, devices);
        let complete = claim.devices.len() >= shape.key.request.gpu_count() as usize;
        let known = devices.is_some()
            || (complete
                && self.cluster.node_state(node).spec.device_selection == DeviceSelection::Engine);
        let allocation = TaskAllocation {
            node,
            claim,
            confirmed: false,
            terminating_since: None,
            devices_known: known,
        };
        self.book_found(workload, task, allocation);
        if let Some(devices) = devices {
            self.reassign_tasks_off(node, Some(TaskRef { workload, task }), devices, Vec::new());
        }
        self.refill_holds(node);
        self.replan_reservation_on(node);
    }
}

/// Claim of an adopted task: the given devices, or the least used ones. A node with fewer GPUs than requested
/// gives a smaller claim.
fn adopted_claim(shape: &Shape, room: &Room, devices: Option<&[usize]>) -> Claim {
    let mut claim = Claim { need: shape.need.clone(), devices: SmallVec::new() };
    let Some(devices) = devices else { return complete_claim(shape, room, claim) };
    let mut room = room.clone();
    for device in devices {
        take_device(shape, &mut room, &mut claim, *device);
    }
    claim
}

/// Adds the least used devices to a claim with too few GPUs. The claim stays short when the node has too few
/// devices.
pub(crate) fn complete_claim(shape: &Shape, room: &Room, mut claim: Claim) -> Claim {
    let mut room = room.clone();
    while claim.devices.len() < shape.key.request.gpu_count() as usize
        && let Some(device) = least_used_device(shape, &room, &claim)
    {
        take_device(shape, &mut room, &mut claim, device);
    }
    claim
}

fn take_device(shape: &Shape, room: &mut Room, claim: &mut Claim, device: usize) {
    let part = device_claim(shape, device, &room.devices[device]);
    room.book(&Claim { need: Arc::default(), devices: [part].into_iter().collect() });
    claim.devices.push(part);
}

/// The device with the fewest conflicts for one more part of the claim.
fn least_used_device(shape: &Shape, room: &Room, claim: &Claim) -> Option<usize> {
    let slices = matches!(shape.gpu_need, GpuNeed::Mig(..));
    let mine = |index: usize| claim.devices.iter().any(|part| usize::from(part.device) == index);
    let trouble = |(index, device): &(usize, &Device)| {
        let part = device_claim(shape, *index, device);
        let fits = device.milli >= part.milli && device.mib >= part.mib && device.exclusive == 0;
        let suits = fit::is_suitable(shape, device) && (part.slice.is_some() == slices);
        (!suits, !fits, !device.open, device.users, *index)
    };
    let open = room.devices.iter().enumerate().filter(|(index, _)| slices || !mine(*index));
    open.min_by_key(trouble).map(|(index, _)| index)
}

/// Share of a device that a task of this shape takes, at most the whole device.
fn device_claim(shape: &Shape, index: usize, device: &Device) -> DeviceClaim {
    let all = DeviceClaim {
        device: index as u16,
        exclusive: shape.exclusive,
        model: device.model,
        milli: WHOLE,
        mib: device.total,
        slice: None,
    };
    match shape.gpu_need {
        GpuNeed::None | GpuNeed::Whole(_) => DeviceClaim { exclusive: true, ..all },
        GpuNeed::Share(_) | GpuNeed::Memory(_) => {
            let (milli, mib) = fit::share_of(shape, device);
            DeviceClaim { milli: milli.min(WHOLE), mib: mib.min(device.total), ..all }
        }
        GpuNeed::Mig(profile, _) => {
            let known = device.geometry.and_then(|geometry| geometry.profile(profile.as_str()));
            let slice = known.and_then(|id| Some((id, device.slice(id)?)));
            slice.map_or(DeviceClaim { exclusive: true, ..all }, |(id, (milli, mib))| {
                // A slice without a free position is counted without its slots.
                let slice = device.place_for(id, device.slots).map(|start| (id, start));
                DeviceClaim { milli, mib, slice, ..all }
            })
        }
    }
}
