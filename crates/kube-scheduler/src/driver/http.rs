//! HTTP endpoints: health, metrics, explanations and forecasts.

use agentaflow_api::error::{ErrorBody, ErrorCode};
use agentaflow_api::explain::Explanation;
use agentaflow_metrics::{Access, Endpoint};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query as UrlQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::alerts::AlertBoard;
use super::leader_address::{self, Addresses, LeaderAddress};
use super::metrics::Metrics;
use crate::state::{ClusterSnapshot, ClusterState, Key, WorkloadExplanation};

/// Time without a pass after which the loop counts as stuck.
const STUCK_AFTER: Duration = Duration::from_mins(1);

/// Largest request body.
const MAX_BODY: usize = 1 << 20;

/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A query to the task that owns the state.
#[derive(Debug)]
pub(crate) enum Query {
    Explain {
        key: Key,
        answer: oneshot::Sender<Option<WorkloadExplanation>>,
    },
    WhatIf {
        /// Namespace of an object that names none.
        namespace: String,
        object: serde_json::Value,
        answer: oneshot::Sender<Result<Explanation, String>>,
    },
    Snapshot {
        answer: oneshot::Sender<ClusterSnapshot>,
    },
}

impl Query {
    /// Sends the response, unless the caller has disconnected.
    pub(crate) fn answer(self, state: &mut ClusterState) {
        match self {
            Self::Explain { key, answer } if !answer.is_closed() => {
                let _ = answer.send(state.explain_to_caller(&key));
            }
            Self::WhatIf { namespace, object, answer } if !answer.is_closed() => {
                let _ = answer.send(state.what_if(&namespace, &object));
            }
            Self::Snapshot { answer } if !answer.is_closed() => {
                let _ = answer.send(state.snapshot());
            }
            _ => {}
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    scrape: Endpoint,
    pub(crate) alerts: AlertBoard,
    leader: LeaderAddress,
    queries: mpsc::Sender<Query>,
    /// Monotonic; the wall clock may jump.
    started: Instant,
    /// Time of the last pass in milliseconds since the start; [`NEVER`] while this replica does not lead.
    last_pass: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
}

/// No pass yet.
const NEVER: u64 = u64::MAX;

impl Health {
    pub(crate) fn new(
        metrics: Arc<Metrics>,
        access: Access,
        leader: LeaderAddress,
    ) -> (Self, mpsc::Receiver<Query>) {
        let scrape = Endpoint { access, sources: vec![metrics.clone()] };
        let (queries, asked) = mpsc::channel(64);
        let (last_pass, ready) = (Arc::new(AtomicU64::new(NEVER)), Arc::default());
        let started = Instant::now();
        let alerts = AlertBoard::default();
        (Self { metrics, scrape, alerts, leader, queries, started, last_pass, ready }, asked)
    }

    /// Address of the leader, which the lease fills in.
    pub(crate) fn leader(&self) -> LeaderAddress {
        self.leader.clone()
    }

    /// Records a pass.
    pub(crate) fn mark_alive(&self) {
        self.last_pass.store(self.age(), Ordering::Relaxed);
    }

    /// A follower is ready; a leader is ready when all kinds are listed.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Response of the leader if this replica is on standby and the request was not forwarded to it; none if this replica
    /// leads.
    async fn ask_leader(
        &self,
        port: impl Fn(Addresses) -> Option<SocketAddr>,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Option<Response> {
        if self.metrics.is_leading() {
            return None;
        }
        if headers.contains_key(leader_address::FORWARDED) {
            return Some(not_leading());
        }
        let leader = port(self.leader.get());
        let answer = leader_address::forward(leader, method, path, body).await;
        Some(answer.unwrap_or_else(not_leading))
    }

    /// Sends a query to the leading task; none if this replica does not lead or the query times out.
    async fn query<T>(&self, query: Query, answered: oneshot::Receiver<T>) -> Option<T> {
        let answer = async {
            self.queries.send(query).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(QUERY_TIMEOUT, answer).await.ok().flatten()
    }

    fn age(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn is_stuck(&self) -> bool {
        let last_pass = self.last_pass.load(Ordering::Relaxed);
        last_pass != NEVER
            && u128::from(self.age().saturating_sub(last_pass)) > STUCK_AFTER.as_millis()
    }
}

/// Reads the state of a scheduler in this process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClusterReader(Health);

impl ClusterReader {
    pub(crate) fn new(health: Health) -> Self {
        Self(health)
    }

    /// Objects that the scheduler knows; none unless this replica leads and its state is complete.
    pub async fn snapshot(&self) -> Option<ClusterSnapshot> {
        if !self.is_leading() || !self.0.ready.load(Ordering::Relaxed) {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        self.0.query(Query::Snapshot { answer }, answered).await
    }

    pub fn is_leading(&self) -> bool {
        self.0.metrics.is_leading()
    }

    /// Address of the dashboard of the leader.
    pub fn leader_dashboard(&self) -> Option<SocketAddr> {
        self.0.leader.get().dashboard
    }
}

pub(crate) async fn serve_health(listener: TcpListener, health: Health, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(healthz))
        .route("/readyz", get(readyz))
        .route("/alerts", get(alerts))
        .route("/explain/{namespace}/{name}", get(explain))
        .route("/what-if", post(what_if).layer(DefaultBodyLimit::max(MAX_BODY)))
        .with_state(health);
    serve(listener, router, stop, "health").await;
}

pub(crate) async fn serve_metrics(listener: TcpListener, health: Health, stop: CancellationToken) {
    let router = Router::new().route("/metrics", get(metrics)).with_state(health);
    serve(listener, router, stop, "metrics").await;
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken, what: &'static str) {
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "serving {what}");
    }
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "{what} server ended");
    }
}

async fn healthz(State(health): State<Health>) -> Response {
    if health.is_stuck() {
        return (StatusCode::SERVICE_UNAVAILABLE, "no scheduling pass for a minute\n")
            .into_response();
    }
    "ok\n".into_response()
}

async fn readyz(State(health): State<Health>) -> Response {
    if health.ready.load(Ordering::Relaxed) && !health.is_stuck() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "not all kinds are listed yet\n").into_response()
}

#[derive(Debug, Default, Deserialize)]
struct MetricsParameters {
    /// A standby replica answers with the metrics of the leader. Scrapers ask every replica for its own.
    leader: Option<String>,
}

async fn metrics(
    State(health): State<Health>,
    UrlQuery(MetricsParameters { leader }): UrlQuery<MetricsParameters>,
    headers: HeaderMap,
) -> Response {
    if leader.is_some()
        && let Some(answer) = health
            .ask_leader(|leader| leader.metrics, Method::GET, "/metrics", &headers, Bytes::new())
            .await
    {
        return answer;
    }
    health.scrape.respond(&headers)
}

/// Alerts of the leader, with silences and sinks. Addresses of sinks are not part of it.
async fn alerts(State(health): State<Health>, headers: HeaderMap) -> Response {
    let leader = |leader: Addresses| leader.http;
    if let Some(answer) =
        health.ask_leader(leader, Method::GET, "/alerts", &headers, Bytes::new()).await
    {
        return answer;
    }
    Json(health.alerts.report()).into_response()
}

async fn explain(
    State(health): State<Health>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let path = format!("/explain/{namespace}/{name}");
    let leader = |leader: Addresses| leader.http;
    if let Some(answer) =
        health.ask_leader(leader, Method::GET, &path, &headers, Bytes::new()).await
    {
        return answer;
    }
    let (answer, answered) = oneshot::channel();
    let query = Query::Explain { key: Key::new(&namespace, &name), answer };
    match health.query(query, answered).await {
        Some(Some(answer)) => Json(answer).into_response(),
        Some(None) => {
            let detail = format!("{namespace}/{name} not found");
            error(StatusCode::NOT_FOUND, ErrorCode::NotFound, detail)
        }
        None => not_leading(),
    }
}

#[derive(Debug, Deserialize)]
struct WhatIfParameters {
    #[serde(default = "default_namespace")]
    namespace: String,
}

fn default_namespace() -> String {
    "default".to_owned()
}

async fn what_if(
    State(health): State<Health>,
    UrlQuery(WhatIfParameters { namespace }): UrlQuery<WhatIfParameters>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = format!("/what-if?namespace={namespace}");
    let leader = |leader: Addresses| leader.http;
    if let Some(answer) =
        health.ask_leader(leader, Method::POST, &path, &headers, body.clone()).await
    {
        return answer;
    }
    let object = match serde_json::from_slice(&body) {
        Ok(object) => object,
        Err(cause) => {
            let detail = format!("invalid JSON: {cause}");
            return error(StatusCode::BAD_REQUEST, ErrorCode::Malformed, detail);
        }
    };
    let (answer, answered) = oneshot::channel();
    match health.query(Query::WhatIf { namespace, object, answer }, answered).await {
        Some(Ok(explanation)) => Json(explanation).into_response(),
        Some(Err(why)) => error(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::Invalid, why),
        None => not_leading(),
    }
}

fn not_leading() -> Response {
    let detail = "this replica does not lead";
    error(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, detail)
}

fn error(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Response {
    (status, Json(ErrorBody::new(code, detail))).into_response()
}
