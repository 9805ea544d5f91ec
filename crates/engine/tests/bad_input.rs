//! Invalid input is rejected with a typed error and changes nothing; too large requests stay pending with a
//! typed reason. The engine neither clamps values silently nor panics.

use std::sync::Arc;

use agentaflow_engine::labels::{Effect, Expr, NodeTerm, Op, Selector, Taint, Toleration};
use agentaflow_engine::{
    AffinityKind, Decision, Demand, Event, ForeignGpu, ForeignUse, Gpu, GpuHealth, GpuRequest,
    InvalidInput, MiB, MigMode, MigProfile, MilliCpu, MilliGpu, Node, NodePreference, Percent,
    Queue, Quota, Rejected, Request, Role, Scheduler, Strategy, TaskAffinity, Time, TopologySpread,
    WaitReason, Workload,
};

const HUGE: u64 = 1 << 63;

#[test]
fn amounts_beyond_the_limits_are_rejected() {
    let too_large = |bad: &InvalidInput| matches!(bad, InvalidInput::TooLarge { .. });
    let zero = |bad: &InvalidInput| matches!(bad, InvalidInput::Zero(_));
    check_request("2^63 MiB of GPU memory", |r| r.gpu = GpuRequest::Memory(MiB(HUGE)), too_large);
    check_request("2^63 MiB of memory", |r| r.memory = MiB(HUGE), too_large);
    check_request("2^63 MiB of storage", |r| r.storage = MiB(u64::MAX), too_large);
    check_request("2^63 cores", |r| r.cpu = MilliCpu(HUGE), too_large);
    check_request("2^63 MiB on each GPU", |r| r.min_gpu_memory = MiB(HUGE), too_large);
    check_request("2^32 GPUs", |r| r.gpu = GpuRequest::Whole(u32::MAX), too_large);
    check_request("too many slices", |r| r.gpu = slices(4097), too_large);
    check_request(
        "too much of a resource",
        |r| r.resources = [("rdma".into(), HUGE)].into(),
        too_large,
    );
    check_request("no GPUs", |r| r.gpu = GpuRequest::Whole(0), zero);
    check_request("no memory", |r| r.gpu = GpuRequest::Memory(MiB(0)), zero);
    check_request("no slices", |r| r.gpu = slices(0), zero);
}

#[test]
fn shares_profiles_readings_and_strategies_are_validated_on_construction() {
    assert_eq!(MilliGpu::new(0), Err(InvalidInput::Share(0)));
    assert_eq!(MilliGpu::new(1001), Err(InvalidInput::Share(1001)));
    assert_eq!(MilliGpu::new(u32::MAX), Err(InvalidInput::Share(u32::MAX)));
    assert_eq!(MigProfile::new("8g.1gb"), Err(InvalidInput::MigProfile("8g.1gb".into())));
    for reading in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 100.1] {
        assert!(matches!(Percent::new(reading), Err(InvalidInput::Percent(_))), "{reading}");
    }
    assert!(matches!("fastest".parse::<Strategy>(), Err(InvalidInput::Strategy(..))));
    assert!(serde_json::from_str::<MilliGpu>("0").is_err());
    assert!(serde_json::from_str::<MigProfile>("\"8g.1gb\"").is_err());
    assert!(serde_json::from_str::<Percent>("101").is_err());
    assert!(serde_json::from_str::<Request>("{\"gpus\": 1}").is_err());
}

#[test]
fn contradictory_requests_are_rejected() {
    let label = |bad: &InvalidInput| matches!(bad, InvalidInput::Label(_));
    let too_large = |bad: &InvalidInput| matches!(bad, InvalidInput::TooLarge { .. });
    check_request(
        "alone on no GPU",
        |r| r.exclusive = true,
        |bad| matches!(bad, InvalidInput::Contradiction(_)),
    );
    let term = |expr| NodeTerm { exprs: vec![expr], names: Vec::new() };
    let heavy =
        || NodePreference { weight: 101, term: term(Expr::new("rack", Op::Exists, [""; 0])) };
    let many = || term(Expr::new("cores", Op::Gt, ["many"]));
    check_request("more than `many` cores", |r| r.required_nodes.push(many()), label);
    check_request(
        "in no list",
        |r| r.required_nodes.push(term(Expr::new("rack", Op::In, [""; 0]))),
        label,
    );
    check_request("a weight of 101", |r| r.preferred_nodes.push(heavy()), too_large);
    check_request("tolerating nothing", |r| r.tolerations.push(Toleration::default()), label);
    check_request(
        "tasks compared by size",
        |r| r.affinity.push(near(Expr::new("size", Op::Gt, ["1"]), None)),
        label,
    );
    check_request(
        "nearness of 101",
        |r| r.affinity.push(near(Expr::new("app", Op::Exists, [""; 0]), Some(101))),
        too_large,
    );
    check_request(
        "no skew",
        |r| r.spread.push(skew(0)),
        |bad| *bad == InvalidInput::Zero("max_skew"),
    );
}

#[test]
fn invalid_workloads_are_rejected() {
    check_workload("no name", |w| w.id = "".into(), |bad| matches!(bad, InvalidInput::Name { .. }));
    check_workload(
        "a long name",
        |w| w.id = "x".repeat(513).into(),
        |bad| matches!(bad, InvalidInput::Name { .. }),
    );
    check_workload(
        "no tasks",
        |w| w.tasks = 0,
        |bad| *bad == InvalidInput::Zero("the number of tasks"),
    );
    check_workload(
        "too many tasks",
        |w| w.tasks = u32::MAX,
        |bad| matches!(bad, InvalidInput::TooLarge { .. }),
    );
    let role = |tasks: u32| Role { tasks, request: Request::default().into() };
    check_workload(
        "a role without tasks",
        |w| w.roles = vec![role(0)],
        |bad| *bad == InvalidInput::Zero("the number of tasks"),
    );
    check_workload(
        "too many tasks in all roles",
        |w| w.roles = vec![role(u32::MAX), role(u32::MAX)],
        |bad| matches!(bad, InvalidInput::TooLarge { .. }),
    );
    check_workload(
        "too many roles",
        |w| w.roles = vec![role(1); 4097],
        |bad| matches!(bad, InvalidInput::TooLarge { .. }),
    );
    let bad = Request { gpu: GpuRequest::Whole(0), ..Request::default() };
    check_workload(
        "a role that asks for what cannot be",
        |w| w.roles = vec![Role { tasks: 1, request: bad.clone().into() }],
        |bad| *bad == InvalidInput::Zero("the number of GPUs"),
    );
}

#[test]
fn invalid_nodes_are_rejected() {
    let too_large = |bad: &InvalidInput| matches!(bad, InvalidInput::TooLarge { .. });
    check_node("no name", |n| n.id = "".into(), |bad| matches!(bad, InvalidInput::Name { .. }));
    check_node("2^63 cores", |n| n.cpu = MilliCpu(HUGE), too_large);
    check_node("2^63 MiB", |n| n.memory = MiB(HUGE), too_large);
    check_node("2^63 MiB of storage", |n| n.storage = MiB(HUGE), too_large);
    check_node("2^63 of something", |n| n.resources = [("rdma".into(), HUGE)].into(), too_large);
    check_node("2^63 MiB on a GPU", |n| n.gpus[0].memory = MiB(HUGE), too_large);
    check_node(
        "4,097 GPUs",
        |n| n.gpus = (0..4097).map(|id| gpu(&id.to_string())).collect(),
        too_large,
    );
    check_node(
        "a GPU without memory",
        |n| n.gpus[0].memory = MiB(0),
        |bad| matches!(bad, InvalidInput::Zero(_)),
    );
    check_node(
        "a GPU without model",
        |n| n.gpus[0].model = "".into(),
        |bad| matches!(bad, InvalidInput::Name { .. }),
    );
    check_node(
        "the same GPU twice",
        |n| n.gpus.push(gpu("0")),
        |bad| *bad == InvalidInput::DuplicateGpu("0".into()),
    );
    let keyless = Taint::new("", "", Effect::NoSchedule);
    check_node(
        "a taint of nothing",
        |n| n.taints.push(keyless.clone()),
        |bad| matches!(bad, InvalidInput::Label(_)),
    );
    let unknown = |n: &mut Node| (n.gpus[0].model, n.gpus[0].mig) = ("T4".into(), MigMode::Free);
    check_node("slices of a T4", unknown, |bad| matches!(bad, InvalidInput::MigGeometry { .. }));
    let layouts = [("1g.6gb", 0), ("3g.20gb", 2), ("1g.5gb", 7)];
    for (profile, start) in layouts {
        let layout = MigMode::Fixed(vec![(MigProfile::new(profile).unwrap(), start)]);
        let impossible = |bad: &InvalidInput| matches!(bad, InvalidInput::MigLayout { .. });
        check_node("slices where none can be", |n| n.gpus[0].mig = layout.clone(), impossible);
    }
    let overlap = MigMode::Fixed(vec![(profile(), 0), (profile(), 0)]);
    check_node(
        "two slices in one place",
        |n| n.gpus[0].mig = overlap.clone(),
        |bad| matches!(bad, InvalidInput::MigLayout { .. }),
    );
}

#[test]
fn invalid_queues_and_foreign_use_are_rejected() {
    let mut heavy = Queue::new("lab");
    heavy.limit = Quota { gpu: Some(HUGE), ..Quota::default() };
    let mut weightless = Queue::new("lab");
    weightless.weight = 0;
    for queue in [heavy, weightless, Queue::new("")] {
        check(Event::QueueUpdated(Box::new(queue)), |rejected| {
            matches!(rejected, Rejected::Invalid(_))
        });
    }
    let foreign = |uses: ForeignUse| Event::ForeignUseUpdated {
        node: "a".into(),
        id: "pod".into(),
        usage: Box::new(uses),
    };
    check(foreign(ForeignUse { cpu: MilliCpu(HUGE), ..ForeignUse::default() }), |r| {
        matches!(r, Rejected::Invalid(_))
    });
    check(foreign(ForeignUse { gpu_count: 4097, ..ForeignUse::default() }), |r| {
        matches!(r, Rejected::Invalid(_))
    });
    let on = |gpu: &str, amount| {
        foreign(ForeignUse { gpus: [(gpu.into(), amount)].into(), ..ForeignUse::default() })
    };
    check(on("0", ForeignGpu::Memory(MiB(HUGE))), |r| matches!(r, Rejected::Invalid(_)));
    check(on("9", ForeignGpu::Whole), |r| matches!(r, Rejected::UnknownGpu { .. }));
}

#[test]
fn unknown_names_are_rejected() {
    let (node, stranger) = (|| "z".into(), || "stranger".into());
    let unknown_node = |r: &Rejected| *r == Rejected::UnknownNode("z".into());
    check(Event::NodeLost(node()), unknown_node);
    check(Event::NodeRemoved(node()), unknown_node);
    check(Event::Cordon { node: node(), on: true }, unknown_node);
    check(Event::Drain { node: node(), on: true }, unknown_node);
    check(Event::SpotReclaim { node: node(), at: Time(1) }, unknown_node);
    check(Event::Utilization { node: node(), readings: Vec::new() }, unknown_node);
    check(
        Event::GpuHealth { node: node(), gpu: "0".into(), health: GpuHealth::Failed },
        unknown_node,
    );
    check(
        Event::ForeignUseUpdated { node: node(), id: "pod".into(), usage: Box::default() },
        unknown_node,
    );
    let unknown_gpu = |r: &Rejected| matches!(r, Rejected::UnknownGpu { .. });
    check(
        Event::GpuHealth { node: "a".into(), gpu: "9".into(), health: GpuHealth::Failed },
        unknown_gpu,
    );
    check(
        Event::Utilization { node: "a".into(), readings: vec![("9".into(), Percent::default())] },
        unknown_gpu,
    );
    check(
        Event::DevicesReported { workload: "runs".into(), task: 0, gpus: vec!["9".into()] },
        unknown_gpu,
    );
    let unknown_workload = |r: &Rejected| *r == Rejected::UnknownWorkload("stranger".into());
    check(Event::Finished(stranger()), unknown_workload);
    check(Event::Cancelled(stranger()), unknown_workload);
    check(Event::Requeued(stranger()), unknown_workload);
    check(Event::PlacementConfirmed { workload: stranger(), task: 0 }, unknown_workload);
    check(Event::GateChanged { workload: stranger(), gate: None }, unknown_workload);
    check(
        Event::WorkloadBudgetsUpdated { workload: stranger(), budgets: Vec::new() },
        unknown_workload,
    );
    check(Event::ForeignUseRemoved { node: "a".into(), id: "pod".into() }, |r| {
        matches!(r, Rejected::UnknownForeign { .. })
    });
    check(Event::BudgetRemoved("web".into()), |r| matches!(r, Rejected::UnknownBudget(_)));
    check(Event::QueueRemoved("lab".into()), |r| matches!(r, Rejected::UnknownQueue(_)));
}

#[test]
fn events_that_do_not_fit_the_state_are_rejected() {
    check(submit("runs", |_| ()), |r| *r == Rejected::DuplicateWorkload("runs".into()));
    check(submit("new", |w| w.queue = "lab".into()), |r| {
        *r == Rejected::UnknownQueue("lab".into())
    });
    let not_placed = |r: &Rejected| matches!(r, Rejected::NotPlaced { .. });
    check(Event::PlacementConfirmed { workload: "waits".into(), task: 0 }, not_placed);
    check(Event::PlacementRefused { workload: "waits".into(), task: 0 }, not_placed);
    check(Event::TaskStopped { workload: "waits".into(), task: 0 }, not_placed);
    check(Event::TaskTerminating { workload: "waits".into(), task: 0 }, not_placed);
    check(Event::TaskFinished { workload: "waits".into(), task: 0 }, not_placed);
    check(Event::Requeued("waits".into()), not_placed);
    check(Event::PlacementConfirmed { workload: "runs".into(), task: 7 }, |r| {
        matches!(r, Rejected::UnknownTask { tasks: 1, .. })
    });
    let two = vec!["0".into(), "1".into()];
    check(Event::DevicesReported { workload: "runs".into(), task: 0, gpus: two }, |r| {
        matches!(r, Rejected::DeviceCount { .. })
    });
    check(Event::QueueRemoved("root".into()), |r| matches!(r, Rejected::Queue { .. }));
    let orphan = Queue { parent: "nowhere".into(), ..Queue::new("lab") };
    check(Event::QueueUpdated(Box::new(orphan)), |r| matches!(r, Rejected::Queue { .. }));
    let own_parent = Queue { parent: "lab".into(), ..Queue::new("lab") };
    check(Event::QueueUpdated(Box::new(own_parent)), |r| matches!(r, Rejected::Queue { .. }));
}

#[test]
fn a_task_cannot_have_the_same_whole_gpu_twice() {
    let mut scheduler = cluster();
    scheduler.apply(Time(0), Event::Finished("runs".into())).unwrap();
    scheduler.decide(Time(0));
    let twice = vec!["0".into(), "0".into()];
    let devices = Event::DevicesReported { workload: "waits".into(), task: 0, gpus: twice };
    let rejected = scheduler.apply(Time(0), devices);
    assert_eq!(rejected, Err(InvalidInput::DuplicateGpu("0".into()).into()));
    assert_eq!(scheduler.lint(), Vec::new());
}

#[test]
fn an_invalid_demand_is_rejected() {
    let demand = |gpu, count| {
        let kind = Demand { cpu: MilliCpu(1000), gpu, models: Vec::new(), count };
        Event::DemandUpdated(Some(vec![kind]))
    };
    check(demand(GpuRequest::Whole(0), 1), |r| {
        matches!(r, Rejected::Invalid(InvalidInput::Zero(_)))
    });
    check(demand(GpuRequest::Whole(u32::MAX), 1), |r| {
        matches!(r, Rejected::Invalid(InvalidInput::TooLarge { .. }))
    });
    check(demand(GpuRequest::Whole(1), HUGE), |r| {
        matches!(r, Rejected::Invalid(InvalidInput::TooLarge { .. }))
    });
}

#[test]
fn a_too_large_request_is_pending_with_a_reason() {
    type Change = fn(&mut Workload);
    type Expected = fn(&WaitReason) -> bool;
    let gang: Expected = |reason| matches!(reason, WaitReason::Gang { fits_when_empty: false, .. });
    let never: Expected = |reason| matches!(reason, WaitReason::NeverFits(_));
    let cases: [(Expected, Change); 4] = [
        (gang, |w| w.tasks = 100_000),
        (never, |w| Arc::make_mut(&mut w.request).gpu = GpuRequest::Whole(64)),
        (never, |w| Arc::make_mut(&mut w.request).gpu = GpuRequest::Memory(MiB(1 << 20))),
        (never, |w| Arc::make_mut(&mut w.request).memory = MiB(1 << 46)),
    ];
    for (expected, change) in cases {
        let mut scheduler = cluster();
        scheduler.apply(Time(0), submit("much", change)).unwrap();
        let plan = scheduler.decide(Time(0));
        let much = |decision: &&Decision| matches!(decision, Decision::Wait { workload, .. } if workload.as_str() == "much");
        let Some(Decision::Wait { reason, .. }) = plan.decisions.iter().find(much) else {
            panic!("{:?}", plan.decisions);
        };
        assert!(expected(reason), "{reason:?}");
        assert_eq!(scheduler.lint(), Vec::new());
    }
}

#[test]
fn the_maximum_time_does_not_overflow() {
    let mut scheduler = cluster();
    let end = Time(u64::MAX);
    scheduler
        .apply(end, submit("late", |w| w.estimate = Some(agentaflow_engine::Span(u64::MAX))))
        .unwrap();
    scheduler.decide(end);
    scheduler.decide(Time(0));
    assert_eq!(scheduler.now(), end);
    assert_eq!(scheduler.lint(), Vec::new());
}

/// One node with two GPUs, a workload on both, and a pending one.
fn cluster() -> Scheduler {
    let mut scheduler = Scheduler::default();
    scheduler.apply(Time(0), Event::NodeUpdated(Box::new(node()))).unwrap();
    scheduler.apply(Time(0), submit("runs", |_| ())).unwrap();
    scheduler
        .apply(
            Time(0),
            submit("waits", |w| Arc::make_mut(&mut w.request).gpu = GpuRequest::Whole(2)),
        )
        .unwrap();
    scheduler.decide(Time(0));
    scheduler
}

/// The event is rejected with this error and changes nothing.
fn check(event: Event, expected: impl Fn(&Rejected) -> bool) {
    let mut scheduler = cluster();
    let before = scheduler.snapshot();
    let text = format!("{event:?}");
    let rejected = scheduler.apply(Time(0), event).expect_err(&text);
    assert!(expected(&rejected), "{text}: {rejected:?}");
    assert!(!rejected.to_string().is_empty());
    assert_eq!(scheduler.snapshot(), before, "{text} was refused and changed something");
    assert_eq!(scheduler.lint(), Vec::new());
}

fn check_bad(what: &str, event: Event, expected: impl Fn(&InvalidInput) -> bool) {
    check(event, |rejected| match rejected {
        Rejected::Invalid(bad) => expected(bad),
        other => panic!("{what}: {other:?}"),
    });
}

fn check_request(
    what: &str,
    change: impl Fn(&mut Request),
    expected: impl Fn(&InvalidInput) -> bool,
) {
    let mut workload = Workload::new("new", Request::default());
    change(Arc::make_mut(&mut workload.request));
    check_bad(what, Event::Submitted(Box::new(workload)), expected);
}

fn check_workload(
    what: &str,
    change: impl Fn(&mut Workload),
    expected: impl Fn(&InvalidInput) -> bool,
) {
    check_bad(what, submit("new", change), expected);
}

fn check_node(what: &str, change: impl Fn(&mut Node), expected: impl Fn(&InvalidInput) -> bool) {
    let mut node = Node { id: "new".into(), ..node() };
    change(&mut node);
    check_bad(what, Event::NodeUpdated(Box::new(node)), expected);
}

fn submit(name: &str, change: impl Fn(&mut Workload)) -> Event {
    let request = Request { gpu: GpuRequest::Whole(1), ..Request::default() };
    let mut workload = Workload::new(name, request);
    change(&mut workload);
    Event::Submitted(Box::new(workload))
}

fn node() -> Node {
    Node { gpus: vec![gpu("0"), gpu("1")], ..Node::new("a") }
}

fn gpu(id: &str) -> Gpu {
    Gpu { id: id.into(), model: "A100".into(), memory: MiB(40960), nvlink: None, mig: MigMode::Off }
}

fn profile() -> MigProfile {
    MigProfile::new("1g.5gb").unwrap()
}

fn slices(count: u32) -> GpuRequest {
    GpuRequest::Mig { profile: profile(), count }
}

fn near(expr: Expr, weight: Option<u32>) -> TaskAffinity {
    let selector = Selector { exprs: vec![expr], ..Selector::default() };
    TaskAffinity { kind: AffinityKind::Affinity, selector, key: "node".into(), weight }
}

fn skew(max_skew: u32) -> TopologySpread {
    let selector = Selector::default();
    TopologySpread {
        selector,
        key: "node".into(),
        max_skew,
        required: true,
        min_domains: 0,
        ignore_node_affinity: false,
        honor_taints: false,
    }
}
