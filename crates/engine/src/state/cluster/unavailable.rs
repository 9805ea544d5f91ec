//! Cordoned, draining and failed nodes and GPUs as the cause of a shortfall.

use crate::state::cluster::room::Room;
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::state::cluster::{NodeState, Reachability, fit};

/// Indexes of the unavailable GPUs that would let the task fit; `None` when the task would not fit even with
/// all GPUs available.
pub(crate) fn blocking_gpus(shape: &Shape, room: &Room) -> Option<Vec<usize>> {
    if !room.has_closed() {
        return None;
    }
    let mut opened = room.clone();
    for device in &mut opened.devices {
        device.open = true;
    }
    opened.summarise();
    if fit::gpu_shortfall(shape, &opened).is_some() {
        return None;
    }
    let devices = opened.devices.iter().enumerate();
    let usable: Vec<usize> = match shape.gpu_need {
        GpuNeed::None => Vec::new(),
        GpuNeed::Whole(_) => fit::whole_devices(shape, &opened).map(|(index, _)| index).collect(),
        GpuNeed::Share(_) | GpuNeed::Memory(_) => {
            fit::share_devices(shape, &opened).map(|(index, ..)| index).collect()
        }
        GpuNeed::Mig(..) => devices
            .filter(|(_, device)| fit::accepts_slices(shape, device))
            .map(|(at, _)| at)
            .collect(),
    };
    Some(usable.into_iter().filter(|index| !room.devices[*index].open).collect())
}

/// An administrator cordoned or drained this node, and the task would fit otherwise.
pub(crate) fn is_blocked_by_cordon(shape: &Shape, node_state: &NodeState, room: &Room) -> bool {
    let by_people = node_state.cordoned || node_state.draining;
    if !by_people || node_state.reach == Reachability::Lost || node_state.reclaimed.is_some() {
        return false;
    }
    let mut opened = room.clone();
    opened.open = true;
    opened.summarise();
    fit::shortfall(shape, &opened).is_none()
}
