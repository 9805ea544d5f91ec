//! Common part of the measures: the worth of a node, and its change by a request.
//!
//! Every measure is the sum of a term per device, a term for the number of unused devices and a term for the
//! node. A share on one of eight devices changes one term only, so trying all eight costs little more than
//! one.

use super::usable::Usable;
use super::{DEVICE, NodeView};

/// Nodes with more devices need a heap allocation.
const DEVICES_ON_STACK: usize = 16;

/// A measure of a node's free resources; more is better.
pub(super) trait NodeMeasure {
    fn usable(&self) -> &Usable;

    /// Term of one device with `left`.
    fn device(&self, row: usize, left: i32) -> i64;

    /// Term of the node: its CPU and all its idle GPU.
    fn node(&self, cpu: i64, idle: i64) -> i64;

    fn worth(&self, node: &NodeView<'_>) -> i64 {
        let row = self.usable().row(node);
        let sums = self.sums(row, node);
        let whole = self.usable().whole(row, sums.free);
        sums.devices + whole + self.node(node.cpu, sums.idle) + self.usable().split(node, None)
    }

    /// Calls `offer(worth, device)` for every device with at least `milli` free, lowest index first.
    /// Neighbours with equal free amounts are ties and offered once.
    fn after_share(&self, node: &NodeView<'_>, milli: i32, mut offer: impl FnMut(i64, usize))
    where
        Self: Sized,
    {
        let row = self.usable().row(node);
        let sums = self.sums(row, node);
        let used = self.usable().whole(row, sums.free);
        let opened = self.usable().whole(row, sums.free.saturating_sub(1));
        let rest = sums.devices + self.node(node.cpu, sums.idle - i64::from(milli));
        let mut last = i32::MIN;
        for (device, &left) in node.left.iter().enumerate() {
            if left < milli || left == last {
                continue;
            }
            last = left;
            let swapped = self.device(row, left - milli) - self.device(row, left);
            let whole = if left < DEVICE { used } else { opened };
            let split = self.usable().split(node, Some((device, left - milli)));
            offer(rest + swapped + whole + split, device);
        }
    }

    /// Worth of `node` without the first `gpus` unused devices.
    fn after_whole(&self, node: &NodeView<'_>, gpus: u16) -> i64 {
        let mut stack = [0; DEVICES_ON_STACK];
        let mut heap = Vec::new();
        let rest = if let Some(rest) = stack.get_mut(..node.left.len()) {
            rest
        } else {
            heap.resize(node.left.len(), 0);
            &mut heap[..]
        };
        let mut wanted = gpus;
        for (rest, &left) in rest.iter_mut().zip(node.left) {
            let taken = left >= DEVICE && wanted > 0;
            wanted -= u16::from(taken);
            *rest = if taken { 0 } else { left };
        }
        self.worth(&NodeView { left: rest, ..*node })
    }

    fn sums(&self, row: usize, node: &NodeView<'_>) -> Sums {
        let mut sums = Sums { devices: 0, idle: 0, free: 0 };
        for &left in node.left {
            sums.devices += self.device(row, left);
            sums.idle += i64::from(left.max(0));
            sums.free += usize::from(left >= DEVICE);
        }
        sums
    }
}

pub(super) struct Sums {
    devices: i64,
    idle: i64,
    free: usize,
}
