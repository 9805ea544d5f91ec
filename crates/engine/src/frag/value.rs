//! The value of what a node has left: this project's own fragmentation measure.

use super::ranks::{CpuRanks, MilliRanks};
use super::selfplay;
use super::{DEVICE, DemandClass, NodeShape, NodeView, Take};

/// Weights are kept in units of `1/ONE`, so that a score is a sum of integers and rounding never
/// decides between two nodes.
const ONE: f64 = (1_i64 << 20) as f64;

/// How the terms of [`Value`] are weighed; the defaults are the measured best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueOptions {
    /// Weight of GPU left that CPU left can still feed.
    pub balance: f64,
    /// Weight of the idle GPU a device is expected to end with, learned by self-play.
    pub waste: f64,
    /// Self-play rounds; zero switches learning off.
    pub rounds: u32,
    /// Arrivals of one self-play round, as a multiple of the cluster's GPU capacity.
    pub inflate: f64,
    /// Most GPUs a self-play cluster has: a larger inventory is scaled down to it.
    pub gpus: u32,
}

impl Default for ValueOptions {
    fn default() -> Self {
        Self { balance: 4.0, waste: 8.0, rounds: 2, inflate: 1.3, gpus: 8192 }
    }
}

/// Scores by how much worth a placement leaves on the node.
#[derive(Debug, Clone)]
pub struct Value {
    cpu: CpuRanks,
    milli: MilliRanks,
    models: usize,
    wholes: usize,
    /// Weight of the one-device demand that a device with this much left can serve.
    single: Vec<i64>,
    /// Weight of the demand of several whole devices that this many free ones can serve.
    whole: Vec<i64>,
    /// Demand of shares on several devices, with its weight.
    split: Vec<(DemandClass, i64)>,
    /// GPU thousandths one thousandth of a core feeds, in `1/ONE`.
    fed: i64,
    balance: i64,
    /// Weighted idle thousandths a device with this much left is expected to end with.
    waste: Vec<i64>,
}

impl Value {
    /// Prepares the measure for a demand on the cluster `inventory` describes.
    pub fn new(classes: &[DemandClass], inventory: &[NodeShape], options: &ValueOptions) -> Self {
        let mut value = Self::untaught(classes, inventory, options);
        for round in 0..options.rounds {
            let idle = selfplay::final_idle(&value, classes, inventory, options, round);
            value.waste = idle.iter().map(|w| (w * options.waste * ONE) as i64).collect();
        }
        value
    }

    fn untaught(classes: &[DemandClass], inventory: &[NodeShape], options: &ValueOptions) -> Self {
        let gpu = || classes.iter().filter(|c| c.wants_gpu() && c.count > 0);
        let models = inventory.iter().map(|n| usize::from(n.model) + 1).max().unwrap_or(1);
        let wholes = gpu().map(|c| usize::from(c.gpus)).max().unwrap_or(0) + 1;
        let mut value = Self {
            cpu: CpuRanks::new(gpu().map(|c| c.cpu).collect()),
            milli: MilliRanks::new(gpu().map(|c| c.milli.min(DEVICE)).collect()),
            models,
            wholes,
            single: Vec::new(),
            whole: Vec::new(),
            split: Vec::new(),
            fed: fed(classes),
            balance: (options.balance * ONE) as i64,
            waste: vec![0; DEVICE as usize + 1],
        };
        let rows = models * (value.cpu.len() + 1);
        value.single = vec![0; rows * (value.milli.len() + 1)];
        value.whole = vec![0; rows * wholes];
        let total: u64 = gpu().map(|c| c.count).sum();
        for class in gpu() {
            let weight = class.count as f64 / total as f64 * scarcity(class, inventory);
            value.add(class, (weight * ONE) as i64);
        }
        value
    }

    /// What taking `cpu` and `take` from `node` does to its value, and for a share the device it
    /// is best taken from.
    pub fn score(&self, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize) {
        let before = self.value(node);
        let after = NodeView { cpu: node.cpu - cpu, ..*node };
        match take {
            Take::Nothing => (self.value(&after) - before, 0),
            Take::Share(milli) => {
                let (best, device) = self.best_device(&after, milli);
                (best.saturating_sub(before), device)
            }
            Take::Whole(gpus) => (self.value_less_whole(&after, gpus) - before, 0),
        }
    }

    /// The value of what `node` has left.
    pub(super) fn value(&self, node: &NodeView<'_>) -> i64 {
        let row = self.row(node);
        let (mut sum, mut free, mut idle) = (0, 0, 0);
        for &left in node.left {
            sum += self.device(row, left);
            free += usize::from(left >= DEVICE);
            idle += i64::from(left.max(0));
        }
        sum + self.whole_use(row, free) + self.balanced(node.cpu, idle) + self.split_use(node)
    }

    fn best_device(&self, after: &NodeView<'_>, milli: i32) -> (i64, usize) {
        let row = self.row(after);
        let devices: i64 = after.left.iter().map(|&left| self.device(row, left)).sum();
        let idle: i64 = after.left.iter().map(|&left| i64::from(left.max(0))).sum();
        let free = after.left.iter().filter(|&&left| left >= DEVICE).count();
        let uses = [self.whole_use(row, free.saturating_sub(1)), self.whole_use(row, free)];
        let rest = self.balanced(after.cpu, idle - i64::from(milli));
        let (mut best, mut at, mut last) = (i64::MIN, 0, i32::MIN);
        for (device, &left) in after.left.iter().enumerate() {
            if left < milli || left == last {
                continue;
            }
            last = left;
            let swapped = devices - self.device(row, left) + self.device(row, left - milli);
            let split = self.split_use_with(after, device, left - milli);
            let value = swapped + uses[usize::from(left < DEVICE)] + rest + split;
            if value > best {
                (best, at) = (value, device);
            }
        }
        (best, at)
    }

    fn value_less_whole(&self, after: &NodeView<'_>, gpus: u16) -> i64 {
        let mut rest: [i32; 16] = [0; 16];
        let mut taken = 0;
        let mut many = Vec::new();
        let left: &mut [i32] = if after.left.len() <= rest.len() {
            &mut rest[..after.left.len()]
        } else {
            many.resize(after.left.len(), 0);
            &mut many
        };
        for (to, &from) in left.iter_mut().zip(after.left) {
            let take = from >= DEVICE && taken < gpus;
            taken += u16::from(take);
            *to = if take { 0 } else { from };
        }
        self.value(&NodeView { left, ..*after })
    }

    fn device(&self, row: usize, left: i32) -> i64 {
        let left = left.clamp(0, DEVICE);
        let served = self.single[row * (self.milli.len() + 1) + self.milli.rank(left)];
        i64::from(left) * served - self.waste[left as usize]
    }

    fn whole_use(&self, row: usize, free: usize) -> i64 {
        let served = self.whole[row * self.wholes + free.min(self.wholes - 1)];
        free as i64 * i64::from(DEVICE) * served
    }

    fn balanced(&self, cpu: i64, idle: i64) -> i64 {
        let fed = ((i128::from(cpu.max(0)) * i128::from(self.fed)) >> 20) as i64;
        self.balance * idle.min(fed)
    }

    fn split_use(&self, node: &NodeView<'_>) -> i64 {
        self.split_use_with(node, usize::MAX, 0)
    }

    fn split_use_with(&self, node: &NodeView<'_>, device: usize, now: i32) -> i64 {
        let left = || node.left.iter().enumerate().map(|(d, &l)| if d == device { now } else { l });
        let usable = |(class, weight): &(DemandClass, i64)| {
            if class.cpu > node.cpu || !class.accepts(node.model) {
                return 0;
            }
            let enough = || left().filter(|&l| l >= class.milli);
            let sum: i64 = enough().map(i64::from).sum();
            if enough().count() < usize::from(class.gpus) { 0 } else { sum * weight }
        };
        self.split.iter().map(usable).sum()
    }

    fn row(&self, node: &NodeView<'_>) -> usize {
        let model = usize::from(node.model).min(self.models - 1);
        model * (self.cpu.len() + 1) + self.cpu.rank(node.cpu)
    }

    fn add(&mut self, class: &DemandClass, weight: i64) {
        if class.gpus > 1 && class.milli < DEVICE {
            self.split.push((class.clone(), weight));
            return;
        }
        let (ranks, widths) = (self.cpu.len() + 1, self.milli.len() + 1);
        for model in (0..self.models).filter(|&m| class.accepts(m as u16)) {
            for rank in self.cpu.rank(class.cpu)..ranks {
                let row = model * ranks + rank;
                let cells = if class.gpus == 1 {
                    &mut self.single[row * widths + self.milli.rank(class.milli)..(row + 1) * widths]
                } else {
                    &mut self.whole[row * self.wholes + usize::from(class.gpus)..(row + 1) * self.wholes]
                };
                cells.iter_mut().for_each(|cell| *cell += weight);
            }
        }
    }
}

/// How many times scarcer the GPUs are that this class may use: demand that can go to few models
/// weighs more, because nothing else can stand in for them.
fn scarcity(class: &DemandClass, inventory: &[NodeShape]) -> f64 {
    let gpus = |n: &NodeShape| f64::from(n.gpus) * f64::from(n.count);
    let all: f64 = inventory.iter().map(gpus).sum();
    let usable: f64 = inventory.iter().filter(|n| class.accepts(n.model)).map(gpus).sum();
    if all <= 0.0 { 1.0 } else if usable > 0.0 { all / usable } else { 0.0 }
}

/// GPU thousandths one thousandth of a core feeds in the average GPU request, in `1/ONE`.
fn fed(classes: &[DemandClass]) -> i64 {
    let (mut cpu, mut gpu) = (0.0, 0.0);
    for class in classes.iter().filter(|c| c.wants_gpu()) {
        cpu += class.cpu.max(0) as f64 * class.count as f64;
        gpu += f64::from(class.milli) * f64::from(class.gpus) * class.count as f64;
    }
    if cpu > 0.0 { (gpu / cpu * ONE) as i64 } else { i64::MAX >> 20 }
}
