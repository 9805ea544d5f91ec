//! `GPUWorkload` objects: creation, placement, retries and cleanup of their pods.

use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{node, with, workload};
use crate::state::Key;

fn phase<'a>(harness: &'a Harness, name: &str) -> &'a str {
    let found = harness.server.get(Kind::Workload, &Key::new("ns", name));
    found.map(|found| &found["status"]["phase"]).and_then(Value::as_str).unwrap_or("gone")
}

#[test]
fn a_workload_gets_its_pods_and_ends_with_them() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    assert_eq!(phase(&harness, "w"), "Scheduled");
    assert_eq!([harness.node_of("w-0"), harness.node_of("w-1")], [Some("n"); 2]);
    harness.end("w-0", "Succeeded");
    harness.end("w-1", "Succeeded");
    harness.settle_for_long();
    assert_eq!(phase(&harness, "w"), "Succeeded");
}

#[test]
fn a_failed_pod_is_made_again_as_often_as_allowed() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Workload, workload("w", 1, 1));
    harness.settle_for_long();
    harness.end("w-0", "Failed");
    harness.settle_for_long();
    assert_eq!(harness.node_of("w-0-r1"), Some("n"));
    harness.end("w-0-r1", "Failed");
    harness.settle_for_long();
    assert_eq!(phase(&harness, "w"), "Failed");
}

#[test]
fn a_gang_restarts_whole_after_a_failure() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, workload("w", 2, 1));
    harness.settle_for_long();
    harness.end("w-0", "Failed");
    harness.settle_for_long();
    harness.kubelets();
    harness.settle_for_long();
    assert_eq!([harness.node_of("w-0-r1"), harness.node_of("w-1-r1")], [Some("n"); 2]);
}

#[test]
fn pods_of_a_deleted_node_are_replaced_without_spending_retries() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Workload, workload("w", 1, 0));
    harness.settle_for_long();
    harness.put(Kind::Node, node("m", 1));
    harness.server.remove(Kind::Node, &Key::new("", "n"));
    harness.settle_for_long();
    let nodes: Vec<_> = harness.server.all(Kind::Pod).map(|pod| &pod["spec"]["nodeName"]).collect();
    assert_eq!(nodes, ["m"]);
    assert_eq!(phase(&harness, "w"), "Scheduled");
}

#[test]
fn a_deleted_workload_takes_its_pods_along() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    harness.server.delete_workload(&Key::new("ns", "w"));
    assert_eq!(phase(&harness, "w"), "gone", "no finalizer keeps it");
    harness.settle_for_long();
    harness.kubelets();
    harness.settle_for_long();
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    assert_eq!(harness.server.all(Kind::Pod).count(), 2);
}

#[test]
fn a_workload_created_again_waits_for_the_pods_of_the_deleted_one() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    harness.server.delete_workload(&Key::new("ns", "w"));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    assert_eq!(phase(&harness, "w"), "Pending");
    let found = harness.server.get(Kind::Workload, &Key::new("ns", "w")).expect("the workload");
    assert_eq!(found["status"]["conditions"][0]["reason"], "PredecessorEnding");
    let rejected = harness.notes.iter().filter(|note| note.contains("PodRejected"));
    assert_eq!(rejected.count(), 0);
    harness.kubelets();
    harness.settle_for_long();
    assert_eq!(phase(&harness, "w"), "Scheduled");
    assert_eq!(harness.server.all(Kind::Pod).count(), 2);
}

#[test]
fn a_pending_pod_of_a_deleted_workload_is_not_placed() {
    let mut harness = Harness::new();
    harness.put(Kind::Workload, workload("w", 1, 0));
    harness.settle_for_long();
    // The garbage collector has not run yet.
    harness.server.remove(Kind::Workload, &Key::new("ns", "w"));
    harness.put(Kind::Node, node("n", 2));
    harness.settle_for_long();
    assert_eq!(harness.node_of("w-0"), None);
}

/// A preemptible workload.
fn of_priority(name: &str, priority: u8) -> Value {
    let workload = with(workload(name, 1, 0), "spec|priority", json!(priority));
    with(workload, "spec|preemptible", json!(true))
}

#[test]
fn a_priority_class_of_the_template_decides_about_its_priority() {
    let class = |name: &str, priority: u8, class: Option<&str>| {
        let mut workload = of_priority(name, priority);
        if let Some(class) = class {
            workload["spec"]["podTemplate"]["spec"]["priorityClassName"] = json!(class);
        }
        workload
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Workload, class("runs", 6, None));
    harness.settle_for_long();
    // A priority class of zero overrides priority ten of the spec.
    harness.put(Kind::Workload, class("loud", 10, Some("agentaflow-0")));
    harness.settle_for_long();
    assert_eq!(harness.node_of("runs-0"), Some("n"));
    assert_eq!(phase(&harness, "loud"), "Pending");
    harness.put(Kind::Workload, class("quiet", 0, Some("agentaflow-9")));
    harness.settle_for_long();
    harness.kubelets();
    harness.settle_for_long();
    assert_eq!(harness.node_of("quiet-0"), Some("n"));
}

#[test]
fn a_raised_priority_takes_new_pods_and_running_ones_keep_theirs() {
    let raised = |name: &str, priority: u8| {
        with(of_priority(name, priority), "metadata|generation", json!(2))
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Workload, of_priority("runs", 5));
    harness.settle_for_long();
    harness.put(Kind::Workload, of_priority("waits", 2));
    harness.settle_for_long();
    harness.put(Kind::Workload, raised("runs", 9));
    harness.settle_for_long();
    assert_eq!(harness.node_of("runs-0"), Some("n"), "a running pod keeps its node");
    harness.put(Kind::Workload, raised("waits", 7));
    harness.settle_for_long();
    harness.kubelets();
    harness.settle_for_long();
    let class = |pod: &str| {
        let found = harness.server.get(Kind::Pod, &Key::new("ns", pod)).expect("a pod");
        found["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(class("waits-0"), "agentaflow-7");
    let words = "GPUWorkload runs Preempted: Preempted by `ns/waits`: higher priority";
    assert!(harness.notes.iter().any(|note| note == words), "{:?}", harness.notes);
    assert_eq!(class("runs-0-r1"), "agentaflow-9", "its next pod has the class it asks for now");
}

#[test]
fn events_name_pending_workloads_victims_and_preemptors() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Workload, of_priority("low", 2));
    harness.settle_for_long();
    harness.put(Kind::Workload, of_priority("also-low", 2));
    harness.settle_for_long();
    harness.put(Kind::Workload, of_priority("high", 9));
    harness.settle_for_long();
    let stored = |words: &str| harness.notes.iter().any(|note| note.starts_with(words));
    for words in [
        "GPUWorkload also-low FailedScheduling: 0/1 nodes fit: 1 lacks 1 free GPU",
        "GPUWorkload low Preempted: Preempted by `ns/high`: higher priority",
        "Pod low-0 Preempted: Preempted by `ns/high`: higher priority",
        "GPUWorkload high Preempting: Preempting `ns/low`",
    ] {
        assert!(stored(words), "no `{words}` in {:#?}", harness.notes);
    }
}

#[test]
fn a_status_of_which_the_installed_schema_drops_a_field_is_not_written_for_ever() {
    let mut harness = Harness::new();
    harness.server.pruned = Some("phase");
    harness.put(Kind::Workload, workload("w", 1, 0));
    for _ in 0..3_600 {
        harness.settle();
        harness.pass(1_000);
    }
    let written = harness.server.statuses;
    assert!((5..25).contains(&written), "{written} times in an hour");
}

#[test]
fn a_status_changed_by_another_client_is_restored() {
    let mut harness = Harness::new();
    harness.put(Kind::Workload, workload("w", 1, 0));
    harness.settle_for_long();
    for _ in 0..10 {
        harness.pass(60_000);
        harness.server.change(Kind::Workload, &Key::new("ns", "w"), |value| {
            value["status"]["phase"] = json!("Failed");
        });
        harness.settle();
        assert_eq!(phase(&harness, "w"), "Pending");
    }
}

/// A workload that another controller's finalizer keeps after its deletion.
fn kept_after_deletion(tasks: u32) -> Value {
    with(workload("w", tasks, 0), "metadata|finalizers", json!(["example.com/keep"]))
}

/// Names of the pods of `w` whose deletion is requested.
fn deleted(harness: &mut Harness) -> Vec<String> {
    harness.take_actions().into_iter().filter(|action| action.starts_with("delete ")).collect()
}

#[test]
fn the_end_of_a_pod_is_asked_for_once_however_often_its_workload_is_looked_at() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 3));
    harness.put(Kind::Workload, kept_after_deletion(3));
    harness.settle_for_long();
    harness.take_actions();
    harness.server.delete_workload(&Key::new("ns", "w"));
    harness.tell_all();
    harness.step();
    assert_eq!(deleted(&mut harness), ["delete w-0", "delete w-1", "delete w-2"]);
    // Only one deletion has reached the API server.
    harness.carry_out();
    harness.tell_all();
    harness.step();
    assert_eq!(deleted(&mut harness), [""; 0]);
    let stored = harness.notes.iter().filter(|note| note.starts_with("GPUWorkload w Stopping"));
    assert_eq!(stored.count(), 1);
}

#[test]
fn refused_deletions_are_repeated_until_the_pods_of_a_deleted_workload_are_gone() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, kept_after_deletion(2));
    harness.settle_for_long();
    harness.server.delete_workload(&Key::new("ns", "w"));
    // The writes of the first round are lost.
    for _ in 0..2 {
        harness.tell_all();
        harness.step();
        harness.acts.clear();
        harness.pass(31_000);
        harness.settle();
        harness.kubelets();
    }
    harness.settle_for_long();
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
}
