//! `GPUQueue`: a share of the cluster for some namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A share of the cluster for some namespaces.
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
    status = "GpuQueueStatus"
)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuQueueSpec {
    /// The namespaces that may use it; `*` means all. A namespace that only one queue names uses it by default.
    pub namespaces: Vec<String>,
    /// The queue that it is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its weight among its siblings when capacity is short.
    pub weight: u32,
    /// What it gets back from borrowers whenever it needs it.
    pub guaranteed: QueueAmounts,
    /// What it never exceeds.
    pub limit: QueueAmounts,
    /// May use more than guaranteed while others do not need it.
    pub borrow: bool,
    /// Its workloads have at most this priority.
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

/// Amounts of resources, as Kubernetes writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueAmounts {
    /// GPUs of any model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    /// GPUs by model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, u32>,
    /// CPU, as a quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Memory, as a quantity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Other resources, such as `nvidia.com/mig-1g.5gb`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, u64>,
}

/// What a queue uses.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuQueueStatus {
    /// GPUs in use, in thousandths.
    pub used_milli_gpus: u64,
    /// Workloads that wait.
    pub pending: u32,
    /// Workloads that run.
    pub running: u32,
    /// Past use in GPU hours, halved every half-life: what fair share goes by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub past_gpu_hours: Option<f64>,
    /// `Ready`.
    pub conditions: Vec<Condition>,
    /// The generation that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
