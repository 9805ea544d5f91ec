//! Totals, counters, and the number of series.

use std::collections::BTreeSet;
use std::time::Duration;

use agentaflow_api::pending::PendingCode;
use agentaflow_kube_core::names;
use agentaflow_metrics::{Exposition, MetricSource as _};
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{node, pod, with};
use crate::driver::metrics::Metrics;
use crate::state::Key;

/// A pod with an estimated duration.
fn estimated(name: &str, gpus: u32, duration: &str) -> Value {
    let annotation = format!("metadata|annotations|{}", names::DURATION);
    with(pod(name, gpus), &annotation, json!(duration))
}

/// Names and labels of all series.
fn series(harness: &mut Harness, metrics: &Metrics) -> BTreeSet<String> {
    metrics.record(&harness.state.take_activity());
    metrics.set_summary(harness.state.summary(), Duration::from_secs(1));
    let mut text = Exposition::default();
    metrics.write(&mut text);
    let text = text.into_text();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect()
}

#[test]
fn ten_thousand_names_add_no_series() {
    let metrics = Metrics::default();
    metrics.set_leading(true);
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, pod("unique-name-0", 2));
    harness.tell_all();
    harness.step();
    let before = series(&mut harness, &metrics);
    for number in 1..10_000 {
        harness.put(Kind::Pod, pod(&format!("unique-name-{number}"), 2));
    }
    harness.tell_all();
    harness.step();
    let after = series(&mut harness, &metrics);
    let pending: u64 = harness.state.summary().pending.values().sum();
    assert_eq!(pending, 9_999);
    assert!(!after.iter().any(|series| series.contains("unique-name")), "a name is a label");
    let added: Vec<_> = after.difference(&before).collect();
    assert!(added.len() < 50, "{} series: {added:?}", added.len());
}

#[test]
fn totals_have_the_values_of_the_placed_pods() {
    let device = |id: &str| json!({"id": id, "name": "NVIDIA A100", "memoryTotal": 81_920});
    let status = |id: &str| json!({"id": id, "available": true, "utilization": 50});
    let ids = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"];
    let monitored = json!({
        "metadata": {"name": "n", "namespace": SPACE},
        "spec": {"nodeName": "n", "gpuDevices": ids.map(device)},
        "status": {"phase": "Active", "gpuStatus": ids.map(status)},
    });
    let mut harness = Harness::new();
    let price = json!({names::NODE_PRICE: "1.25"});
    harness.put(Kind::Node, with(node("n", 4), "metadata|annotations", price));
    harness.put(Kind::GpuNode, monitored);
    harness.put(Kind::Pod, pod("a", 1));
    harness.put(Kind::Pod, pod("waits", 8));
    harness.settle();
    harness.kubelets();
    harness.settle();
    let summary = harness.state.summary();
    assert_eq!((summary.allocated, summary.fragmented, summary.largest_block), (1.0, 0.0, 3.0));
    assert!((summary.busy - 0.5).abs() < 1e-6, "{}", summary.busy);
    assert!((summary.dollars_per_hour - 1.25).abs() < 1e-9, "{}", summary.dollars_per_hour);
    let activity = harness.state.take_activity();
    assert_eq!(activity.queue_waits.len(), 1);
    assert_eq!(activity.waits, [PendingCode::NeverFits]);
    harness.end("a", "Succeeded");
    harness.settle();
    let summary = harness.state.summary();
    assert_eq!((summary.allocated, summary.dollars_per_hour), (0.0, 0.0));
}

#[test]
fn the_first_eta_that_a_caller_was_given_is_compared_with_the_placement() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, estimated("long", 2, "10m"));
    harness.settle();
    harness.kubelets();
    harness.settle();
    harness.put(Kind::Pod, estimated("next", 2, "10m"));
    harness.settle();
    let key = Key::new(SPACE, "next");
    let given = harness.state.explain_to_caller(&key).and_then(|found| found.explanation.eta);
    assert!(given.is_some(), "an ETA");
    harness.state.take_activity();
    harness.pass(60_000);
    harness.state.explain_to_caller(&key);
    harness.end("long", "Succeeded");
    harness.settle();
    assert_eq!(harness.node_of("next"), Some("n"));
    let errors = harness.state.take_activity().eta_errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    // The pod ended nine minutes early.
    let error = errors[0].as_secs();
    assert!((530..=540).contains(&error), "{error}");
}
