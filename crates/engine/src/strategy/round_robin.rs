//! `round_robin`: all nodes score equally; the search starts behind the last used GPU.

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
