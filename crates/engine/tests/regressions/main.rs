//! Fixed bugs, each as the shortest history that showed it.

mod places;
mod turns;

use agentaflow_engine::{
    Decision, Event, Gpu, GpuRequest, MiB, MigMode, MilliCpu, MilliGpu, Node, Plan, Request,
    Scheduler, Span, Time, Workload, WorkloadId,
};

const NOW: Time = Time(0);

fn node(id: &str, gpus: usize) -> Node {
    let gpu = |index: usize| Gpu {
        id: format!("g{index}").into(),
        model: "NVIDIA A100-SXM4-40GB".into(),
        memory: MiB(40_960),
        nvlink: None,
        mig: MigMode::Off,
    };
    let gpus = (0..gpus).map(gpu).collect();
    Node { gpus, cpu: MilliCpu(8000), memory: MiB(8192), ..Node::new(id) }
}

fn whole(id: &str, gpus: u32) -> Workload {
    Workload::new(id, Request { gpu: GpuRequest::Whole(gpus), ..Request::default() })
}

fn share(id: &str, milli: u32) -> Workload {
    let gpu = GpuRequest::Fraction(MilliGpu::new(milli).expect("a share"));
    Workload::new(id, Request { gpu, ..Request::default() })
}

fn minutes(workload: Workload, minutes: u64) -> Workload {
    Workload { estimate: Some(Span::minutes(minutes)), ..workload }
}

fn with(nodes: Vec<Node>) -> Scheduler {
    let mut engine = Scheduler::default();
    for node in nodes {
        tell(&mut engine, Event::NodeUpdated(Box::new(node)));
    }
    engine
}

fn tell(engine: &mut Scheduler, event: Event) {
    engine.apply(engine.now(), event).expect("a good event");
}

fn submit(engine: &mut Scheduler, workload: Workload) {
    tell(engine, Event::Submitted(Box::new(workload)));
}

fn started(plan: &Plan) -> Vec<WorkloadId> {
    let mut ids = Vec::new();
    for decision in &plan.decisions {
        if let Decision::Place(placement) = decision {
            ids.push(placement.workload.clone());
        }
    }
    ids.dedup();
    ids
}

fn starts(engine: &mut Scheduler, id: &str) -> bool {
    let now = engine.now();
    let plan = engine.decide(now);
    assert_eq!(engine.lint(), Vec::new());
    started(&plan).contains(&id.into())
}
