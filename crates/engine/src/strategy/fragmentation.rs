//! `least_fragmented` and the exact `fgd`: the loss of usable GPU for the expected demand.

use smallvec::SmallVec;

use super::{Outlook, Scorer, View};
use crate::state::cluster::fit::{is_suitable, share_devices};
use crate::state::cluster::room::{CPU, Device, Room};
use crate::state::cluster::shape::{GpuNeed, Shape};
use crate::strategy::frag::{NodeView, Take};

#[derive(Debug)]
pub(super) struct LeastFragmented;

#[derive(Debug)]
pub(super) struct ExactFgd;

trait Measure {
    fn ask(&self, outlook: &Outlook, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize);
}

impl Measure for LeastFragmented {
    fn ask(&self, outlook: &Outlook, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize) {
        outlook
            .value
            .as_ref()
            .map_or((0, tightest(node, take)), |value| value.score(node, cpu, take))
    }
}

impl Measure for ExactFgd {
    fn ask(&self, outlook: &Outlook, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize) {
        outlook.fgd.as_ref().map_or((0, tightest(node, take)), |fgd| fgd.score(node, cpu, take))
    }
}

impl<M: Measure> Scorer for M {
    fn plain(&self, view: &View<'_>) -> i64 {
        measure(self, view, Take::Nothing).0
    }

    fn whole(&self, view: &View<'_>, count: u16) -> i64 {
        // Slices count as the whole devices that they are on; only GPUs in MIG mode take them.
        let take = if matches!(view.shape.gpu_need, GpuNeed::Mig(..)) {
            Take::Nothing
        } else {
            Take::Whole(count)
        };
        measure(self, view, take).0
    }

    fn share(&self, _view: &View<'_>, _device: &Device, _mib: i32) -> i64 {
        0
    }

    fn best_share(&self, view: &View<'_>) -> Option<(i64, usize)> {
        let (first, _, (milli, _)) = share_devices(view.shape, view.room).next()?;
        let take = if view.shape.exclusive { Take::Whole(1) } else { Take::Share(milli.max(1)) };
        let (score, device) = measure(self, view, take);
        // Memory and share may differ by rounding; use the first device that fits.
        let fits = share_devices(view.shape, view.room).any(|(index, ..)| index == device);
        Some((score, if fits { device } else { first }))
    }
}

fn measure<M: Measure>(rule: &M, view: &View<'_>, take: Take) -> (i64, usize) {
    let left = shares_left(view.shape, view.room, take);
    let model = view.room.devices.first().map_or(0, |d| d.model);
    let node = NodeView { model, cpu: view.room.free[CPU], left: &left };
    rule.ask(view.outlook, &node, view.shape.need.amounts[CPU], take)
}

/// Free thousandths of each device; zero on unavailable ones.
fn shares_left(shape: &Shape, room: &Room, take: Take) -> SmallVec<[i32; 16]> {
    let usable = |d: &Device| {
        let whole_only = d.exclusive > 0 || d.geometry.is_some() || !d.open;
        !whole_only && (room.uniform || take == Take::Nothing || is_suitable(shape, d))
    };
    room.devices.iter().map(|d| if usable(d) { d.milli.max(0) } else { 0 }).collect()
}

/// Without demand: the device with the least free share.
fn tightest(node: &NodeView<'_>, take: Take) -> usize {
    let need = if let Take::Share(milli) = take { milli } else { 0 };
    let fitting = node.left.iter().enumerate().filter(|(_, left)| **left >= need);
    fitting.min_by_key(|(_, left)| **left).map_or(0, |(device, _)| device)
}
