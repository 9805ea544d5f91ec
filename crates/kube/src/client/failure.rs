//! Why a cluster did not answer as it was asked.

/// Why a cluster did not answer as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What was asked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// The caller may not do that, or is not known.
    #[error("{0}")]
    Forbidden(String),
    /// What was handed in is not right, or contradicts what is there.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(String),
    /// A cluster cannot do that; a server can.
    #[error("{0}")]
    Unsupported(String),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// A cluster cannot do this.
    pub fn unsupported(what: &str) -> Self {
        Self::Unsupported(format!("a Kubernetes context cannot {what}"))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let message = status.message.clone();
                match status.code {
                    404 => Self::NotFound(message),
                    401 | 403 => Self::Forbidden(message),
                    400..500 => Self::Refused(message),
                    _ => Self::Other(message),
                }
            }
            kube::Error::HyperError(_) | kube::Error::Service(_) => {
                Self::Unreachable(format!("the API server does not answer: {}", root(&error)))
            }
            other => Self::Other(other.to_string()),
        }
    }
}

/// The innermost cause: the others only wrap it.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
