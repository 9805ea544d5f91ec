//! `bestfit`: the baseline of "Beware of Fragmentation" (ATC '23), kept exact for comparison.

use super::{Scorer, View};
use crate::cluster::room::{CPU, Device};
use crate::cluster::shape::Ask;

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

    /// The node's score decides between nodes, the tightest fit between its devices.
    fn share(&self, view: &View<'_>, device: &Device) -> i64 {
        let Ask::Share(milli) = view.shape.ask else { return 0 };
        (Self::node(view, milli.into()) << 11) - i64::from(device.milli)
    }

    fn best_share(&self, view: &View<'_>) -> Option<(i64, usize)> {
        let fitting = view.room.devices.iter().enumerate();
        let fitting = fitting.filter(|(_, d)| crate::cluster::fit::share_fits(view.shape, d));
        let (index, device) = fitting.min_by_key(|(_, d)| d.milli)?;
        Some((self.share(view, device) >> 11, index))
    }
}
