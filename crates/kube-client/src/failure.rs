//! Errors of calls to a cluster.

use kube::core::Status;

/// Error of a call to a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The caller lacks permission or is not authenticated.
    #[error("{0}")]
    Forbidden(Forbidden),
    /// The object is not valid or conflicts with an existing one.
    #[error("{message}")]
    Refused {
        message: String,
        /// Fields of the object that caused the rejection, such as `spec.containers[0].image`; empty if unknown.
        fields: Vec<String>,
    },
    /// A component does not answer.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// Only a server supports the call.
    #[error("{0}")]
    Unsupported(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
}

/// Missing permission.
#[derive(Debug, thiserror::Error)]
pub enum Forbidden {
    /// The API server denied the request.
    #[error("{0}")]
    Rbac(String),
    /// Another component denied the request; the message names the remedy.
    #[error("{0}")]
    Other(String),
}

/// Component that does not answer.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The API server, with the innermost cause.
    #[error("the API server does not answer: {0}")]
    ApiServer(String),
    /// The scheduler behind its service.
    #[error("{0}")]
    Scheduler(String),
    /// Another component; the message names it.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Operation that a cluster does not support.
    pub fn unsupported(what: &str) -> Self {
        Self::Unsupported(format!("a Kubernetes context cannot {what}"))
    }

    /// Rejection without a known field.
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), fields: Vec::new() }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }

    /// Error for an HTTP status.
    pub(super) fn of_status(code: u16, message: String) -> Self {
        match code {
            404 => Self::NotFound(message),
            401 => Self::Forbidden(Forbidden::Other(format!(
                "the cluster rejected the credentials: {message}"
            ))),
            403 => Self::Forbidden(Forbidden::Rbac(message)),
            400..500 => Self::refused(message),
            _ => Self::Other(message),
        }
    }

    /// The CRD of this kind is not installed.
    pub(super) fn no_kind(kind: &str) -> Self {
        Self::Other(format!(
            "this cluster does not know the kind {kind}: install the product first \
             (`kubectl apply -f examples/k8s/scheduler-deployment.yaml`)"
        ))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let text = status.message.trim();
                let message = if text.is_empty() { status.reason.clone() } else { text.to_owned() };
                match Self::of_status(status.code, message) {
                    Self::Refused { message, .. } => {
                        Self::Refused { message, fields: rejected_fields(&status) }
                    }
                    other => other,
                }
            }
            kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
                Self::Unreachable(Unreachable::ApiServer(root(&error)))
            }
            kube::Error::SerdeError(error) => {
                Self::Other(format!("the API server's answer cannot be read: {error}"))
            }
            other => Self::Other(root(&other)),
        }
    }
}

fn rejected_fields(status: &Status) -> Vec<String> {
    if status.is_already_exists() {
        return vec!["metadata.name".to_owned()];
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| cause.field.clone()).filter(|field| !field.is_empty()).collect()
}

/// The innermost cause: outer errors only wrap it.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
