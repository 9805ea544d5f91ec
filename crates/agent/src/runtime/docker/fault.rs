//! Errors of the Docker API: classified once, and rendered without secrets.

use bollard::errors::Error as DockerError;

use agentaflow_api::end::EndReason;

use super::super::{Launch, StartError};

/// Strings that must not appear in a message: passwords and values of environment variables.
pub(super) struct Secrets(Vec<String>);

/// Shorter values (`1`, `on`) are not secret, and hiding them would make messages unreadable.
const SHORTEST_SECRET: usize = 6;

impl Secrets {
    pub(super) fn of(launch: &Launch) -> Self {
        let password = launch.assignment.registry_auth.as_ref().map(|auth| auth.password.expose());
        let values = launch.env.iter().map(|(_, value)| value.as_str());
        let long = values.filter(|value| value.len() >= SHORTEST_SECRET);
        let mut all: Vec<String> = long.chain(password).map(str::to_owned).collect();
        all.retain(|secret| !secret.is_empty());
        // A value that contains another one must be replaced first.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(all)
    }

    pub(super) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

const NO_GPU_DRIVER: &str =
    "Docker cannot provide GPUs: the NVIDIA Container Toolkit is missing or not configured";

/// Classifies the failure to create or start a container.
pub(super) fn start(error: &DockerError, secrets: &Secrets) -> StartError {
    let DockerError::DockerResponseServerError { status_code, message } = error else {
        return node(error);
    };
    let message = secrets.hide(message.trim());
    // Docker has no error code for a missing device driver.
    if message.contains("could not select device driver") {
        return StartError::Node(NO_GPU_DRIVER.to_owned());
    }
    match status_code {
        // 409: a conflict with another object of this Docker daemon.
        400..=408 | 410..=499 => StartError::job(
            EndReason::StartFailed,
            format!("Cannot start the container: {message}"),
        ),
        _ => StartError::Node(format!("Docker cannot start the container: {message}")),
    }
}

/// Docker failed in a way that does not depend on the job.
pub(super) fn node(error: &DockerError) -> StartError {
    StartError::Node(format!("Docker failed: {}", cause(error)))
}

/// Error with its sources: the message of the library alone hides the system error.
pub(super) fn cause(error: &DockerError) -> String {
    let mut text = match error {
        DockerError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let detail = inner.to_string();
        if !text.contains(&detail) {
            text = format!("{text}: {detail}");
        }
        source = inner.source();
    }
    text
}

pub(super) fn is_permission_denied(error: &DockerError) -> bool {
    let mut source = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = source {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied) {
            return true;
        }
        source = error.source();
    }
    // Some wrappers of the HTTP client hide the `io::Error`; its text remains.
    cause(error).to_lowercase().contains("permission denied")
}

pub(super) fn is_missing(error: &DockerError) -> bool {
    has_status(error, 404)
}

pub(super) fn is_conflict(error: &DockerError) -> bool {
    has_status(error, 409)
}

fn has_status(error: &DockerError, status: u16) -> bool {
    matches!(error, DockerError::DockerResponseServerError { status_code, .. } if *status_code == status)
}

#[cfg(test)]
mod tests {
    use agentaflow_api::end::StartFailure;

    use super::*;

    #[test]
    fn longer_secrets_are_hidden_first() {
        let mut secrets = vec!["hunter22".to_owned(), "hunter22-long".to_owned()];
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        assert_eq!(Secrets(secrets).hide("a hunter22-long b hunter22"), "a *** b ***");
    }

    #[test]
    fn a_missing_gpu_driver_is_a_fault_of_the_node_and_a_bad_command_of_the_job() {
        let classify = |status_code, message: &str| {
            let message = message.to_owned();
            let error = DockerError::DockerResponseServerError { status_code, message };
            start(&error, &Secrets(Vec::new()))
        };
        let driver = classify(500, "could not select device driver \"nvidia\"");
        assert!(matches!(driver, StartError::Node(detail) if detail == NO_GPU_DRIVER));
        assert!(matches!(
            classify(400, "no such file"),
            StartError::Job(StartFailure { reason: EndReason::StartFailed, .. })
        ));
        assert!(matches!(classify(409, "the name is in use"), StartError::Node(_)));
    }
}
