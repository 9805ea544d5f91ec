//! Errors of the API server, classified once.

use agentaflow_agent::runtime::StartError;
use agentaflow_api::end::EndReason;

/// Classifies the failure to create an object of a task.
pub(crate) fn start(object: &str, error: &kube::Error) -> StartError {
    match status(error) {
        // The job's spec is invalid on every node.
        Some(400 | 422) => StartError::job(
            EndReason::StartFailed,
            format!("Kubernetes rejected the {object}: {}", message(error)),
        ),
        _ => StartError::Node(format!("cannot create the {object}: {}", message(error))),
    }
}

/// Failure that does not depend on the job.
pub(crate) fn node(error: &kube::Error) -> StartError {
    StartError::Node(format!("request to Kubernetes failed: {}", message(error)))
}

pub(crate) fn is_missing(error: &kube::Error) -> bool {
    status(error) == Some(404)
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    status(error) == Some(409)
}

fn status(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Message of the API server without status code and reason.
pub(crate) fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
