//! Nodes and GPUs that nobody new may use: whether they are what stands in the way.

use crate::state::cluster::room::Room;
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::state::cluster::{NodeState, Reachability, fit};

/// The closed GPUs of a node, by position, that a task of this shape could have if all of them were open. None when
/// it would not find room even then.
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

/// Whether people closed this node, and a task of this shape would find room there if they opened it.
pub(crate) fn is_blocked_by_cordon(shape: &Shape, host: &NodeState, room: &Room) -> bool {
    let by_people = host.cordoned || host.draining;
    if !by_people || host.reach == Reachability::Lost || host.reclaimed.is_some() {
        return false;
    }
    let mut opened = room.clone();
    opened.open = true;
    opened.summarise();
    fit::shortfall(shape, &opened).is_none()
}
