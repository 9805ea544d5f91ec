//! Tests of the conversion of nodes.

use agentaflow_api::Dollars;
use agentaflow_api::node::{GpuStatus, Health, Node, NodeStatus, PriceSource};
use serde_json::{Value, json};

use super::Seen;

fn node(more: Value) -> Value {
    let mut node = json!({
        "metadata": {
            "name": "n1",
            "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"},
            "annotations": {"agentaflow.gpu/price-per-gpu-hour": "2.50"},
        },
        "spec": {},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    });
    merge(&mut node, more);
    node
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

fn seen(node: Value, devices: Option<Value>, pods: Vec<Value>) -> Seen {
    let devices = devices.map(|devices| serde_json::from_value(devices).unwrap());
    let pods = pods.into_iter().map(|pod| serde_json::from_value(pod).unwrap()).collect();
    Seen::new(serde_json::from_value(node).unwrap(), devices, pods)
}

fn show(node: Value, devices: Option<Value>, pods: Vec<Value>) -> Node {
    seen(node, devices, pods).show()
}

fn monitor() -> Value {
    json!({
        "metadata": {"name": "n1"},
        "spec": {"nodeName": "n1", "gpuDevices": [
            {"id": "GPU-a", "name": "NVIDIA A100", "memoryTotal": 81920, "driverVersion": "550.1"},
            {"id": "GPU-b", "name": "NVIDIA A100", "memoryTotal": 81920},
        ]},
        "status": {"phase": "Active", "gpuStatus": [
            {"id": "GPU-a", "available": true, "memoryUsed": 1024, "utilization": 75.5, "temperature": 60.0,
             "powerUsage": 250.0, "currentWorkload": "ml/train-0"},
            {"id": "GPU-b", "available": true},
        ], "conditions": [{"type": "Healthy", "status": "True", "reason": "r", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn pod(annotations: Value, gpus: u32) -> Value {
    json!({
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {
            "requests": {"cpu": "4", "memory": "2Gi"}, "limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
    })
}

fn statuses(node: &Node) -> Vec<&str> {
    node.spec.gpu_instances.iter().map(|gpu| gpu.status.map_or("", GpuStatus::as_str)).collect()
}

#[test]
fn a_node_shows_its_gpus_with_their_readings() {
    let annotations = json!({"agentaflow.gpu/assigned-gpu": "n1/GPU-a"});
    let shown = show(node(json!({})), Some(monitor()), vec![pod(annotations, 1)]);
    assert_eq!((shown.node_id.as_str(), shown.spec.gpu_count), ("n1", 2));
    assert_eq!(statuses(&shown), ["busy", "available"]);
    let gpu = &shown.spec.gpu_instances[0];
    assert_eq!(
        (gpu.utilization, gpu.temperature, gpu.power_usage),
        (Some(75.5), Some(60.0), Some(250.0))
    );
    assert_eq!((gpu.gpu_memory, gpu.gpu_memory_available), (Some(81_920), Some(80_896)));
    assert_eq!((shown.gpu_memory_available, shown.current_jobs), (81_920, 1));
    assert_eq!((shown.cpu_cores_available.0, shown.memory_available), (60_000, 510 * 1024));
    assert_eq!(shown.spec.price_per_gpu_hour, Dollars(2_500_000));
    assert_eq!(shown.price_source, PriceSource::Node);
    assert_eq!((shown.status, shown.health_status), (NodeStatus::Active, Health::Healthy));
    assert_eq!(shown.spec.gpu_driver_version.as_deref(), Some("550.1"));
}

#[test]
fn without_a_monitor_labels_and_pods_tell() {
    let shown = show(node(json!({})), None, vec![pod(json!({}), 1)]);
    assert_eq!(statuses(&shown), ["busy", "available"]);
    assert_eq!(shown.spec.gpu_type.as_deref(), Some("NVIDIA-A100-SXM4-80GB"));
    let unread = &shown.spec.gpu_instances[1];
    assert_eq!((unread.utilization, unread.gpu_memory_available), (None, None));
    assert_eq!(
        shown.gpu_memory_available,
        unread.gpu_memory.unwrap(),
        "an unallocated GPU is free"
    );
    assert!(!seen(json!({"metadata": {"name": "plain"}}), None, vec![]).has_gpus());
}

#[test]
fn nodes_that_take_no_work_say_so() {
    let table = [
        (json!({"spec": {"unschedulable": true}}), NodeStatus::Maintenance, true),
        (
            json!({"metadata": {"labels": {"agentaflow.gpu/maintenance": "true"}}}),
            NodeStatus::Maintenance,
            false,
        ),
        (
            json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
            NodeStatus::Inactive,
            false,
        ),
        (json!({}), NodeStatus::Active, false),
    ];
    for (more, status, cordoned) in table {
        let shown = show(node(more.clone()), None, vec![]);
        assert_eq!((shown.status, shown.cordoned), (status, cordoned), "{more}");
    }
}

#[test]
fn a_closed_gpu_is_shown_as_such_and_found_by_number_or_id() {
    let closed = json!({"metadata": {"annotations": {"agentaflow.gpu/cordoned": "GPU-b"}}});
    let shown = show(node(closed), Some(monitor()), vec![]);
    assert_eq!(statuses(&shown), ["busy", "maintenance"]);
    let seen = seen(node(json!({})), Some(monitor()), vec![]);
    for name in ["1", "GPU-b"] {
        assert_eq!(seen.find_gpu(name).unwrap(), (1, "GPU-b".to_owned()));
    }
    let missing = seen.find_gpu("7").unwrap_err().to_string();
    assert_eq!(missing, "node `n1` has no GPU `7`; it has 0, 1");
}

#[test]
fn slices_of_time_are_one_device() {
    let sliced = json!({
        "metadata": {"labels": {"nvidia.com/gpu.replicas": "4"}},
        "status": {"allocatable": {"nvidia.com/gpu": "8"}},
    });
    let shown = show(node(sliced), Some(monitor()), vec![]);
    assert_eq!((shown.spec.gpu_count, shown.spec.gpu_memory_total), (2, 2 * 81_920));
    assert_eq!(shown.spec.price_per_gpu_hour, Dollars(2_500_000));
}

#[test]
fn a_pod_has_the_gpus_of_the_kubelet_or_else_of_its_annotation() {
    let pod = |name: &str, annotations: Value| {
        let text = json!({
            "metadata": {"name": name, "namespace": "ml", "annotations": annotations},
            "spec": {},
        });
        serde_json::from_value(text).unwrap()
    };
    let has = |seen: &Seen, name: &str, annotations: Value| {
        let gpus = seen.gpus_of(&pod(name, annotations))?;
        Some(gpus.into_iter().collect::<Vec<_>>().join(" "))
    };
    let with = seen(node(json!({})), Some(monitor()), Vec::new());
    let assigned = |gpu: &str| json!({"agentaflow.gpu/assigned-gpu": format!("n1/{gpu}")});
    let cases = [
        ("the kubelet chose otherwise than planned", "train-0", assigned("GPU-b"), Some("GPU-a")),
        ("planned, and not yet started", "late", assigned("GPU-b"), Some("GPU-b")),
        ("a slice of time", "slice", assigned("GPU-b::3"), Some("GPU-b")),
        ("an unknown device", "odd", assigned("MIG-7"), None),
        ("a pod of others", "other", json!({}), None),
    ];
    for (what, name, annotations, expected) in cases {
        assert_eq!(has(&with, name, annotations).as_deref(), expected, "{what}");
    }
}

#[test]
fn an_old_report_of_a_monitor_makes_the_health_of_a_node_unknown_without_a_scheduler() {
    let reported = 1_700_000_000;
    let mut devices = monitor();
    let time = jiff::Timestamp::from_second(reported).unwrap().to_string();
    devices["status"]["lastUpdated"] = json!(time);
    let health = |age: i64, devices: &Value| {
        let now = agentaflow_api::Stamp((reported + age) * 1000);
        let shown = seen(node(json!({})), Some(devices.clone()), Vec::new()).at(Some(now)).show();
        (shown.health_status, shown.status)
    };
    // The clock of the node may be ahead.
    for age in [-600, 0, 180] {
        assert_eq!(health(age, &devices), (Health::Healthy, NodeStatus::Active), "{age}");
    }
    assert_eq!(health(181, &devices), (Health::Unknown, NodeStatus::Active));
    // As the scheduler marks a lost monitor; the node itself is fine.
    devices["status"]["phase"] = json!("Unavailable");
    assert_eq!(health(181, &devices), (Health::Unknown, NodeStatus::Active));
    assert_eq!(health(0, &devices), (Health::Healthy, NodeStatus::Error));
}
