//! Requests to the API server that the typed client has no short form for, each with a deadline.

use http::{Method, Request};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lease::Leadership;

/// The longest that one request may take. A leader that cannot renew its lease stops before the lease ends, and
/// nothing that it sent may arrive later than that; the API server is told to give up as early.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// PendingCondition a request did not do what was asked.
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
    /// It was not sent: we do not lead any more.
    #[error("no longer leading")]
    NotLeading,
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
pub(crate) struct ApiServer {
    client: Client,
    /// Nothing is written when it is over.
    leadership: Option<Leadership>,
    flights: Arc<InFlightWrites>,
}

/// Writes that may still take effect.
#[derive(Debug, Default)]
struct InFlightWrites {
    under_way: AtomicUsize,
    /// Until when a write without an answer may still be carried out.
    doubtful: Mutex<Option<Instant>>,
}

impl InFlightWrites {
    fn begin(&self) -> InFlightWrite<'_> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        InFlightWrite { flights: self, answered: false }
    }

    fn doubtful(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write that is under way.
struct InFlightWrite<'a> {
    flights: &'a InFlightWrites,
    answered: bool,
}

impl Drop for InFlightWrite<'_> {
    fn drop(&mut self) {
        if !self.answered {
            *self.flights.doubtful() = Some(Instant::now() + TIMEOUT);
        }
        self.flights.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiServer")
    }
}

impl ApiServer {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, leadership: None, flights: Arc::default() }
    }

    /// The same server, to which we write only while we lead.
    pub(crate) fn during(&self, leadership: &Leadership) -> Self {
        Self {
            client: self.client.clone(),
            leadership: Some(leadership.clone()),
            flights: Arc::default(),
        }
    }

    /// Waits until nothing that was written can take effect any more; the leadership must be over.
    pub(crate) async fn settle(&self) {
        while self.flights.under_way.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let doubtful = *self.flights.doubtful();
        if let Some(until) = doubtful {
            tokio::time::sleep_until(until.into()).await;
        }
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
        if method == Method::GET {
            return self.ask(method, path, kind, body).await;
        }
        // In this order: whoever ends the leadership and then finds nothing under way can be sure of it.
        let mut flight = self.flights.begin();
        if self.leadership.as_ref().is_some_and(|leadership| !leadership.holds()) {
            flight.answered = true;
            return Err(Failure::NotLeading);
        }
        let answer = self.ask(method, &with_timeout(path), kind, body).await;
        flight.answered = !matches!(answer, Err(Failure::Unknown(_)));
        answer
    }

    async fn ask<T: DeserializeOwned>(
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

/// The path of a write, with the time after which the API server gives it up.
fn with_timeout(path: &str) -> String {
    let sign = if path.contains('?') { '&' } else { '?' };
    format!("{path}{sign}timeout={}s", TIMEOUT.as_secs())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_gives_a_write_up_when_we_do() {
        let check = |path: &str, sent: &str| assert_eq!(with_timeout(path), sent);
        check("/api/v1/nodes/a", "/api/v1/nodes/a?timeout=4s");
        check("/api/v1/pods?fieldManager=me", "/api/v1/pods?fieldManager=me&timeout=4s");
    }

    #[test]
    fn a_write_without_an_answer_is_doubtful_and_one_with_an_answer_is_not() {
        let flights = InFlightWrites::default();
        let mut answered = flights.begin();
        let unanswered = flights.begin();
        answered.answered = true;
        drop(answered);
        assert_eq!(*flights.doubtful(), None);
        assert_eq!(flights.under_way.load(Ordering::SeqCst), 1);
        drop(unanswered);
        assert!(flights.doubtful().is_some_and(|until| until > Instant::now()));
        assert_eq!(flights.under_way.load(Ordering::SeqCst), 0);
    }
}
