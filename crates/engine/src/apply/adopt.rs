//! Work that has places already: found running when a body starts, or placed by somebody who led before.
//!
//! Nothing about it is decided: it is booked where it is, even where that is more than there is.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::model::adopted::{AdoptedTask, AdoptedWorkload};
use crate::model::error::{InvalidInput, Rejected};
use crate::model::node::DeviceSelection;
use crate::model::workload::Workload;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit;
use crate::state::cluster::room::{Claim, Device, DeviceClaim, Room, WHOLE};
use crate::state::cluster::shape::{Ask, Shape};
use crate::state::scheduler::Scheduler;
use crate::state::snapshot::records::WorkloadPhase;
use crate::state::workloads::{JobIdx, Seat, State, TaskRef};

/// A place that was looked up: the task, its node, and its devices if they are known.
type Found = (u32, NodeIdx, Option<Vec<usize>>);

impl Scheduler {
    /// Takes in a workload with its places.
    pub(crate) fn adopt(&mut self, adopted: AdoptedWorkload) -> Result<(), Rejected> {
        let waiting = self.adoptable(&adopted.workload)?;
        let found = self.found_seats(&adopted)?;
        let index = if let Some(index) = waiting {
            self.take_in_again(index, adopted.workload)
        } else {
            self.learn_from(&adopted.workload);
            self.take_in(Box::new(adopted.workload))
        };
        for task in adopted.finished {
            self.jobs.get_mut(index).tasks[task as usize].finished = true;
        }
        for ((task, node, devices), seat) in found.into_iter().zip(&adopted.tasks) {
            self.adopt_seat(index, task, node, devices.as_deref());
            if let Some(new) = self.jobs.get_mut(index).tasks[task as usize].seat.as_mut() {
                new.confirmed = seat.confirmed;
            }
            if seat.terminating {
                self.begin_to_stop(index, task);
            }
        }
        self.enter_phase(index, WorkloadPhase::Placed, adopted.placed_at.min(self.now));
        self.queues.forgive_excess(&self.cluster, self.jobs.get(index).queue);
        // Somebody may have waited for its company.
        let spec = self.jobs.get(index).spec.clone();
        let mut roles = spec.each_role();
        self.improved |= roles.any(|(_, request)| self.terms.ask_about(&request.labels));
        self.displace_if_due(index);
        Ok(())
    }

    /// Whether the workload itself can be right; its number if it waits here.
    fn adoptable(&self, workload: &Workload) -> Result<Option<JobIdx>, Rejected> {
        workload.validate()?;
        self.queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        let known = self.jobs.find(&workload.id);
        match known.map(|job| self.jobs.get(job).state) {
            Some(State::Placed | State::Stopping) => {
                Err(Rejected::DuplicateWorkload(workload.id.clone()))
            }
            None | Some(State::Waiting | State::Preempting) => Ok(known),
        }
    }

    /// Looks up all that is named, so that a refusal changes nothing.
    fn found_seats(&self, adopted: &AdoptedWorkload) -> Result<Vec<Found>, Rejected> {
        let AdoptedWorkload { workload, tasks: seats, finished, .. } = adopted;
        let (id, tasks) = (&workload.id, workload.task_count());
        let mut open = vec![true; tasks as usize];
        for task in finished.iter().copied().chain(seats.iter().map(|seat| seat.task)) {
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
        if seats.is_empty() {
            return Err(InvalidInput::Zero("the number of tasks with a place").into());
        }
        seats.iter().map(|seat| self.found_seat(workload, seat)).collect()
    }

    fn found_seat(&self, workload: &Workload, seat: &AdoptedTask) -> Result<Found, Rejected> {
        let node = self.node_number(&seat.node)?;
        let Some(gpus) = &seat.devices else { return Ok((seat.task, node, None)) };
        let request = workload.request_of(seat.task);
        let asked = request.gpu_count() as usize;
        if gpus.len() != asked {
            return Err(Rejected::DeviceCount {
                workload: workload.id.clone(),
                task: seat.task,
                asked,
                given: gpus.len(),
            });
        }
        let slices = matches!(request.gpu, crate::model::request::GpuRequest::Mig { .. });
        let mut devices = Vec::new();
        for gpu in gpus {
            let device = self.gpu_number(node, gpu)?;
            if devices.contains(&device) && !slices {
                return Err(InvalidInput::DuplicateGpu(gpu.clone()).into());
            }
            devices.push(device);
        }
        Ok((seat.task, node, Some(devices)))
    }

    /// A workload that waits here turns out to have places: it leaves the queue and keeps its age.
    fn take_in_again(&mut self, index: JobIdx, mut workload: Workload) -> JobIdx {
        self.withdraw(index);
        self.drop_hold(index);
        let before = self.forget(index);
        workload.submitted = Some(before.submitted);
        let serial = std::mem::replace(&mut self.serial, before.serial - 1);
        let index = self.take_in(Box::new(workload));
        self.serial = serial;
        index
    }

    fn adopt_seat(&mut self, job: JobIdx, task: u32, node: NodeIdx, devices: Option<&[usize]>) {
        self.give_way(node);
        let shape = self.cluster.shape(self.jobs.get(job).shape_of(task));
        let room = self.cluster.room(node);
        let claim = found_claim(shape, room, devices);
        let complete = claim.devices.len() >= shape.key.request.gpu_count() as usize;
        let known = devices.is_some()
            || (complete
                && self.cluster.host(node).spec.device_selection == DeviceSelection::Engine);
        let seat = Seat { node, claim, confirmed: false, leaving: None, known };
        self.seat_as_found(job, task, seat);
        if let Some(devices) = devices {
            self.clear_devices(node, Some(TaskRef { job, task }), devices, Vec::new());
        }
        self.top_up(node);
        self.replan_reservation_on(node);
    }
}

/// What a task of this shape takes where it was found: these devices, or else those on which it would
/// be least in the way. A node that has fewer GPUs than were asked for is believed about those it has.
fn found_claim(shape: &Shape, room: &Room, devices: Option<&[usize]>) -> Claim {
    let mut claim = Claim { need: shape.need.clone(), devices: SmallVec::new() };
    let Some(devices) = devices else { return completed(shape, room, claim) };
    let mut room = room.clone();
    for device in devices {
        take_part(shape, &mut room, &mut claim, *device);
    }
    claim
}

/// A claim that is short of GPUs, with as many as were asked for: those on which it would be least in
/// the way. Where the node has fewer it stays short, and is to be completed when there are more.
pub(crate) fn completed(shape: &Shape, room: &Room, mut claim: Claim) -> Claim {
    let mut room = room.clone();
    while claim.devices.len() < shape.key.request.gpu_count() as usize
        && let Some(device) = least_used(shape, &room, &claim)
    {
        take_part(shape, &mut room, &mut claim, device);
    }
    claim
}

fn take_part(shape: &Shape, room: &mut Room, claim: &mut Claim, device: usize) {
    let part = part_of(shape, device, &room.devices[device]);
    room.book(&Claim { need: Arc::default(), devices: [part].into_iter().collect() });
    claim.devices.push(part);
}

/// The device on which one more part of the claim would be least in the way.
fn least_used(shape: &Shape, room: &Room, claim: &Claim) -> Option<usize> {
    let slices = matches!(shape.ask, Ask::Mig(..));
    let mine = |index: usize| claim.devices.iter().any(|part| usize::from(part.device) == index);
    let trouble = |(index, device): &(usize, &Device)| {
        let part = part_of(shape, *index, device);
        let fits = device.milli >= part.milli && device.mib >= part.mib && device.exclusive == 0;
        let suits = fit::serves(shape, device) && (part.slice.is_some() == slices);
        (!suits, !fits, !device.open, device.users, *index)
    };
    let open = room.devices.iter().enumerate().filter(|(index, _)| slices || !mine(*index));
    open.min_by_key(trouble).map(|(index, _)| index)
}

/// What a task of this shape takes of a device, at most all of it.
fn part_of(shape: &Shape, index: usize, device: &Device) -> DeviceClaim {
    let all = DeviceClaim {
        device: index as u8,
        exclusive: shape.exclusive,
        model: device.model,
        milli: WHOLE,
        mib: device.total,
        slice: None,
    };
    match shape.ask {
        Ask::None | Ask::Whole(_) => DeviceClaim { exclusive: true, ..all },
        Ask::Share(_) | Ask::Memory(_) => {
            let (milli, mib) = fit::share_of(shape, device);
            DeviceClaim { milli: milli.min(WHOLE), mib: mib.min(device.total), ..all }
        }
        Ask::Mig(profile, _) => {
            let known = device.geometry.and_then(|geometry| geometry.profile(profile.as_str()));
            let slice = known.and_then(|id| Some((id, device.slice(id)?)));
            slice.map_or(DeviceClaim { exclusive: true, ..all }, |(id, (milli, mib))| {
                // One that has no place there is still a fact: it is counted without its slots.
                let slice = device.place_for(id, device.slots).map(|start| (id, start));
                DeviceClaim { milli, mib, slice, ..all }
            })
        }
    }
}
