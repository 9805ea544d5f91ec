//! Order, gates, reservations and backfill.

use agentaflow_engine::{
    Ageing, Decision, Event, Gate, MilliCpu, Node, OnFault, Policy, Priority, Queue, QueueOrder,
    Quota, Request, Span, Time, Workload,
};

use crate::{NOW, minutes, node, share, started, starts, submit, tell, whole, with};

#[test]
fn a_gate_applies_after_a_backoff() {
    let mut engine = with(vec![node("n", 1)]);
    submit(&mut engine, whole("train", 1));
    assert!(starts(&mut engine, "train"));
    tell(&mut engine, Event::PlacementRefused { workload: "train".into(), task: 0 });
    tell(
        &mut engine,
        Event::GateChanged { workload: "train".into(), gate: Some(Gate::Paused("by hand".into())) },
    );
    let later = engine.decide(Time(3_600_000));
    assert_eq!(started(&later), []);
    tell(&mut engine, Event::GateChanged { workload: "train".into(), gate: None });
    assert!(starts(&mut engine, "train"));
    assert_eq!(engine.pending_count(), 0);
}

#[test]
fn a_gate_stops_a_preemption_in_progress() {
    let mut engine = with(vec![node("n", 1)]);
    submit(&mut engine, Workload { preemptible: true, priority: Priority(1), ..whole("low", 1) });
    assert!(starts(&mut engine, "low"));
    submit(&mut engine, Workload { priority: Priority(9), ..whole("high", 1) });
    assert!(!starts(&mut engine, "high"));
    tell(
        &mut engine,
        Event::GateChanged { workload: "high".into(), gate: Some(Gate::Budget("spent".into())) },
    );
    tell(&mut engine, Event::TaskStopped { workload: "low".into(), task: 0 });
    assert!(!starts(&mut engine, "high"));
}

#[test]
fn removing_an_avoided_node_keeps_the_workload_queued() {
    let mut engine = with(vec![node("n", 1), node("other", 1)]);
    submit(&mut engine, Workload { on_fault: OnFault::Keep, ..whole("a", 1) });
    submit(&mut engine, whole("b", 1));
    engine.decide(NOW);
    tell(&mut engine, Event::PlacementRefused { workload: "b".into(), task: 0 });
    for node in ["n", "other"] {
        tell(&mut engine, Event::Cordon { node: node.into(), on: true });
    }
    engine.decide(Time(3_600_000));
    tell(&mut engine, Event::NodeRemoved("other".into()));
    assert_eq!(engine.lint(), Vec::new());
    tell(&mut engine, Event::NodeUpdated(Box::new(node("other", 1))));
    assert!(starts(&mut engine, "b"));
}

#[test]
fn a_forecast_keeps_workloads_placed_again_in_the_same_plan() {
    let mut engine = with(vec![node("n", 1), node("other", 1)]);
    submit(&mut engine, whole("a", 1));
    let plan = engine.decide(NOW);
    let Decision::Place(placement) = &plan.decisions[0] else { panic!("a place was expected") };
    tell(&mut engine, Event::NodeRemoved(placement.node.clone()));
    assert!(engine.etas(NOW).contains_key("a"));
}

#[test]
fn a_removed_queue_does_not_affect_a_new_order() {
    let mut engine = with(vec![node("n", 1)]);
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue::new("team"))));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("a", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("a".into()));
    tell(&mut engine, Event::QueueRemoved("team".into()));
    tell(
        &mut engine,
        Event::PolicyUpdated(Box::new(Policy {
            order: Some(QueueOrder::Fifo),
            ..Policy::default()
        })),
    );
    submit(&mut engine, whole("b", 1));
    assert!(starts(&mut engine, "b"));
}

#[test]
fn a_head_without_quota_does_not_block_other_workloads() {
    let mut engine = with(vec![node("n", 2)]);
    let limit = Quota { gpu: Some(1000), ..Quota::default() };
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue { limit, ..Queue::new("poor") })));
    submit(&mut engine, minutes(Workload { queue: "poor".into(), ..whole("first", 1) }, 60));
    submit(&mut engine, minutes(whole("second", 1), 10));
    engine.decide(NOW);
    submit(
        &mut engine,
        Workload { queue: "poor".into(), priority: Priority(10), ..whole("third", 1) },
    );
    submit(&mut engine, whole("fourth", 1));
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("second".into()));
    assert!(
        starts(&mut engine, "fourth"),
        "a reservation for a workload over quota blocks another one"
    );
}

#[test]
fn a_short_workload_is_backfilled_despite_a_longer_equal_one() {
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
fn quota_of_the_reserved_head_is_pledged() {
    let mut engine = with(vec![node("n", 2), Node { gpus: Vec::new(), ..node("cpu", 0) }]);
    let limit = Quota { cpu: Some(4000), ..Quota::default() };
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue { limit, ..Queue::new("team") })));
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
fn preemption_never_takes_guaranteed_quota() {
    let mut engine = with(vec![node("n", 3)]);
    let gpus = |count: u64| Quota { gpu: Some(count * 1000), ..Quota::default() };
    tell(
        &mut engine,
        Event::QueueUpdated(Box::new(Queue { guaranteed: gpus(2), ..Queue::new("lender") })),
    );
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue::new("other"))));
    for id in ["a", "b", "c"] {
        submit(
            &mut engine,
            Workload {
                queue: "lender".into(),
                preemptible: true,
                priority: Priority(1),
                ..whole(id, 1)
            },
        );
    }
    engine.decide(NOW);
    submit(
        &mut engine,
        Workload { queue: "other".into(), priority: Priority(9), ..whole("greedy", 2) },
    );
    let plan = engine.decide(NOW);
    assert!(
        !plan.decisions.iter().any(|decision| matches!(decision, Decision::Preempt { .. })),
        "{plan:?}"
    );
    submit(
        &mut engine,
        Workload { queue: "other".into(), priority: Priority(9), ..whole("modest", 1) },
    );
    let plan = engine.decide(NOW);
    assert!(plan.decisions.iter().any(|decision| matches!(decision, Decision::Preempt { .. })));
}

#[test]
fn an_earlier_workload_starts_in_room_reserved_for_a_later_one() {
    let mut engine = with(vec![node("n", 2)]);
    engine
        .apply(
            NOW,
            Event::PolicyUpdated(Box::new(Policy { patience: Span(0), ..Policy::default() })),
        )
        .expect("settings");
    submit(&mut engine, Workload { priority: Priority(9), ..whole("first", 2) });
    submit(&mut engine, Workload { priority: Priority(1), ..whole("later", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Requeued("first".into()));
    assert!(starts(&mut engine, "first"));
}

#[test]
fn a_reservation_passes_to_the_longest_pending_workload() {
    let mut engine = with(vec![node("n", 1)]);
    engine
        .apply(
            NOW,
            Event::PolicyUpdated(Box::new(Policy { patience: Span(0), ..Policy::default() })),
        )
        .expect("settings");
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue::new("team"))));
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
fn without_backfill_two_heads_do_not_block_each_other() {
    let mut engine = with(vec![node("n", 1)]);
    let policy =
        Policy { patience: Span(0), backfill: false, half_life: Span(0), ..Policy::default() };
    engine.apply(NOW, Event::PolicyUpdated(Box::new(policy))).expect("settings");
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue::new("team"))));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("first", 1) });
    engine.decide(NOW);
    submit(&mut engine, whole("ours", 1));
    submit(&mut engine, Workload { queue: "team".into(), ..whole("theirs", 1) });
    engine.decide(NOW);
    for id in ["first", "ours", "theirs"] {
        if engine.workload(&id.into()).is_some_and(|view| view.tasks.is_empty()) {
            assert!(starts(&mut engine, id), "{id} never starts");
        }
        tell(&mut engine, Event::Finished(id.into()));
    }
}

#[test]
fn without_backfill_an_overdue_workload_that_fits_starts() {
    let mut engine = with(vec![node("n", 1)]);
    let (patience, ageing) = (Span(0), Ageing::OFF);
    let policy = Policy { patience, ageing, backfill: false, ..Policy::default() };
    engine.apply(NOW, Event::PolicyUpdated(Box::new(policy))).expect("settings");
    submit(&mut engine, Workload { priority: Priority(9), ..whole("never", 2) });
    submit(&mut engine, whole("fits", 1));
    assert!(starts(&mut engine, "fits"));
}

#[test]
fn without_backfill_a_workload_that_never_fits_does_not_block_the_reservation() {
    let mut engine = with(vec![node("n", 1)]);
    let policy = Policy { patience: Span(0), backfill: false, ..Policy::default() };
    engine.apply(NOW, Event::PolicyUpdated(Box::new(policy))).expect("settings");
    tell(&mut engine, Event::QueueUpdated(Box::new(Queue::new("team"))));
    submit(&mut engine, share("first", 100));
    engine.decide(NOW);
    submit(&mut engine, Workload { priority: Priority(9), ..whole("never", 2) });
    submit(&mut engine, whole("head", 1));
    engine.decide(NOW);
    submit(&mut engine, Workload { queue: "team".into(), ..whole("other", 1) });
    engine.decide(NOW);
    tell(&mut engine, Event::Finished("first".into()));
    assert!(starts(&mut engine, "head"));
}
