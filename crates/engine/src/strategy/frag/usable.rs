//! Which idle GPU the demand can use: sums over all request shapes, prepared for look-up.

use super::ranks::{CpuRanks, MilliRanks};
use super::{DEVICE, DemandClass, NodeView};

/// Weighted idle thousandths the demand can use on a node.
///
/// A request shape can use a device that has at least the share it asks for, provided the node has
/// the CPU, the model and enough such devices. Summing over all shapes for every score would cost
/// microseconds. Instead the weights are added up once per (model, CPU rank, device rank): what a
/// node with that much CPU can do with a device that has that much left is then one look-up.
#[derive(Debug, Clone)]
pub(super) struct Usable {
    cpu: CpuRanks,
    milli: MilliRanks,
    models: usize,
    /// Most devices any shape asks for, plus one.
    wholes: usize,
    /// Weight of the one-device demand that a device of this rank can serve.
    single: Vec<i64>,
    /// Weight of the demand for several whole devices that so many free ones can serve.
    whole: Vec<i64>,
    /// Demand for shares of several devices, with its weight: rare, so looked at one by one.
    split: Vec<(DemandClass, i64)>,
}

impl Usable {
    /// Prepares the sums for weighted demand on a cluster with `models` GPU models. Nodes of any
    /// other model are taken to serve only the demand that accepts every model.
    pub(super) fn new(demand: &[(&DemandClass, i64)], models: usize) -> Self {
        let gpu = || demand.iter().filter(|(class, _)| class.wants_gpu());
        let cpu = CpuRanks::new(gpu().map(|(class, _)| class.cpu).collect());
        let milli = MilliRanks::new(gpu().map(|(class, _)| class.milli.min(DEVICE)).collect());
        let wholes = gpu().map(|(class, _)| usize::from(class.gpus)).max().unwrap_or(0) + 1;
        let rows = (models + 1) * (cpu.len() + 1);
        let single = vec![0; rows * (milli.len() + 1)];
        let whole = vec![0; rows * wholes];
        let mut usable = Self { cpu, milli, models, wholes, single, whole, split: Vec::new() };
        for &(class, weight) in gpu() {
            usable.add(class, weight);
        }
        usable
    }

    /// Where the sums for this node's model and CPU are kept.
    pub(super) fn row(&self, node: &NodeView<'_>) -> usize {
        let model = usize::from(node.model).min(self.models);
        model * (self.cpu.len() + 1) + self.cpu.rank(node.cpu)
    }

    /// What requests for one device can use of a device with `left`.
    pub(super) fn device(&self, row: usize, left: i32) -> i64 {
        let served = self.single[row * (self.milli.len() + 1) + self.milli.rank(left)];
        i64::from(left.max(0)) * served
    }

    /// What requests for several whole devices can use of `free` ones.
    pub(super) fn whole(&self, row: usize, free: usize) -> i64 {
        let served = self.whole[row * self.wholes + free.min(self.wholes - 1)];
        free as i64 * i64::from(DEVICE) * served
    }

    /// What requests for shares of several devices can use, if `swap` (a device and what it would
    /// have left) came true.
    pub(super) fn split(&self, node: &NodeView<'_>, swap: Option<(usize, i32)>) -> i64 {
        let part = |(class, weight): &(DemandClass, i64)| {
            if class.cpu > node.cpu || !class.accepts(node.model) {
                return 0;
            }
            let (mut sum, mut devices) = (0, 0);
            for (device, &left) in node.left.iter().enumerate() {
                let left = swap.filter(|s| s.0 == device).map_or(left, |s| s.1);
                if left >= class.milli {
                    (sum, devices) = (sum + i64::from(left), devices + 1);
                }
            }
            if devices < class.gpus { 0 } else { sum * weight }
        };
        self.split.iter().map(part).sum()
    }

    fn add(&mut self, class: &DemandClass, weight: i64) {
        if class.gpus > 1 && class.milli < DEVICE {
            self.split.push((class.clone(), weight));
            return;
        }
        let (ranks, widths) = (self.cpu.len() + 1, self.milli.len() + 1);
        let accepted = |model: &usize| match model {
            known if *known < self.models => class.accepts(*known as u16),
            _ => class.models.is_empty(),
        };
        for model in (0..=self.models).filter(accepted) {
            for rank in self.cpu.rank(class.cpu)..ranks {
                let row = model * ranks + rank;
                let cells = if class.gpus == 1 {
                    let from = row * widths + self.milli.rank(class.milli);
                    &mut self.single[from..(row + 1) * widths]
                } else {
                    let from = row * self.wholes + usize::from(class.gpus);
                    &mut self.whole[from..(row + 1) * self.wholes]
                };
                for cell in cells {
                    *cell += weight;
                }
            }
        }
    }
}
