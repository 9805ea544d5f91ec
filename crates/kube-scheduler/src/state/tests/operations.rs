//! Lost monitors, replaced pods, and pods of other schedulers.

use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{node, pod, with};
use crate::state::Key;

#[test]
fn a_node_without_reports_of_its_monitor_has_unknown_health_until_the_next_report() {
    let report = |second: u64| {
        let time = jiff::Timestamp::from_second(second as i64).expect("a time");
        json!({
            "metadata": {"name": "n", "namespace": ""},
            "spec": {"nodeName": "n", "gpuDevices": [
                {"id": "GPU-a", "name": "NVIDIA L4", "memoryTotal": 23_034}]},
            "status": {
                "phase": "Active",
                "gpuStatus": [{"id": "GPU-a", "available": true, "utilization": 90.0}],
                "lastUpdated": time.to_string(),
                "conditions": [{"type": "Healthy", "status": "True", "reason": "AllHealthy", "message": "",
                    "lastTransitionTime": time.to_string()}],
            },
        })
    };
    let healthy = |harness: &Harness| {
        let object = harness.server.get(Kind::GpuNode, &Key::new("", "n")).expect("a GPUNode");
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let healthy = conditions.iter().find(|one| one["type"] == "Healthy").cloned();
        healthy.map(|one| one["status"].as_str().unwrap_or_default().to_owned())
    };
    let phase = |harness: &Harness| {
        let object = harness.server.get(Kind::GpuNode, &Key::new("", "n")).expect("a GPUNode");
        object["status"]["phase"].clone()
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::GpuNode, report(harness.server.seconds));
    harness.settle();
    harness.pass(179_000);
    harness.settle();
    assert_eq!((healthy(&harness).as_deref(), phase(&harness)), (Some("True"), json!("Active")));
    assert!(harness.state.summary().utilization > 80.0);
    harness.pass(2_000);
    harness.settle();
    assert_eq!(healthy(&harness).as_deref(), Some("Unknown"));
    assert_eq!(phase(&harness), "Unavailable", "`kubectl get gpunodes` shows the phase");
    assert_eq!(harness.state.summary().monitors_lost, 1);
    assert!(harness.state.summary().utilization < 1.0, "an old reading is void");
    assert!(harness.notes.iter().any(|note| note.starts_with("GPUNode n MonitorLost")));
    // The node itself is fine: it takes pods.
    harness.put(Kind::Pod, pod("p", 1));
    harness.settle();
    assert_eq!(harness.node_of("p"), Some("n"));
    harness.put(Kind::GpuNode, report(harness.server.seconds));
    harness.settle();
    assert_eq!(harness.state.summary().monitors_lost, 0);
    assert!(harness.state.summary().utilization > 80.0);
}

/// A pod of a `ReplicaSet`.
fn replica(name: &str, created: u64) -> Value {
    let time = jiff::Timestamp::from_second(created as i64).expect("a time").to_string();
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "rs-1", "controller": true}]);
    let pod = with(pod(name, 1), "metadata|ownerReferences", owner);
    with(pod, "metadata|creationTimestamp", json!(time))
}

/// When the scheduler restarts during the replacement of a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restart {
    Never,
    BeforeReplacement,
    AfterReplacement,
}

#[test]
fn a_pod_that_replaces_an_evicted_one_keeps_its_place_in_the_queue() {
    replace_a_pod(Restart::Never, "new");
}

#[test]
fn a_restart_keeps_the_place_of_a_terminating_pod_and_loses_that_of_a_pending_replacement() {
    replace_a_pod(Restart::BeforeReplacement, "new");
    replace_a_pod(Restart::AfterReplacement, "waits");
}

/// Drains a pod while a younger one waits; `first` is the next pod with a place.
fn replace_a_pod(restart: Restart, first: &str) {
    let mut harness = Harness::new();
    let begin = harness.server.seconds;
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, replica("old", begin));
    harness.settle();
    assert_eq!(harness.node_of("old"), Some("n"));
    harness.pass(60_000);
    let later = jiff::Timestamp::from_second(begin as i64 + 30).expect("a time").to_string();
    harness.put(Kind::Pod, with(pod("waits", 1), "metadata|creationTimestamp", json!(later)));
    harness.settle();
    // Drained: the controller replaces it at once.
    harness.delete("old");
    harness.settle();
    if restart == Restart::BeforeReplacement {
        harness.crash();
    }
    harness.put(Kind::Pod, replica("new", begin + 60));
    harness.settle();
    if restart == Restart::AfterReplacement {
        harness.crash();
    }
    harness.kubelets();
    harness.settle();
    let placed = ["new", "waits"].map(|name| harness.node_of(name).is_some());
    assert_eq!(placed, ["new", "waits"].map(|name| name == first));
}

#[test]
fn a_pod_rejected_by_its_kubelet_is_reported_with_the_cause() {
    let mut harness = Harness::new();
    harness.confused = true;
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("p", 1));
    harness.settle();
    let foreign = with(pod("theirs", 1), "spec|schedulerName", json!("default-scheduler"));
    harness.put(Kind::Pod, with(foreign.clone(), "spec|nodeName", json!("n")));
    harness.put(Kind::Pod, with(foreign, "metadata|name", json!("more")));
    harness.settle();
    let summary = harness.state.summary();
    assert_eq!((summary.foreign_pending, summary.foreign_placed), (1, 1));
    let key = Key::new(SPACE, "p");
    harness.server.change(Kind::Pod, &key, |value| {
        value["status"] = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"});
    });
    harness.settle();
    assert_eq!(harness.state.take_activity().kubelet_rejections, 1);
    let note = harness.notes.iter().find(|note| note.starts_with("Pod p RejectedByKubelet"));
    assert!(note.is_some_and(|note| note.contains("1 GPU pod of another scheduler")), "{note:?}");
    let explanation = harness.state.explain(&key).expect("an explanation");
    assert_eq!(explanation.reason.as_deref(), Some("RejectedByKubelet"));
}
