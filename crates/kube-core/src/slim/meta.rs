//! Metadata without managed fields.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

use crate::names;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Meta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    #[serde(deserialize_with = "super::tight::list")]
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
}

/// Prefixes of the annotations in use: of agentaflow, of claims and volumes, and of static pods. All other annotations are
/// dropped: they can hold up to 256 kB per object.
const READ: [&str; 5] =
    [names::PREFIX, "volume.", "pv.kubernetes.io/", "kubernetes.io/config.", names::GROUP_TOPOLOGY];

/// Decodes metadata without unused parts.
pub(super) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = Meta::deserialize(deserializer)?;
    let annotations = meta.annotations.map(|mut annotations| {
        annotations.retain(|name, _| READ.iter().any(|start| name.starts_with(start)));
        annotations
    });
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        deletion_grace_period_seconds: meta.deletion_grace_period_seconds,
        labels: meta.labels,
        annotations,
        owner_references: meta.owner_references,
        finalizers: meta.finalizers,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::slim::Pod;

    #[test]
    fn only_used_annotations_are_kept() {
        let kept = [
            "agentaflow.gpu/queue",
            "volume.kubernetes.io/selected-node",
            "volume.beta.kubernetes.io/storage-class",
            "pv.kubernetes.io/bind-completed",
            "kubernetes.io/config.mirror",
        ];
        let others = [
            "kubectl.kubernetes.io/last-applied-configuration",
            "workflows.argoproj.io/template",
            "kubernetes.io/psp",
        ];
        let all: serde_json::Map<String, Value> =
            kept.iter().chain(&others).map(|name| ((*name).to_owned(), json!("x"))).collect();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"annotations": all}})).unwrap();
        let mut found: Vec<String> =
            pod.metadata.annotations.into_iter().flatten().map(|(name, _)| name).collect();
        found.sort_by_key(|name| kept.iter().position(|known| known == name));
        assert_eq!(found, kept);
    }
}
