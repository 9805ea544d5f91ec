//! What the API server says when something goes wrong.

use agentaflow_agent::runtime::StartError;
use agentaflow_api::end::{EndReason, StartFailure};

/// It refused to make something of a task.
pub(crate) fn start(what: &str, error: &kube::Error) -> StartError {
    match status(error) {
        // The job's own words are wrong; they would be wrong on every node.
        Some(400 | 422) => StartError::Job(StartFailure::new(
            EndReason::StartFailed,
            format!("Kubernetes refused {what}: {}", words(error)),
        )),
        _ => StartError::Node(format!("the cluster did not make {what}: {}", words(error))),
    }
}

/// It failed in something that it does for every task.
pub(crate) fn node(error: &kube::Error) -> StartError {
    StartError::Node(format!("the cluster failed: {}", words(error)))
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

/// What was said, without what only programs read.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
