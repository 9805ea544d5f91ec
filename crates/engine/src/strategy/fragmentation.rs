//! `least_fragmented` and the exact `fgd`: the loss of usable GPU for the expected demand.

use smallvec::SmallVec;

use super::{Scorer, ScoringData, View};
use crate::state::cluster::fit::{is_suitable, share_devices};
use crate::state::cluster::room::{CPU, Device, Room};
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::strategy::frag::{GpuAllocation, NodeView};

#[derive(Debug)]
pub(super) struct LeastFragmented;

#[derive(Debug)]
pub(super) struct ExactFgd;

trait Measure {
    fn score(
        &self,
        scoring: &ScoringData,
        node: &NodeView<'_>,
        cpu: i64,
        allocation: GpuAllocation,
    ) -> (i64, usize);
}

impl Measure for LeastFragmented {
    fn score(
        &self,
        scoring: &ScoringData,
        node: &NodeView<'_>,
        cpu: i64,
        allocation: GpuAllocation,
    ) -> (i64, usize) {
        scoring
            .value
            .as_ref()
            .map_or((0, tightest(node, allocation)), |value| value.score(node, cpu, allocation))
    }
}

impl Measure for ExactFgd {
    fn score(
        &self,
        scoring: &ScoringData,
        node: &NodeView<'_>,
        cpu: i64,
        allocation: GpuAllocation,
    ) -> (i64, usize) {
        scoring
            .fgd
            .as_ref()
            .map_or((0, tightest(node, allocation)), |fgd| fgd.score(node, cpu, allocation))
    }
}

impl<M: Measure> Scorer for M {
    fn plain(&self, view: &View<'_>) -> i64 {
        measure(self, view, GpuAllocation::Nothing).0
    }

    fn whole(&self, view: &View<'_>, count: u16) -> i64 {
        // Slices count as the whole devices that they are on; only GPUs in MIG mode hold them.
        let allocation = if matches!(view.shape.gpu_need, GpuNeed::Mig(..)) {
            GpuAllocation::Nothing
        } else {
            GpuAllocation::Whole(count)
        };
        measure(self, view, allocation).0
    }

    fn share(&self, _view: &View<'_>, _device: &Device, _mib: i32) -> i64 {
        0
    }

    fn best_share(&self, view: &View<'_>) -> Option<(i64, usize)> {
        let (first, _, (milli, _)) = share_devices(view.shape, view.room).next()?;
        let allocation = if view.shape.exclusive {
            GpuAllocation::Whole(1)
        } else {
            GpuAllocation::Share(milli.max(1))
        };
        let (score, device) = measure(self, view, allocation);
        // Memory and share may differ by rounding; use the first device that fits.
        let fits = share_devices(view.shape, view.room).any(|(index, ..)| index == device);
        Some((score, if fits { device } else { first }))
    }
}

fn measure<M: Measure>(rule: &M, view: &View<'_>, allocation: GpuAllocation) -> (i64, usize) {
    let left = shares_left(view.shape, view.room, allocation);
    let model = view.room.devices.first().map_or(0, |d| d.model);
    let node = NodeView { model, cpu: view.room.free[CPU], left: &left };
    rule.score(view.scoring, &node, view.shape.need.amounts[CPU], allocation)
}

/// Free thousandths of each device; zero on unavailable ones.
fn shares_left(shape: &Shape, room: &Room, allocation: GpuAllocation) -> SmallVec<[i32; 16]> {
    let usable = |d: &Device| {
        let whole_only = d.exclusive > 0 || d.geometry.is_some() || !d.open;
        !whole_only
            && (room.uniform || allocation == GpuAllocation::Nothing || is_suitable(shape, d))
    };
    room.devices.iter().map(|d| if usable(d) { d.milli.max(0) } else { 0 }).collect()
}

/// Without demand: the device with the least free share.
fn tightest(node: &NodeView<'_>, allocation: GpuAllocation) -> usize {
    let need = if let GpuAllocation::Share(milli) = allocation { milli } else { 0 };
    let fitting = node.left.iter().enumerate().filter(|(_, left)| **left >= need);
    fitting.min_by_key(|(_, left)| **left).map_or(0, |(device, _)| device)
}
