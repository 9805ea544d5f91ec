//! Our own kinds as they are watched: an object that cannot be read is told apart, and never stops the watch.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::crd::{
    GpuNodeSpec, GpuNodeStatus, GpuQueueSpec, GpuQueueStatus, GpuWorkloadSpec, GpuWorkloadStatus,
};

/// What could be read of a part of an object, or why it could not.
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

/// A `GPUWorkload`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Workload {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// What it asks for, or why that cannot be read.
    pub spec: Decoded<GpuWorkloadSpec>,
    /// What we wrote last.
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

/// A `GPUQueue`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// What it grants, or why that cannot be read.
    pub spec: Decoded<GpuQueueSpec>,
    /// What we wrote last.
    #[serde(deserialize_with = "lenient")]
    pub status: GpuQueueStatus,
}

super::resource!(Queue, "agentaflow.io", "v1", "GPUQueue", "gpuqueues", ClusterResourceScope);

/// A status that cannot be read is as good as none: we write it anew.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

/// A `GPUNode`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct GpuNode {
    /// Metadata without managed fields; the name is the node's.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// The devices, or why they cannot be read.
    pub spec: Decoded<GpuNodeSpec>,
    /// How they are.
    #[serde(deserialize_with = "lenient")]
    pub status: GpuNodeStatus,
}

super::resource!(GpuNode, "agentaflow.io", "v1", "GPUNode", "gpunodes", NamespaceResourceScope);

impl GpuNode {
    /// As people write it; none when it cannot be read.
    pub fn readable(self) -> Option<crate::crd::GpuNode> {
        let spec = *self.spec.0.ok()?;
        Some(crate::crd::GpuNode { metadata: self.metadata, spec, status: Some(self.status) })
    }
}
