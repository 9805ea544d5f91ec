//! Raw requests to the API server, each with a timeout.

use http::{Method, Request};
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lease::Leadership;
use super::metrics::ApiRequests;

/// Timeout of a request; writes of a leader time out earlier if its lease ends earlier. The API server gets the same timeout.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 409.
    #[error("{0}")]
    Conflict(String),
    /// 403 of the quota admission: the namespace has used up a `ResourceQuota`.
    #[error("{0}")]
    QuotaExceeded(String),
    /// Any other 4xx: a retry does not help.
    #[error("{message}")]
    Refused {
        code: u16,
        message: String,
        /// The object of this name has another uid.
        uid_differs: bool,
    },
    /// 429: overload, or a disruption budget.
    #[error("{0}")]
    TooMany(String),
    /// Not sent.
    #[error("no longer leading")]
    NotLeading,
    /// Without a response: the request may have taken effect.
    #[error("no response from the API server: {0}")]
    Unknown(String),
}

impl Failure {
    fn count(&self, requests: &ApiRequests) {
        match self {
            Self::NotFound(_) => requests.not_found.inc(),
            Self::Conflict(_) => requests.conflict.inc(),
            Self::QuotaExceeded(_) | Self::Refused { .. } => requests.refused.inc(),
            Self::TooMany(_) => requests.throttled.inc(),
            Self::Unknown(_) => requests.no_response.inc(),
            Self::NotLeading => {}
        }
    }

    /// Returns true if a retry may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
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
                    403 if is_quota_denial(&message) => Self::QuotaExceeded(message),
                    code @ 400..500 => {
                        let causes = || status.details.iter().flat_map(|details| &details.causes);
                        // Objects of a terminating namespace are as good as deleted.
                        if causes().any(|cause| cause.reason == "NamespaceTerminating") {
                            return Self::NotFound(message);
                        }
                        let uid_differs = causes().any(|cause| cause.field == "metadata.uid");
                        Self::Refused { code, message, uid_differs }
                    }
                    _ => Self::Unknown(message),
                }
            }
            other => Self::Unknown(other.to_string()),
        }
    }
}

/// Returns true for the message of the quota admission, as in `pods "a" is forbidden: exceeded quota: q, requested: …`. Its
/// status has neither a reason of its own nor causes. A webhook or policy that denies a pod puts its name before its text.
fn is_quota_denial(message: &str) -> bool {
    let denial = message.split_once(" is forbidden: ");
    denial.is_some_and(|(_, why)| why.starts_with("exceeded quota: "))
}

#[derive(Clone)]
pub(crate) struct ApiServer {
    client: Client,
    /// Writes stop when it ends; none for the leader election itself.
    leadership: Option<Leadership>,
    writes: Arc<InFlightWrites>,
    requests: Arc<ApiRequests>,
}

/// Writes that may still take effect.
#[derive(Debug, Default)]
struct InFlightWrites {
    in_flight: AtomicUsize,
    /// Time until which a write without a response may still take effect.
    in_doubt_until: Mutex<Option<Instant>>,
}

impl InFlightWrites {
    fn begin(&self) -> InFlightWrite<'_> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlightWrite { writes: self, responded: false }
    }

    fn in_doubt_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.in_doubt_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct InFlightWrite<'a> {
    writes: &'a InFlightWrites,
    responded: bool,
}

impl Drop for InFlightWrite<'_> {
    fn drop(&mut self) {
        if !self.responded {
            *self.writes.in_doubt_until() = Some(Instant::now() + TIMEOUT);
        }
        self.writes.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiServer")
    }
}

impl ApiServer {
    pub(crate) fn new(client: Client, requests: Arc<ApiRequests>) -> Self {
        Self { client, leadership: None, writes: Arc::default(), requests }
    }

    /// The same API server; writes are sent only during this leadership.
    pub(crate) fn during(&self, leadership: &Leadership) -> Self {
        Self {
            client: self.client.clone(),
            leadership: Some(leadership.clone()),
            writes: Arc::default(),
            requests: self.requests.clone(),
        }
    }

    /// Waits until no write can take effect any more; leadership must have ended.
    pub(crate) async fn drain(&self) {
        while self.writes.in_flight.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let in_doubt_until = *self.writes.in_doubt_until();
        if let Some(until) = in_doubt_until {
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

    /// Lists are merged by key: conditions of other writers stay.
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
            return self.request(method, path, kind, body, TIMEOUT).await;
        }
        // In this order: after the end of leadership, an empty counter proves that no write is in flight.
        let mut write = self.writes.begin();
        if self.leadership.as_ref().is_some_and(|leadership| !leadership.holds()) {
            write.responded = true;
            return Err(Failure::NotLeading);
        }
        let timeout = self
            .leadership
            .as_ref()
            .map_or(TIMEOUT, |leadership| leadership.write_timeout(TIMEOUT));
        let answer = self.request(method, &with_timeout(path, timeout), kind, body, timeout).await;
        write.responded = !matches!(answer, Err(Failure::Unknown(_)));
        answer
    }

    async fn request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<T, Failure> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(http::header::CONTENT_TYPE, kind)
            .header(http::header::ACCEPT, "application/json")
            .body(body)
            .map_err(|error| Failure::Refused {
                code: 0,
                message: error.to_string(),
                uid_differs: false,
            })?;
        let began = Instant::now();
        let answer = match tokio::time::timeout(timeout, self.client.request(request)).await {
            Ok(answer) => answer.map_err(Failure::from),
            Err(_) => Err(Failure::Unknown(format!("timed out after {timeout:?}"))),
        };
        self.requests.observe(&method, began.elapsed());
        answer.inspect_err(|failure| failure.count(&self.requests))
    }
}

/// The path of a write with the API server's timeout.
fn with_timeout(path: &str, timeout: Duration) -> String {
    let sign = if path.contains('?') { '&' } else { '?' };
    format!("{path}{sign}timeout={}ms", timeout.as_millis())
}

/// A response whose body is not read.
#[derive(serde::Deserialize)]
pub(crate) struct Ignored {}

/// Path of a namespaced object of the core group.
pub(crate) fn core(namespace: &str, plural: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

/// Path of a namespaced object of the product's group.
pub(crate) fn ours(namespace: &str, plural: &str, name: &str) -> String {
    format!("/apis/agentaflow.io/v1/namespaces/{namespace}/{plural}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_server_gets_the_timeout_of_a_write() {
        let check = |path: &str, millis: u64, sent: &str| {
            assert_eq!(with_timeout(path, Duration::from_millis(millis)), sent);
        };
        check("/api/v1/nodes/a", 4000, "/api/v1/nodes/a?timeout=4000ms");
        check("/api/v1/pods?fieldManager=me", 1600, "/api/v1/pods?fieldManager=me&timeout=1600ms");
    }

    #[test]
    fn a_write_to_a_terminating_namespace_is_obsolete_and_not_refused() {
        let failure = |reason: &str| {
            let status = serde_json::json!({
                "status": "Failure", "message": "forbidden", "reason": "Forbidden", "code": 403,
                "details": {"causes": [{"reason": reason, "message": "", "field": "metadata.namespace"}]},
            });
            let status: kube::core::Status = serde_json::from_value(status).expect("a status");
            Failure::from(kube::Error::Api(Box::new(status)))
        };
        assert!(matches!(failure("NamespaceTerminating"), Failure::NotFound(_)));
        assert!(matches!(failure("Other"), Failure::Refused { .. }));
    }

    #[test]
    fn only_a_denial_of_the_quota_admission_is_an_exceeded_quota() {
        let check = |message: &str, expected: bool| {
            let status = serde_json::json!({
                "status": "Failure", "message": message, "reason": "Forbidden", "code": 403,
            });
            let status: kube::core::Status = serde_json::from_value(status).expect("a status");
            let failure = Failure::from(kube::Error::Api(Box::new(status)));
            assert_eq!(matches!(failure, Failure::QuotaExceeded(_)), expected, "{message}");
        };
        check(
            "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=6, limited: pods=6",
            true,
        );
        check("pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\"", false);
        check("pods \"a\" is forbidden: failed quota: q: must specify limits.cpu", false);
        check("admission webhook \"w\" denied the request: exceeded quota: mine", false);
        check(
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: exceeded quota: x",
            false,
        );
    }

    #[test]
    fn a_write_without_a_response_may_take_effect_until_its_timeout() {
        let writes = InFlightWrites::default();
        let mut responded = writes.begin();
        let unresponded = writes.begin();
        responded.responded = true;
        drop(responded);
        assert_eq!(*writes.in_doubt_until(), None);
        assert_eq!(writes.in_flight.load(Ordering::SeqCst), 1);
        drop(unresponded);
        assert!(writes.in_doubt_until().is_some_and(|until| until > Instant::now()));
        assert_eq!(writes.in_flight.load(Ordering::SeqCst), 0);
    }
}
