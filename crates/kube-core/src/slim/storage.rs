//! Claims, volumes, and their constraints on nodes.

use k8s_openapi::api::core::v1::{
    ObjectReference, TopologySelectorTerm, VolumeNodeAffinity, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::VolumeNodeResources;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: PersistentVolumeClaimSpec,
    pub status: Phase,
}

super::resource!(
    PersistentVolumeClaim,
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimSpec {
    /// Bound or requested volume.
    pub volume_name: Option<String>,
    /// Empty for a claim without a class.
    pub storage_class_name: Option<String>,
    pub access_modes: Option<Vec<String>>,
    pub resources: Option<VolumeResourceRequirements>,
    pub selector: Option<LabelSelector>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<String>,
    /// Claim and volume must have the same class.
    pub volume_attributes_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Phase {
    pub phase: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: PersistentVolumeSpec,
    pub status: Phase,
}

super::resource!(
    PersistentVolume,
    "",
    "v1",
    "PersistentVolume",
    "persistentvolumes",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeSpec {
    pub capacity: Option<BTreeMap<String, Quantity>>,
    pub access_modes: Option<Vec<String>>,
    pub storage_class_name: Option<String>,
    /// Claim that owns the volume.
    pub claim_ref: Option<ObjectReference>,
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<String>,
    /// Claim and volume must have the same class.
    pub volume_attributes_class_name: Option<String>,
    /// CSI driver of the volume.
    pub csi: Option<Csi>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Csi {
    pub driver: String,
    /// Volume id of the driver.
    pub volume_handle: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// `kubernetes.io/no-provisioner` for static volumes.
    pub provisioner: String,
    /// `Immediate` or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<String>,
    pub allowed_topologies: Option<Vec<TopologySelectorTerm>>,
}

super::resource!(
    StorageClass,
    "storage.k8s.io",
    "v1",
    "StorageClass",
    "storageclasses",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    /// Metadata without managed fields; the name is the node's.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: CsiNodeSpec,
}

super::resource!(CsiNode, "storage.k8s.io", "v1", "CSINode", "csinodes", ClusterResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// A kubelet without drivers writes `null`.
    #[serde(deserialize_with = "super::tight::all")]
    pub drivers: Vec<CsiDriver>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiDriver {
    pub name: String,
    pub allocatable: Option<VolumeNodeResources>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StorageDriver {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: StorageDriverSpec,
}

super::resource!(
    StorageDriver,
    "storage.k8s.io",
    "v1",
    "CSIDriver",
    "csidrivers",
    ClusterResourceScope
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageDriverSpec {
    /// The driver reports capacity, which the scheduler must consider.
    pub storage_capacity: Option<bool>,
}

/// Remaining capacity of a driver for a class in a topology.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageCapacity {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub storage_class_name: String,
    /// Total capacity left.
    pub capacity: Option<Quantity>,
    pub maximum_volume_size: Option<Quantity>,
    /// Nodes with access to the storage; absent for none.
    pub node_topology: Option<LabelSelector>,
}

impl StorageCapacity {
    /// Returns true if both objects have equal values.
    pub fn has_equal_values(&self, other: &Self) -> bool {
        self.storage_class_name == other.storage_class_name
            && self.capacity == other.capacity
            && self.maximum_volume_size == other.maximum_volume_size
            && self.node_topology == other.node_topology
    }
}

super::resource!(
    StorageCapacity,
    "storage.k8s.io",
    "v1",
    "CSIStorageCapacity",
    "csistoragecapacities",
    NamespaceResourceScope
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_storage_drivers_is_read_however_that_is_written() {
        for spec in [r#"{"drivers": null}"#, r#"{"drivers": []}"#, "{}"] {
            let text = format!(r#"{{"metadata": {{"name": "a"}}, "spec": {spec}}}"#);
            let node: CsiNode = serde_json::from_str(&text).expect(spec);
            assert!(node.spec.drivers.is_empty(), "{spec}");
        }
    }
}
