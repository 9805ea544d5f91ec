//! `best_fit`: the device with the least free memory that fits.

use super::{Scorer, View};
use crate::state::cluster::fit::whole_devices;
use crate::state::cluster::room::{CPU, Device};

#[derive(Debug)]
pub(super) struct BestFit;

impl Scorer for BestFit {
    fn plain(&self, view: &View<'_>) -> i64 {
        -(view.room.free[CPU] - view.shape.need.amounts[CPU])
    }

    fn whole(&self, view: &View<'_>, _count: u16) -> i64 {
        let smallest = if view.room.uniform {
            view.room.devices.first().map(|d| d.total)
        } else {
            whole_devices(view.shape, view.room).map(|(_, d)| d.total).min()
        };
        -(i64::from(smallest.unwrap_or(0)) << 8) - i64::from(view.room.whole)
    }

    fn share(&self, view: &View<'_>, device: &Device, mib: i32) -> i64 {
        -(i64::from(device.mib - mib) << 8) - i64::from(view.room.whole)
    }

    fn device_key(&self, _view: &View<'_>, device: &Device) -> i64 {
        device.total.into()
    }
}
