//! The value of what a node has left: this project's own measure.

use super::usable::Usable;
use super::worth::Worth;
use super::{DEVICE, DemandClass, NodeShape, NodeView, Take, selfplay};

/// Weights are whole numbers of `1/ONE`: a score is a sum of integers, and rounding never decides
/// between two nodes that are equally good.
const ONE: f64 = (1_i64 << ONE_BITS) as f64;
const ONE_BITS: u32 = 20;

/// How the terms of [`Value`] are weighed. Every number here was chosen by measurement; see
/// `docs/research/fragmentation.md`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValueOptions {
    /// Weight of the idle GPU that the idle CPU beside it can feed.
    pub(crate) balance: f64,
    /// Whether a request shape weighs by the GPU it asks for, not just by how often it is seen.
    pub(crate) by_size: bool,
    /// How to learn what becomes of devices; `None` switches learning off.
    pub(crate) learning: Option<Learning>,
}

/// How [`Value`] learns by playing against itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Learning {
    /// Weight of the idle GPU a device is expected to end with.
    pub(crate) waste: f64,
    /// Games played to learn; each builds on the one before.
    pub(crate) rounds: u32,
    /// Arrivals of one game, as a multiple of the GPU capacity.
    pub(crate) inflate: f64,
    /// Most GPUs a game is played with; a larger cluster is scaled down.
    pub(crate) gpus: u32,
}

impl ValueOptions {
    /// For clusters where work comes and goes: no learning, because what becomes of a device
    /// matters little when its tenants leave.
    pub(crate) const fn churning() -> Self {
        Self { balance: 0.25, by_size: true, learning: None }
    }

    /// For clusters that fill up with work that stays: learns how devices end.
    pub(crate) const fn filling() -> Self {
        let learning = Learning { waste: 24.0, rounds: 6, inflate: 1.3, gpus: 3000 };
        Self { balance: 8.0, by_size: false, learning: Some(learning) }
    }
}

impl Default for ValueOptions {
    fn default() -> Self {
        Self::churning()
    }
}

/// Scores by how much worth a placement leaves on the node.
///
/// The worth of a node is `U + balance·B − waste·W`:
/// * `U`, the idle GPU the demand can use, weighted by how scarce the models are that it may use;
/// * `B`, the idle GPU that the idle CPU can feed at the demand's average need, so that GPUs are
///   not stranded behind used-up CPU;
/// * `W`, the idle GPU its devices are expected to end with, learned by self-play.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    usable: Usable,
    /// GPU thousandths that one thousandth of a core feeds, in `1/ONE`.
    fed: i64,
    /// Weight of `B`, in `1/ONE`.
    balance: i64,
    /// Weighted idle thousandths a device with this much left is expected to end with.
    waste: Vec<i64>,
}

impl Value {
    /// Prepares the measure for a demand on the cluster that `inventory` describes.
    pub(crate) fn new(
        classes: &[DemandClass],
        inventory: &[NodeShape],
        options: &ValueOptions,
    ) -> Self {
        let value = Self::untaught(classes, inventory, options);
        match &options.learning {
            Some(learning) => selfplay::teach(&value, classes, inventory, learning),
            None => value,
        }
    }

    /// What taking `cpu` and `take` from `node` does to its worth, and for a share the device it
    /// is best taken from.
    pub(crate) fn score(&self, node: &NodeView<'_>, cpu: i64, take: Take) -> (i64, usize) {
        let before = self.worth(node);
        let after = NodeView { cpu: node.cpu - cpu, ..*node };
        match take {
            Take::Nothing => (self.worth(&after) - before, 0),
            Take::Whole(gpus) => (self.after_whole(&after, gpus) - before, 0),
            Take::Share(milli) => {
                let (mut best, mut at) = (i64::MIN, 0);
                self.after_share(&after, milli, |worth, device| {
                    if worth - before > best {
                        (best, at) = (worth - before, device);
                    }
                });
                (best, at)
            }
        }
    }

    /// The measure with every thousandth of a core feeding only `1/scarcer` of the GPU.
    pub(super) fn with_cpu_scarcer(mut self, scarcer: f64) -> Self {
        self.fed = (self.fed as f64 / scarcer) as i64;
        self
    }

    /// Replaces what devices are expected to end with.
    pub(super) fn expect_waste(&mut self, idle: &[f64], weight: f64) {
        self.waste = idle.iter().map(|idle| (idle * weight * ONE) as i64).collect();
    }

    fn untaught(classes: &[DemandClass], inventory: &[NodeShape], options: &ValueOptions) -> Self {
        let size = |class: &DemandClass| {
            let each = if options.by_size { class.total_milli() as f64 } else { 1.0 };
            if class.wants_gpu() { class.count as f64 * each } else { 0.0 }
        };
        let all: f64 = classes.iter().map(size).sum();
        let weigh = |class| (size(class) / all * scarcity(class, inventory) * ONE) as i64;
        let demand: Vec<(&DemandClass, i64)> =
            classes.iter().filter(|&c| size(c) > 0.0).map(|c| (c, weigh(c))).collect();
        let models = inventory.iter().map(|n| usize::from(n.model) + 1).max().unwrap_or(0);
        Self {
            usable: Usable::new(&demand, models),
            fed: fed(classes),
            balance: (options.balance * ONE) as i64,
            waste: vec![0; DEVICE as usize + 1],
        }
    }
}

impl Worth for Value {
    fn usable(&self) -> &Usable {
        &self.usable
    }

    fn device(&self, row: usize, left: i32) -> i64 {
        self.usable.device(row, left) - self.waste[left.clamp(0, DEVICE) as usize]
    }

    fn node(&self, cpu: i64, idle: i64) -> i64 {
        let fed = (i128::from(cpu.max(0)) * i128::from(self.fed)) >> ONE_BITS;
        self.balance * i64::try_from(fed).map_or(idle, |fed| fed.min(idle))
    }
}

/// How many times scarcer the GPUs are that this class may use: demand that can go to few nodes
/// weighs more, because no other GPU can stand in.
fn scarcity(class: &DemandClass, inventory: &[NodeShape]) -> f64 {
    let gpus = |node: &NodeShape| u64::from(node.gpus) * u64::from(node.count);
    let hosts = |node: &&NodeShape| {
        class.accepts(node.model) && class.gpus <= node.gpus && class.cpu <= node.cpu
    };
    let all: u64 = inventory.iter().map(gpus).sum();
    let some: u64 = inventory.iter().filter(hosts).map(gpus).sum();
    match (all, some) {
        (0, _) => 1.0,
        (_, 0) => 0.0,
        (all, some) => all as f64 / some as f64,
    }
}

/// GPU thousandths that one thousandth of a core feeds in the average GPU request, in `1/ONE`.
fn fed(classes: &[DemandClass]) -> i64 {
    let (mut cpu, mut gpu) = (0.0, 0.0);
    for class in classes.iter().filter(|c| c.wants_gpu()) {
        cpu += class.cpu.max(0) as f64 * class.count as f64;
        gpu += class.total_milli() as f64 * class.count as f64;
    }
    if cpu > 0.0 { (gpu / cpu * ONE) as i64 } else { i64::MAX }
}
