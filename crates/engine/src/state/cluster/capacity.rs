//! Counts the tasks and slices of a shape that fit on a node at once.

use crate::model::request::TokenAccess;
use crate::state::cluster::room::{NO_LINK, Room};
use crate::state::cluster::shape::{GpuNeed, Shape};

use super::fit::{accepts_slices, share_devices, shortfall, whole_devices};

/// Free devices in the largest `NVLink` group.
pub(crate) fn largest_link(shape: &Shape, room: &Room) -> usize {
    whole_devices(shape, room)
        .filter(|(_, d)| d.link != NO_LINK)
        .map(|(_, d)| whole_devices(shape, room).filter(|(_, o)| o.link == d.link).count())
        .max()
        .unwrap_or(0)
}

/// Number of slices of the shape's profile that fit on the node, up to `enough`.
pub(crate) fn fitting_slices(shape: &Shape, room: &Room, enough: u32) -> u32 {
    let GpuNeed::Mig(profile, _) = shape.gpu_need else { return 0 };
    let mut copies = 0;
    for device in room.devices.iter().filter(|d| accepts_slices(shape, d)) {
        let Some(geometry) = device.geometry else { continue };
        let Some(id) = geometry.profile(profile.as_str()) else { continue };
        let Some((milli, mib)) = device.slice(id) else { continue };
        let mut slots = device.slots;
        // Foreign use may occupy the device without slices.
        let (mut milli_left, mut mib_left) = (device.milli - milli, device.mib - mib);
        while copies < enough && milli_left >= 0 && mib_left >= 0 {
            let Some(start) = device.place_for(id, slots) else { break };
            slots.take(geometry, id, start);
            milli_left -= milli;
            mib_left -= mib;
            copies += 1;
            if shape.exclusive {
                break;
            }
        }
    }
    copies
}

/// Number of tasks of this shape that fit on the node at once, up to `enough`. Equal tasks do not interfere
/// beyond this count, so the sum over nodes is the capacity for a gang.
pub(crate) fn task_capacity(shape: &Shape, room: &Room, enough: u32) -> u32 {
    if shortfall(shape, room).is_some() {
        return 0;
    }
    let mut most = match shape.gpu_need {
        GpuNeed::None => enough,
        GpuNeed::Whole(count) if shape.nvlink && count > 1 => {
            fitting_linked_gpus(shape, room, u32::from(count))
        }
        GpuNeed::Whole(count) => whole_devices(shape, room).count() as u32 / u32::from(count),
        GpuNeed::Share(_) | GpuNeed::Memory(_) => fitting_shares(shape, room),
        GpuNeed::Mig(_, count) => {
            fitting_slices(shape, room, enough * u32::from(count)) / u32::from(count)
        }
    };
    for (need, free) in shape.need.amounts.iter().zip(room.free) {
        if *need > 0 {
            most = most.min(u32::try_from(free / need).unwrap_or(u32::MAX));
        }
    }
    for (resource, amount) in &shape.need.named {
        if *amount > 0 {
            most = most.min(u32::try_from(room.named(*resource) / amount).unwrap_or(u32::MAX));
        }
    }
    if shape
        .need
        .tokens
        .iter()
        .any(|(_, usage)| matches!(usage, TokenAccess::Exclusive | TokenAccess::OneTask))
    {
        most = most.min(1);
    }
    most.min(enough)
}

fn fitting_shares(shape: &Shape, room: &Room) -> u32 {
    let fitting = share_devices(shape, room);
    if shape.exclusive {
        return fitting.count() as u32;
    }
    fitting
        .map(|(_, d, (milli, mib))| (d.milli / milli.max(1)).min(d.mib / mib.max(1)) as u32)
        .sum()
}

fn fitting_linked_gpus(shape: &Shape, room: &Room, count: u32) -> u32 {
    let mut links: Vec<u16> = whole_devices(shape, room).map(|(_, d)| d.link).collect();
    links.retain(|link| *link != NO_LINK);
    links.sort_unstable();
    links.chunk_by(|a, b| a == b).map(|group| group.len() as u32 / count).sum()
}
