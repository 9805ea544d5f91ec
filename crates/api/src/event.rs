//! Events of jobs and nodes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::ids::{EventSeq, JobId, UserId};
use crate::units::Stamp;
use crate::wire::open_enum;

/// An event of a job or a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Increases with every event; the cursor of lists and streams.
    pub seq: EventSeq,
    pub at: Stamp,
    /// Kind, such as `Submitted`, `Pending`, `Scheduled`, `Started`, `Failed`, `NodeLost`.
    pub kind: EventKind,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Name of the job in Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// `gpu-…` name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Owner of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_id: Option<UserId>,
    /// Facts behind the message.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub data: Map<String, Value>,
}

open_enum! {
    /// Kind of an event. Events of a Kubernetes cluster carry the reasons of its own components as `Other`.
    pub enum EventKind {
        /// A user submitted the job.
        Submitted = "Submitted",
        /// The job is pending, and the message gives the reason.
        Waiting = "Waiting",
        /// The job has nodes.
        Scheduled = "Scheduled",
        /// The GPUs of the job are simulated.
        SimulatedGpu = "SimulatedGpu",
        /// The agent pulls the image.
        Pulling = "Pulling",
        /// The image is on the node.
        Pulled = "Pulled",
        /// The runtime starts the task.
        Starting = "Starting",
        Started = "Started",
        /// A warning of the agent.
        Warning = "Warning",
        /// The node did not accept the task.
        Refused = "Refused",
        /// The tasks of the job are being stopped.
        Stopping = "Stopping",
        /// A user asked for the job to be cancelled.
        CancelRequested = "CancelRequested",
        /// A user asked for the job to be marked as complete.
        CompleteRequested = "CompleteRequested",
        /// The job failed and is retried.
        Retrying = "Retrying",
        /// The job is pending again.
        Requeued = "Requeued",
        /// The job was stopped for a job with a better claim.
        Preempted = "Preempted",
        /// The job was stopped because its node or GPU is drained or broken.
        Displaced = "Displaced",
        /// The job exceeded its timeout.
        TimedOut = "TimedOut",
        /// The budget of the owner is exhausted; the job is stopped after the grace period.
        BudgetWarning = "BudgetWarning",
        /// The budget of the owner covers the job again.
        BudgetRestored = "BudgetRestored",
        /// The job is stopped because the budget of its owner is exhausted.
        BudgetExceeded = "BudgetExceeded",
        Completed = "Completed",
        Failed = "Failed",
        /// The job was cancelled.
        Cancelled = "Cancelled",
        NodeRegistered = "NodeRegistered",
        /// A registration with the name of a known node awaits approval.
        RegistrationPending = "RegistrationPending" | "NodeClaimed",
        /// An admin approved a registration.
        NodeApproved = "NodeApproved",
        /// A node was deleted.
        NodeRemoved = "NodeRemoved",
        /// A node stopped sending heartbeats.
        NodeLost = "NodeLost",
        /// A lost node sends heartbeats again.
        NodeRecovered = "NodeRecovered" | "NodeBack",
        /// An admin cordoned a node.
        NodeCordoned = "NodeCordoned",
        /// An admin uncordoned a node.
        NodeUncordoned = "NodeUncordoned" | "NodeOpened",
        /// An admin drains a node.
        NodeDraining = "NodeDraining",
        /// An admin ended the drain of a node.
        NodeDrainEnded = "NodeDrainEnded",
        /// An admin cordoned a GPU.
        GpuCordoned = "GpuCordoned",
        /// An admin uncordoned a GPU.
        GpuUncordoned = "GpuUncordoned" | "GpuOpened",
        /// An admin drains a GPU.
        GpuDraining = "GpuDraining",
        /// A GPU reports an error.
        GpuUnhealthy = "GpuUnhealthy" | "GpuSick",
        /// A GPU works again.
        GpuRecovered = "GpuRecovered" | "GpuWell",
        AgentRegistered = "AgentRegistered",
        /// An alert fires, or its severity rose.
        AlertFiring = "AlertFiring",
        /// The condition of an alert is gone.
        AlertResolved = "AlertResolved",
        /// The server does not push to the endpoint of a node.
        PushRefused = "PushRefused",
    }
}

impl Default for EventKind {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl EventKind {
    /// Returns true if the job of the event has ended.
    pub fn ends_job(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::StopCause;

    #[test]
    fn former_words_of_stored_events_and_stops_are_read() {
        for (former, kind) in [
            ("NodeClaimed", EventKind::RegistrationPending),
            ("NodeBack", EventKind::NodeRecovered),
            ("NodeOpened", EventKind::NodeUncordoned),
            ("GpuOpened", EventKind::GpuUncordoned),
            ("GpuSick", EventKind::GpuUnhealthy),
            ("GpuWell", EventKind::GpuRecovered),
        ] {
            assert_eq!(EventKind::from_word(former), kind);
            assert_ne!(kind.as_str(), former);
        }
        let stop: StopCause = serde_json::from_str("\"gpu_sick\"").unwrap();
        assert_eq!(stop, StopCause::GpuUnhealthy);
    }
}
