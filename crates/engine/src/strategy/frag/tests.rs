//! The fast measures against their definitions, on random nodes and demands.

use super::fgd::typical;
use super::node_measure::NodeMeasure;
use super::random::SplitMix;
use super::*;

const MODELS: u16 = 3;

fn class(cpu: i64, milli: i32, gpus: u16, models: &[ModelId], count: u64) -> DemandClass {
    DemandClass { cpu, milli, gpus, models: models.to_vec(), count }
}

fn random_class(random: &mut SplitMix) -> DemandClass {
    let (milli, gpus) = match random.below(8) {
        0 => (0, 0),
        1 => (DEVICE, 2),
        2 => (DEVICE, 8),
        3 => (400, 2),
        4 => (DEVICE, 1),
        _ => (10 * (1 + random.below(99) as i32), 1),
    };
    let models = match random.below(4) {
        0 => vec![random.below(u64::from(MODELS)) as u16],
        1 => vec![0, 2],
        _ => Vec::new(),
    };
    let cpu = 500 * random.below(40) as i64;
    DemandClass { cpu, milli, gpus, models, count: 1 + random.below(50) }
}

/// Devices are untouched, partly used, full or over-committed.
fn random_left(random: &mut SplitMix) -> Vec<i32> {
    let device = |random: &mut SplitMix| match random.below(4) {
        0 | 1 => DEVICE,
        2 => random.below(1001) as i32,
        _ => -(random.below(2) as i32) * 300,
    };
    (0..=random.below(8)).map(|_| device(random)).collect()
}

fn inventory() -> Vec<NodeShape> {
    let node = |model, gpus, count| NodeShape { model, gpus, cpu: 64_000, count };
    vec![node(0, 8, 10), node(1, 2, 5), node(2, 4, 1)]
}

/// Idle GPU that a class can use on a node, by the definition.
fn usable(class: &DemandClass, node: &NodeView<'_>) -> i64 {
    let enough: Vec<i64> =
        node.left.iter().filter(|&&l| l >= class.milli).map(|&l| i64::from(l)).collect();
    let served = class.wants_gpu()
        && class.accepts(node.model)
        && class.cpu <= node.cpu
        && enough.len() >= usize::from(class.gpus);
    if served { enough.iter().sum() } else { 0 }
}

fn fragmentation(typical: &[&DemandClass], node: &NodeView<'_>) -> i64 {
    let idle: i64 = node.left.iter().map(|&l| i64::from(l.max(0))).sum();
    typical.iter().map(|c| c.count as i64 * (idle - usable(c, node))).sum()
}

/// Every way to apply `allocation`: the devices left, and the device used.
fn outcomes(left: &[i32], allocation: GpuAllocation) -> Vec<(Vec<i32>, usize)> {
    let mut rest = left.to_vec();
    match allocation {
        GpuAllocation::Nothing => vec![(rest, 0)],
        GpuAllocation::Whole(gpus) => {
            let free = rest.iter_mut().filter(|l| **l >= DEVICE).take(usize::from(gpus));
            free.for_each(|l| *l = 0);
            vec![(rest, 0)]
        }
        GpuAllocation::Share(milli) => (0..left.len())
            .filter(|&device| left[device] >= milli)
            .map(|device| {
                let mut rest = left.to_vec();
                rest[device] -= milli;
                (rest, device)
            })
            .collect(),
    }
}

/// The best outcome, the lowest device among equals.
fn best(
    node: &NodeView<'_>,
    cpu: i64,
    allocation: GpuAllocation,
    score: impl Fn(&NodeView<'_>) -> i64,
) -> Option<(i64, usize)> {
    let mut best: Option<(i64, usize)> = None;
    for (left, device) in outcomes(node.left, allocation) {
        let after = score(&NodeView { model: node.model, cpu: node.cpu - cpu, left: &left });
        if best.is_none_or(|(most, _)| after > most) {
            best = Some((after, device));
        }
    }
    best
}

fn random_allocation(random: &mut SplitMix) -> GpuAllocation {
    match random.below(4) {
        0 => GpuAllocation::Nothing,
        1 => GpuAllocation::Whole(1 + random.below(4) as u16),
        _ => GpuAllocation::Share(10 * (1 + random.below(99) as i32)),
    }
}

/// Calls `check` with a random demand, node and request, many times.
fn on_random_nodes(mut check: impl FnMut(&[DemandClass], &NodeView<'_>, i64, GpuAllocation)) {
    let mut random = SplitMix(7);
    for _ in 0..60 {
        let classes: Vec<DemandClass> =
            (0..random.below(40)).map(|_| random_class(&mut random)).collect();
        for _ in 0..60 {
            let left = random_left(&mut random);
            let model = random.below(u64::from(MODELS) + 1) as u16;
            let cpu = random.below(30_000) as i64 - 2_000;
            let asked = random.below(4_000) as i64;
            let allocation = random_allocation(&mut random);
            check(&classes, &NodeView { model, cpu, left: &left }, asked, allocation);
        }
    }
}

#[test]
fn fgd_equals_its_definition_on_random_nodes() {
    let mut compared = 0;
    on_random_nodes(|classes, node, cpu, allocation| {
        let typical = typical(classes);
        let total: u64 = typical.iter().map(|c| c.count).sum();
        let before = fragmentation(&typical, node);
        let grade = |after: &NodeView<'_>| {
            let less = (before - fragmentation(&typical, after)) as f64;
            let scale = total.max(1) as f64 * 1000.0;
            (100.0 / (1.0 + libm::exp(-less / scale))) as i64
        };
        let fast = Fgd::new(classes, usize::from(MODELS));
        assert_eq!(fast.worth(node), -before, "{node:?}");
        if let Some(expected) = best(node, cpu, allocation, grade) {
            assert_eq!(fast.score(node, cpu, allocation), expected, "{node:?} {allocation:?}");
            compared += 1;
        }
    });
    assert!(compared > 1_000);
}

#[test]
fn value_equals_the_sum_over_all_devices_and_classes() {
    let options = ValueOptions { balance: 3.0, by_size: false, learning: None };
    on_random_nodes(|classes, node, cpu, allocation| {
        let classes: Vec<DemandClass> = classes
            .iter()
            .filter(|c| inventory().iter().any(|n| c.accepts(n.model) && c.gpus <= n.gpus))
            .cloned()
            .collect();
        let value = Value::new(&classes, &inventory(), &options);
        if let Some((after, device)) = best(node, cpu, allocation, |after| value.worth(after)) {
            assert_eq!(value.score(node, cpu, allocation), (after - value.worth(node), device));
        }
        let gpu = || classes.iter().filter(|c| c.wants_gpu());
        let all: u64 = gpu().map(|c| c.count).sum();
        let slow: f64 = gpu()
            .map(|c| {
                let accepted =
                    inventory().into_iter().filter(|n| c.accepts(n.model) && c.gpus <= n.gpus);
                let gpus: u32 = accepted.map(|n| u32::from(n.gpus) * n.count).sum();
                c.count as f64 / all as f64 * 94.0 / f64::from(gpus) * usable(c, node) as f64
            })
            .sum();
        let (cpus, gpus) = gpu().fold((0, 0), |(cpus, gpus), c| {
            (cpus + c.cpu * c.count as i64, gpus + c.total_milli() * c.count as i64)
        });
        let idle: i32 = node.left.iter().map(|l| (*l).max(0)).sum();
        let fed = if cpus > 0 { node.cpu.max(0) as f64 * gpus as f64 / cpus as f64 } else { 1e9 };
        let slow = slow + 3.0 * if node.cpu > 0 { fed.min(f64::from(idle)) } else { 0.0 };
        let fast = value.worth(node) as f64 / f64::from(1 << 20);
        assert!((slow - fast).abs() < 4.0, "{slow} {fast} {node:?}");
    });
}

#[test]
fn a_share_goes_to_the_device_that_leaves_the_least_useless() {
    // All requests are halves: 700 − 500 leaves 200 unusable thousandths, 500 − 500 none.
    let classes = [class(1_000, 500, 1, &[], 10)];
    let node = NodeView { model: 0, cpu: 64_000, left: &[700, 500, 500, 1000] };
    let value = Value::new(&classes, &inventory(), &ValueOptions::churning());
    assert_eq!(value.score(&node, 1_000, GpuAllocation::Share(500)).1, 1);
    assert_eq!(Fgd::new(&classes, 1).score(&node, 1_000, GpuAllocation::Share(500)).1, 1);
}

#[test]
fn without_demand_every_node_is_as_good() {
    for classes in [vec![], vec![class(4_000, 0, 0, &[], 5)], vec![class(1, 500, 1, &[], 0)]] {
        for options in [ValueOptions::churning(), ValueOptions::filling()] {
            let value = Value::new(&classes, &[], &options);
            let node = |left| NodeView { model: 9, cpu: 1_000, left };
            let scores = [&[1000][..], &[500, 1000], &[900, 0, -50]]
                .map(|left| value.score(&node(left), 10, GpuAllocation::Share(400)).0);
            assert!(scores.iter().all(|&s| s == scores[0]), "{scores:?}");
            assert_eq!(
                Fgd::new(&classes, 0).score(&node(&[1000]), 10, GpuAllocation::Nothing),
                (50, 0)
            );
        }
    }
}

#[test]
fn demand_for_a_scarce_model_keeps_other_workloads_off_it() {
    let classes = [class(1_000, DEVICE, 1, &[2], 1), class(1_000, DEVICE, 1, &[], 9)];
    let value = Value::new(&classes, &inventory(), &ValueOptions::churning());
    let on = |model| NodeView { model, cpu: 64_000, left: &[1000, 1000] };
    let score = |model| value.score(&on(model), 1_000, GpuAllocation::Whole(1)).0;
    assert!(score(2) < score(0));
    assert_eq!(score(0), score(1));
}

#[test]
fn learning_repeats_itself_exactly_and_changes_scores() {
    let shares = [(810, 20), (650, 9), (470, 20), (320, 12), (230, 6), (160, 2), (DEVICE, 30)];
    let classes = shares.map(|(milli, count)| class(6_000, milli, 1, &[], count));
    let node = NodeView { model: 0, cpu: 64_000, left: &[1000, 530] };
    let nodes: Vec<NodeShape> =
        inventory().into_iter().map(|n| NodeShape { count: 40, ..n }).collect();
    let score = |options| {
        Value::new(&classes, &nodes, &options).score(&node, 1_000, GpuAllocation::Share(470))
    };
    let learned = score(ValueOptions::filling());
    assert_eq!(learned, score(ValueOptions::filling()));
    assert_ne!(learned.0, score(ValueOptions { learning: None, ..ValueOptions::filling() }).0);
}

#[test]
fn typical_requests_are_the_most_frequent_nineteen_of_twenty() {
    let classes = [class(1, 100, 1, &[], 1), class(1, 200, 1, &[], 94), class(1, 300, 1, &[], 5)];
    let kept: Vec<i32> = typical(&classes).iter().map(|c| c.milli).collect();
    assert_eq!(kept, [200, 300]);
}
