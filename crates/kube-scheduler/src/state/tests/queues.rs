//! Queues: who may use them, and what happens when they change.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Play;
use super::objects::{node, pod, queue, with};
use crate::state::Key;

fn in_queue(name: &str, queue: &str) -> Value {
    with(pod(name, 1), &format!("metadata|annotations|{}", names::QUEUE), json!(queue))
}

#[test]
fn a_pod_waits_for_its_queue_and_for_the_right_to_use_it() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::Pod, in_queue("a", "q"));
    play.check_settled(&["explain a QueueMissing"]);
    play.put(Kind::Queue, with(queue("q", 4), "spec|namespaces", json!(["others"])));
    play.check_settled(&["explain a QueueForbidden again"]);
    play.put(Kind::Queue, queue("q", 4));
    play.check_settled(&["bind a n"]);
}

#[test]
fn a_queue_limits_its_pods_and_more_of_it_lets_more_start() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::Queue, queue("q", 1));
    play.put(Kind::Pod, in_queue("a", "q"));
    play.put(Kind::Pod, in_queue("b", "q"));
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("b")], [Some("n"), None]);
    assert_eq!(play.reason("b").as_deref(), Some("QuotaExceeded"));
    play.server.change(Kind::Queue, &Key::new("", "q"), |queue| {
        queue["spec"]["limit"]["gpus"] = json!(2);
    });
    play.settle();
    assert_eq!(play.node_of("b"), Some("n"));
}

#[test]
fn waiting_pods_move_to_the_queue_that_names_their_namespace_now() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::Queue, queue("tight", 0));
    play.put(Kind::Pod, pod("a", 1));
    play.settle();
    assert_eq!(play.reason("a").as_deref(), Some("QuotaExceeded"));
    play.put(Kind::Queue, queue("wide", 4));
    play.server.remove(Kind::Queue, &Key::new("", "tight"));
    play.settle();
    assert_eq!(play.node_of("a"), Some("n"));
}

#[test]
fn a_queue_that_is_gone_leaves_its_running_pods_alone() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::Queue, queue("q", 4));
    play.put(Kind::Pod, in_queue("a", "q"));
    play.check_settled(&["bind a n"]);
    play.server.remove(Kind::Queue, &Key::new("", "q"));
    play.check_settled(&[]);
    play.put(Kind::Pod, in_queue("b", "q"));
    play.check_settled(&["explain b QueueMissing"]);
    play.end("a", "Succeeded");
    play.settle();
    // The same name again is a new queue.
    play.put(Kind::Queue, queue("q", 1));
    play.settle();
    assert_eq!(play.node_of("b"), Some("n"));
}

#[test]
fn a_queue_waits_for_its_parent() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::Queue, with(queue("child", 4), "spec|parent", json!("parent")));
    play.put(Kind::Pod, in_queue("a", "child"));
    play.check_settled(&["explain a QueueInvalid"]);
    play.put(Kind::Queue, with(queue("parent", 4), "spec|namespaces", json!([])));
    play.check_settled(&["bind a n"]);
}

#[test]
fn labels_of_kueue_are_its_business_as_soon_as_it_is_there() {
    let labelled = |name: &str| {
        with(pod(name, 1), &format!("metadata|labels|{}", names::KUEUE_QUEUE), json!("small"))
    };
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::Queue, queue("small", 1));
    play.put(Kind::Pod, labelled("a"));
    play.put(Kind::Pod, labelled("b"));
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("b")].iter().flatten().count(), 1);
    play.put(Kind::Queue, with(queue("small", 1), "spec|namespaces", json!(["elsewhere"])));
    play.world.leave_queues_to_kueue();
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("b")], [Some("n"); 2]);
}

#[test]
fn a_pod_that_could_go_to_several_queues_is_told_which() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 1));
    play.put(Kind::Queue, queue("large", 1));
    play.put(Kind::Queue, queue("small", 1));
    play.put(Kind::Pod, pod("a", 1));
    play.settle();
    let told = play.server.get(Kind::Pod, &Key::new("ns", "a")).unwrap();
    assert_eq!(
        told["status"]["conditions"][0]["message"],
        "namespace `ns` is served by the queues `large`, `small`: name one, in spec.queue or the annotation \
         agentaflow.gpu/queue"
    );
}

#[test]
fn a_queue_that_can_be_read_again_is_in_force_again() {
    let mut play = Play::new();
    let readiness = |play: &mut Play| {
        play.settle();
        let told = play.world.queue_statuses().pop();
        let Some(crate::state::Action::QueueStatus { status, .. }) = told else {
            panic!("{told:?}")
        };
        status.conditions[0].reason.clone()
    };
    play.put(Kind::Queue, queue("q", 4));
    assert_eq!(readiness(&mut play), "InForce");
    play.put(Kind::Queue, with(queue("q", 4), "spec|namespaces", json!("none")));
    assert_eq!(readiness(&mut play), "Invalid");
    play.put(Kind::Queue, queue("q", 4));
    assert_eq!(readiness(&mut play), "InForce");
}
