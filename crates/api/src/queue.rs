//! Queues: quotas of the cluster for groups of users.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::units::{Cores, GpuAmount, Stamp};

/// Specification of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueSpec {
    pub name: String,
    /// Parent queue; default `root`.
    pub parent: Option<String>,
    /// Weight among siblings under contention; default 100.
    #[serde(deserialize_with = "lenient::small")]
    pub weight: Option<u32>,
    /// Guaranteed quota, reclaimed from borrowers on demand.
    #[serde(deserialize_with = "lenient::or_default")]
    pub guaranteed: QuotaSpec,
    #[serde(deserialize_with = "lenient::or_default")]
    pub limit: QuotaSpec,
    /// May borrow unused quota of other queues; default true.
    pub borrow: Option<bool>,
    /// Maximum priority of its jobs; default 10.
    #[serde(deserialize_with = "lenient::small")]
    pub max_priority: Option<u32>,
    /// Users with access; empty means all users.
    #[serde(deserialize_with = "lenient::or_default")]
    pub users: Vec<String>,
}

/// Amounts of resources; an absent resource has no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QuotaSpec {
    pub cpu_cores: Option<Cores>,
    /// In MiB.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory: Option<u64>,
    /// To a thousandth of a GPU.
    pub gpus: Option<GpuAmount>,
    /// GPUs per model.
    #[serde(deserialize_with = "lenient::or_default")]
    pub gpu_types: BTreeMap<String, GpuAmount>,
}

/// A queue with its usage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    #[serde(flatten)]
    pub spec: QueueSpec,
    pub pending: u32,
    /// Placed or running jobs.
    pub running: u32,
    pub gpus_used: GpuAmount,
    pub cpu_used: Cores,
    /// In MiB.
    pub memory_used: u64,
    pub created_at: Stamp,
    /// Time of the last change.
    pub updated_at: Stamp,
}
