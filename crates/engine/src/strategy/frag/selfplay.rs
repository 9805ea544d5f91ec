//! Self-play: learns the idle share with which devices end.
//!
//! A device with 190 free thousandths may end with all 190 idle; a device with 530 may end with 60. The
//! result depends on the demand and on the strategy itself. The strategy therefore simulates placements of
//! tasks drawn from the demand, records the final idle share of each device, and repeats with that knowledge.
//! All simulations use the same arrivals from a fixed seed, so results are comparable and reproducible.

use super::random::SplitMix;
use super::value::{LearningOptions, Value};
use super::{DEVICE, DemandClass, GpuAllocation, ModelId, NodeShape, NodeView};

const SEED: u64 = 2;

/// Weight of the prior for amounts with few observations, in observations.
const PRIOR: f64 = 2.0;

/// Learning rate. Full steps overshoot, because the outcome depends on the strategy that learns.
const STEP: f64 = 0.5;

/// Candidate factors of CPU scarcity. CPU-only requests compete for cores, and only a simulation shows the
/// effect.
const SCARCER: [f64; 3] = [1.0, 1.5, 2.0];

/// Minimum gain, as a share of capacity, over the plain measure; smaller gains are noise.
const EDGE: f64 = 0.001;

/// Limit of arrivals per simulation.
const MOST_ARRIVALS: u32 = 1 << 16;

/// The best measure after learning: the first simulations choose the CPU scarcity, the rest refine the
/// winner.
pub(super) fn learn(
    plain: &Value,
    classes: &[DemandClass],
    inventory: &[NodeShape],
    learning: &LearningOptions,
) -> Value {
    let input = SimulationInput::new(classes, inventory, learning);
    let mut best: Option<(f64, Value)> = None;
    for scarcer in SCARCER {
        let value = plain.clone().with_cpu_scarcer(scarcer);
        let (idle, value) = rounds(value, &input, learning, learning.rounds.div_ceil(2));
        if best.as_ref().is_none_or(|(least, _)| idle < least - EDGE * input.capacity()) {
            best = Some((idle, value));
        }
    }
    let chosen = best.map_or_else(|| plain.clone(), |(_, value)| value);
    rounds(chosen, &input, learning, learning.rounds).1
}

/// Runs `count` simulations; returns the measure with the least idle GPU, and that amount.
fn rounds(
    mut value: Value,
    input: &SimulationInput<'_>,
    learning: &LearningOptions,
    count: u32,
) -> (f64, Value) {
    let mut best = (f64::INFINITY, value.clone());
    let mut lesson: Option<Vec<f64>> = None;
    for _ in 0..count {
        let simulation = input.simulate(&value);
        let idle = simulation.idle();
        if idle < best.0 {
            best = (idle, value.clone());
        }
        let mut ends = simulation.mean_ends();
        for (new, old) in ends.iter_mut().zip(lesson.iter().flatten()) {
            *new = STEP * *new + (1.0 - STEP) * old;
        }
        value.expect_waste(&ends, learning.waste);
        lesson = Some(ends);
    }
    best
}

/// Starting point of every simulation.
struct SimulationInput<'a> {
    classes: &'a [DemandClass],
    nodes: Vec<SimulatedNode>,
    arrivals: Vec<usize>,
}

impl<'a> SimulationInput<'a> {
    fn new(
        classes: &'a [DemandClass],
        inventory: &[NodeShape],
        learning: &LearningOptions,
    ) -> Self {
        let mut random = SplitMix(SEED);
        let mut input = Self { classes, nodes: nodes(inventory, learning.gpus), arrivals: vec![] };
        random.shuffle(&mut input.nodes);
        let mut ends = Vec::with_capacity(classes.len());
        let mut all = 0;
        for class in classes {
            all += class.count;
            ends.push(all);
        }
        let target = (input.capacity() * learning.inflate) as i64;
        let mut asked = 0;
        while all > 0 && asked < target && input.arrivals.len() < MOST_ARRIVALS as usize {
            let drawn = random.below(all);
            let class = ends.partition_point(|&end| end <= drawn);
            asked += classes[class].total_milli();
            input.arrivals.push(class);
        }
        input
    }

    fn capacity(&self) -> f64 {
        self.nodes.iter().map(|node| node.left.len() as f64 * f64::from(DEVICE)).sum()
    }

    fn simulate(&self, value: &Value) -> Simulation {
        let nodes = self.nodes.clone();
        let cache = vec![CachedScore::default(); nodes.len() * self.classes.len()];
        let mut simulation = Simulation { nodes, cache };
        for &class in &self.arrivals {
            simulation.arrive(value, class, &self.classes[class]);
        }
        simulation
    }
}

/// The inventory, scaled down to about `most` GPUs.
fn nodes(inventory: &[NodeShape], most: u32) -> Vec<SimulatedNode> {
    let gpus: u64 = inventory.iter().map(|n| u64::from(n.gpus) * u64::from(n.count)).sum();
    let (keep, of) = if gpus > u64::from(most) { (u64::from(most), gpus) } else { (1, 1) };
    let mut nodes = Vec::new();
    for shape in inventory {
        let count = (u64::from(shape.count) * keep).div_ceil(of);
        nodes.extend((0..count).map(|_| SimulatedNode::new(shape)));
    }
    nodes
}

/// A running simulation: nodes, and cached scores per node and request shape.
struct Simulation {
    nodes: Vec<SimulatedNode>,
    cache: Vec<CachedScore>,
}

impl Simulation {
    /// Places one request with the best score, or drops it.
    fn arrive(&mut self, value: &Value, class: usize, request: &DemandClass) {
        let row = &mut self.cache[class * self.nodes.len()..(class + 1) * self.nodes.len()];
        let mut best: Option<(i64, usize)> = None;
        for (at, (node, cached)) in self.nodes.iter().zip(row.iter_mut()).enumerate() {
            if cached.version != node.version {
                *cached = node.score(value, request);
            }
            if cached.fits && best.is_none_or(|(score, _)| cached.score > score) {
                best = Some((cached.score, at));
            }
        }
        if let Some((_, at)) = best {
            self.nodes[at].place(request, usize::from(row[at].device));
        }
    }

    fn idle(&self) -> f64 {
        self.nodes.iter().flat_map(|node| &node.left).map(|&left| f64::from(left)).sum()
    }

    /// Mean final idle thousandths, by the free thousandths seen earlier.
    fn mean_ends(&self) -> Vec<f64> {
        let mut ends = vec![(0.0, 0.0); DEVICE as usize + 1];
        for node in &self.nodes {
            for &(device, seen) in &node.seen {
                let (idle, count) = &mut ends[seen as usize];
                *idle += f64::from(node.left[usize::from(device)]);
                *count += 1.0;
            }
        }
        smooth(&ends)
    }
}

/// Interpolates amounts without observations: the difference to the next smaller amount stays idle.
fn smooth(ends: &[(f64, f64)]) -> Vec<f64> {
    let (mut last, mut at) = (0.0, 0);
    let mut means = Vec::with_capacity(ends.len());
    for (left, &(idle, count)) in ends.iter().enumerate() {
        let guess = last + (left - at) as f64;
        let mean = (idle + PRIOR * guess) / (count + PRIOR);
        if count > 0.0 {
            last = mean;
            at = left;
        }
        means.push(mean);
    }
    means
}

/// Cached score of a shape on a node, and the node version it is valid for.
#[derive(Clone, Copy, Default)]
struct CachedScore {
    version: u32,
    fits: bool,
    device: u16,
    score: i64,
}

#[derive(Clone)]
struct SimulatedNode {
    model: ModelId,
    cpu: i64,
    left: Vec<i32>,
    /// Every device with each free amount it had.
    seen: Vec<(u16, i32)>,
    /// Incremented with each change; invalidates cached scores.
    version: u32,
}

impl SimulatedNode {
    fn new(shape: &NodeShape) -> Self {
        let left = vec![DEVICE; usize::from(shape.gpus)];
        let seen = (0..shape.gpus).map(|device| (device, DEVICE)).collect();
        Self { model: shape.model, cpu: shape.cpu, left, seen, version: 1 }
    }

    fn score(&self, value: &Value, request: &DemandClass) -> CachedScore {
        let mut cached = CachedScore { version: self.version, ..CachedScore::default() };
        let enough = self.left.iter().filter(|&&left| left >= request.milli).count();
        cached.fits = request.cpu <= self.cpu
            && (!request.wants_gpu()
                || request.accepts(self.model) && enough >= usize::from(request.gpus));
        if cached.fits {
            let node = NodeView { model: self.model, cpu: self.cpu, left: &self.left };
            let (score, device) = value.score(&node, request.cpu, gpu_allocation(request));
            cached.score = score;
            cached.device = device as u16;
        }
        cached
    }

    fn place(&mut self, request: &DemandClass, device: usize) {
        self.version += 1;
        self.cpu -= request.cpu;
        match gpu_allocation(request) {
            GpuAllocation::Nothing => {}
            GpuAllocation::Share(milli) => self.lower(device, milli),
            GpuAllocation::Whole(gpus) => {
                let mut wanted = gpus;
                for device in 0..self.left.len() {
                    if wanted > 0 && self.left[device] >= request.milli {
                        wanted -= 1;
                        self.lower(device, request.milli);
                    }
                }
            }
        }
    }

    fn lower(&mut self, device: usize, milli: i32) {
        self.left[device] -= milli;
        self.seen.push((device as u16, self.left[device]));
    }
}

/// Shares of several devices count as whole devices.
fn gpu_allocation(request: &DemandClass) -> GpuAllocation {
    match (request.gpus, request.milli) {
        (0, _) | (_, 0) => GpuAllocation::Nothing,
        (1, milli) if milli < DEVICE => GpuAllocation::Share(milli),
        (gpus, _) => GpuAllocation::Whole(gpus),
    }
}
