//! Volume claims.

use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, placed_by_us, pod_waits};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// A pod with one GPU and one claim.
fn pod(share: &Share, name: &str, claim: &str) -> PodPlan {
    PodPlan::new(name)
        .gpus(1)
        .scheduler(&share.scheduler_name())
        .spec("volumes", json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]))
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": class,
        },
    })
}

/// A volume with node affinity to a label value.
fn volume(name: &str, class: &str, key: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "storageClassName": class,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": "/data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": key, "operator": "In", "values": [value]},
            ]}]}},
        },
    })
}

/// A `StorageClass` with `WaitForFirstConsumer`.
async fn late_class(share: &Share, name: &str, provisioner: &str) -> String {
    let name = format!("{name}-{}", share.id);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    share.apply_object(class).await;
    name
}

async fn read_claim(share: &Share, name: &str) -> Value {
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/{name}", share.namespace);
    share.request("GET", &path, None).await.json()
}

/// Waits until the claim `data` has a selected node.
async fn claim_names(share: &Share, node: &str) {
    wait_for("the claim names the node", async || {
        let claim = read_claim(share, "data").await;
        let annotations = &claim["metadata"]["annotations"];
        let told = annotations["volume.kubernetes.io/selected-node"] == node;
        told.then_some(()).ok_or_else(|| annotations.to_string())
    })
    .await;
}

/// Provisions the volume of the claim `data` on a node.
async fn make_volume(share: &Share, class: &str, node: &str) {
    let name = format!("pv-{}", share.id);
    let mut made = volume(&name, class, "kubernetes.io/hostname", node);
    let uid = read_claim(share, "data").await["metadata"]["uid"].clone();
    made["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": share.namespace, "name": "data", "uid": uid,
    });
    share.apply_object(made).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_bound_volume_decides_the_zone_and_a_missing_claim_is_reported() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8).zone("north")).await;
    let south = share.node("b", &NodePlan::gpus(1).zone("south")).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "train", "data")).await;
    let words = pod_waits(&share, "train", "WaitingForVolume").await;
    assert!(words.contains("`data`"), "{words}");
    let mut made = volume(&format!("pv-{}", share.id), "", "topology.kubernetes.io/zone", "south");
    made["spec"]["claimRef"] = json!({"namespace": share.namespace, "name": "data"});
    share.apply_object(made).await;
    share.apply_object(claim("data", "")).await;
    assert_eq!(placed_by_us(&share, "train").await, south);
    // The zone is full; free GPUs in another zone do not help.
    share.create_pod(&pod(&share, "again", "data")).await;
    let words = pod_waits(&share, "again", "Unschedulable").await;
    assert!(words.contains("not match the node affinity"), "{words}");
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_wait_for_first_consumer_claim_gets_the_local_volume_of_the_node() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    let b = share.node("b", &NodePlan::gpus(1)).await;
    let class = late_class(&share, "local", "kubernetes.io/no-provisioner").await;
    let name = format!("pv-{}", share.id);
    share.apply_object(volume(&name, &class, "kubernetes.io/hostname", &b)).await;
    share.apply_object(claim("data", &class)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "train", "data")).await;
    assert_eq!(placed_by_us(&share, "train").await, b);
    let path = format!("/api/v1/persistentvolumes/{name}");
    let made = share.request("GET", &path, None).await.json();
    assert_eq!(made["spec"]["claimRef"]["name"], "data");
    let claim = read_claim(&share, "data").await;
    assert_eq!(
        (&claim["spec"]["volumeName"], &claim["status"]["phase"]),
        (&json!(name), &json!("Bound"))
    );
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_is_placed_where_each_pod_has_a_local_volume() {
    let share = Share::new().await;
    share.apply_file("deploy/crds").await;
    let nodes =
        [share.node("a", &NodePlan::gpus(8)).await, share.node("b", &NodePlan::gpus(8)).await];
    let class = late_class(&share, "local", "kubernetes.io/no-provisioner").await;
    for (number, node) in nodes.iter().enumerate() {
        let name = format!("pv-{}-{number}", share.id);
        share.apply_object(volume(&name, &class, "kubernetes.io/hostname", node)).await;
    }
    let _scheduler = Scheduler::start(PROGRAM, &share, &["--strategy", "best_fit"]).await;
    let asked = claim("", &class)["spec"].clone();
    let own = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": asked}}}]);
    let pods = PodPlan::new("").spec("volumes", own);
    WorkloadPlan::new(&share, "gang", &pods).spec("gangSize", 2).create(&share).await;
    let mut found = [placed_by_us(&share, "gang-0").await, placed_by_us(&share, "gang-1").await];
    found.sort_unstable();
    assert_eq!(found, nodes);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_volume_is_made_where_its_driver_has_enough_left() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    let b = share.node("b", &NodePlan::gpus(1)).await;
    let driver = format!("csi-{}.example.com", share.id);
    share
        .apply_object(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": driver},
            "spec": {"storageCapacity": true},
        }))
        .await;
    let class = late_class(&share, "small", &driver).await;
    share.apply_object(claim("data", &class)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "train", "data")).await;
    let words = pod_waits(&share, "train", "Unschedulable").await;
    assert!(words.contains("nowhere is enough of it left"), "{words}");
    share
        .apply_object(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": "left", "namespace": share.namespace},
            "storageClassName": class,
            "capacity": "2Gi",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": b}},
        }))
        .await;
    claim_names(&share, &b).await;
    make_volume(&share, &class, &b).await;
    assert_eq!(placed_by_us(&share, "train").await, b);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_scheduler_selects_a_node_and_waits_for_the_provisioner() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    let class = late_class(&share, "made", "example.com/provisioner").await;
    share.apply_object(claim("data", &class)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "train", "data")).await;
    claim_names(&share, &node).await;
    // A failing provisioner removes the selected node, and the scheduler selects another.
    let other = share.node("b", &NodePlan::gpus(1)).await;
    share.patch_node(&node, &json!({"spec": {"unschedulable": true}})).await;
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/data", share.namespace);
    let give_back =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    share.request("PATCH", &path, Some(&give_back)).await;
    claim_names(&share, &other).await;
    let before = share.pod("train").await.unwrap();
    assert_eq!(before.spec.unwrap().node_name, None, "bound before its volume was there");
    make_volume(&share, &class, &other).await;
    assert_eq!(placed_by_us(&share, "train").await, other);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_that_share_a_claim_do_not_take_its_volume_from_each_other() {
    let share = Share::new().await;
    let class = late_class(&share, "made", "example.com/provisioner").await;
    share.apply_object(claim("data", &class)).await;
    let a = share.node("a", &NodePlan::gpus(1)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "one", "data")).await;
    claim_names(&share, &a).await;
    // The other pod fits another node, and the volume is being provisioned here.
    let b = share.node("b", &NodePlan::gpus(1)).await;
    share.create_pod(&pod(&share, "two", "data")).await;
    pod_waits(&share, "two", "Unschedulable").await;
    claim_names(&share, &a).await;
    // The volume is on the other node, so the pod must not be bound here.
    make_volume(&share, &class, &b).await;
    let bound = wait_for("one of them is bound", async || {
        for name in ["one", "two"] {
            let found = share.pod(name).await.unwrap();
            if let Some(node) = found.spec.and_then(|spec| spec.node_name) {
                return Ok(node);
            }
        }
        Err("none is".to_owned())
    });
    assert_eq!(bound.await, b);
}
