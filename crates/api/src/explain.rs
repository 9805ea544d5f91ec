//! Why a job waits, or where one would go.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::job::JobStatus;
use crate::units::{Dollars, Stamp};

/// Everything there is to say about where a job stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job; none for a what-if.
    pub job_id: Option<i64>,
    /// Where it stands.
    pub status: JobStatus,
    /// In one or two sentences.
    pub summary: String,
    /// One word for the reason of a wait: `NoRoom`, `NeverFits`, `QuotaExceeded`, `Gated`, …
    pub reason: Option<String>,
    /// The reason in words, with numbers.
    pub detail: Option<String>,
    /// The reason as data.
    #[schema(value_type = Option<Object>)]
    pub data: Option<Value>,
    /// Its place among all that wait, from 1.
    pub position: Option<u32>,
    /// How many wait.
    pub waiting: u32,
    /// When it is expected to start; none when that cannot be known.
    pub eta: Option<Stamp>,
    /// The same in words.
    pub eta_text: String,
    /// Smaller or more tolerant requests that would start now.
    pub would_start_now: Vec<String>,
    /// The nodes that came closest, and what each lacks.
    pub closest: Vec<CloseNode>,
    /// Where it is, or would go now.
    pub placement: Vec<PlannedTask>,
    /// What it costs, or would cost, an hour.
    pub price_per_hour: Option<Dollars>,
    /// What it would cost in all, if its duration is known.
    pub estimated_cost: Option<Dollars>,
}

/// A node that came close.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloseNode {
    /// Its `gpu-…` name.
    pub node_id: String,
    /// Its name.
    pub node_name: String,
    /// What it lacks, in words.
    pub lacks: String,
}

/// Where a task would go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedTask {
    /// The task, from 0.
    pub task: u32,
    /// The `gpu-…` name of the node.
    pub node_id: String,
    /// The name of the node.
    pub node_name: String,
    /// The GPUs.
    pub gpus: Vec<String>,
    /// They are simulated.
    pub simulated: bool,
}
