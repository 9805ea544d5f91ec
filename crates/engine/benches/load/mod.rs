//! Deterministic loads for the benchmarks.

use std::sync::Arc;

use agentaflow_engine::{
    Event, Gpu, GpuRequest, MiB, MicroDollars, MigMode, MilliCpu, MilliGpu, Node, Policy, Price,
    Priority, Request, Scheduler, Span, Strategy, Time, Workload,
};

/// Distinct requests in a mixed load.
pub(crate) const MIXED: u64 = 20;

pub(crate) struct Dice(pub u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// A cluster of `nodes` nodes with eight GPUs each, of three models.
pub(crate) fn cluster(nodes: usize, strategy: Strategy) -> Scheduler {
    let mut scheduler = Scheduler::new(Policy { strategy, ..Policy::default() });
    for index in 0..nodes {
        let (model, memory, price) = match index % 10 {
            0..4 => ("NVIDIA H100 80GB HBM3", 81_559, 4_000_000),
            4..8 => ("NVIDIA A100-SXM4-40GB", 40_960, 2_000_000),
            _ => ("NVIDIA L4", 23_034, 700_000),
        };
        let mut node = Node::new(format!("node-{index:05}"));
        node.cpu = MilliCpu(128_000);
        node.memory = MiB(1 << 20);
        node.price = Price { gpu_hour: MicroDollars(price), ..Price::default() };
        node.gpus = (0..8).map(|gpu| gpu_of(gpu, model, memory)).collect();
        scheduler.apply(Time(0), Event::NodeUpdated(Box::new(node))).expect("the node is valid");
    }
    scheduler
}

fn gpu_of(index: u16, model: &str, memory: u64) -> Gpu {
    Gpu {
        id: format!("{index}").into(),
        model: model.into(),
        memory: MiB(memory),
        nvlink: Some(index / 4),
        mig: MigMode::Off,
    }
}

/// Fifty distinct requests: whole GPUs, shares, memory and CPU-only tasks of several sizes.
pub(crate) fn shapes() -> Vec<Request> {
    let mut shapes = Vec::new();
    for index in 0..50_u64 {
        let gpu = match index % 5 {
            0 => GpuRequest::Whole(1 << (index / 5 % 4)),
            1 => GpuRequest::Whole(1),
            2 => GpuRequest::Fraction(
                MilliGpu::new(100 + 60 * (index as u32 / 5)).expect("in range"),
            ),
            3 => GpuRequest::Memory(MiB(2048 + 1536 * (index / 5))),
            _ if index % 10 == 4 => GpuRequest::None,
            _ => GpuRequest::Fraction(MilliGpu::new(500).expect("in range")),
        };
        let models = if index % 7 == 0 { vec!["H100".into()] } else { Vec::new() };
        shapes.push(Request {
            gpu,
            models,
            cpu: MilliCpu(1000 + 250 * (index % 8)),
            memory: MiB(4096 + 1024 * (index % 6)),
            ..Request::default()
        });
    }
    shapes
}

/// Workloads of the first `kinds` requests, small ones more often.
pub(crate) fn workloads(count: usize, kinds: u64, seed: u64) -> Vec<Workload> {
    let shapes: Vec<Arc<Request>> = shapes().into_iter().map(Arc::new).collect();
    let mut dice = Dice(seed);
    let workload = |index| {
        let shape = dice.roll(kinds).min(dice.roll(kinds)) as usize;
        let mut workload = Workload::new(format!("w{seed}-{index}"), shapes[shape].clone());
        workload.priority = Priority(dice.roll(11) as i32);
        workload.estimate = Some(Span::minutes(10 + dice.roll(600)));
        workload
    };
    (0..count).map(workload).collect()
}
