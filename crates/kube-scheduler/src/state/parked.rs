//! Reasons for which a pod of this scheduler is tracked and not handed to the engine, and their text.

use agentaflow_engine::Rejected;
use agentaflow_kube_core::names;
use agentaflow_kube_core::translate::Obstacle;
use std::fmt;
use std::sync::Arc;

use super::action::Key;
use crate::controller::WAITING_FOR_QUOTA;

/// The most bytes of a rendered reason: the API server's limit for the message of an Event.
const MAX_MESSAGE: usize = 1024;

/// Reason for which a pod is parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// The annotations of its owner are being read.
    ReadingOwner,
    /// The request cannot be expressed: a field of the pod, scheduling gates, or volumes.
    Untranslatable(Obstacle),
    /// The last run of its gang is still being stopped.
    GangStopping,
    /// Enough pods of its group exist without it, and they are not placed yet.
    GangFirst {
        min_members: u32,
    },
    /// The job is opted in, and its pods cannot start together.
    NotAUnit(String),
    /// The job was resumed, and its pods did not come.
    StartBackoff {
        failures: u32,
    },
    /// Pods of gangs in its namespace did not come, and another gang gets its pods first.
    StartTurn {
        /// Kind and name.
        holder: String,
    },
    /// The pod is being deleted.
    Deleting,
    /// The engine rejected the workload.
    Rejected(Rejected),
    PodGroupMissing(Key),
    PodGroupTooLarge {
        group: Key,
        limit: u32,
    },
    WorkloadMissing(Key),
    /// Another `GPUWorkload` of the same name replaced its owner.
    WorkloadReplaced(Key),
    /// The spec of its `GPUWorkload` is invalid.
    InvalidSpec(String),
    InvalidAnnotation(String),
    QueueMissing(String),
    QueueForbidden {
        queue: String,
        namespace: String,
    },
    QueueInvalid {
        queue: String,
        fault: Option<String>,
    },
    /// One queue serves the namespace, and the engine does not know that queue.
    QueueInactive {
        queue: Arc<str>,
        namespace: String,
    },
    /// Several queues serve the namespace, and the pod names none.
    QueueAmbiguous {
        queues: Vec<Arc<str>>,
        namespace: String,
    },
}

impl Parked {
    /// Reason of the pod's condition and of metrics, in `CamelCase`.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::ReadingOwner => "ReadingOwner",
            Self::Untranslatable(Obstacle::Unsupported { .. }) => "Unsupported",
            Self::Untranslatable(Obstacle::NotYet { .. }) => "WaitingForVolume",
            Self::Untranslatable(Obstacle::NoStorage { .. }) => "Unschedulable",
            Self::Untranslatable(Obstacle::Gated(_)) => "SchedulingGated",
            Self::GangStopping => "Stopping",
            Self::GangFirst { .. } => "GangFirst",
            Self::NotAUnit(_) => "NotAUnit",
            Self::StartBackoff { .. } => "StartBackoff",
            Self::StartTurn { .. } => WAITING_FOR_QUOTA,
            Self::Deleting => "Deleting",
            Self::Rejected(_) => "Refused",
            Self::PodGroupMissing(_) => "PodGroupMissing",
            Self::PodGroupTooLarge { .. } => "GangTooLarge",
            Self::WorkloadMissing(_) | Self::WorkloadReplaced(_) => "WorkloadMissing",
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::InvalidAnnotation(_) => "InvalidAnnotation",
            Self::QueueMissing(_) => "QueueMissing",
            Self::QueueForbidden { .. } => "QueueForbidden",
            Self::QueueInvalid { .. } => "QueueInvalid",
            Self::QueueInactive { .. } | Self::QueueAmbiguous { .. } => "QueueNotNamed",
        }
    }

    /// Text for users, cut to the length that an Event can carry.
    pub(super) fn message(&self) -> Arc<str> {
        let mut message = self.to_string();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.into()
    }
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadingOwner => f.write_str("Reading the annotations of its owner"),
            Self::Untranslatable(Obstacle::Unsupported { field, reason }) => {
                write!(f, "{field}: {reason}")
            }
            Self::Untranslatable(Obstacle::NotYet { reason } | Obstacle::NoStorage { reason }) => {
                f.write_str(reason)
            }
            Self::Untranslatable(Obstacle::Gated(gates)) => {
                write!(f, "Held by scheduling gates: {}", gates.join(", "))
            }
            Self::GangStopping => f.write_str("Waiting for the pods it replaces to stop"),
            Self::GangFirst { min_members } => {
                write!(f, "Waiting for the first {min_members} pods of its group")
            }
            Self::NotAUnit(why) => {
                write!(f, "Pods start one by one, and the job is not resumed for them: {why}")
            }
            Self::StartBackoff { failures } => write!(
                f,
                "Suspended after {failures} starts without all pods; see the events of the job"
            ),
            Self::StartTurn { holder } => write!(
                f,
                "Waiting for {holder} to get its pods: pods of a gang in this namespace did not come"
            ),
            Self::Deleting => f.write_str("The pod is being deleted"),
            Self::Rejected(why) => write!(f, "{why}"),
            Self::PodGroupMissing(group) => write!(f, "Pod group `{group}` does not exist"),
            Self::PodGroupTooLarge { group, limit } => {
                write!(f, "Pod group `{group}` requires more than {limit} pods")
            }
            Self::WorkloadMissing(owner) => write!(f, "GPUWorkload `{owner}` is not known yet"),
            Self::WorkloadReplaced(owner) => {
                write!(f, "GPUWorkload `{owner}` was replaced by another of the same name")
            }
            Self::InvalidSpec(why) | Self::InvalidAnnotation(why) => f.write_str(why),
            Self::QueueMissing(queue) => write!(f, "GPUQueue `{queue}` does not exist"),
            Self::QueueForbidden { queue, namespace } => write!(
                f,
                "GPUQueue `{queue}` does not serve namespace `{namespace}`: add the namespace to spec.namespaces, or name another queue"
            ),
            Self::QueueInvalid { queue, fault } => {
                let fault = fault.as_deref().unwrap_or("its parent queue is missing");
                write!(f, "GPUQueue `{queue}` is invalid: {fault}")
            }
            Self::QueueInactive { queue, namespace } => write!(
                f,
                "GPUQueue `{queue}` serves namespace `{namespace}` and is not ready: see the status of the queue"
            ),
            Self::QueueAmbiguous { queues, namespace } => {
                let queues: Vec<String> = queues.iter().map(|name| format!("`{name}`")).collect();
                write!(
                    f,
                    "Namespace `{namespace}` is served by the queues {}: name one in spec.queue or the annotation {}",
                    queues.join(", "),
                    names::QUEUE
                )
            }
        }
    }
}
