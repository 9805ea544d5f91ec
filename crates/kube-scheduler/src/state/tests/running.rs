//! Running pods: resizes and evictions.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{group, member, node, pod, with};
use crate::state::{Change, Key, Object};

fn of_priority(pod: Value, priority: u8) -> Value {
    with(pod, "spec|priority", json!(names::priority_class_value(priority)))
}

fn with_cpu(pod: Value, cpu: &str) -> Value {
    let mut pod = pod;
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": cpu});
    pod
}

#[test]
fn a_resized_pod_uses_its_new_resources() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, with_cpu(pod("a", 1), "8"));
    harness.check_settled(&["bind a n"]);
    let resize = |harness: &mut Harness, cpu: &str| {
        let change = |pod: &mut Value| *pod = with_cpu(pod.clone(), cpu);
        harness.server.change(Kind::Pod, &Key::new(SPACE, "a"), change);
    };
    resize(&mut harness, "60");
    harness.put(Kind::Pod, with_cpu(pod("b", 1), "16"));
    harness.settle();
    assert_eq!(harness.node_of("b"), None, "64 cores are not 60 and 16");
    resize(&mut harness, "32");
    harness.settle();
    assert_eq!(harness.node_of("b"), Some("n"));
}

#[test]
fn a_gang_of_which_a_pod_is_resized_stays_one() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    for name in ["a", "b"] {
        harness.put(Kind::Pod, of_priority(with_cpu(member(name, "g", 1), "8"), 1));
    }
    harness.check_settled(&["bind a n", "bind b n", "explain a Gated", "explain b Gated"]);
    let change = |pod: &mut Value| *pod = with_cpu(pod.clone(), "40");
    harness.server.change(Kind::Pod, &Key::new(SPACE, "b"), change);
    harness.put(Kind::Pod, with_cpu(pod("c", 0), "20"));
    harness.settle();
    assert_eq!(harness.node_of("c"), None, "64 cores are not 8, 40 and 20");
    harness.put(Kind::Pod, of_priority(pod("high", 1), 9));
    harness.settle();
    let actions = harness.take_actions();
    for act in ["evict a", "evict b"] {
        assert!(actions.iter().any(|action| action == act), "{actions:?}");
    }
}

#[test]
fn a_gang_that_needs_fewer_pods_than_run_keeps_them_all_when_one_is_resized() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    for name in ["a", "b"] {
        harness.put(Kind::Pod, of_priority(with_cpu(member(name, "g", 1), "8"), 1));
    }
    harness.settle();
    harness.put(Kind::PodGroup, group("g", 1));
    harness.settle();
    let change = |pod: &mut Value| *pod = with_cpu(pod.clone(), "40");
    harness.server.change(Kind::Pod, &Key::new(SPACE, "b"), change);
    harness.put(Kind::Pod, with_cpu(pod("c", 0), "20"));
    harness.settle();
    assert_eq!(harness.node_of("c"), None, "64 cores are not 8, 40 and 20");
    harness.end("b", "Succeeded");
    harness.settle();
    assert_eq!(harness.node_of("c"), Some("n"));
}

#[test]
fn a_pod_that_is_called_otherwise_is_known_by_its_new_labels() {
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"loud": "yes"}}}
    ]}});
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, pod("a", 1));
    harness.check_settled(&["bind a n"]);
    let key = Key::new(SPACE, "a");
    harness.server.change(Kind::Pod, &key, |pod| pod["metadata"]["labels"]["loud"] = json!("yes"));
    harness.put(Kind::Pod, with(pod("quiet", 1), "spec|affinity", away));
    harness.settle();
    assert_eq!(harness.node_of("quiet"), None);
}

#[test]
fn a_pod_that_cannot_be_evicted_is_protected_and_another_victim_is_chosen() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    for (name, priority) in [("lowest", 1), ("low", 2)] {
        harness.put(Kind::Pod, of_priority(pod(name, 1), priority));
    }
    harness.settle();
    harness.server.guarded.insert(Key::new(SPACE, "lowest"));
    harness.take_actions();
    harness.put(Kind::Pod, of_priority(pod("high", 1), 9));
    harness.settle();
    let evicted: Vec<String> =
        harness.take_actions().into_iter().filter(|action| action.starts_with("evict")).collect();
    assert_eq!(evicted, ["evict low", "evict lowest"]);
    harness.kubelets();
    harness.settle();
    assert_eq!(harness.node_of("high"), Some("n"));
}

#[test]
fn an_eviction_that_is_always_refused_is_tried_seldom() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, of_priority(pod("low", 1), 1));
    harness.settle();
    harness.server.guarded.insert(Key::new(SPACE, "low"));
    harness.put(Kind::Pod, of_priority(pod("high", 1), 9));
    harness.take_actions();
    // One hour.
    for _ in 0..120 {
        harness.settle();
        harness.pass(30_000);
    }
    let evictions =
        harness.take_actions().into_iter().filter(|action| action == "evict low").count();
    assert!((3..=8).contains(&evictions), "{evictions}");
    assert_eq!(harness.node_of("high"), None);
    harness.server.guarded.clear();
    for _ in 0..240 {
        harness.settle();
        harness.kubelets();
        harness.pass(30_000);
    }
    assert_eq!(harness.node_of("high"), Some("n"));
}

#[test]
fn an_eviction_refused_during_binding_is_handled_when_the_pod_is_bound() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, of_priority(pod("low", 1), 1));
    harness.tell_all();
    harness.step();
    assert!(harness.up_to_binding());
    let bind = harness.acts.pop_front();
    harness.server.guarded.insert(Key::new(SPACE, "low"));
    harness.put(Kind::Pod, of_priority(pod("high", 1), 9));
    harness.tell_all();
    harness.step();
    assert!(harness.take_actions().contains(&"evict low".to_owned()));
    while harness.carry_out() {}
    while harness.answer() {}
    harness.acts.extend(bind);
    harness.settle();
    assert_eq!(harness.node_of("low"), Some("n"));
    harness.server.guarded.clear();
    for _ in 0..240 {
        harness.settle();
        harness.kubelets();
        harness.pass(30_000);
    }
    assert_eq!(harness.node_of("high"), Some("n"));
}

#[test]
fn a_gang_is_not_stopped_when_a_budget_guards_any_of_its_pods() {
    let called = |name: &str, role: &str| {
        let pod = with(member(name, "g", 1), "metadata|labels|role", json!(role));
        of_priority(pod, 1)
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 3));
    harness.put(Kind::PodGroup, group("g", 3));
    for (name, role) in [("a-master", "master"), ("b", "worker"), ("c", "worker")] {
        harness.put(Kind::Pod, called(name, role));
    }
    harness.put(
        Kind::Budget,
        json!({
            "metadata": {"name": "workers", "namespace": SPACE},
            "spec": {"selector": {"matchLabels": {"role": "worker"}}},
            "status": {"disruptionsAllowed": 0},
        }),
    );
    harness.settle();
    assert!(harness.take_actions().contains(&"bind b n".to_owned()));
    harness.put(Kind::Pod, of_priority(pod("high", 1), 9));
    harness.settle();
    let actions = harness.take_actions();
    assert!(!actions.iter().any(|action| action.starts_with("evict")), "{actions:?}");
    // Without the protection of the budget all pods can be evicted.
    let key = Key::new(SPACE, "workers");
    harness.server.change(Kind::Budget, &key, |budget| {
        budget["status"]["disruptionsAllowed"] = json!(3);
    });
    harness.settle();
    assert!(harness.take_actions().contains(&"evict a-master".to_owned()));
}

#[test]
fn a_pending_condition_is_written_once() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    let queue = format!("metadata|annotations|{}", names::QUEUE);
    harness.put(Kind::Pod, with(pod("a", 1), &queue, json!("nowhere")));
    harness.check_settled(&["explain a QueueMissing"]);
    for version in 0..3 {
        let space = json!({"metadata": {"name": "other", "labels": {"v": version.to_string()}}});
        let space = serde_json::from_value(space).expect("a namespace");
        harness.state.apply(harness.now, Change::Applied(Box::new(Object::Namespace(space))));
        harness.check_settled(&[]);
    }
}

#[test]
fn messages_about_long_queue_names_are_cut() {
    let mut harness = Harness::new();
    let queue = format!("metadata|annotations|{}", names::QUEUE);
    harness.put(Kind::Pod, with(pod("a", 1), &queue, json!("ü".repeat(100_000))));
    harness.check_settled(&["explain a QueueMissing"]);
    let stored = harness.server.get(Kind::Pod, &Key::new(SPACE, "a")).expect("a pod");
    let message = stored["status"]["conditions"][0]["message"].as_str().expect("a message");
    assert!(message.len() <= 1024, "{} bytes", message.len());
}
