//! Watched kinds of agentaflow: an invalid object is stored as an error and never fails the watch.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::crd::{
    GpuNodeSpec, GpuNodeStatus, GpuQueueSpec, GpuQueueStatus, GpuWorkloadSpec, GpuWorkloadStatus,
};

/// Decoded part of an object, or the error.
#[derive(Clone, Debug)]
pub struct Decoded<T>(pub Result<Box<T>, Box<str>>);

impl<T> Default for Decoded<T> {
    fn default() -> Self {
        Self(Err("it has no spec".into()))
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Decoded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let read = T::deserialize(value).map(Box::new).map_err(|error| error.to_string().into());
        Ok(Self(read))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: Decoded<GpuWorkloadSpec>,
    /// Last written status.
    #[serde(deserialize_with = "lenient")]
    pub status: GpuWorkloadStatus,
}

super::resource!(
    Workload,
    "agentaflow.io",
    "v1",
    "GPUWorkload",
    "gpuworkloads",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: Decoded<GpuQueueSpec>,
    /// Last written status.
    #[serde(deserialize_with = "lenient")]
    pub status: GpuQueueStatus,
}

super::resource!(Queue, "agentaflow.io", "v1", "GPUQueue", "gpuqueues", ClusterResourceScope);

/// An invalid status counts as absent and is overwritten.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuNode {
    /// Metadata without managed fields; the name is the node's.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: Decoded<GpuNodeSpec>,
    #[serde(deserialize_with = "lenient")]
    pub status: GpuNodeStatus,
}

super::resource!(GpuNode, "agentaflow.io", "v1", "GPUNode", "gpunodes", NamespaceResourceScope);

impl GpuNode {
    /// Public form; none if invalid.
    pub fn readable(self) -> Option<crate::crd::GpuNode> {
        let spec = *self.spec.0.ok()?;
        Some(crate::crd::GpuNode { metadata: self.metadata, spec, status: Some(self.status) })
    }
}
