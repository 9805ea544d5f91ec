//! Explanations: pending reasons of jobs, and predictions for jobs that are not submitted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::end::{EndCause, EndReason};
use crate::ids::JobId;
use crate::job::JobStatus;
use crate::pending::{Alternative, PendingReason, Shortfall};
use crate::units::{Dollars, Stamp};

/// State of a job with its reasons, as data and as text. No text repeats another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job; none for a what-if.
    pub job_id: Option<JobId>,
    pub status: JobStatus,
    /// The state in one sentence: the pending reason, the nodes, or the end.
    pub summary: String,
    /// Text beyond the summary: a remedy, or a warning of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Reason for which the job is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_reason: Option<PendingReason>,
    /// Reason for the end of the job, with exhausted memory distinguished from a plain exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_reason: Option<EndReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_cause: Option<EndCause>,
    /// Position among all pending jobs, from 1.
    pub position: Option<u32>,
    /// Number of pending jobs.
    pub waiting: u32,
    /// Expected start; none when it cannot be predicted.
    pub eta: Option<Stamp>,
    /// Text of the expected start; empty for a job that is not pending.
    pub eta_text: String,
    /// Text of `alternatives`.
    pub would_start_now: Vec<String>,
    /// Smaller or more tolerant requests that would start now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
    /// Nodes with the smallest shortfall.
    pub closest: Vec<CloseNode>,
    /// Nodes and GPUs, present or predicted.
    pub placement: Vec<PlannedTask>,
    pub price_per_hour: Option<Dollars>,
    /// Cost of the whole run, if its duration is known.
    pub estimated_cost: Option<Dollars>,
}

/// A node that almost fits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloseNode {
    /// `gpu-…` name of the node.
    pub node_id: String,
    pub node_name: String,
    /// Text of the shortfall, with a remedy where there is one.
    pub lacks: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortfall: Option<Shortfall>,
}

/// Placement of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlannedTask {
    /// Number of the task, from 0.
    pub task: u32,
    /// `gpu-…` name of the node.
    pub node_id: String,
    pub node_name: String,
    pub gpus: Vec<String>,
    /// The GPUs are simulated.
    pub simulated: bool,
}
