//! Random nodes, foreign use, queues and policies.

use agentaflow_engine::labels::{Effect, Labels, Taint};
use agentaflow_engine::{
    AffinityKind, Ageing, DeviceSelection, ForeignDemand, ForeignGpu, ForeignUse, Gpu, MiB,
    MicroDollars, MigMode, MigProfile, MilliCpu, MilliGpu, Node, Percent, Policy, Price, Priority,
    Queue, QueueOrder, Quota, Span, Strategy as Choice, TaskAffinity, Time, TokenAccess,
};
use proptest::prelude::*;
use std::sync::Arc;

use crate::request::{self, labels, selector};

/// GPU models with their memory.
pub const MODELS: [(&str, u64); 4] = [
    ("NVIDIA A100-SXM4-40GB", 40_960),
    ("NVIDIA H100 80GB HBM3", 81_559),
    ("NVIDIA A30", 24_576),
    ("Tesla T4", 15_360),
];

/// A node named `n<number>`.
pub fn node(number: u8) -> impl Strategy<Value = Node> {
    let gpus = (0..5_usize, 0..4_usize, any::<bool>(), 0..6_u8, 0..3_u8);
    let amounts = (1..33_u64, 1..65_u64, 0..4_u64, prop::option::weighted(0.2, 1..4_u32));
    let place = (0..4_u8, 0..4_u8, 0..8_u8, 0..3_u32);
    (gpus, amounts, place, 0..5_u8, 0..3_u64).prop_map(
        move |(gpus, amounts, place, special, price)| {
            let mut node = Node::new(format!("n{number}"));
            node.gpus = devices(gpus.0, gpus.1, gpus.2, gpus.3, gpus.4);
            node.cpu = MilliCpu(amounts.0 * 1000);
            node.memory = MiB(amounts.1 * 1024);
            node.storage = MiB(amounts.2 * 100);
            node.max_tasks = amounts.3;
            if place.0 > 0 {
                node.labels.insert("rack".into(), format!("r{}", place.0).as_str().into());
            }
            if place.1 > 0 {
                node.labels.insert("zone".into(), format!("z{}", place.1 % 2).as_str().into());
            }
            match place.2 {
                0 => node.taints.push(Taint::new("spot", "yes", Effect::NoSchedule)),
                1 => node.taints.push(Taint::new("old", "", Effect::PreferNoSchedule)),
                _ => {}
            }
            node.rank = place.3;
            if special == 0 {
                node.device_selection = DeviceSelection::Node;
                for gpu in &mut node.gpus {
                    gpu.mig = MigMode::Off;
                }
            } else if special == 1 {
                node.resources.insert("fpga".into(), 2);
            } else if special == 2 {
                node.whole_gpus_only = true;
            }
            let hour = MicroDollars(price * 1_000_000);
            node.price = Price {
                gpu_hour: hour,
                cpu_hour: MicroDollars(price * 1000),
                gib_hour: MicroDollars(price),
            };
            node
        },
    )
}

fn devices(count: usize, model: usize, mixed: bool, mig: u8, links: u8) -> Vec<Gpu> {
    let device = |index: usize| {
        let (model, memory) = MODELS[if mixed { (model + index) % 4 } else { model }];
        let splittable = !model.contains("T4");
        Gpu {
            id: format!("g{index}").into(),
            model: model.into(),
            memory: MiB(memory),
            nvlink: (links > 0).then(|| index as u16 / u16::from(links)),
            mig: match mig {
                0 if splittable => MigMode::Free,
                1 if splittable && index.is_multiple_of(2) => MigMode::Free,
                2 if model.contains("A100") => MigMode::Fixed(vec![
                    (MigProfile::new("3g.20gb").unwrap(), 4),
                    (MigProfile::new("1g.5gb").unwrap(), 0),
                    (MigProfile::new("1g.5gb").unwrap(), 1),
                ]),
                _ => MigMode::Off,
            },
        }
    };
    (0..count).map(device).collect()
}

pub fn nodes(most: usize) -> impl Strategy<Value = Vec<Node>> {
    prop::collection::vec(node(0), 1..=most).prop_map(|mut nodes| {
        for (number, node) in nodes.iter_mut().enumerate() {
            node.id = format!("n{number}").into();
        }
        nodes
    })
}

/// A pending task of another scheduler.
pub fn foreign_demand() -> impl Strategy<Value = ForeignDemand> {
    (request::request(), -2..12_i32, 0..100_000_u64).prop_map(|(request, priority, submitted)| {
        let request = Arc::new(request);
        ForeignDemand { request, priority: Priority(priority), submitted: Time(submitted) }
    })
}

/// Foreign use, often beyond capacity.
pub fn foreign() -> impl Strategy<Value = ForeignUse> {
    let gpu = prop_oneof![
        Just(ForeignGpu::Whole),
        (1..=1000_u32).prop_map(|milli| ForeignGpu::Share(MilliGpu::new(milli).unwrap())),
        (1..200_000_u64).prop_map(|mib| ForeignGpu::Memory(MiB(mib))),
    ];
    let gpus =
        prop::collection::btree_map((0..4_u8).prop_map(|g| format!("g{g}").into()), gpu, 0..3);
    let away = prop::option::weighted(0.1, selector());
    (0..40_u64, 0..80_u64, gpus, 0..3_u32, labels(), away, 0..6_u8, any::<bool>()).prop_map(
        |(cpu, memory, gpus, gpu_count, labels, away, extra, terminating)| ForeignUse {
            terminating,
            cpu: MilliCpu(cpu * 1000),
            memory: MiB(memory * 1024),
            gpus,
            gpu_count: gpu_count.saturating_sub(1),
            labels,
            tokens: (extra == 0)
                .then(|| ("port".into(), TokenAccess::Exclusive))
                .into_iter()
                .collect(),
            resources: (extra == 1).then(|| ("fpga".into(), 1)).into_iter().collect(),
            anti_affinity: away
                .map(|selector| TaskAffinity {
                    kind: AffinityKind::AntiAffinity,
                    selector,
                    key: "node".into(),
                    weight: None,
                })
                .into_iter()
                .collect(),
            ..ForeignUse::default()
        },
    )
}

fn quota(chance: f64) -> impl Strategy<Value = Quota> {
    let some = move |range: std::ops::Range<u64>, unit: u64| {
        prop::option::weighted(chance, range.prop_map(move |amount| amount * unit))
    };
    let model = prop::option::weighted(chance / 2.0, (0..4_usize, 0..4_u64));
    (some(1..40, 1000), some(1..60, 1024), some(0..8, 500), model, some(0..3, 1)).prop_map(
        |(cpu, memory, gpu, model, fpga)| Quota {
            cpu,
            memory,
            gpu,
            models: model
                .map(|(model, gpus)| (MODELS[model].0.into(), gpus * 1000))
                .into_iter()
                .collect(),
            resources: fpga.map(|amount| ("fpga".into(), amount)).into_iter().collect(),
            storage: None,
        },
    )
}

/// A queue `q0` to `q4` below the root or an earlier queue.
pub fn queue() -> impl Strategy<Value = Queue> {
    let any_weight = prop_oneof![Just(100), 1..400_u32];
    (0..5_u8, 0..5_u8, any_weight, quota(0.25), quota(0.2), 0..10_u8, 0..8_u8).prop_map(
        |(number, parent, weight, guaranteed, limit, borrow, cap)| Queue {
            parent: if parent < number { format!("q{parent}").into() } else { "root".into() },
            weight,
            guaranteed,
            limit,
            borrow: borrow > 0,
            max_priority: if cap == 0 { Priority(7) } else { Priority::MAX },
            ..Queue::new(format!("q{number}"))
        },
    )
}

pub fn choice() -> impl Strategy<Value = Choice> {
    (0..Choice::ALL.len()).prop_map(|at| Choice::ALL[at])
}

pub fn policy() -> impl Strategy<Value = Policy> {
    let order = prop::option::weighted(
        0.5,
        (0..QueueOrder::ALL.len()).prop_map(|at| QueueOrder::ALL[at].1),
    );
    let spans = (0..3_u64, 0..3_u64, 0..3_u64, 0..3_u64, 0..3_u64);
    (choice(), order, spans, any::<bool>(), 0..4_u8, 0..4_u8).prop_map(
        |(strategy, order, spans, goal, backfill, preemption)| Policy {
            work_stays: goal,
            strategy,
            order,
            ageing: if spans.0 == 2 {
                Ageing::OFF
            } else {
                Ageing::one_point_per(Span::minutes(spans.0 * 15))
            },
            half_life: Span::minutes(spans.1 * 60),
            utilization_goal: goal.then(|| Percent::new(50.0).unwrap()),
            backfill: backfill > 0,
            patience: Span::minutes(spans.2 * 5),
            preemption: preemption > 0,
            min_runtime: Span::minutes(spans.3),
            hold: Span::minutes(spans.4 * 2 + 1),
            backoff: Span::seconds(2),
            max_backoff: Span::minutes(1),
            replacement_wait: Span::minutes(spans.4),
        },
    )
}

/// A node with changed labels.
pub fn other_labels(node: &Node, pick: u8) -> Labels {
    let mut labels = node.labels.clone();
    labels.insert("rack".into(), format!("r{}", pick % 4).as_str().into());
    labels
}

/// Another id for the same GPU, and back.
pub fn rename(gpu: &mut Gpu) {
    let name = gpu.id.as_str();
    gpu.id = name.strip_prefix("GPU-").map_or(format!("GPU-{name}"), ToOwned::to_owned).into();
}

/// No GPUs, or four when there were none.
pub fn other_gpus(spec: &Node) -> Vec<Gpu> {
    let gpu = |index: u32| Gpu {
        id: index.to_string().into(),
        model: "A100".into(),
        memory: MiB(40960),
        nvlink: None,
        mig: MigMode::Off,
    };
    if spec.gpus.is_empty() { (0..4).map(gpu).collect() } else { Vec::new() }
}
