//! `cheapest`: the lowest hourly cost of the task; among equals, the fuller node.

use super::{Scorer, View};
use crate::state::cluster::fit::share_of;
use crate::state::cluster::room::{CPU, Device, MEMORY};

#[derive(Debug)]
pub(super) struct Cheapest;

impl Scorer for Cheapest {
    fn plain(&self, view: &View<'_>) -> i64 {
        price(view, 0)
    }

    fn whole(&self, view: &View<'_>, count: u16) -> i64 {
        price(view, i64::from(count) * 1000)
    }

    fn share(&self, view: &View<'_>, device: &Device, _mib: i32) -> i64 {
        let milli = if view.shape.exclusive { 1000 } else { share_of(view.shape, device).0 };
        price(view, milli.into())
    }
}

/// Negative price in 1/100 of a cent, times 1024 to leave bits for the tie-break.
fn price(view: &View<'_>, milli: i64) -> i64 {
    let [gpu, cpu, gib] = view.room.price.map(i128::from);
    let need = &view.shape.need.amounts;
    let micro = gpu * i128::from(milli) / 1000
        + cpu * i128::from(need[CPU]) / 1000
        + gib * i128::from(need[MEMORY]) / 1024;
    let price = i64::try_from(micro / 100).unwrap_or(i64::MAX).min(1 << 27);
    -(price << 10) + i64::from(view.room.used_permille)
}
