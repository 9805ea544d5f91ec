//! What a world makes of a cluster that it finds.

use serde_json::{Value, json};

use super::fake_server::{Kind, Server};
use super::harness::Play;
use super::objects::{group, member, node, pod, queue, weighted, with, workload};
use crate::state::{Action, Key};

fn on(value: Value, node: &str) -> Value {
    with(value, "spec|nodeName", json!(node))
}

fn found(objects: &[(Kind, Value)]) -> Play {
    let mut server = Server::default();
    for (kind, value) in objects {
        server.put(*kind, value.clone());
    }
    Play::of(server)
}

#[test]
fn pods_that_are_bound_keep_what_they_have() {
    let theirs = with(pod("theirs", 1), "spec|schedulerName", json!("default-scheduler"));
    let mut play = found(&[
        (Kind::Node, node("n", 3)),
        (Kind::Pod, on(pod("ours", 1), "n")),
        (Kind::Pod, on(theirs, "n")),
        (Kind::Pod, pod("a", 1)),
        (Kind::Pod, pod("b", 1)),
    ]);
    play.settle();
    let binds = play.said().into_iter().filter(|said| said.starts_with("bind")).count();
    assert_eq!(binds, 1);
    play.end("ours", "Succeeded");
    play.end("theirs", "Succeeded");
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("b")], [Some("n"); 2]);
}

#[test]
fn more_may_be_bound_than_there_is_and_nothing_follows_from_it() {
    let mut play = found(&[
        (Kind::Node, node("n", 1)),
        (Kind::Pod, on(pod("a", 1), "n")),
        (Kind::Pod, on(pod("b", 1), "n")),
        (Kind::Pod, pod("c", 1)),
    ]);
    play.check_settled(&["explain c Unschedulable"]);
    play.end("a", "Succeeded");
    play.check_settled(&[]);
    play.end("b", "Succeeded");
    play.check_settled(&["bind c n"]);
}

#[test]
fn the_rest_of_a_gang_that_runs_in_part_is_placed_beside_it() {
    let mut play = found(&[
        (Kind::Node, node("n", 3)),
        (Kind::PodGroup, group("g", 3)),
        (Kind::Pod, on(member("a", "g", 1), "n")),
        (Kind::Pod, member("b", "g", 1)),
        (Kind::Pod, member("c", "g", 1)),
    ]);
    play.settle();
    assert_eq!([play.node_of("b"), play.node_of("c")], [Some("n"); 2]);
}

#[test]
fn a_crash_in_the_midst_of_a_gangs_bindings_is_mended() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 3));
    play.put(Kind::Workload, workload("w", 3, 0));
    play.settle_for_long();
    play.server.delete_workload(&Key::new("ns", "w"));
    play.settle();
    play.kubelets();
    play.settle();
    play.put(Kind::Workload, workload("w", 3, 0));
    for _ in 0..40 {
        play.tell_all();
        play.step();
        if play.said().iter().any(|said| said.starts_with("bind")) {
            break;
        }
        while play.carry_out() {}
        while play.answer() {}
        play.pass(500);
    }
    play.carry_out();
    play.carry_out();
    play.crash();
    play.settle_for_long();
    let bound = play.server.all(Kind::Pod).filter(|pod| !pod["spec"]["nodeName"].is_null());
    assert_eq!(bound.count(), 3);
}

#[test]
fn pods_on_nodes_that_are_gone_are_deleted() {
    let mut play = found(&[(Kind::Pod, on(pod("a", 1), "gone"))]);
    play.check_settled(&["delete orphan a"]);
    assert!(play.server.get(Kind::Pod, &Key::new("ns", "a")).is_none());
}

#[test]
fn a_nomination_is_kept_over_a_crash() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 1));
    play.put(Kind::Pod, weighted("low", 1, "1"));
    play.settle();
    play.put(Kind::Pod, weighted("high", 1, "9"));
    play.tell_all();
    play.step();
    // The crash comes before anybody is told.
    play.acts.retain(|act| !matches!(act, Action::Explain { .. }));
    play.settle();
    assert_eq!(play.node_of("high"), None);
    play.crash();
    play.said();
    play.settle();
    let said = play.said();
    assert!(said.iter().any(|act| act.starts_with("explain high ")), "{said:?}");
    play.put(Kind::Pod, weighted("other", 1, "9"));
    play.settle();
    play.kubelets();
    play.settle();
    assert_eq!([play.node_of("high"), play.node_of("other")], [Some("n"), None]);
}

#[test]
fn who_takes_over_says_only_what_was_not_said_before() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 1));
    play.put(Kind::Pod, pod("a", 1));
    play.put(Kind::Pod, pod("b", 1));
    play.put(Kind::Pod, member("c", "g", 1));
    play.put(Kind::Workload, workload("w", 1, 0));
    play.settle_for_long();
    play.said();
    let told = play.notes.len();
    play.crash();
    play.settle_for_long();
    play.check(&[]);
    assert_eq!(play.notes[told..], [""; 0]);
    // What changes is told.
    play.put(Kind::PodGroup, group("g", 2));
    play.settle();
    play.check(&["explain c Gated again"]);
}

#[test]
fn a_clock_that_was_ahead_does_not_stop_whoever_leads_next() {
    const DAY: u64 = 24 * 3_600_000;
    let mut play = Play::new();
    play.put(Kind::Queue, queue("q", 4));
    play.put(Kind::Node, node("n", 1));
    play.pass(DAY);
    play.settle();
    play.now.0 -= DAY;
    play.crash();
    play.put(Kind::Pod, pod("a", 1));
    play.tell_all();
    play.step();
    play.refuse();
    play.answer();
    play.settle_for_long();
    assert_eq!(play.node_of("a"), Some("n"), "it waits for a moment, and not for a day");
}
