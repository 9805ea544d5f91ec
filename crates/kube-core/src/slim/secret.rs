//! A Secret, without its metadata beyond the name.

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct Secret {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub data: Option<BTreeMap<String, ByteString>>,
}

/// Values are not shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

super::resource!(Secret, "", "v1", "Secret", "secrets", NamespaceResourceScope);
