//! Queues: shares of the cluster for some people.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::units::{Cores, Stamp};

/// A queue as it is written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueSpec {
    /// Its name.
    pub name: String,
    /// The queue that it is part of; `root` when absent.
    pub parent: Option<String>,
    /// Its weight among its siblings when capacity is short; 100 when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub weight: Option<u32>,
    /// What it gets back from borrowers whenever it needs it.
    #[serde(deserialize_with = "lenient::or_default")]
    pub guaranteed: QuotaSpec,
    /// What it never exceeds.
    #[serde(deserialize_with = "lenient::or_default")]
    pub limit: QuotaSpec,
    /// May use more than guaranteed while others do not need it; true when absent.
    pub borrow: Option<bool>,
    /// Its jobs have at most this priority; 10 when absent.
    #[serde(deserialize_with = "lenient::small")]
    pub max_priority: Option<u32>,
    /// Only these users may use it; empty means everybody.
    #[serde(deserialize_with = "lenient::or_default")]
    pub users: Vec<String>,
}

/// Amounts of resources; what is absent is not limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QuotaSpec {
    /// CPU cores.
    pub cpu_cores: Option<Cores>,
    /// MiB of memory.
    #[serde(deserialize_with = "lenient::whole")]
    pub memory: Option<u64>,
    /// GPUs, to a thousandth.
    pub gpus: Option<Cores>,
    /// GPUs by model, to a thousandth.
    #[serde(deserialize_with = "lenient::or_default")]
    pub gpu_types: BTreeMap<String, Cores>,
}

/// A queue as the API shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// What was written.
    #[serde(flatten)]
    pub spec: QueueSpec,
    /// Jobs that wait in it.
    pub pending: u32,
    /// Jobs that have a place.
    pub running: u32,
    /// GPUs in use.
    pub gpus_used: Cores,
    /// CPU cores in use.
    pub cpu_used: Cores,
    /// MiB of memory in use.
    pub memory_used: u64,
    /// When it was made.
    pub created_at: Stamp,
    /// When it was changed last.
    pub updated_at: Stamp,
}
