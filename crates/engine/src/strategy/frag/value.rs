//! The value of a node's free resources: this project's own measure.

use super::node_measure::NodeMeasure;
use super::usable::Usable;
use super::{DEVICE, DemandClass, GpuAllocation, NodeShape, NodeView, selfplay};

/// Fixed-point unit: scores are integer sums, so rounding never decides between equal nodes.
const ONE: f64 = (1_i64 << ONE_BITS) as f64;
const ONE_BITS: u32 = 20;

/// Weights of [`Value`], chosen by measurement; see `docs/research/fragmentation.md`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ValueOptions {
    /// Weight of the idle GPU that the node's idle CPU can feed.
    pub(crate) balance: f64,
    /// Weigh a request shape by its GPU amount, not only by its frequency.
    pub(crate) by_size: bool,
    /// `None` disables learning.
    pub(crate) learning: Option<LearningOptions>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LearningOptions {
    /// Weight of the expected final idle GPU.
    pub(crate) waste: f64,
    /// Number of simulations; each builds on the previous one.
    pub(crate) rounds: u32,
    /// Arrivals per simulation, as a multiple of the GPU capacity.
    pub(crate) inflate: f64,
    /// Limit of GPUs per simulation; larger clusters are scaled down.
    pub(crate) gpus: u32,
}

impl ValueOptions {
    /// For clusters with short-lived workloads: no learning, because the final state of a device matters
    /// little.
    pub(crate) const fn churning() -> Self {
        Self { balance: 0.25, by_size: true, learning: None }
    }

    /// For clusters that fill up with long-lived workloads.
    pub(crate) const fn filling() -> Self {
        let learning = LearningOptions { waste: 24.0, rounds: 6, inflate: 1.3, gpus: 3000 };
        Self { balance: 8.0, by_size: false, learning: Some(learning) }
    }
}

impl Default for ValueOptions {
    fn default() -> Self {
        Self::churning()
    }
}

/// Scores by the worth that a placement leaves on the node.
///
/// The worth of a node is `U + balance·B − waste·W`:
/// * `U`, the idle GPU the demand can use, weighted by how scarce the models are that it may use;
/// * `B`, the idle GPU that the idle CPU can feed at the demand's average need, so that GPUs are
///   not stranded behind used-up CPU;
/// * `W`, the idle GPU its devices are expected to end with, learned by self-play.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    usable: Usable,
    /// GPU thousandths fed by one thousandth of a core, in `1/ONE`.
    fed: i64,
    /// Weight of `B`, in `1/ONE`.
    balance: i64,
    /// Weighted final idle thousandths, by free thousandths.
    waste: Vec<i64>,
}

impl Value {
    pub(crate) fn new(
        classes: &[DemandClass],
        inventory: &[NodeShape],
        options: &ValueOptions,
    ) -> Self {
        let value = Self::without_learning(classes, inventory, options);
        match &options.learning {
            Some(learning) => selfplay::learn(&value, classes, inventory, learning),
            None => value,
        }
    }

    /// Change of the node's worth by taking `cpu` and `allocation`, and the best device for a share.
    pub(crate) fn score(
        &self,
        node: &NodeView<'_>,
        cpu: i64,
        allocation: GpuAllocation,
    ) -> (i64, usize) {
        let before = self.worth(node);
        let after = NodeView { cpu: node.cpu - cpu, ..*node };
        match allocation {
            GpuAllocation::Nothing => (self.worth(&after) - before, 0),
            GpuAllocation::Whole(gpus) => (self.after_whole(&after, gpus) - before, 0),
            GpuAllocation::Share(milli) => {
                let (mut best, mut at) = (i64::MIN, 0);
                self.after_share(&after, milli, |worth, device| {
                    if worth - before > best {
                        best = worth - before;
                        at = device;
                    }
                });
                (best, at)
            }
        }
    }

    /// The measure with `scarcer` times less GPU fed per core.
    pub(super) fn with_cpu_scarcer(mut self, scarcer: f64) -> Self {
        self.fed = (self.fed as f64 / scarcer) as i64;
        self
    }

    /// Replaces the learned final idle thousandths.
    pub(super) fn expect_waste(&mut self, idle: &[f64], weight: f64) {
        self.waste = idle.iter().map(|idle| (idle * weight * ONE) as i64).collect();
    }

    fn without_learning(
        classes: &[DemandClass],
        inventory: &[NodeShape],
        options: &ValueOptions,
    ) -> Self {
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

impl NodeMeasure for Value {
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

/// Scarcity factor of the GPUs that this class may use. Demand with few possible nodes weighs more.
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

/// GPU thousandths per thousandth of a core in the average GPU request, in `1/ONE`.
fn fed(classes: &[DemandClass]) -> i64 {
    let (mut cpu, mut gpu) = (0.0, 0.0);
    for class in classes.iter().filter(|c| c.wants_gpu()) {
        cpu += class.cpu.max(0) as f64 * class.count as f64;
        gpu += class.total_milli() as f64 * class.count as f64;
    }
    if cpu > 0.0 { (gpu / cpu * ONE) as i64 } else { i64::MAX }
}
