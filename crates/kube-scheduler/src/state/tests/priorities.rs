//! Priorities: the value of the priority class as it is, in strict order.

use agentaflow_engine::Ageing;
use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{node, pod, queue, with, workload};
use crate::state::{Key, Settings};

/// A pod as admission leaves it: with the value of its class.
fn classed(name: &str, gpus: u32, value: i32) -> Value {
    with(pod(name, gpus), "spec|priority", json!(value))
}

fn annotated(pod: Value, priority: &str) -> Value {
    with(pod, &format!("metadata|annotations|{}", names::PRIORITY), json!(priority))
}

fn class(name: &str, value: i32, is_default: bool) -> Value {
    json!({"metadata": {"name": name}, "value": value, "globalDefault": is_default})
}

fn evictions(harness: &mut Harness) -> Vec<String> {
    harness.settle_for_long();
    let actions = harness.take_actions();
    actions.into_iter().filter(|action| action.starts_with("evict")).collect()
}

#[test]
fn a_pod_without_a_class_preempts_no_pod_of_a_class() {
    for value in [1, 1_000, 99_999, 100_000, 1_000_000_000] {
        let mut harness = Harness::new();
        harness.put(Kind::Node, node("n", 4));
        for index in 0..4 {
            harness.put(Kind::Pod, classed(&format!("production-{index}"), 1, value));
        }
        harness.settle();
        harness.put(Kind::Pod, classed("classless", 4, 0));
        harness.put(Kind::Pod, pod("without-a-value", 4));
        harness.put(Kind::Workload, workload("default", 1, 0));
        assert_eq!(evictions(&mut harness), Vec::<String>::new(), "{value}");
        harness.put(Kind::Pod, classed("above", 1, value + 1));
        harness.settle();
        let actions = harness.take_actions();
        let evicted = actions.iter().filter(|action| action.starts_with("evict production"));
        assert_eq!(evicted.count(), 1, "{value}");
    }
}

#[test]
fn pods_start_strictly_by_the_value_of_their_class_however_long_they_wait() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    let shy = |pod: Value| with(pod, "spec|preemptionPolicy", json!("Never"));
    harness.put(Kind::Pod, classed("runs", 1, 2_000_000_000));
    harness.settle();
    let waiting =
        [("lowest", i32::MIN), ("negative", -1), ("none", 0), ("low", 1), ("high", 99_999)];
    for (name, value) in waiting {
        harness.put(Kind::Pod, shy(classed(name, 1, value)));
        harness.pass(100 * 3_600_000);
        harness.settle();
    }
    let mut running = "runs";
    for (name, _) in waiting.into_iter().rev() {
        harness.end(running, "Succeeded");
        harness.settle_for_long();
        assert_eq!(harness.node_of(name), Some("n"), "{name} follows {running}");
        running = name;
    }
}

#[test]
fn points_per_minute_let_an_old_pod_start_first_and_preempt_none() {
    let mut harness = Harness::new();
    let mut settings = Settings::new(names::SCHEDULER_NAME);
    settings.policy.ageing = Ageing::points_per_minute(10);
    harness.set_settings(settings);
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, classed("runs", 1, 100));
    harness.settle();
    harness.put(Kind::Pod, classed("old", 1, 50));
    harness.pass(3_600_000);
    harness.put(Kind::Pod, classed("young", 1, 100));
    assert_eq!(evictions(&mut harness), Vec::<String>::new(), "600 points give no right");
    harness.end("runs", "Succeeded");
    harness.settle_for_long();
    assert_eq!((harness.node_of("old"), harness.node_of("young")), (Some("n"), None));
}

#[test]
fn without_the_webhook_an_annotation_orders_equal_priorities_only() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, classed("runs", 1, 0));
    harness.settle();
    harness.put(Kind::Pod, pod("older", 1));
    harness.put(Kind::Pod, annotated(pod("less", 1), "4"));
    harness.pass(60_000);
    harness.put(Kind::Pod, annotated(pod("annotated", 1), "10"));
    harness.put(Kind::Pod, with(classed("classed", 1, 1), "spec|preemptionPolicy", json!("Never")));
    assert_eq!(evictions(&mut harness), Vec::<String>::new());
    let mut running = "runs";
    for name in ["classed", "annotated", "older", "less"] {
        harness.end(running, "Succeeded");
        harness.settle_for_long();
        assert_eq!(harness.node_of(name), Some("n"), "{name} follows {running}");
        running = name;
    }
}

#[test]
fn with_the_webhook_only_the_class_counts() {
    let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "j",
        "controller": true}]);
    let mut settings = Settings::new(names::SCHEDULER_NAME);
    settings.admission = true;
    let mut harness = Harness::new();
    harness.set_settings(settings);
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("runs", 1));
    harness.put(Kind::Pod, pod("first", 1));
    harness.pass(2_000);
    harness.settle();
    // The annotation is added after the creation of the pod, or to its owner.
    harness.put(Kind::Pod, pod("later", 1));
    harness.settle();
    harness.server.change(Kind::Pod, &Key::new("ns", "later"), |pod| {
        *pod = annotated(pod.clone(), "10");
    });
    harness.server.owners.insert("j".to_owned(), json!({names::PRIORITY: "10"}));
    harness.put(Kind::Pod, with(pod("child", 1), "metadata|ownerReferences", owner));
    assert_eq!(evictions(&mut harness), Vec::<String>::new());
    let (runs, waits) = match harness.node_of("runs") {
        Some(_) => ("runs", "first"),
        None => ("first", "runs"),
    };
    harness.end(runs, "Succeeded");
    harness.settle_for_long();
    assert_eq!(harness.node_of(waits), Some("n"), "the oldest pod of equal priority");
    // Quotas and admission policies have checked a priority class.
    harness.put(Kind::Pod, classed("classed", 1, 4));
    assert_eq!(evictions(&mut harness), [format!("evict {waits}")]);
}

#[test]
fn a_workload_of_default_priority_has_the_default_class() {
    let mut harness = Harness::new();
    harness.put(Kind::Workload, with(workload("usual", 1, 0), "spec|priority", json!(5)));
    harness.put(Kind::Workload, with(workload("more", 1, 0), "spec|priority", json!(6)));
    harness.settle_for_long();
    let class = |pod: &str| {
        let pod = harness.server.get(Kind::Pod, &Key::new("ns", pod)).expect("a pod");
        (pod["spec"]["priorityClassName"].clone(), pod["spec"]["priority"].clone())
    };
    assert_eq!(class("usual-0"), (Value::Null, json!(0)));
    assert_eq!(class("more-0"), (json!("agentaflow-6"), json!(1)));
}

#[test]
fn a_pending_pod_of_the_default_priority_is_replaced_when_its_workload_gets_another() {
    let mut harness = Harness::new();
    let of = |priority: u8, generation: u8| {
        let made = with(workload("w", 1, 0), "spec|priority", json!(priority));
        with(made, "metadata|generation", json!(generation))
    };
    harness.put(Kind::Workload, of(5, 1));
    harness.settle_for_long();
    for (priority, generation, class) in [(9, 2, json!("agentaflow-9")), (5, 3, Value::Null)] {
        harness.put(Kind::Workload, of(priority, generation));
        harness.settle_for_long();
        let classes: Vec<&Value> = harness
            .server
            .all(Kind::Pod)
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(|pod| &pod["spec"]["priorityClassName"])
            .collect();
        assert_eq!(classes, [&class]);
    }
}

#[test]
fn a_queue_limits_priorities_to_the_value_of_a_class_which_may_change() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Queue, with(queue("q", 4), "spec|maxPriority", json!(8)));
    harness.put(Kind::Pod, classed("runs", 1, 3));
    harness.settle();
    harness.put(Kind::Pod, classed("high", 1, 100_000));
    assert_eq!(evictions(&mut harness), Vec::<String>::new(), "agentaflow-8 is 3 as installed");
    harness.put(Kind::Priority, class("agentaflow-8", 800, false));
    assert_eq!(evictions(&mut harness), ["evict runs"]);
}

#[test]
fn a_forecast_uses_the_priority_that_admission_will_give() {
    let mut harness = Harness::new();
    let mut settings = Settings::new(names::SCHEDULER_NAME);
    settings.admission = true;
    harness.set_settings(settings);
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, classed("runs", 1, 500));
    harness.put(Kind::Priority, class("agentaflow-9", 900, false));
    harness.put(Kind::Priority, class("usual", 400, true));
    harness.settle();
    let forecast = |object: Value| {
        let forecast = harness.state.what_if("ns", &object).expect("a forecast");
        forecast.pending_reason.map(|reason| reason.code())
    };
    let asked = |priority: u8| {
        let made = with(workload("new", 1, 0), "spec|priority", json!(priority));
        with(made, "kind", json!("GPUWorkload"))
    };
    let with_kind = |pod: Value| with(pod, "kind", json!("Pod"));
    let waits = forecast(asked(5));
    assert_eq!(forecast(with_kind(pod("p", 1))), waits);
    assert_ne!(forecast(asked(9)), waits, "it would preempt");
    assert_eq!(forecast(with_kind(annotated(pod("p", 1), "9"))), forecast(asked(9)));
}
