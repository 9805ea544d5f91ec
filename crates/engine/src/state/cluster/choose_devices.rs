//! Chooses the devices of a task on a given node.

use smallvec::SmallVec;

use crate::state::cluster::fit::{accepts_slices, share_devices, share_of, whole_devices};
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::shape::GpuNeed;
use crate::strategy::{self, Strategy, View};

/// Claim of a task that fits on the node. `after` starts the search behind that device (round robin); without
/// it the strategy chooses.
pub(crate) fn choose_devices(
    strategy: Strategy,
    view: &View<'_>,
    after: Option<usize>,
) -> Option<Claim> {
    let devices = match view.shape.gpu_need {
        GpuNeed::None => SmallVec::new(),
        GpuNeed::Whole(count) => whole(strategy, view, usize::from(count), after)?,
        GpuNeed::Share(_) | GpuNeed::Memory(_) => {
            SmallVec::from_elem(share(strategy, view, after)?, 1)
        }
        GpuNeed::Mig(profile, count) => slices(view, profile.as_str(), count, after)?,
    };
    Some(Claim { need: view.shape.need.clone(), devices })
}

fn whole(
    strategy: Strategy,
    view: &View<'_>,
    count: usize,
    after: Option<usize>,
) -> Option<SmallVec<[DeviceClaim; 1]>> {
    let chosen: SmallVec<[u16; 8]> = match after {
        // An `NVLink` group is chosen as a whole, so round robin continues with the next node.
        Some(_) if view.shape.nvlink && count > 1 => return None,
        Some(after) => {
            let behind = whole_devices(view.shape, view.room).filter(|(index, _)| *index > after);
            behind.take(count).map(|(index, _)| index as u16).collect()
        }
        None => strategy::whole_choice(strategy, view, count),
    };
    let claim = |device: &u16| {
        let found = &view.room.devices[usize::from(*device)];
        DeviceClaim {
            device: *device,
            exclusive: true,
            model: found.model,
            milli: 1000,
            mib: found.total,
            slice: None,
        }
    };
    (chosen.len() == count).then(|| chosen.iter().map(claim).collect())
}

fn share(strategy: Strategy, view: &View<'_>, after: Option<usize>) -> Option<DeviceClaim> {
    let index = match after {
        Some(after) => share_devices(view.shape, view.room).find(|(index, ..)| *index > after)?.0,
        None => strategy::share_device(strategy, view)?,
    };
    let device = &view.room.devices[index];
    let (milli, mib) = share_of(view.shape, device);
    Some(DeviceClaim {
        device: index as u16,
        exclusive: view.shape.exclusive,
        model: device.model,
        milli,
        mib,
        slice: None,
    })
}

/// Slices go to the fullest device that fits them, which keeps other devices whole; with `after`, to the
/// first.
fn slices(
    view: &View<'_>,
    name: &str,
    count: u16,
    after: Option<usize>,
) -> Option<SmallVec<[DeviceClaim; 1]>> {
    let first = after.map_or(0, |after| after + 1);
    let mut devices = view.room.devices.clone();
    let mut claims = SmallVec::new();
    for _ in 0..count {
        let open =
            devices.iter().enumerate().skip(first).filter(|(_, d)| accepts_slices(view.shape, d));
        let places = open.filter_map(|(index, d)| {
            let geometry = d.geometry?;
            let id = geometry.profile(name)?;
            let (milli, mib) =
                d.slice(id).filter(|(milli, mib)| d.milli >= *milli && d.mib >= *mib)?;
            let start = d.place_for(id, d.slots)?;
            let fullness = if after.is_some() { 0 } else { d.slots.room(geometry) };
            Some((fullness, index, geometry, id, start, milli, mib))
        });
        let (_, index, geometry, id, start, milli, mib) =
            places.min_by_key(|place| (place.0, place.1))?;
        let device = &mut devices[index];
        device.slots.take(geometry, id, start);
        (device.users, device.milli, device.mib) =
            (device.users + 1, device.milli - milli, device.mib - mib);
        claims.push(DeviceClaim {
            device: index as u16,
            exclusive: view.shape.exclusive,
            model: device.model,
            milli,
            mib,
            slice: Some((id, start)),
        });
    }
    Some(claims)
}
