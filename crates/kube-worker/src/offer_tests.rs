use serde_json::{Value, json};

use super::*;

fn node(change: impl FnOnce(&mut Value)) -> slim::Node {
    let mut node = json!({
        "metadata": {"name": "gpu-7", "labels": {
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920",
        }},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "100Gi", "nvidia.com/gpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    change(&mut node);
    serde_json::from_value(node).unwrap()
}

fn pod(gpus: u32, phase: &str, agent: &str) -> Arc<slim::Pod> {
    let amounts = json!({"nvidia.com/gpu": gpus.to_string(), "cpu": "2", "memory": "1Gi"});
    let pod = json!({
        "metadata": {"name": "p", "labels": {names::AGENT: agent}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]},
        "status": {"phase": phase},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

#[test]
fn foreign_pods_reduce_the_free_capacity() {
    let pods = [
        pod(1, "Running", "other"),
        pod(1, "Pending", ""),
        pod(2, "Succeeded", ""),
        pod(1, "Running", "us"),
    ];
    let offer = offer(&node(|_| {}), &pods, "us");
    assert_eq!((offer.gpus.len(), offer.foreign_gpus), (4, 2));
    assert_eq!(
        (offer.gpus[0].model.as_str(), offer.gpus[0].memory.0),
        ("NVIDIA-A100-SXM4-80GB", 81_920)
    );
    assert_eq!(offer.cpu, Capacity { total: 64_000, free: 60_000 });
    assert_eq!(offer.memory, Capacity { total: 512 << 10, free: 510 << 10 });
    assert_eq!(offer.storage, Capacity { total: 100 << 10, free: 100 << 10 });
    assert_eq!(offer.closed, None);
}

#[test]
fn foreign_gpus_are_counted_on_gpus_without_tasks() {
    let offer = |taken: usize, closed: &[usize]| Offer {
        foreign_gpus: taken,
        closed_gpus: closed.iter().copied().collect(),
        ..offer(&node(|_| {}), &[], "us")
    };
    let check = |taken: usize, closed: &[usize], ours: &[usize], expected: &[usize]| {
        let gone = offer(taken, closed).unavailable(&ours.iter().copied().collect());
        assert_eq!(gone, expected.iter().copied().collect(), "{taken} {closed:?} {ours:?}");
    };
    check(0, &[], &[0, 3], &[]);
    check(2, &[], &[], &[2, 3]);
    check(2, &[], &[3], &[1, 2]);
    check(1, &[3], &[2], &[1, 3]);
    // A faulty GPU with a task of the agent is not foreign.
    check(0, &[0, 3], &[3], &[0]);
    // More foreign GPUs than GPUs.
    check(9, &[], &[0], &[1, 2, 3]);
}

#[test]
fn gpus_that_the_kubelet_stops_reporting_are_kept_as_unavailable() {
    let all = offer(&node(|_| {}), &[], "us");
    let one = node(|node| node["status"]["allocatable"]["nvidia.com/gpu"] = json!("1"));
    let kept = offer(&one, &[pod(1, "Running", "us")], "us").with_known(&all.gpus);
    assert_eq!(kept.gpus, all.gpus);
    assert_eq!(kept.unavailable(&BTreeSet::from([3])), BTreeSet::from([0, 1, 2]));
    assert_eq!(all.clone().with_known(&kept.gpus[..1]), all);
}

#[test]
fn a_closed_node_has_a_reason() {
    let check = |change: fn(&mut Value), reason: NodeClosed| {
        assert_eq!(offer(&node(change), &[], "us").closed, Some(reason));
    };
    check(|node| node["spec"]["unschedulable"] = json!(true), NodeClosed::Cordoned);
    check(
        |node| node["status"]["conditions"][0]["status"] = json!("Unknown"),
        NodeClosed::NotReady,
    );
    check(|node| node["status"]["conditions"] = json!(null), NodeClosed::NotReady);
    check(
        |node| node["spec"]["taints"] = json!([{"key": "team", "effect": "NoExecute"}]),
        NodeClosed::Taint("team".to_owned()),
    );
    let soft = json!([{"key": "team", "effect": "PreferNoSchedule"}]);
    assert_eq!(offer(&node(|node| node["spec"]["taints"] = soft), &[], "us").closed, None);
}

#[test]
fn cordoned_gpus_are_closed_and_a_known_model_needs_no_memory_label() {
    let closed = json!({"agentaflow.gpu/cordoned": "1"});
    let cordoned = offer(&node(|node| node["metadata"]["annotations"] = closed), &[], "us");
    assert_eq!(cordoned.closed_gpus, BTreeSet::from([1]));
    let bare = offer(
        &node(|node| node["metadata"]["labels"]["nvidia.com/gpu.memory"] = json!("")),
        &[],
        "us",
    );
    assert_eq!(bare.gpus[0].memory.0, 80 << 10);
}
