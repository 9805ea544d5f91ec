//! Requests to the API server that the typed client has no short form for, each with a deadline.

use http::{Method, Request};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// The longest that one request may take. A leader that cannot renew its lease stops before the lease ends, and
/// nothing that it sent may arrive later than that.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// Why a request did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The API server refused: what it was asked for does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The API server refused: something else is there, or was changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The API server refused for another reason that asking again does not cure.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// Too many requests: it names the seconds to wait, or a budget forbids it.
    #[error("{0}")]
    TooMany(String),
    /// Nobody knows whether it was carried out.
    #[error("no answer from the API server: {0}")]
    Unknown(String),
}

impl Failure {
    /// Whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::TooMany(_))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let message = status.message.clone();
                match status.code {
                    404 => Self::NotFound(message),
                    409 => Self::Conflict(message),
                    429 => Self::TooMany(message),
                    code @ 400..500 => Self::Refused { code, message },
                    _ => Self::Unknown(message),
                }
            }
            other => Self::Unknown(other.to_string()),
        }
    }
}

/// The API server, with deadlines.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

impl Server {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.send(Method::GET, path, "application/json", None).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, Failure> {
        self.send(Method::POST, path, "application/json", Some(body)).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, Failure> {
        self.send(Method::PUT, path, "application/json", Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Result<(), Failure> {
        self.send(Method::DELETE, path, "application/json", Some(body)).await.map(|_: Ignored| ())
    }

    pub(crate) async fn merge(&self, path: &str, body: &Value) -> Result<(), Failure> {
        let kind = "application/merge-patch+json";
        self.send(Method::PATCH, path, kind, Some(body)).await.map(|_: Ignored| ())
    }

    /// Lists with keys are merged by key: conditions of others stay.
    pub(crate) async fn strategic(&self, path: &str, body: &Value) -> Result<(), Failure> {
        let kind = "application/strategic-merge-patch+json";
        self.send(Method::PATCH, path, kind, Some(body)).await.map(|_: Ignored| ())
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, kind)
            .header(http::header::ACCEPT, "application/json")
            .body(body)
            .map_err(|error| Failure::Refused { code: 0, message: error.to_string() })?;
        match tokio::time::timeout(TIMEOUT, self.client.request(request)).await {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(Failure::Unknown(format!("it took longer than {TIMEOUT:?}"))),
        }
    }
}

/// An answer that nobody reads.
#[derive(serde::Deserialize)]
pub(crate) struct Ignored {}

/// The path of an object of the core group in a namespace.
pub(crate) fn core(namespace: &str, plural: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

/// The path of an object of ours in a namespace.
pub(crate) fn ours(namespace: &str, plural: &str, name: &str) -> String {
    format!("/apis/agentaflow.io/v1/namespaces/{namespace}/{plural}/{name}")
}
