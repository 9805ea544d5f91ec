//! `round_robin`: all nodes are equal; the search itself starts behind the last GPU given out.

use super::{Scorer, View};
use crate::pass::index::shared::GpuClass;
use crate::state::cluster::room::{Device, Room};

#[derive(Debug)]
pub(super) struct RoundRobin;

impl Scorer for RoundRobin {
    fn plain(&self, _view: &View<'_>) -> i64 {
        0
    }

    fn whole(&self, _view: &View<'_>, _count: u16) -> i64 {
        0
    }

    fn bound(&self, _room: &Room, _takes: GpuClass) -> i64 {
        0
    }

    fn share(&self, _view: &View<'_>, _device: &Device, _mib: i32) -> i64 {
        0
    }
}
