//! What happened, in order.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::units::Stamp;

/// Something that happened to a job or a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Counts up; the cursor of lists and streams.
    pub seq: i64,
    /// When.
    pub at: Stamp,
    /// One word: `Submitted`, `Waiting`, `Scheduled`, `Started`, `Failed`, `NodeLost`, …
    pub kind: String,
    /// In words.
    pub message: String,
    /// The job it happened to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<i64>,
    /// The same by its name, in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The `gpu-…` name of the node it happened to or on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// The owner of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<i64>,
    /// Numbers and names behind the words.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
}
