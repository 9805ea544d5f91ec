//! Claims for random pods: with zonal volumes, with single-pod volumes, waiting for a first consumer, and unsatisfiable.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

use crate::judge::owner;
use crate::nodes::Keys;
use crate::support::{Share, wait_for};

/// Claims that pods name; the last one does not exist.
pub(crate) const CLAIMS: [&str; 9] =
    ["in-a", "in-b-or-c", "anywhere", "alone", "never", "later-0", "later-1", "later-2", "missing"];

/// Creates all objects and waits until the satisfiable claims are bound.
pub(crate) async fn create(share: &Share, keys: &Keys, nodes: &[String]) {
    let (wait, now) = (format!("{}-wait", share.id), format!("{}-now", share.id));
    for (name, mode) in [(&wait, "WaitForFirstConsumer"), (&now, "Immediate")] {
        share
            .apply_object(json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "StorageClass",
                "metadata": {"name": name},
                "provisioner": "kubernetes.io/no-provisioner",
                "volumeBindingMode": mode,
            }))
            .await;
    }
    let zones = |zones: Value| Some((keys.zone.as_str(), zones));
    let bound = [
        ("in-a", zones(json!(["a"])), "ReadWriteMany"),
        ("in-b-or-c", zones(json!(["b", "c"])), "ReadWriteMany"),
        ("anywhere", None, "ReadWriteMany"),
        ("alone", None, "ReadWriteOncePod"),
    ];
    for (name, place, mode) in bound.clone() {
        volume(share, name, &now, mode, place, Some(name)).await;
        claim(share, name, &now, mode).await;
    }
    claim(share, "never", &now, "ReadWriteOnce").await;
    for (number, place) in [
        (0, zones(json!(["b"]))),
        (1, Some((keys.host.as_str(), json!([nodes[0]])))),
        (2, zones(json!(["a", "c"]))),
    ] {
        volume(share, &format!("later-{number}"), &wait, "ReadWriteOnce", place, None).await;
        claim(share, &format!("later-{number}"), &wait, "ReadWriteOnce").await;
    }
    let claims = share.api::<PersistentVolumeClaim>();
    for (name, _, _) in bound {
        wait_for(&format!("claim {name} bound"), async || {
            let claim = claims.get(name).await.map_err(|error| error.to_string())?;
            let phase = claim.status.and_then(|status| status.phase).unwrap_or_default();
            if phase == "Bound" { Ok(()) } else { Err(phase) }
        })
        .await;
    }
}

async fn claim(share: &Share, name: &str, class: &str, mode: &str) {
    let (key, value) = owner(share);
    share
        .apply_object(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "labels": {key: value}},
            "spec": {
                "storageClassName": class,
                "accessModes": [mode],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))
        .await;
}

async fn volume(
    share: &Share,
    name: &str,
    class: &str,
    mode: &str,
    place: Option<(&str, Value)>,
    claim: Option<&str>,
) {
    let mut spec = json!({
        "storageClassName": class,
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "hostPath": {"path": "/data"},
        "persistentVolumeReclaimPolicy": "Retain",
    });
    if let Some((key, values)) = place {
        let terms =
            json!([{"matchExpressions": [{"key": key, "operator": "In", "values": values}]}]);
        spec["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    }
    if let Some(claim) = claim {
        spec["claimRef"] = json!({"namespace": share.namespace, "name": claim});
    }
    let name = format!("{}-{name}", share.id);
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec,
    });
    share.apply_object(object).await;
}
