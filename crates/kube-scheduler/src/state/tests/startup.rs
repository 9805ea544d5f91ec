//! Start with an existing cluster.

use serde_json::{Value, json};

use super::fake_server::{Kind, Server};
use super::harness::Harness;
use super::objects::{group, member, node, pod, queue, weighted, with, workload};
use crate::state::{Action, Key};

fn on(value: Value, node: &str) -> Value {
    with(value, "spec|nodeName", json!(node))
}

fn found(objects: &[(Kind, Value)]) -> Harness {
    let mut server = Server::default();
    for (kind, value) in objects {
        server.put(*kind, value.clone());
    }
    Harness::of(server)
}

#[test]
fn bound_pods_keep_their_gpus() {
    let theirs = with(pod("theirs", 1), "spec|schedulerName", json!("default-scheduler"));
    let mut harness = found(&[
        (Kind::Node, node("n", 3)),
        (Kind::Pod, on(pod("ours", 1), "n")),
        (Kind::Pod, on(theirs, "n")),
        (Kind::Pod, pod("a", 1)),
        (Kind::Pod, pod("b", 1)),
    ]);
    harness.settle();
    let binds =
        harness.take_actions().into_iter().filter(|action| action.starts_with("bind")).count();
    assert_eq!(binds, 1);
    harness.end("ours", "Succeeded");
    harness.end("theirs", "Succeeded");
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("b")], [Some("n"); 2]);
}

#[test]
fn more_may_be_bound_than_there_is_and_nothing_follows_from_it() {
    let mut harness = found(&[
        (Kind::Node, node("n", 1)),
        (Kind::Pod, on(pod("a", 1), "n")),
        (Kind::Pod, on(pod("b", 1), "n")),
        (Kind::Pod, pod("c", 1)),
    ]);
    harness.check_settled(&["explain c Unschedulable"]);
    harness.end("a", "Succeeded");
    harness.check_settled(&[]);
    harness.end("b", "Succeeded");
    harness.check_settled(&["bind c n"]);
}

#[test]
fn the_rest_of_a_gang_that_runs_in_part_is_placed_beside_it() {
    let mut harness = found(&[
        (Kind::Node, node("n", 3)),
        (Kind::PodGroup, group("g", 3)),
        (Kind::Pod, on(member("a", "g", 1), "n")),
        (Kind::Pod, member("b", "g", 1)),
        (Kind::Pod, member("c", "g", 1)),
    ]);
    harness.settle();
    assert_eq!([harness.node_of("b"), harness.node_of("c")], [Some("n"); 2]);
}

#[test]
fn a_crash_between_the_bindings_of_a_gang_is_repaired() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 3));
    harness.put(Kind::Workload, workload("w", 3, 0));
    harness.settle_for_long();
    harness.server.delete_workload(&Key::new("ns", "w"));
    harness.settle();
    harness.kubelets();
    harness.settle();
    harness.put(Kind::Workload, workload("w", 3, 0));
    for _ in 0..40 {
        harness.tell_all();
        harness.step();
        if harness.take_actions().iter().any(|action| action.starts_with("bind")) {
            break;
        }
        while harness.carry_out() {}
        while harness.answer() {}
        harness.pass(500);
    }
    harness.carry_out();
    harness.carry_out();
    harness.crash();
    harness.settle_for_long();
    let bound = harness.server.all(Kind::Pod).filter(|pod| !pod["spec"]["nodeName"].is_null());
    assert_eq!(bound.count(), 3);
}

#[test]
fn a_gang_bound_in_part_without_room_for_the_rest_is_unbound() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("tight", 1));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    assert_eq!([harness.node_of("w-0"), harness.node_of("w-1")], [None; 2]);
    // As after a crash between two bindings.
    harness.server.change(Kind::Pod, &Key::new("ns", "w-0"), |pod| {
        pod["spec"]["nodeName"] = json!("tight");
    });
    harness.crash();
    harness.settle_for_long();
    harness.kubelets();
    harness.settle_for_long();
    let pods: Vec<&Value> = harness.server.all(Kind::Pod).collect();
    assert!(pods.iter().all(|pod| pod["spec"]["nodeName"].is_null()), "a part holds no GPU");
    assert_eq!(pods.len(), 2);
    harness.put(Kind::Pod, pod("other", 1));
    harness.settle_for_long();
    assert_eq!(harness.node_of("other"), Some("tight"));
    harness.put(Kind::Node, node("wide", 2));
    harness.settle_for_long();
    let bound = harness.server.all(Kind::Pod).filter(|pod| pod["spec"]["nodeName"] == "wide");
    assert_eq!(bound.count(), 2);
    let found = harness.server.get(Kind::Workload, &Key::new("ns", "w")).expect("a workload");
    assert_eq!(found["status"]["retries"].as_u64().unwrap_or(0), 0);
}

#[test]
fn a_stale_nomination_is_removed() {
    let mut harness = found(&[
        (Kind::Node, node("n", 1)),
        (Kind::Pod, on(pod("runs", 1), "n")),
        (Kind::Pod, with(pod("a", 1), "status|nominatedNodeName", json!("n"))),
    ]);
    harness.settle();
    let actions = harness.take_actions();
    assert!(actions.contains(&"nominate a nothing".to_owned()), "{actions:?}");
    let found = harness.server.get(Kind::Pod, &Key::new("ns", "a")).expect("a pod");
    assert_eq!(found["status"]["nominatedNodeName"], Value::Null);
}

#[test]
fn pods_on_nodes_that_are_gone_are_deleted() {
    let mut harness = found(&[(Kind::Pod, on(pod("a", 1), "gone"))]);
    harness.check_settled(&["delete orphan a"]);
    assert!(harness.server.get(Kind::Pod, &Key::new("ns", "a")).is_none());
}

#[test]
fn a_nomination_is_kept_over_a_crash() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, weighted("low", 1, 1));
    harness.settle();
    harness.put(Kind::Pod, weighted("high", 1, 9));
    harness.tell_all();
    harness.step();
    // The crash happens before the condition is written.
    harness.acts.retain(|act| !matches!(act, Action::WriteCondition { .. }));
    harness.settle();
    assert_eq!(harness.node_of("high"), None);
    harness.crash();
    harness.take_actions();
    harness.settle();
    let actions = harness.take_actions();
    assert!(actions.iter().any(|action| action.starts_with("explain high ")), "{actions:?}");
    harness.put(Kind::Pod, weighted("other", 1, 9));
    harness.settle();
    harness.kubelets();
    harness.settle();
    assert_eq!([harness.node_of("high"), harness.node_of("other")], [Some("n"), None]);
}

#[test]
fn a_new_leader_does_not_repeat_conditions_and_events() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.put(Kind::Pod, pod("b", 1));
    harness.put(Kind::Pod, member("c", "g", 1));
    harness.put(Kind::Workload, workload("w", 1, 0));
    harness.settle_for_long();
    harness.take_actions();
    let stored = harness.notes.len();
    harness.crash();
    harness.settle_for_long();
    harness.check(&[]);
    assert_eq!(harness.notes[stored..], [""; 0]);
    // A changed reason is reported.
    harness.put(Kind::PodGroup, group("g", 2));
    harness.settle();
    harness.check(&["explain c Gated again"]);
}

#[test]
fn a_last_leader_with_a_fast_clock_does_not_stop_the_next() {
    const DAY: u64 = 24 * 3_600_000;
    let mut harness = Harness::new();
    harness.put(Kind::Queue, queue("q", 4));
    harness.put(Kind::Node, node("n", 1));
    harness.pass(DAY);
    harness.settle();
    harness.now.0 -= DAY;
    harness.crash();
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    harness.refuse();
    harness.answer();
    harness.settle_for_long();
    assert_eq!(harness.node_of("a"), Some("n"), "it waits for a moment, and not for a day");
}
