//! Queues: permissions and changes.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{node, pod, queue, weighted, with, workload};
use crate::state::{Action, Key, Settings};

fn in_queue(name: &str, queue: &str) -> Value {
    with(pod(name, 1), &format!("metadata|annotations|{}", names::QUEUE), json!(queue))
}

#[test]
fn a_pod_waits_for_its_queue_and_for_the_right_to_use_it() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Pod, in_queue("a", "q"));
    harness.check_settled(&["explain a QueueMissing"]);
    harness.put(Kind::Queue, with(queue("q", 4), "spec|namespaces", json!(["others"])));
    harness.check_settled(&["explain a QueueForbidden again"]);
    harness.put(Kind::Queue, queue("q", 4));
    harness.check_settled(&["bind a n"]);
}

#[test]
fn queue_permissions_apply_to_workloads_and_labels() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Queue, with(queue("q", 4), "spec|namespaces", json!(["others"])));
    let label = format!("metadata|labels|{}", names::KUEUE_QUEUE);
    harness.put(Kind::Pod, with(pod("labelled", 1), &label, json!("q")));
    harness.put(Kind::Workload, with(workload("w", 1, 0), "spec|queue", json!("q")));
    harness.settle_for_long();
    for name in ["labelled", "w-0"] {
        assert_eq!(harness.reason(name).as_deref(), Some("QueueForbidden"), "{name}");
    }
    harness.put(Kind::Queue, queue("q", 4));
    harness.settle_for_long();
    assert_eq!([harness.node_of("labelled"), harness.node_of("w-0")], [Some("n"); 2]);
}

#[test]
fn a_queue_limits_the_priority_of_its_pods() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Queue, with(queue("q", 4), "spec|maxPriority", json!(3)));
    harness.put(Kind::Pod, weighted("runs", 1, 3));
    harness.check_settled(&["bind runs n"]);
    harness.put(Kind::Pod, weighted("high", 1, 10));
    harness.check_settled(&["explain high Unschedulable"]);
}

#[test]
fn a_guarantee_is_reclaimed_from_the_youngest_borrowers() {
    let guaranteed = |name: &str| json!({"metadata": {"name": name}, "spec": {"namespaces": ["ns"], "guaranteed": {"gpus": 2}}});
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Queue, guaranteed("borrower"));
    harness.put(Kind::Queue, guaranteed("owner"));
    for index in 0..4 {
        harness.put(Kind::Pod, in_queue(&format!("borrows-{index}"), "borrower"));
        harness.pass(1_000);
        harness.settle();
    }
    harness.take_actions();
    for index in 0..3 {
        harness.put(Kind::Pod, in_queue(&format!("own-{index}"), "owner"));
        harness.pass(1_000);
        harness.settle();
        harness.kubelets();
        harness.settle();
    }
    let actions = harness.take_actions();
    let evicted: Vec<&String> =
        actions.iter().filter(|action| action.starts_with("evict")).collect();
    assert_eq!(evicted, ["evict borrows-2", "evict borrows-3"]);
    assert_eq!([harness.node_of("own-0"), harness.node_of("own-1")], [Some("n"); 2]);
    assert_eq!(harness.reason("own-2").as_deref(), Some("NoRoom"), "no more than the guarantee");
    let statuses = harness.state.queue_statuses();
    let owner = statuses.iter().find_map(|act| match act {
        Action::WriteQueueStatus { queue, status, .. } if &**queue == "owner" => Some(status),
        _ => None,
    });
    let owner = owner.expect("a status");
    assert_eq!((owner.used_milli_gpus, owner.pending), (2000, 1));
}

#[test]
fn a_queue_limits_its_pods_and_more_of_it_lets_more_start() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Queue, queue("q", 1));
    harness.put(Kind::Pod, in_queue("a", "q"));
    harness.put(Kind::Pod, in_queue("b", "q"));
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("b")], [Some("n"), None]);
    assert_eq!(harness.reason("b").as_deref(), Some("QuotaExceeded"));
    harness.server.change(Kind::Queue, &Key::new("", "q"), |queue| {
        queue["spec"]["limit"]["gpus"] = json!(2);
    });
    harness.settle();
    assert_eq!(harness.node_of("b"), Some("n"));
}

/// The queue whose pod starts next: `greedy` used more, and longer ago, than `modest`. The setting changes in between.
fn next_queue(half_life: Option<&str>) -> &'static str {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    for name in ["greedy", "modest"] {
        let spec = json!({"namespaces": ["ns"]});
        harness.put(Kind::Queue, json!({"metadata": {"name": name}, "spec": spec}));
    }
    harness.put(Kind::Pod, in_queue("first", "greedy"));
    harness.settle();
    harness.pass(1_000_000);
    harness.end("first", "Succeeded");
    harness.settle();
    if let Some(half_life) = half_life {
        let data = [("usageHalfLife".to_owned(), half_life.to_owned())].into();
        let usual = Settings::new(names::SCHEDULER_NAME);
        let (settings, refused) = usual.clone().with_config(&data, &usual.policy);
        assert_eq!(refused, Vec::new());
        harness.set_settings(settings);
    }
    harness.put(Kind::Pod, in_queue("second", "modest"));
    harness.settle();
    for name in ["modest", "greedy"] {
        harness.put(Kind::Pod, in_queue(&format!("{name}-next"), name));
        harness.settle();
    }
    harness.pass(600_000);
    harness.end("second", "Succeeded");
    harness.settle();
    let next = ["greedy", "modest"].map(|name| harness.node_of(&format!("{name}-next")).is_some());
    match next {
        [true, false] => "greedy",
        [false, true] => "modest",
        both => panic!("{both:?}"),
    }
}

#[test]
fn a_changed_half_life_applies_to_past_usage_without_a_restart() {
    assert_eq!(next_queue(None), "modest", "1000 s of a day count more than 600 s");
    assert_eq!(next_queue(Some("1m")), "greedy", "after ten half-lives");
}

#[test]
fn waiting_pods_move_to_the_queue_that_names_their_namespace_now() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Queue, queue("tight", 0));
    harness.put(Kind::Pod, pod("a", 1));
    harness.settle();
    assert_eq!(harness.reason("a").as_deref(), Some("QuotaExceeded"));
    harness.put(Kind::Queue, queue("wide", 4));
    harness.server.remove(Kind::Queue, &Key::new("", "tight"));
    harness.settle();
    assert_eq!(harness.node_of("a"), Some("n"));
}

#[test]
fn a_queue_that_is_gone_leaves_its_running_pods_alone() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Queue, queue("q", 4));
    harness.put(Kind::Pod, in_queue("a", "q"));
    harness.check_settled(&["bind a n"]);
    harness.server.remove(Kind::Queue, &Key::new("", "q"));
    harness.check_settled(&[]);
    harness.put(Kind::Pod, in_queue("b", "q"));
    harness.check_settled(&["explain b QueueMissing"]);
    harness.end("a", "Succeeded");
    harness.settle();
    // A recreated queue of the same name is a new queue.
    harness.put(Kind::Queue, queue("q", 1));
    harness.settle();
    assert_eq!(harness.node_of("b"), Some("n"));
}

#[test]
fn a_queue_waits_for_its_parent() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Queue, with(queue("child", 4), "spec|parent", json!("parent")));
    harness.put(Kind::Pod, in_queue("a", "child"));
    harness.check_settled(&["explain a QueueInvalid"]);
    harness.put(Kind::Queue, with(queue("parent", 4), "spec|namespaces", json!([])));
    harness.check_settled(&["bind a n"]);
}

#[test]
fn labels_of_kueue_are_its_business_as_soon_as_it_is_there() {
    let labelled = |name: &str| {
        with(pod(name, 1), &format!("metadata|labels|{}", names::KUEUE_QUEUE), json!("small"))
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Queue, queue("small", 1));
    harness.put(Kind::Pod, labelled("a"));
    harness.put(Kind::Pod, labelled("b"));
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("b")].iter().flatten().count(), 1);
    harness.put(Kind::Queue, with(queue("small", 1), "spec|namespaces", json!(["elsewhere"])));
    harness.state.kueue_installed();
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("b")], [Some("n"); 2]);
}

#[test]
fn a_pod_with_several_possible_queues_gets_their_names() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Queue, queue("large", 1));
    harness.put(Kind::Queue, queue("small", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.settle();
    let stored = harness.server.get(Kind::Pod, &Key::new("ns", "a")).unwrap();
    assert_eq!(
        stored["status"]["conditions"][0]["message"],
        "Namespace `ns` is served by the queues `large`, `small`: name one in spec.queue or the annotation \
         agentaflow.gpu/queue"
    );
}

#[test]
fn a_queue_that_can_be_read_again_is_in_force_again() {
    let mut harness = Harness::new();
    let readiness = |harness: &mut Harness| {
        harness.settle();
        let stored = harness.state.queue_statuses().pop();
        let Some(Action::WriteQueueStatus { status, .. }) = stored else { panic!("{stored:?}") };
        status.conditions[0].reason.clone()
    };
    harness.put(Kind::Queue, queue("q", 4));
    assert_eq!(readiness(&mut harness), "InForce");
    harness.put(Kind::Queue, with(queue("q", 4), "spec|namespaces", json!("none")));
    assert_eq!(readiness(&mut harness), "Invalid");
    harness.put(Kind::Queue, queue("q", 4));
    assert_eq!(readiness(&mut harness), "InForce");
}
