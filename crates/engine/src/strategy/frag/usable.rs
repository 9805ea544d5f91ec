//! Usable idle GPU: sums over all request shapes, prepared for lookup.

use super::ranks::{CpuRanks, MilliRanks};
use super::{DEVICE, DemandClass, NodeView};

/// Weighted idle thousandths that the demand can use on a node.
///
/// A request shape can use a device with at least the requested share, provided that the node has the CPU,
/// the model and enough such devices. A sum over all shapes for every score would cost microseconds, so the
/// weights are summed once per (model, CPU rank, device rank), and a score needs one lookup.
#[derive(Debug, Clone)]
pub(super) struct Usable {
    cpu: CpuRanks,
    milli: MilliRanks,
    models: usize,
    /// Largest number of devices of any shape, plus one.
    wholes: usize,
    /// Weight of the single-device demand that a device of this rank can serve.
    single: Vec<i64>,
    /// Weight of the demand for several whole devices, by number of free devices.
    whole: Vec<i64>,
    /// Demand for shares of several devices, with its weight; rare, so checked one by one.
    split: Vec<(DemandClass, i64)>,
}

impl Usable {
    /// Prepares the sums for a cluster with `models` GPU models. Nodes of other models serve only demand
    /// without a model restriction.
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

    pub(super) fn row(&self, node: &NodeView<'_>) -> usize {
        let model = usize::from(node.model).min(self.models);
        model * (self.cpu.len() + 1) + self.cpu.rank(node.cpu)
    }

    /// Usable part of a device with `left`, for single-device requests.
    pub(super) fn device(&self, row: usize, left: i32) -> i64 {
        let served = self.single[row * (self.milli.len() + 1) + self.milli.rank(left)];
        i64::from(left.max(0)) * served
    }

    /// Usable part of `free` whole devices, for multi-device requests.
    pub(super) fn whole(&self, row: usize, free: usize) -> i64 {
        let served = self.whole[row * self.wholes + free.min(self.wholes - 1)];
        free as i64 * i64::from(DEVICE) * served
    }

    /// Usable part for shares of several devices; `swap` replaces the free amount of one device.
    pub(super) fn split(&self, node: &NodeView<'_>, swap: Option<(usize, i32)>) -> i64 {
        let part = |(class, weight): &(DemandClass, i64)| {
            if class.cpu > node.cpu || !class.accepts(node.model) {
                return 0;
            }
            let (mut sum, mut devices) = (0, 0);
            for (device, &left) in node.left.iter().enumerate() {
                let left = swap.filter(|s| s.0 == device).map_or(left, |s| s.1);
                if left >= class.milli {
                    sum += i64::from(left);
                    devices += 1;
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
