//! `least_utilized`: lowest live utilization, then lowest allocation of the device and its node.

use super::{Scorer, View};
use crate::pass::index::shared::GpuClass;
use crate::state::cluster::fit::whole_devices;
use crate::state::cluster::room::{Device, Room, WHOLE};

#[derive(Debug)]
pub(super) struct LeastUtilized;

impl Scorer for LeastUtilized {
    fn plain(&self, view: &View<'_>) -> i64 {
        -i64::from(view.room.cpu_permille)
    }

    fn whole(&self, view: &View<'_>, count: u16) -> i64 {
        -(highest_utilization_of_idlest(view, count) << 20) - i64::from(view.room.used_permille)
    }

    fn share(&self, view: &View<'_>, device: &Device, _mib: i32) -> i64 {
        let taken = i64::from(WHOLE - device.milli);
        -(i64::from(device.utilization) << 20) - (taken << 10) - i64::from(view.room.used_permille)
    }

    fn bound(&self, room: &Room, takes: GpuClass) -> i64 {
        let used = i64::from(room.used_permille);
        match takes {
            GpuClass::Nothing => -i64::from(room.cpu_permille),
            GpuClass::Whole => {
                let idlest =
                    room.devices.iter().filter(|d| d.is_free()).map(|d| d.utilization).min();
                -(i64::from(idlest.unwrap_or(0)) << 20) - used
            }
            GpuClass::Share => {
                let shareable = room.devices.iter().filter(|d| d.is_shareable() && d.milli > 0);
                let best = shareable
                    .map(|d| (i64::from(d.utilization) << 20) + (i64::from(WHOLE - d.milli) << 10))
                    .min();
                -best.unwrap_or(0) - used
            }
        }
    }

    fn device_key(&self, _view: &View<'_>, device: &Device) -> i64 {
        device.utilization.into()
    }
}

/// Utilization of the busiest device that the request would take.
fn highest_utilization_of_idlest(view: &View<'_>, count: u16) -> i64 {
    let room = view.room;
    if room.devices.iter().all(|device| device.utilization == 0) {
        return 0;
    }
    let mut busy: Vec<u8> = whole_devices(view.shape, room).map(|(_, d)| d.utilization).collect();
    busy.sort_unstable();
    busy.get(usize::from(count).saturating_sub(1)).copied().unwrap_or(0).into()
}
