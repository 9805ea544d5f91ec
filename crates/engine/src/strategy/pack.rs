//! `pack`: the fullest node that fits, which keeps whole nodes and `NVLink` groups free.

use super::{Scorer, View};
use crate::state::cluster::room::{Device, WHOLE};

#[derive(Debug)]
pub(super) struct Pack;

impl Scorer for Pack {
    fn plain(&self, view: &View<'_>) -> i64 {
        // CPU-only tasks go to the node with the fewest idle GPUs.
        -(i64::from(view.room.free_milli) << 12) + i64::from(view.room.cpu_permille)
    }

    fn whole(&self, view: &View<'_>, _count: u16) -> i64 {
        -(i64::from(view.room.free_milli) << 12) + i64::from(view.room.cpu_permille)
    }

    fn share(&self, view: &View<'_>, device: &Device, _mib: i32) -> i64 {
        let taken = i64::from(WHOLE - device.milli).max(0);
        (taken << 24) - i64::from(view.room.free_milli)
    }
}
