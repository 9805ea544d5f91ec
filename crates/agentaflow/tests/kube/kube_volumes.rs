//! Volume claims.

use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, placed_by_us, pod_waits};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

pub(crate) fn claim(name: &str, class: &str) -> Value {
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
pub(crate) async fn late_class(share: &Share, name: &str, provisioner: &str) -> String {
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
pub(crate) async fn claim_names(share: &Share, node: &str) {
    wait_for("the claim names the node", async || {
        let claim = read_claim(share, "data").await;
        let annotations = &claim["metadata"]["annotations"];
        let reported = annotations["volume.kubernetes.io/selected-node"] == node;
        reported.then_some(()).ok_or_else(|| annotations.to_string())
    })
    .await;
}

/// Provisions the volume of the claim `data` on a node.
pub(crate) async fn make_volume(share: &Share, class: &str, node: &str) {
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
async fn ephemeral_claims_of_a_gang_are_bound_to_local_volumes() {
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
    let spec = claim("", &class)["spec"].clone();
    let own = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]);
    let pods = PodPlan::new("").spec("volumes", own);
    WorkloadPlan::new(&share, "gang", &pods).spec("gangSize", 2).create(&share).await;
    for pod in ["gang-0", "gang-1"] {
        let node = placed_by_us(&share, pod).await;
        let number = nodes.iter().position(|name| *name == node).expect("one of the nodes");
        let volume = format!("pv-{}-{number}", share.id);
        let claim = read_claim(&share, &format!("{pod}-data")).await;
        assert_eq!(
            (&claim["spec"]["volumeName"], &claim["status"]["phase"]),
            (&json!(volume), &json!("Bound"))
        );
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_pod_follows_storage_capacity_and_its_provisioned_volume() {
    let share = Share::new().await;
    let a = share.node("a", &NodePlan::gpus(8)).await;
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
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    share.create_pod(&share.one_gpu("train").spec("volumes", volumes)).await;
    pod_waits(&share, "train", "Unschedulable").await;
    add_capacity(&share, &class, &b).await;
    claim_names(&share, &b).await;
    // A failing provisioner removes the selected node, and the scheduler selects another.
    share.patch_node(&b, &json!({"spec": {"unschedulable": true}})).await;
    add_capacity(&share, &class, &a).await;
    let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims/data", share.namespace);
    let give_back =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    share.request("PATCH", &path, Some(&give_back)).await;
    claim_names(&share, &a).await;
    let before = share.pod("train").await.unwrap();
    assert_eq!(before.spec.unwrap().node_name, None, "bound before its volume exists");
    // The volume is provisioned on another node than the selected one.
    share.patch_node(&b, &json!({"spec": {"unschedulable": false}})).await;
    make_volume(&share, &class, &b).await;
    assert_eq!(placed_by_us(&share, "train").await, b);
}

/// Storage for one volume on a node.
async fn add_capacity(share: &Share, class: &str, node: &str) {
    share
        .apply_object(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": format!("capacity-{node}"), "namespace": share.namespace},
            "storageClassName": class,
            "capacity": "2Gi",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
        }))
        .await;
}
