//! Pod groups of the scheduler plugins and of Kubernetes itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// A pod group of the scheduler plugins.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodGroup {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: PodGroupSpec,
}

super::resource!(
    PodGroup,
    "scheduling.x-k8s.io",
    "v1alpha1",
    "PodGroup",
    "podgroups",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodGroupSpec {
    /// Minimum number of pods.
    pub min_member: Option<i64>,
}

/// Native pod group of Kubernetes. Its API changes between releases: kept as JSON and read by
/// [`min_count`](Self::min_count).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NativePodGroup {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: serde_json::Value,
}

impl NativePodGroup {
    /// Gang size; none if the group has no minimum.
    pub fn min_count(&self) -> Option<u32> {
        let count = self.spec.pointer("/schedulingPolicy/gang/minCount")?.as_u64()?;
        u32::try_from(count).ok()
    }
}

super::resource!(
    NativePodGroup,
    "scheduling.k8s.io",
    "v1alpha2",
    "PodGroup",
    "podgroups",
    NamespaceResourceScope
);
