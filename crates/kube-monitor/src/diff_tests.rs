use agentaflow_kube_core::crd::GpuNodePhase;

use super::*;
use crate::line::DeviceLine;
use std::collections::BTreeMap;

/// A minute less the interval until the next sample.
const AGAIN: Duration = Duration::from_secs(45);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn report() -> Report {
    let status = GpuStatus {
        id: "GPU-0".into(),
        available: true,
        utilization: 50.0,
        ..GpuStatus::default()
    };
    let device = DeviceLine { id: "GPU-0".into(), available: true, ..DeviceLine::default() };
    Report {
        spec: GpuNodeSpec { node_name: "n1".into(), gpu_devices: Vec::new() },
        status: GpuNodeStatus {
            phase: Some(GpuNodePhase::Active),
            gpu_status: vec![status],
            ..GpuNodeStatus::default()
        },
        line: StatusLine { devices: vec![device], ..StatusLine::default() },
        labels: BTreeMap::from([(names::NODE_COUNT, "1".to_owned())]),
        annotations: BTreeMap::from([
            (names::NODE_DEVICES, "[]".to_owned()),
            (names::NODE_STATUS, "{}".to_owned()),
            (names::NODE_LAST_UPDATE, "now".to_owned()),
        ]),
        ..Report::default()
    }
}

fn node() -> slim::Node {
    let metadata = json!({
        "name": "n1",
        "labels": {names::NODE_COUNT: "1", "other": "kept"},
        "annotations": {names::NODE_DEVICES: "[]", names::NODE_STATUS: "old", names::NODE_LAST_UPDATE: "old"},
    });
    serde_json::from_value(json!({ "metadata": metadata })).unwrap()
}

/// State after writing [`report`] at second 0.
fn written() -> LastWrites {
    let report = report();
    LastWrites {
        spec: Some(report.spec),
        status: Some((report.status, at(0))),
        line: Some((report.line, at(0))),
    }
}

/// Asserts the writes for a changed report after `seconds`: spec, status, line.
fn check(seconds: i64, change: impl FnOnce(&mut Report), expected: (bool, bool, bool)) {
    let mut report = report();
    change(&mut report);
    let writes = diff(&written(), &node(), &report, at(seconds), AGAIN);
    assert_eq!((writes.spec, writes.status, writes.line), expected);
}

#[test]
fn nothing_is_written_while_nothing_changes_and_everything_within_a_minute() {
    check(15, |_| {}, (false, false, false));
    check(44, |_| {}, (false, false, false));
    check(45, |_| {}, (false, true, true));
    check(3_600, |_| {}, (false, true, true));
    // A clock that was set back.
    check(-3_600, |_| {}, (false, true, true));
}

#[test]
fn readings_are_written_when_they_moved_far_enough() {
    for (percent, expected) in [(54.0, false), (55.0, true), (45.0, true)] {
        check(
            15,
            |report| report.status.gpu_status[0].utilization = percent,
            (false, expected, false),
        );
    }
    check(15, |report| report.status.gpu_status[0].memory_used = 255, (false, false, false));
    check(15, |report| report.status.gpu_status[0].memory_used = 256, (false, true, false));
    check(15, |report| report.status.gpu_status[0].power_usage = 25.0, (false, true, false));
}

#[test]
fn a_change_of_the_use_of_a_gpu_is_written_at_once() {
    check(15, |report| report.status.gpu_status[0].available = false, (false, true, false));
    check(
        15,
        |report| report.status.gpu_status[0].current_workload = Some("ml/a".into()),
        (false, true, false),
    );
    check(15, |report| report.status.phase = Some(GpuNodePhase::Unavailable), (false, true, false));
    check(15, |report| report.line.devices[0].available = false, (false, false, true));
    check(15, |report| report.line.above_goal = true, (false, false, true));
    check(15, |report| report.spec.node_name = "n2".into(), (true, true, false));
}

#[test]
fn readings_alone_do_not_wake_watchers_of_nodes() {
    check(15, |report| report.line.utilization = 99.0, (false, false, false));
    let writes = diff(&written(), &node(), &report(), at(15), AGAIN);
    assert_eq!(writes.node, None);
}

#[test]
fn the_patch_of_a_node_holds_only_differences() {
    let writes = diff(&written(), &node(), &report(), at(45), AGAIN);
    let expected = json!({"metadata": {"annotations": {names::NODE_STATUS: "{}", names::NODE_LAST_UPDATE: "now"}}});
    assert_eq!(writes.node, Some(expected));
    let mut stripped = node();
    stripped.metadata.labels = None;
    let writes = diff(&written(), &stripped, &report(), at(15), AGAIN);
    assert_eq!(writes.node, Some(json!({"metadata": {"labels": {names::NODE_COUNT: "1"}}})));
}

#[test]
fn a_monitor_that_starts_writes_everything() {
    let writes = diff(&LastWrites::default(), &slim::Node::default(), &report(), at(0), AGAIN);
    assert!(writes.spec && writes.status && writes.line);
    let patch = writes.node.unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({names::NODE_COUNT: "1"}));
    assert_eq!(patch["metadata"]["annotations"].as_object().unwrap().len(), 3);
}
