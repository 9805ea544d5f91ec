//! Forecasts.

use agentaflow_api::Dollars;
use agentaflow_api::pending::{Alternative, PendingCode, PendingReason, Shortfall};
use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{node, pod, queue, with, workload};
use crate::state::Key;

/// One node with two GPUs, one of them allocated.
fn half_full() -> Harness {
    let mut harness = Harness::new();
    let priced = with(node("n", 2), "metadata|annotations", json!({names::NODE_PRICE: "2.00"}));
    harness.put(Kind::Node, priced);
    harness.put(Kind::Pod, pod("old", 1));
    harness.settle_for_long();
    harness
}

fn asked(name: &str, gpus: u32, gang: u32) -> Value {
    let mut object = workload(name, gang, 0);
    object["kind"] = json!("GPUWorkload");
    object["spec"]["gpuRequirements"]["gpuCount"] = json!(gpus);
    object
}

#[test]
fn a_forecast_has_placement_and_price() {
    let harness = half_full();
    let object = with(asked("new", 1, 1), "spec|estimatedDuration", json!("90m"));
    let stored = harness.state.what_if("ns", &object).unwrap();
    assert_eq!(stored.placement[0].node_name, "n");
    assert_eq!(stored.placement.len(), 1);
    assert_eq!(stored.placement[0].gpus, ["1 × unknown"]);
    assert_eq!(stored.price_per_hour, Some(Dollars(2_000_000)));
    assert_eq!(stored.estimated_cost, Some(Dollars(3_000_000)));
    assert!(stored.eta.is_some() && stored.pending_reason.is_none());
}

#[test]
fn a_forecast_without_room_has_reason_and_alternatives() {
    let harness = half_full();
    let stored = harness.state.what_if("ns", &asked("new", 2, 1)).unwrap();
    let Some(PendingReason::NoRoom(fit)) = &stored.pending_reason else { panic!("{stored:?}") };
    assert_eq!(
        fit.shortfalls[0].shortfall,
        Shortfall::FreeGpus { requested: 2, available: 1 },
        "{stored:?}"
    );
    assert_eq!(stored.alternatives, [Alternative::Gpus(1)]);
    assert_eq!(stored.price_per_hour, Some(Dollars(4_000_000)), "where it could run");
    let stored = harness.state.what_if("ns", &asked("new", 1, 2)).unwrap();
    assert!(stored.alternatives.contains(&Alternative::Tasks(1)), "{stored:?}");
}

#[test]
fn a_forecast_names_cordoned_gpus_and_the_remedy() {
    let mut harness = Harness::new();
    let closed = json!({names::NODE_CLOSED_GPUS: "0,1"});
    harness.put(Kind::Node, with(node("n", 2), "metadata|annotations", closed));
    harness.settle_for_long();
    let stored = harness.state.what_if("ns", &asked("new", 1, 1)).unwrap();
    let gpus = vec!["0".to_owned(), "1".to_owned()];
    assert_eq!(
        stored.closest[0].shortfall,
        Some(Shortfall::UnavailableGpus { cordoned: 2, draining: 0, unhealthy: 0, gpus })
    );
}

#[test]
fn asking_changes_nothing_and_can_be_repeated_even_for_names_that_exist() {
    let mut harness = half_full();
    harness.put(Kind::Workload, workload("new", 1, 0));
    harness.settle_for_long();
    let before = harness.state.summary();
    for _ in 0..3 {
        let stored = harness.state.what_if("ns", &asked("new", 1, 1)).unwrap();
        let code = stored.pending_reason.as_ref().map(PendingReason::code);
        assert_eq!(code, Some(PendingCode::NoRoom));
    }
    assert_eq!(harness.state.summary(), before);
    assert_eq!(harness.node_of("new-0"), Some("n"));
}

#[test]
fn pods_and_templates_of_pods_can_be_asked_about() {
    let harness = half_full();
    let pod = with(pod("x", 1), "kind", json!("Pod"));
    let job = json!({"kind": "Job", "spec": {"template": pod}});
    let later = json!({"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod}}}});
    for object in [pod.clone(), job, later] {
        let stored = harness.state.what_if("ns", &object).unwrap();
        assert_eq!(stored.placement[0].node_name, "n", "{object}");
    }
}

#[test]
fn a_forecast_names_obstacles_before_any_node() {
    let mut harness = half_full();
    harness.put(Kind::Queue, queue("other", 1));
    harness.settle_for_long();
    let object = with(asked("new", 1, 1), "spec|queue", json!("nobody"));
    let stored = harness.state.what_if("ns", &object).unwrap();
    assert!(matches!(stored.pending_reason, Some(PendingReason::Parked { .. })), "{stored:?}");
    assert_eq!(stored.eta, None);
}

#[test]
fn an_invalid_what_if_is_rejected_with_a_reason() {
    let harness = half_full();
    for (object, word) in [
        (json!(null), "kind"),
        (json!({"kind": "ConfigMap"}), "has no pods"),
        (json!({"kind": "GPUWorkload"}), "no spec"),
        (json!({"kind": "GPUWorkload", "spec": {"gpuMemoryRequired": "x"}}), "cannot read"),
        (json!({"kind": "Pod", "spec": {"containers": []}}), "no containers"),
        (json!({"kind": "Pod", "spec": 7}), "cannot read"),
        (with(asked("x", 1, 1), "spec|gangSize", json!(0)), "gangSize"),
    ] {
        let error = harness.state.what_if("ns", &object).unwrap_err();
        assert!(error.contains(word), "{object}: {error}");
    }
}

#[test]
fn explanations_carry_the_words_of_the_api() {
    let mut harness = half_full();
    harness.put(Kind::Pod, pod("waits", 2));
    harness.settle_for_long();
    let stored = harness.state.explain(&Key::new("ns", "waits")).unwrap().explanation;
    assert_eq!((stored.position, stored.waiting), (Some(1), 1));
    assert_eq!(stored.closest[0].node_name, "n");
    assert_eq!(stored.alternatives, [Alternative::Gpus(1)]);
    let stored = harness.state.explain(&Key::new("ns", "old")).unwrap().explanation;
    assert_eq!(stored.placement[0].node_name, "n");
    assert_eq!(stored.placement[0].node_name, "n", "{stored:?}");
}
