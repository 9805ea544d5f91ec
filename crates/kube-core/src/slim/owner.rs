//! Owners of pods of any kind: annotations and owner references.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// Owner of pods, reduced to its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
}
