//! Nodes: what scheduling reads of them.

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    /// What people set.
    pub spec: NodeSpec,
    /// What the kubelet says.
    pub status: NodeStatus,
}

super::resource!(Node, "", "v1", "Node", "nodes", ClusterResourceScope);

/// What people set on a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// Nothing new goes there.
    pub unschedulable: Option<bool>,
    /// Taints.
    pub taints: Option<Vec<Taint>>,
}

/// What the kubelet says about its node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// What pods may use.
    pub allocatable: Option<BTreeMap<String, Quantity>>,
    /// What its kubelet can do that others cannot, by name; known since Kubernetes 1.35.
    pub declared_features: Option<Vec<String>>,
    /// Conditions; the times at which they were confirmed are left out.
    pub conditions: Option<Vec<NodeCondition>>,
}

/// A condition of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    /// Its name.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False`, `Unknown`.
    pub status: String,
}
