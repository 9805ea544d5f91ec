//! What the engine says when something goes wrong, in words and without secrets.

use agentaflow_api::end::{EndReason, StartFailure};
use bollard::errors::Error as EngineError;

use super::super::{Launch, StartError};

/// Words that must not appear in any message: passwords and the values of the environment.
pub(super) struct Secrets(Vec<String>);

/// Shorter values (`1`, `on`) are no secrets, and hiding them would spoil every sentence.
const SHORTEST: usize = 6;

impl Secrets {
    pub(super) fn of(launch: &Launch) -> Self {
        let password = launch.assignment.registry_auth.as_ref().map(|auth| auth.password.expose());
        let values = launch.env.iter().map(|(_, value)| value.as_str());
        let long = values.filter(|value| value.len() >= SHORTEST);
        let mut all: Vec<String> = long.chain(password).map(str::to_owned).collect();
        all.retain(|word| !word.is_empty());
        // A value that contains another must go first.
        all.sort_by_key(|word| std::cmp::Reverse(word.len()));
        Self(all)
    }

    pub(super) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, word| text.replace(word.as_str(), "***"))
    }
}

/// The engine refused to make or start a container.
pub(super) fn start(error: &EngineError, secrets: &Secrets) -> StartError {
    let EngineError::DockerResponseServerError { status_code, message } = error else {
        return node(error);
    };
    let message = secrets.hide(message.trim());
    if message.contains("could not select device driver") {
        return StartError::Node(
            "the Docker engine of this node cannot hand out GPUs: the NVIDIA Container Toolkit \
             is missing or not set up"
                .to_owned(),
        );
    }
    match status_code {
        // A conflict is with something else on this engine.
        400..=408 | 410..=499 => StartError::Job(StartFailure::new(
            EndReason::StartFailed,
            format!("The container could not be started: {message}"),
        )),
        _ => {
            StartError::Node(format!("the Docker engine could not start the container: {message}"))
        }
    }
}

/// The engine did not do what it does for every container: not the job's fault.
pub(super) fn node(error: &EngineError) -> StartError {
    StartError::Node(format!("the Docker engine failed: {}", cause(error)))
}

/// The error with the causes below it: the library's own words hide the system's.
pub(super) fn cause(error: &EngineError) -> String {
    let mut text = match error {
        EngineError::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        other => other.to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = inner.source();
    }
    text
}

pub(super) fn is_missing(error: &EngineError) -> bool {
    has_status(error, 404)
}

pub(super) fn is_conflict(error: &EngineError) -> bool {
    has_status(error, 409)
}

fn has_status(error: &EngineError, status: u16) -> bool {
    matches!(error, EngineError::DockerResponseServerError { status_code, .. } if *status_code == status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_the_longest_first() {
        let mut words = vec!["hunter22".to_owned(), "hunter22-long".to_owned()];
        words.sort_by_key(|word| std::cmp::Reverse(word.len()));
        assert_eq!(Secrets(words).hide("a hunter22-long b hunter22"), "a *** b ***");
    }

    #[test]
    fn a_missing_gpu_driver_is_the_nodes_fault_and_a_bad_command_the_jobs() {
        let says = |status_code, message: &str| {
            let message = message.to_owned();
            let error = EngineError::DockerResponseServerError { status_code, message };
            start(&error, &Secrets(Vec::new()))
        };
        let driver = says(500, "could not select device driver \"nvidia\"");
        assert!(matches!(driver, StartError::Node(_)));
        assert!(driver.to_string().contains("NVIDIA Container Toolkit"));
        assert!(matches!(
            says(400, "no such file"),
            StartError::Job(StartFailure { reason: EndReason::StartFailed, .. })
        ));
        assert!(matches!(says(409, "the name is in use"), StartError::Node(_)));
    }
}
