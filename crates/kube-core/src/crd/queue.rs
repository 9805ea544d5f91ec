//! `GPUQueue`: share of the cluster for some namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

use super::schema::{conditions, rules};

/// Share of the cluster for some namespaces.
#[derive(CustomResource, Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "agentaflow.io",
    version = "v1",
    kind = "GPUQueue",
    root = "GpuQueue",
    plural = "gpuqueues",
    singular = "gpuqueue",
    shortname = "gq",
    category = "agentaflow",
    status = "GpuQueueStatus",
    doc = "A share of the cluster's GPUs for some namespaces.",
    printcolumn = r#"{"name":"Parent", "type":"string", "jsonPath":".spec.parent"}"#,
    printcolumn = r#"{"name":"Weight", "type":"integer", "jsonPath":".spec.weight"}"#,
    printcolumn = r#"{"name":"Guaranteed", "type":"integer", "jsonPath":".spec.guaranteed.gpus"}"#,
    printcolumn = r#"{"name":"Limit", "type":"integer", "jsonPath":".spec.limit.gpus"}"#,
    printcolumn = r#"{"name":"Running", "type":"integer", "jsonPath":".status.running"}"#,
    printcolumn = r#"{"name":"Pending", "type":"integer", "jsonPath":".status.pending"}"#,
    printcolumn = r#"{"name":"MilliGPUs", "type":"integer", "jsonPath":".status.usedMilliGpus", "priority":1}"#,
    printcolumn = r#"{"name":"Age", "type":"date", "jsonPath":".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = rules(&[(
    "!has(self.guaranteed.gpus) || !has(self.limit.gpus) || self.guaranteed.gpus <= self.limit.gpus",
    "guaranteed.gpus is more than limit.gpus: raise the limit or lower the guarantee",
)])))]
#[serde(rename_all = "camelCase", default)]
pub struct GpuQueueSpec {
    /// Namespaces that may use the queue; `*` means all. A namespace that only one queue lists uses that queue by
    /// default.
    #[schemars(schema_with = "namespaces")]
    pub namespaces: Vec<String>,
    /// Parent queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub parent: Option<String>,
    /// Weight among its siblings when capacity is short.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
    /// Guaranteed resources; reclaimed from borrowers when needed.
    pub guaranteed: QueueAmounts,
    /// Limit; unlisted resources are not limited.
    pub limit: QueueAmounts,
    /// May borrow unused resources of other queues beyond its guarantee.
    pub borrow: bool,
    /// Highest priority of its workloads, from 0 to 10. Pods count at most with the value of that class; 10 is no limit.
    #[schemars(range(min = 0, max = 10))]
    pub max_priority: u8,
}

impl Default for GpuQueueSpec {
    fn default() -> Self {
        Self {
            namespaces: Vec::new(),
            parent: None,
            weight: 100,
            guaranteed: QueueAmounts::default(),
            limit: QueueAmounts::default(),
            borrow: true,
            max_priority: 10,
        }
    }
}

/// Amounts of resources as Kubernetes quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueAmounts {
    /// GPUs of any model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// GPUs by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub models: BTreeMap<String, u32>,
    /// CPU, as a quantity: `64` or `500m`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "text_or_number")]
    #[schemars(schema_with = "quantity")]
    pub cpu: Option<String>,
    /// Memory, as a quantity: `512Gi`.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "text_or_number")]
    #[schemars(schema_with = "quantity")]
    pub memory: Option<String>,
    /// Other resources, such as `nvidia.com/mig-1g.5gb`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub resources: BTreeMap<String, u64>,
}

/// Usage of a queue.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuQueueStatus {
    /// Used GPUs in thousandths.
    pub used_milli_gpus: u64,
    /// Pending workloads.
    pub pending: u32,
    /// Running workloads.
    pub running: u32,
    /// Past usage for fair share in thousandths of GPUs, decaying with time.
    pub past_milli_gpus: u64,
    /// `Ready`.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

fn namespaces(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 1000,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "maxLength": 63,
            "x-kubernetes-validations": rules(&[(
                "self.matches('^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$')",
                "namespaces must hold names of namespaces, or `*` for all",
            )]),
        },
    })
}

fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": 32,
        "x-kubernetes-validations": rules(&[(
            "type(self) == int ? self >= 0 : isQuantity(self) && !quantity(self).isLessThan(quantity('0'))",
            "must be a quantity such as 64, 500m or 512Gi",
        )]),
    })
}

/// Decodes a quantity written as text or number.
fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(serde_json::Number),
    }
    Ok(Option::<Written>::deserialize(deserializer)?.map(|written| match written {
        Written::Text(text) => text,
        Written::Number(number) => number.to_string(),
    }))
}
