//! Namespaces, their quotas, priority classes, disruption budgets and settings.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
}

super::resource!(Namespace, "", "v1", "Namespace", "namespaces", ClusterResourceScope);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PriorityClass {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub value: i32,
    /// The class of pods that name none.
    pub global_default: Option<bool>,
}

super::resource!(
    PriorityClass,
    "scheduling.k8s.io",
    "v1",
    "PriorityClass",
    "priorityclasses",
    ClusterResourceScope
);

/// Pod disruption budget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DisruptionBudget {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: DisruptionBudgetSpec,
    pub status: DisruptionBudgetStatus,
}

super::resource!(
    DisruptionBudget,
    "policy",
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    NamespaceResourceScope
);

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DisruptionBudgetSpec {
    /// Selects pods of its namespace: an absent selector selects no pod, an empty one all pods.
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionBudgetStatus {
    pub disruptions_allowed: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub data: Option<BTreeMap<String, String>>,
}

super::resource!(ConfigMap, "", "v1", "ConfigMap", "configmaps", NamespaceResourceScope);

/// Quota of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: ResourceQuotaSpec,
    pub status: ResourceQuotaStatus,
}

super::resource!(
    ResourceQuota,
    "",
    "v1",
    "ResourceQuota",
    "resourcequotas",
    NamespaceResourceScope
);

/// Limits are read from the status, which has the limits in force.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceQuotaSpec {
    pub scopes: Option<Vec<String>>,
    /// Only its presence is read.
    pub scope_selector: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceQuotaStatus {
    pub hard: Option<BTreeMap<String, Quantity>>,
    pub used: Option<BTreeMap<String, Quantity>>,
}
