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
fn a_node_offers_what_the_pods_of_others_leave() {
    let pods = [
        pod(1, "Running", "somebody"),
        pod(1, "Pending", ""),
        pod(2, "Succeeded", ""),
        pod(1, "Running", "us"),
    ];
    let offer = offer(&node(|_| {}), &pods, "us");
    assert_eq!((offer.gpus.len(), offer.taken_gpus), (4, 2));
    assert_eq!(
        (offer.gpus[0].model.as_str(), offer.gpus[0].memory.0),
        ("NVIDIA-A100-SXM4-80GB", 81_920)
    );
    assert_eq!((offer.cpu, offer.memory), ((64_000, 60_000), (512 << 10, 510 << 10)));
    assert_eq!((offer.storage, offer.closed), ((100 << 10, 100 << 10), None));
}

#[test]
fn gpus_of_others_are_counted_where_none_of_ours_are() {
    let offer = |taken: usize, closed: &[usize]| Offer {
        taken_gpus: taken,
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
    // A sick one that a job of ours is on is not somebody else's.
    check(0, &[0, 3], &[3], &[0]);
    // More than there are.
    check(9, &[], &[0], &[1, 2, 3]);
}

#[test]
fn gpus_that_the_kubelet_does_not_hand_out_for_a_while_are_kept_and_get_no_jobs() {
    let all = offer(&node(|_| {}), &[], "us");
    let one = node(|node| node["status"]["allocatable"]["nvidia.com/gpu"] = json!("1"));
    let kept = offer(&one, &[pod(1, "Running", "us")], "us").with_known(&all.gpus);
    assert_eq!(kept.gpus, all.gpus);
    assert_eq!(kept.unavailable(&BTreeSet::from([3])), BTreeSet::from([0, 1, 2]));
    assert_eq!(all.clone().with_known(&kept.gpus[..1]), all);
}

#[test]
fn a_node_that_takes_no_pods_says_why() {
    let check = |change: fn(&mut Value), why: &str| {
        assert_eq!(offer(&node(change), &[], "us").closed.as_deref(), Some(why));
    };
    check(|node| node["spec"]["unschedulable"] = json!(true), "it is cordoned");
    check(|node| node["status"]["conditions"][0]["status"] = json!("Unknown"), "it is not ready");
    check(|node| node["status"]["conditions"] = json!(null), "it is not ready");
    check(
        |node| node["spec"]["taints"] = json!([{"key": "team", "effect": "NoExecute"}]),
        "jobs do not tolerate its taint `team`",
    );
    let soft = json!([{"key": "team", "effect": "PreferNoSchedule"}]);
    assert_eq!(offer(&node(|node| node["spec"]["taints"] = soft), &[], "us").closed, None);
}

#[test]
fn gpus_that_people_closed_are_not_offered_and_a_known_model_needs_no_label_for_its_memory() {
    let closed = json!({"agentaflow.gpu/cordoned": "1"});
    let made = offer(&node(|node| node["metadata"]["annotations"] = closed), &[], "us");
    assert_eq!(made.closed_gpus, BTreeSet::from([1]));
    let bare = offer(
        &node(|node| node["metadata"]["labels"]["nvidia.com/gpu.memory"] = json!("")),
        &[],
        "us",
    );
    assert_eq!(bare.gpus[0].memory.0, 80 << 10);
}
