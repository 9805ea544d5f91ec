//! Pods of other schedulers that race for the room that a preemption makes.

use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{node, pod, weighted, with};
use crate::state::Key;

/// A pod of kube-scheduler with one GPU.
fn foreign(name: &str, priority: i32) -> Value {
    let pod = with(pod(name, 1), "spec|schedulerName", json!("default-scheduler"));
    with(pod, "spec|priority", json!(priority))
}

/// A node whose four GPUs are in use by pods of low priority.
fn full() -> Harness {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    for index in 0..4 {
        harness.put(Kind::Pod, weighted(&format!("low-{index}"), 1, 1));
    }
    harness.settle();
    harness.take_actions();
    harness
}

fn evictions(harness: &mut Harness) -> usize {
    harness.settle();
    harness.take_actions().iter().filter(|action| action.starts_with("evict")).count()
}

#[test]
fn a_preemption_makes_room_for_pending_pods_that_would_be_served_first() {
    let high = agentaflow_kube_core::names::priority_class_value(9);
    for (priority, expected) in [(high - 1, 2), (high, 3), (high + 1, 3)] {
        let mut harness = full();
        harness.put(Kind::Pod, foreign("theirs", priority));
        harness.settle();
        harness.put(Kind::Pod, weighted("high", 2, 9));
        assert_eq!(evictions(&mut harness), expected, "{priority}");
    }
}

#[test]
fn foreign_pods_that_cannot_start_now_attract_no_room() {
    let mut harness = full();
    let gates = json!([{"name": "later"}]);
    harness.put(Kind::Pod, with(foreign("gated", 2_000_000), "spec|schedulingGates", gates));
    let far = json!({"kubernetes.io/hostname": "elsewhere"});
    harness.put(Kind::Pod, with(foreign("far", 2_000_000), "spec|nodeSelector", far));
    harness.settle();
    harness.put(Kind::Pod, weighted("high", 2, 9));
    assert_eq!(evictions(&mut harness), 2);
}

#[test]
fn a_pending_pod_of_another_scheduler_can_prevent_a_preemption_until_it_has_a_node() {
    let mut harness = full();
    harness.put(Kind::Pod, foreign("theirs", 2_000_000));
    harness.settle();
    harness.put(Kind::Pod, weighted("high", 4, 9));
    assert_eq!(evictions(&mut harness), 0, "a GPU would be missing");
    harness.put(Kind::Node, node("other", 1));
    harness.server.change(Kind::Pod, &Key::new(SPACE, "theirs"), |pod| {
        pod["spec"]["nodeName"] = json!("other");
    });
    assert_eq!(evictions(&mut harness), 4);
}

#[test]
fn a_restarted_scheduler_knows_the_pending_pods_of_other_schedulers() {
    let mut harness = full();
    harness.put(Kind::Pod, foreign("theirs", 2_000_000));
    harness.crash();
    harness.settle();
    harness.put(Kind::Pod, weighted("high", 2, 9));
    assert_eq!(evictions(&mut harness), 3);
}

#[test]
fn a_pod_that_kube_scheduler_nominates_uses_its_node() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    let nominated = with(foreign("theirs", 0), "status|nominatedNodeName", json!("n"));
    harness.put(Kind::Pod, nominated);
    harness.put(Kind::Pod, pod("ours", 1));
    harness.settle();
    assert_eq!(harness.node_of("ours"), None);
    harness.server.remove(Kind::Pod, &Key::new(SPACE, "theirs"));
    harness.settle();
    assert_eq!(harness.node_of("ours"), Some("n"));
}

#[test]
fn a_workload_says_that_another_scheduler_took_its_room() {
    let mut harness = full();
    harness.put(Kind::Pod, weighted("high", 4, 9));
    assert_eq!(evictions(&mut harness), 4);
    harness.pass(1000);
    // kube-scheduler binds its pod as soon as a GPU is free.
    harness.put(Kind::Pod, with(foreign("thief", 0), "spec|nodeName", json!("n")));
    harness.confused = true;
    harness.settle();
    harness.kubelets();
    harness.settle();
    assert_eq!(harness.node_of("high"), None);
    assert_eq!(harness.reason("high").as_deref(), Some("PreemptedRoomTaken"));
    let reported = |note: &&String| note.starts_with("Pod high PreemptedRoomTaken: Pod ns/thief");
    assert_eq!(harness.notes.iter().filter(reported).count(), 1, "{:?}", harness.notes);
    let lines = harness.state.explain(&Key::new(SPACE, "high")).expect("a pod").lines;
    assert!(lines.iter().any(|line| line.contains("ns/thief")), "{lines:?}");
    harness.server.remove(Kind::Pod, &Key::new(SPACE, "thief"));
    harness.settle();
    assert_eq!(harness.node_of("high"), Some("n"));
}

/// A `GPUNode` with the conditions of its monitor.
fn monitored(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": ""},
        "spec": {"nodeName": name, "gpuDevices": []},
        "status": {"phase": "Active", "gpuStatus": [], "conditions": [{"type": "Ready", "status": "True",
            "reason": "GPUsReported", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

/// Status and reason of `ForeignGpuPods`.
fn reported(harness: &Harness, node: &str) -> Option<(String, String)> {
    let object = harness.server.get(Kind::GpuNode, &Key::new("", node)).expect("a GPUNode");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert!(conditions.iter().any(|one| one["type"] == "Ready"), "the monitor's condition stays");
    let found = conditions.into_iter().find(|one| one["type"] == "ForeignGpuPods")?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn state(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

fn wait(harness: &mut Harness, milliseconds: u64) {
    harness.settle();
    harness.pass(milliseconds);
    harness.settle();
}

#[test]
fn a_gpu_node_says_that_foreign_pods_wait_for_its_gpus() {
    let mut harness = full();
    harness.put(Kind::Node, node("small", 1));
    harness.put(Kind::Pod, pod("fills", 1));
    for name in ["n", "small"] {
        harness.put(Kind::GpuNode, monitored(name));
    }
    let large = with(pod("large", 2), "spec|schedulerName", json!("default-scheduler"));
    harness.put(Kind::Pod, large);
    wait(&mut harness, 9_000);
    assert_eq!(reported(&harness, "n"), None, "most pods start sooner");
    wait(&mut harness, 1_000);
    assert_eq!(reported(&harness, "n"), Some(state("True", "PodsPending")));
    assert_eq!(reported(&harness, "small"), None, "the pod never fits it");
    harness.server.remove(Kind::Pod, &Key::new(SPACE, "large"));
    wait(&mut harness, 15_000);
    assert_eq!(reported(&harness, "n"), Some(state("False", "NoForeignPods")));
}

#[test]
fn a_gpu_node_names_a_race_that_a_foreign_pod_won_for_ten_minutes_also_after_a_restart() {
    let mut harness = full();
    harness.put(Kind::GpuNode, monitored("n"));
    harness.put(Kind::Pod, weighted("high", 4, 9));
    assert_eq!(evictions(&mut harness), 4);
    harness.pass(1000);
    harness.put(Kind::Pod, with(foreign("thief", 0), "spec|nodeName", json!("n")));
    harness.confused = true;
    harness.settle();
    harness.kubelets();
    wait(&mut harness, 1_000);
    assert_eq!(reported(&harness, "n"), Some(state("True", "RaceLost")));
    harness.crash();
    for _ in 0..9 {
        wait(&mut harness, 60_000);
    }
    assert_eq!(reported(&harness, "n"), Some(state("True", "RaceLost")));
    wait(&mut harness, 61_000);
    assert_eq!(reported(&harness, "n"), Some(state("False", "NoForeignPods")));
}

#[test]
fn a_rejection_by_a_kubelet_beside_foreign_pods_is_a_lost_race_and_another_one_is_not() {
    for beside in [true, false] {
        let mut harness = Harness::new();
        harness.confused = true;
        harness.put(Kind::Node, node("n", 1));
        harness.put(Kind::GpuNode, monitored("n"));
        harness.put(Kind::Pod, pod("p", 1));
        harness.settle();
        if beside {
            harness.put(Kind::Pod, with(foreign("theirs", 0), "spec|nodeName", json!("n")));
        }
        harness.settle();
        harness.server.change(Kind::Pod, &Key::new(SPACE, "p"), |value| {
            value["status"] = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"});
        });
        wait(&mut harness, 1_000);
        assert_eq!(reported(&harness, "n"), beside.then(|| state("True", "RaceLost")));
    }
}
