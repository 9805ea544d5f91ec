//! Mistakes that were found once, each as the shortest history that showed it.

use std::sync::Arc;

use agentaflow_engine::labels::Selector;
use agentaflow_engine::{
    Chooser, Decision, Event, ForeignGpu, ForeignUse, Gate, Gpu, GpuAsk, MiB, MigMode, MigProfile,
    MilliCpu, MilliGpu, Node, OnFault, Order, Plan, Policy, Queue, Quota, Request, Scheduler, Side,
    Span, TaskAffinity, Time, Topology, Workload, WorkloadId,
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
    Workload::new(id, Request { gpu: GpuAsk::Whole(gpus), ..Request::default() })
}

fn share(id: &str, milli: u32) -> Workload {
    let gpu = GpuAsk::Fraction(MilliGpu::new(milli).expect("a share"));
    Workload::new(id, Request { gpu, ..Request::default() })
}

fn minutes(workload: Workload, minutes: u64) -> Workload {
    Workload { estimate: Some(Span::minutes(minutes)), ..workload }
}

fn with(nodes: Vec<Node>) -> Scheduler {
    let mut engine = Scheduler::default();
    for node in nodes {
        tell(&mut engine, Event::Node(Box::new(node)));
    }
    engine
}

fn tell(engine: &mut Scheduler, event: Event) {
    engine.apply(engine.now(), event).expect("a good event");
}

fn submit(engine: &mut Scheduler, workload: Workload) {
    tell(engine, Event::Submit(Box::new(workload)));
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

#[test]
fn a_workload_that_backs_off_does_not_slip_through_a_gate_that_closed_meanwhile() {
    let mut engine = with(vec![node("n", 1)]);
    submit(&mut engine, whole("train", 1));
    assert!(starts(&mut engine, "train"));
    tell(&mut engine, Event::Refused { workload: "train".into(), task: 0 });
    tell(
        &mut engine,
        Event::Gate { workload: "train".into(), gate: Some(Gate::Paused("by hand".into())) },
    );
    let later = engine.decide(Time(3_600_000));
    assert_eq!(started(&later), []);
    tell(&mut engine, Event::Gate { workload: "train".into(), gate: None });
    assert!(starts(&mut engine, "train"));
    assert_eq!(engine.waiting(), 0);
}

#[test]
fn a_gate_closes_before_a_workload_whose_victims_are_going() {
    let mut engine = with(vec![node("n", 1)]);
    submit(&mut engine, Workload { preemptible: true, priority: 1, ..whole("low", 1) });
    assert!(starts(&mut engine, "low"));
    submit(&mut engine, Workload { priority: 9, ..whole("high", 1) });
    assert!(!starts(&mut engine, "high"));
    tell(
        &mut engine,
        Event::Gate { workload: "high".into(), gate: Some(Gate::Budget("spent".into())) },
    );
    tell(&mut engine, Event::Gone { workload: "low".into(), task: 0 });
    assert!(!starts(&mut engine, "high"));
}

#[test]
fn removing_the_node_that_a_waiting_workload_avoids_does_not_lose_the_workload() {
    let mut engine = with(vec![node("n", 1), node("other", 1)]);
    submit(&mut engine, Workload { on_fault: OnFault::Keep, ..whole("a", 1) });
    submit(&mut engine, whole("b", 1));
    engine.decide(NOW);
    tell(&mut engine, Event::Refused { workload: "b".into(), task: 0 });
    for node in ["n", "other"] {
        tell(&mut engine, Event::Cordon { node: node.into(), on: true });
    }
    engine.decide(Time(3_600_000));
    tell(&mut engine, Event::NodeRemoved("other".into()));
    assert_eq!(engine.lint(), Vec::new());
    tell(&mut engine, Event::Node(Box::new(node("other", 1))));
    assert!(starts(&mut engine, "b"));
}

#[test]
fn a_forecast_does_not_take_away_what_was_placed_again_in_the_same_plan() {
    let mut engine = with(vec![node("n", 1), node("other", 1)]);
    submit(&mut engine, whole("a", 1));
    let plan = engine.decide(NOW);
    let Decision::Place(placement) = &plan.decisions[0] else { panic!("a place was expected") };
    tell(&mut engine, Event::NodeRemoved(placement.node.clone()));
    assert!(engine.etas(NOW).contains_key("a"));
}

#[test]
fn a_queue_that_was_removed_does_not_matter_to_a_new_order() {
    let mut engine = with(vec![node("n", 1)]);
    tell(&mut engine, Event::Queue(Box::new(Queue::new("team"))));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("a", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("a".into()));
    tell(&mut engine, Event::QueueRemoved("team".into()));
    tell(
        &mut engine,
        Event::Policy(Box::new(Policy { order: Some(Order::Fifo), ..Policy::default() })),
    );
    submit(&mut engine, whole("b", 1));
    assert!(starts(&mut engine, "b"));
}

#[test]
fn a_model_that_is_used_up_is_avoided_and_not_the_first_one_that_was_chosen() {
    let mut mixed = node("n", 3);
    mixed.gpus[2].model = "NVIDIA A30".into();
    mixed.gpus[2].memory = MiB(24_576);
    let mut engine = with(vec![mixed]);
    let limit = Quota { models: [("NVIDIA A30".into(), 0)].into(), ..Quota::default() };
    tell(&mut engine, Event::Queue(Box::new(Queue { limit, ..Queue::new("team") })));
    submit(&mut engine, share("small", 100));
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("small".into()));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("pair", 2) });
    assert!(starts(&mut engine, "pair"));
}

#[test]
fn slices_leave_what_somebody_else_uses_of_the_gpu_alone() {
    let mut split = node("n", 1);
    split.gpus[0].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let half = ForeignGpu::Share(MilliGpu::new(431).expect("a share"));
    let uses = ForeignUse { gpus: [("g0".into(), half)].into(), ..ForeignUse::default() };
    tell(&mut engine, Event::Foreign { node: "n".into(), id: "f".into(), uses: Box::new(uses) });
    let gpu = GpuAsk::Mig { profile: MigProfile::new("2g.10gb").expect("a profile"), count: 3 };
    submit(&mut engine, Workload::new("slices", Request { gpu, ..Request::default() }));
    assert!(!starts(&mut engine, "slices"));
}

#[test]
fn several_exclusive_slices_of_one_task_do_not_count_as_strangers_to_each_other() {
    let mut split = node("n", 2);
    split.gpus[0].mig = MigMode::Free;
    split.gpus[1].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let gpu = GpuAsk::Mig { profile: MigProfile::new("1g.5gb").expect("a profile"), count: 2 };
    submit(
        &mut engine,
        Workload::new("slices", Request { gpu, exclusive: true, ..Request::default() }),
    );
    assert!(starts(&mut engine, "slices"));
}

#[test]
fn what_takes_no_gpu_of_a_reserved_head_is_not_stopped_by_a_head_that_cannot_pay() {
    let mut engine = with(vec![node("n", 2)]);
    let limit = Quota { gpu: Some(1000), ..Quota::default() };
    tell(&mut engine, Event::Queue(Box::new(Queue { limit, ..Queue::new("poor") })));
    submit(&mut engine, minutes(Workload { queue: "poor".into(), ..whole("first", 1) }, 60));
    submit(&mut engine, minutes(whole("second", 1), 10));
    engine.decide(NOW);
    submit(&mut engine, Workload { queue: "poor".into(), priority: 10, ..whole("third", 1) });
    submit(&mut engine, whole("fourth", 1));
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("second".into()));
    assert!(starts(&mut engine, "fourth"), "room is kept for one that its queue cannot pay for");
}

#[test]
fn a_gang_spread_over_a_label_that_no_node_has_is_said_to_never_fit_and_keeps_no_room() {
    let mut engine = with(vec![node("n", 2)]);
    engine
        .apply(NOW, Event::Policy(Box::new(Policy { patience: Span(0), ..Policy::default() })))
        .expect("settings");
    let topology = Some(Topology::Spread("rack".into()));
    submit(&mut engine, Workload { tasks: 2, topology, ..whole("gang", 1) });
    submit(&mut engine, whole("single", 2));
    assert!(starts(&mut engine, "single"));
    let reason = engine.explain(NOW, &"gang".into()).and_then(|explained| explained.reason);
    assert!(
        matches!(reason, Some(agentaflow_engine::WaitReason::Gang { ever: false, .. })),
        "{reason:?}"
    );
}

#[test]
fn a_short_newcomer_is_backfilled_even_when_equal_but_longer_work_waits_already() {
    let mut engine = with(vec![node("n", 2)]);
    submit(&mut engine, minutes(whole("running", 1), 30));
    engine.decide(NOW);
    submit(&mut engine, minutes(whole("head", 2), 30));
    submit(&mut engine, minutes(whole("long", 1), 60));
    engine.decide(NOW);
    submit(&mut engine, minutes(whole("short", 1), 5));
    assert!(starts(&mut engine, "short"));
}

#[test]
fn quota_that_the_reserved_head_needs_is_kept_for_it() {
    let mut engine = with(vec![node("n", 2), Node { gpus: Vec::new(), ..node("cpu", 0) }]);
    let limit = Quota { cpu: Some(4000), ..Quota::default() };
    tell(&mut engine, Event::Queue(Box::new(Queue { limit, ..Queue::new("team") })));
    submit(&mut engine, minutes(whole("running", 2), 10));
    engine.decide(NOW);
    let team = |workload: Workload, cpu: u64| {
        let request = Request { cpu: MilliCpu(cpu), ..(*workload.request).clone() };
        Workload { queue: "team".into(), request: request.into(), ..workload }
    };
    submit(&mut engine, minutes(team(whole("head", 2), 3000), 10));
    engine.decide(NOW);
    submit(&mut engine, minutes(team(Workload::new("greedy", Request::default()), 2000), 60));
    assert!(!starts(&mut engine, "greedy"));
    engine.apply(Time(600_000), Event::Finished("running".into())).expect("it ran");
    assert!(starts(&mut engine, "head"));
}

#[test]
fn a_queue_keeps_what_it_is_guaranteed_however_many_of_its_workloads_are_wanted() {
    let mut engine = with(vec![node("n", 3)]);
    let gpus = |count: u64| Quota { gpu: Some(count * 1000), ..Quota::default() };
    tell(
        &mut engine,
        Event::Queue(Box::new(Queue { guaranteed: gpus(2), ..Queue::new("lender") })),
    );
    tell(&mut engine, Event::Queue(Box::new(Queue::new("other"))));
    for id in ["a", "b", "c"] {
        submit(
            &mut engine,
            Workload { queue: "lender".into(), preemptible: true, priority: 1, ..whole(id, 1) },
        );
    }
    engine.decide(NOW);
    submit(&mut engine, Workload { queue: "other".into(), priority: 9, ..whole("greedy", 2) });
    let plan = engine.decide(NOW);
    assert!(
        !plan.decisions.iter().any(|decision| matches!(decision, Decision::Preempt { .. })),
        "{plan:?}"
    );
    submit(&mut engine, Workload { queue: "other".into(), priority: 9, ..whole("modest", 1) });
    let plan = engine.decide(NOW);
    assert!(plan.decisions.iter().any(|decision| matches!(decision, Decision::Preempt { .. })));
}

#[test]
fn a_beneficiary_is_not_started_next_to_one_that_came_to_want_it_away() {
    let mut engine = with(vec![node("n", 2)]);
    submit(&mut engine, Workload { preemptible: true, priority: 1, ..whole("low", 2) });
    engine.decide(NOW);
    let mut high = Workload { priority: 9, ..whole("high", 1) };
    Arc::make_mut(&mut high.request).labels.insert("app".into(), "a".into());
    submit(&mut engine, high);
    engine.decide(NOW);
    let away = TaskAffinity {
        side: Side::Away,
        selector: Selector { match_labels: [("app".into(), "a".into())].into(), exprs: Vec::new() },
        key: "node".into(),
        weight: None,
    };
    let uses = ForeignUse { keeps_away: vec![away], ..ForeignUse::default() };
    tell(&mut engine, Event::Foreign { node: "n".into(), id: "f".into(), uses: Box::new(uses) });
    tell(&mut engine, Event::Gone { workload: "low".into(), task: 0 });
    assert!(!starts(&mut engine, "high"));
}

#[test]
fn one_gpu_cannot_be_two_whole_gpus_of_a_task() {
    let mut engine = with(vec![Node { chooser: Chooser::Node, ..node("n", 2) }]);
    submit(&mut engine, whole("pair", 2));
    engine.decide(NOW);
    let twice =
        Event::Devices { workload: "pair".into(), task: 0, gpus: vec!["g0".into(), "g0".into()] };
    assert!(engine.apply(NOW, twice).is_err());
}

#[test]
fn any_number_of_large_foreign_uses_is_refused_or_counted_but_never_panics() {
    let mut engine = with(vec![node("n", 1)]);
    for number in 0..1200 {
        let gpus = [("g0".into(), ForeignGpu::Memory(MiB(1 << 20)))].into();
        let uses =
            ForeignUse { gpus, gpu_count: 1, cpu: MilliCpu(1 << 46), ..ForeignUse::default() };
        let id = format!("f{number}").into();
        engine.apply(NOW, Event::Foreign { node: "n".into(), id, uses: Box::new(uses) }).ok();
    }
    submit(&mut engine, whole("a", 1));
    assert!(!starts(&mut engine, "a"));
    assert!(engine.explain(NOW, &"a".into()).is_some());
}

#[test]
fn who_comes_first_starts_in_room_that_was_kept_for_who_comes_later() {
    let mut engine = with(vec![node("n", 2)]);
    engine
        .apply(NOW, Event::Policy(Box::new(Policy { patience: Span(0), ..Policy::default() })))
        .expect("settings");
    submit(&mut engine, Workload { priority: 9, ..whole("first", 2) });
    submit(&mut engine, Workload { priority: 1, ..whole("later", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Requeued("first".into()));
    assert!(starts(&mut engine, "first"));
}

#[test]
fn a_reservation_goes_on_to_who_waits_longest_and_not_round_and_round_among_small_work() {
    let mut engine = with(vec![node("n", 1)]);
    engine
        .apply(NOW, Event::Policy(Box::new(Policy { patience: Span(0), ..Policy::default() })))
        .expect("settings");
    tell(&mut engine, Event::Queue(Box::new(Queue::new("team"))));
    submit(&mut engine, whole("small0", 1));
    let thick = |workload: Workload, cpu: u64| {
        let request = Request { cpu: MilliCpu(cpu), ..(*workload.request).clone() };
        Workload { request: request.into(), ..workload }
    };
    for number in 1..4 {
        submit(&mut engine, thick(whole(&format!("small{number}"), 1), 1000));
    }
    engine.decide(NOW);
    submit(
        &mut engine,
        thick(
            Workload { queue: "team".into(), ..Workload::new("large", Request::default()) },
            8000,
        ),
    );
    let mut finished = 0;
    for number in 0..4 {
        engine.decide(Time(60_000 * (number + 1)));
        if engine.workload(&"large".into()).is_some_and(|view| !view.tasks.is_empty()) {
            break;
        }
        tell(&mut engine, Event::Finished(format!("small{number}").into()));
        finished += 1;
    }
    assert!(finished <= 3, "{finished} came before it");
}

#[test]
fn without_backfill_two_heads_of_two_queues_do_not_wait_for_each_other() {
    let mut engine = with(vec![node("n", 1)]);
    let policy =
        Policy { patience: Span(0), backfill: false, half_life: Span(0), ..Policy::default() };
    engine.apply(NOW, Event::Policy(Box::new(policy))).expect("settings");
    tell(&mut engine, Event::Queue(Box::new(Queue::new("team"))));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("first", 1) });
    engine.decide(NOW);
    submit(&mut engine, whole("ours", 1));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("theirs", 1) });
    engine.decide(NOW);
    for id in ["first", "ours", "theirs"] {
        if engine.workload(&id.into()).is_some_and(|view| view.tasks.is_empty()) {
            assert!(starts(&mut engine, id), "{id} waits for ever");
        }
        tell(&mut engine, Event::Finished(id.into()));
    }
}

#[test]
fn slices_that_a_node_moves_to_one_gpu_do_not_lie_on_each_other() {
    let mut split = node("n", 2);
    split.gpus[0].mig = MigMode::Free;
    split.gpus[1].mig = MigMode::Free;
    let mut engine = with(vec![split]);
    let gpu = GpuAsk::Mig { profile: MigProfile::new("1g.5gb").expect("a profile"), count: 3 };
    submit(&mut engine, Workload::new("slices", Request { gpu, ..Request::default() }));
    assert!(starts(&mut engine, "slices"));
    let gpus = vec!["g1".into(), "g1".into(), "g1".into()];
    tell(&mut engine, Event::Devices { workload: "slices".into(), task: 0, gpus });
    assert_eq!(engine.lint(), Vec::new());
}

#[test]
fn without_backfill_one_that_never_fits_does_not_keep_the_reserved_one_behind_it_from_starting() {
    let mut engine = with(vec![node("n", 1)]);
    let policy = Policy { patience: Span(0), backfill: false, ..Policy::default() };
    engine.apply(NOW, Event::Policy(Box::new(policy))).expect("settings");
    tell(&mut engine, Event::Queue(Box::new(Queue::new("team"))));
    submit(&mut engine, share("first", 100));
    engine.decide(NOW);
    submit(&mut engine, Workload { priority: 9, ..whole("never", 2) });
    submit(&mut engine, whole("head", 1));
    engine.decide(NOW);
    submit(&mut engine, Workload { queue: "team".into(), ..whole("other", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("first".into()));
    assert!(starts(&mut engine, "head"));
}

#[test]
fn a_gang_that_must_stay_together_is_not_led_astray_by_the_best_place_for_its_first_task() {
    let tight = Node { cpu: MilliCpu(5000), rank: 0, ..node("tight", 1) };
    let wide = Node { cpu: MilliCpu(10_000), rank: 1, ..node("wide", 4) };
    let mut engine = with(vec![tight, wide]);
    engine
        .apply(NOW, Event::Policy(Box::new(Policy { patience: Span(0), ..Policy::default() })))
        .expect("settings");
    let request = Request {
        gpu: GpuAsk::Whole(1),
        cpu: MilliCpu(5000),
        tokens: [("volume".into(), agentaflow_engine::TokenUse::OneNode)].into(),
        ..Request::default()
    };
    submit(
        &mut engine,
        Workload {
            tasks: 2,
            strategy: Some(agentaflow_engine::Strategy::Pack),
            ..Workload::new("gang", request)
        },
    );
    assert!(starts(&mut engine, "gang"));
}

#[test]
fn who_asks_for_a_part_of_a_gpu_that_is_handed_out_whole_takes_all_of_it() {
    let memory = |id: &str, mib: u64| {
        Workload::new(id, Request { gpu: GpuAsk::Memory(MiB(mib)), ..Request::default() })
    };
    let mut engine = with(vec![Node { undivided: true, ..node("counted", 3) }]);
    for workload in [memory("a", 1024), share("b", 100), memory("c", 1024), memory("d", 1024)] {
        submit(&mut engine, workload);
    }
    let plan = engine.decide(NOW);
    assert_eq!(engine.lint(), Vec::new());
    assert_eq!(started(&plan), ["a", "b", "c"].map(WorkloadId::from), "one GPU each");
    tell(&mut engine, Event::Finished("b".into()));
    assert!(starts(&mut engine, "d"));
    // Restored from a snapshot, it is still all of the device.
    let mut again = Scheduler::restore(engine.snapshot()).expect("its own snapshot");
    submit(&mut again, share("e", 100));
    assert!(!starts(&mut again, "e"));
    // And a whole device that is too small is no device for it.
    let mut small = with(vec![Node { undivided: true, ..node("counted", 1) }]);
    submit(&mut small, memory("huge", 50_000));
    assert!(!starts(&mut small, "huge"));
}
