//! History: readings of the cluster, of GPUs and of jobs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::Stamp;

/// Readings at a fixed interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Curves {
    /// Time of the first reading.
    pub start: Stamp,
    /// Seconds between two readings, each of which is the mean over this time.
    pub step_seconds: u64,
    /// One entry for each GPU of a node; a single one for the cluster or a job.
    pub series: Vec<Series>,
}

/// Readings of one device, job or cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Series {
    /// Index or UUID of the GPU; empty for the cluster and a job.
    pub name: String,
    pub columns: Vec<Column>,
}

/// Readings of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Column {
    /// Name with the unit, such as `utilization_percent`.
    pub name: String,
    /// `null` where there is no reading.
    pub values: Vec<Option<f64>>,
}
