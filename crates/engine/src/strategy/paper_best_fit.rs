//! `bestfit`: the baseline of "Beware of Fragmentation" (ATC '23), exact for comparison.

use super::{Scorer, View};
use crate::state::cluster::fit::{share_devices, share_of};
use crate::state::cluster::room::{CPU, Device};

#[derive(Debug)]
pub(super) struct PaperBestFit;

impl PaperBestFit {
    fn node(view: &View<'_>, milli: i64) -> i64 {
        let cpu_left = (view.room.free[CPU] - view.shape.need.amounts[CPU]) as f64;
        let gpu_left = (i64::from(view.room.free_milli) - milli) as f64;
        (100.0 * (1.0 - 0.5 * cpu_left / 128_000.0 - 0.5 * gpu_left / 8000.0)) as i64
    }
}

impl Scorer for PaperBestFit {
    fn plain(&self, view: &View<'_>) -> i64 {
        Self::node(view, 0)
    }

    fn whole(&self, view: &View<'_>, count: u16) -> i64 {
        Self::node(view, i64::from(count) * 1000)
    }

    fn share(&self, view: &View<'_>, device: &Device, _mib: i32) -> i64 {
        let (milli, _) = share_of(view.shape, device);
        Self::node(view, milli.into())
    }

    /// The node score decides between nodes, the tightest fit between devices.
    fn best_share(&self, view: &View<'_>) -> Option<(i64, usize)> {
        let fitting = share_devices(view.shape, view.room);
        let (index, device, (_, mib)) = fitting.min_by_key(|(_, device, _)| device.milli)?;
        Some((self.share(view, device, mib), index))
    }
}
