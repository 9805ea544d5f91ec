//! Nodes and their GPUs.

use agentaflow_engine::{DeviceSelection, GpuHealth, MiB};
use serde_json::{Value, json};

use super::{Cluster, asking, check, read};
use crate::names;
use crate::translate::{NodeView, node};

fn view(labels: Value, gpus: Value, devices: Option<Value>) -> NodeView {
    let object = read(json!({
        "metadata": {"name": "n1", "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": gpus}},
    }));
    let devices = devices.map(read);
    let view = node(&object, devices.as_ref(), None);
    assert_eq!(view.node.validate(), Ok(()));
    view
}

fn monitor(devices: Value, status: Value) -> Value {
    json!({"apiVersion": "agentaflow.io/v1", "kind": "GPUNode", "metadata": {"name": "n1"},
        "spec": {"nodeName": "n1", "gpuDevices": devices}, "status": {"gpuStatus": status}})
}

fn device(id: &str) -> Value {
    json!({"id": id, "name": "NVIDIA A100-SXM4-40GB", "memoryTotal": 40960})
}

/// `id model memory health`, with spaces between, for each GPU.
fn output(view: &NodeView) -> Vec<String> {
    let one = |gpu: &agentaflow_engine::Gpu| {
        let health = view.health.iter().find(|(id, _)| *id == gpu.id).unwrap().1;
        format!("{} {} {} {health:?}", gpu.id, gpu.model, gpu.memory.0)
    };
    view.node.gpus.iter().map(one).collect()
}

#[test]
fn gpus_come_from_the_monitor_then_from_labels_then_nameless() {
    let labels = || json!({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360"});
    let two = || Some(monitor(json!([device("u1"), device("u2")]), json!([])));
    let table: [(Value, Value, Option<Value>, &[&str]); 9] = [
        (json!({}), json!("1"), None, &["0 unknown 1 Healthy"]),
        (labels(), json!("2"), None, &["0 Tesla-T4 15360 Healthy", "1 Tesla-T4 15360 Healthy"]),
        (
            labels(),
            json!("2"),
            two(),
            &["u1 NVIDIA A100-SXM4-40GB 40960 Healthy", "u2 NVIDIA A100-SXM4-40GB 40960 Healthy"],
        ),
        // The monitor reports too few.
        (
            json!({}),
            json!("3"),
            two(),
            &["0 unknown 1 Healthy", "1 unknown 1 Healthy", "2 unknown 1 Healthy"],
        ),
        // The kubelet offers fewer devices: the rest accepts no new work.
        (
            json!({}),
            json!("1"),
            two(),
            &["u1 NVIDIA A100-SXM4-40GB 40960 Healthy", "u2 NVIDIA A100-SXM4-40GB 40960 Degraded"],
        ),
        (
            json!({}),
            json!("1"),
            Some(monitor(
                json!([device("u1"), device("u2")]),
                json!([{"id": "u1", "available": false}]),
            )),
            &["u1 NVIDIA A100-SXM4-40GB 40960 Failed", "u2 NVIDIA A100-SXM4-40GB 40960 Healthy"],
        ),
        // Duplicate names are unusable.
        (
            json!({}),
            json!("2"),
            Some(monitor(json!([device("u1"), device("u1")]), json!([]))),
            &["0 unknown 1 Healthy", "1 unknown 1 Healthy"],
        ),
        // MIG's single strategy: slices are counted as GPUs.
        (
            json!({"nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"}),
            json!("2"),
            Some(monitor(json!([device("u1"), device("u2")]), json!([]))),
            &[
                "0 A100-SXM4-40GB-MIG-1g.5gb 4864 Healthy",
                "1 A100-SXM4-40GB-MIG-1g.5gb 4864 Healthy",
            ],
        ),
        (labels(), json!("0"), None, &[]),
    ];
    for (labels, gpus, devices, expected) in table {
        let view = view(labels, gpus, devices.clone());
        assert_eq!(output(&view), expected, "{devices:?}");
        assert_eq!(view.node.device_selection, DeviceSelection::Node);
        assert_eq!(view.shared_units, 1);
        let exclusive = view.node.resources.get(names::EXCLUSIVE_RESOURCE).copied().unwrap_or(0);
        assert_eq!(exclusive, expected.len() as u64);
    }
}

#[test]
fn devices_without_a_device_plugin_are_not_counted() {
    let object = read(json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "1"}}}));
    let devices = read(monitor(json!([device("u1")]), json!([])));
    assert!(node(&object, Some(&devices), None).node.gpus.is_empty());
}

#[test]
fn time_slices_are_gpus_with_a_part_of_the_memory() {
    let labels = || {
        json!({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.product": "Tesla-T4-SHARED",
        "nvidia.com/gpu.memory": "16000"})
    };
    let sliced = view(labels(), json!("4"), None);
    assert_eq!(output(&sliced)[3], "3 Tesla-T4 4000 Healthy");
    assert_eq!(sliced.shared_units, 4);
    assert!(!sliced.node.resources.contains_key(names::EXCLUSIVE_RESOURCE));

    let status = json!([{"id": "u1", "available": true, "utilization": 42.4},
        {"id": "u2", "available": false, "utilization": 900.0}]);
    let named =
        view(labels(), json!("8"), Some(monitor(json!([device("u1"), device("u2")]), status)));
    assert_eq!(output(&named)[1], "u1::1 NVIDIA A100-SXM4-40GB 10240 Healthy");
    assert_eq!(output(&named)[4], "u2::0 NVIDIA A100-SXM4-40GB 10240 Failed");
    let readings: Vec<_> =
        named.readings.iter().map(|(id, busy)| (id.as_str(), busy.get())).collect();
    assert_eq!(readings, [("u1::0", 42), ("u1::1", 42), ("u1::2", 42), ("u1::3", 42)]);
}

#[test]
fn a_node_in_maintenance_takes_no_new_pods_and_keeps_running_ones() {
    let mut devices = monitor(json!([device("u1")]), json!([{"id": "u1", "available": true}]));
    devices["status"]["phase"] = "Maintenance".into();
    assert_eq!(
        view(json!({}), json!("1"), Some(devices)).health,
        [("u1".into(), GpuHealth::Cordoned)]
    );
}

#[test]
fn every_time_slice_of_a_node_counts() {
    let labels = || json!({"nvidia.com/gpu.replicas": "16", "nvidia.com/gpu.memory": "16000"});
    let eight: Vec<Value> = (0..8).map(|n| device(&format!("u{n}"))).collect();
    for devices in [None, Some(monitor(json!(eight), json!([])))] {
        let view = view(labels(), json!("128"), devices);
        assert_eq!((view.node.gpus.len(), view.health.len()), (128, 128));
        assert!(view.node.validate().is_ok());
    }
}

#[test]
fn more_gpus_than_the_engine_counts_are_left_out() {
    let view = view(json!({"nvidia.com/gpu.replicas": "5000"}), json!("40000"), None);
    assert_eq!((view.node.gpus.len(), view.health.len()), (4096, 4096));
}

#[test]
fn memory_that_no_gpu_has_is_brought_into_bounds() {
    for (memory, expected) in [("0", 1), ("-4", 1), ("lots", 1), ("99999999999", 1 << 21)] {
        let labels = json!({"nvidia.com/gpu.memory": memory, "nvidia.com/gpu.product": ""});
        assert_eq!(view(labels, json!("1"), None).node.gpus[0].memory, MiB(expected), "{memory}");
    }
}

#[test]
fn whole_gpus_are_placed_by_number() {
    let cluster = Cluster::default()
        .with_node(json!({"metadata": {"name": "none"}}))
        .with_node(json!({"metadata": {"name": "two"}, "status": {"allocatable": {"nvidia.com/gpu": "2"}}}))
        .with_node(json!({"metadata": {"name": "four"}, "status": {"allocatable": {"nvidia.com/gpu": "4"}}}))
        .with_pod("four", json!({}), asking(json!({"nvidia.com/gpu": "3"}))["spec"].clone());
    let table = [
        ("1", "two four"),
        ("2", "two"),
        ("4", "no: FreeGpus GpuCount NoGpu"),
        ("5", "no: GpuCount NoGpu"),
    ];
    for (gpus, expected) in table {
        check(&cluster, asking(json!({"nvidia.com/gpu": gpus})), expected);
    }
}

#[test]
fn cordoned_gpus_get_no_new_work() {
    let check = |closed: &str, gpus: &str, shared: u32, monitored: bool, expected: &str| {
        let object = read(json!({
            "metadata": {
                "name": "n1",
                "labels": {"nvidia.com/gpu.replicas": shared.to_string()},
                "annotations": {names::NODE_CLOSED_GPUS: closed},
            },
            "status": {"allocatable": {"nvidia.com/gpu": gpus}},
        }));
        let devices = monitor(json!([device("u1"), device("u2")]), json!([]));
        let devices = monitored.then(|| read(devices));
        let view = node(&object, devices.as_ref(), None);
        let output = view.health.iter().map(|(id, health)| format!("{id} {health:?}"));
        assert_eq!(output.collect::<Vec<_>>().join(", "), expected, "{closed}");
    };
    check("u2", "2", 1, true, "u1 Healthy, u2 Cordoned");
    check("0", "2", 1, true, "u1 Cordoned, u2 Healthy");
    check(" 1 ,,7", "2", 1, false, "0 Healthy, 1 Cordoned");
    check("", "2", 1, false, "0 Healthy, 1 Healthy");
    let slices = "u1::0 Cordoned, u1::1 Cordoned, u2::0 Healthy, u2::1 Healthy";
    check("u1", "4", 2, true, slices);
}
