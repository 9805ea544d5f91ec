//! Health, metrics, and answers to "why does it wait?".

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use crate::world::{Answer, Key};

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// A question to whoever holds the world.
#[derive(Debug)]
pub(crate) struct Question {
    /// About what.
    pub(crate) key: Key,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<Option<Answer>>,
}

/// How this replica is.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    questions: mpsc::Sender<Question>,
    /// When this replica started; the clock on the wall may jump.
    started: Instant,
    /// When the loop last turned, in milliseconds since the start; [`NEVER`] while we do not lead.
    turned: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
}

/// The loop has not turned yet.
const NEVER: u64 = u64::MAX;

impl Health {
    pub(crate) fn new(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(64);
        let (turned, ready) = (Arc::new(AtomicU64::new(NEVER)), Arc::default());
        (Self { metrics, questions, started: Instant::now(), turned, ready }, asked)
    }

    /// The loop turned.
    pub(crate) fn turn(&self) {
        self.turned.store(self.age(), Ordering::Relaxed);
    }

    /// Whether this replica does what it is there for: another leads, or we do and everything has been listed.
    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    fn age(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn is_stuck(&self) -> bool {
        let turned = self.turned.load(Ordering::Relaxed);
        turned != NEVER && u128::from(self.age().saturating_sub(turned)) > STUCK.as_millis()
    }
}

/// Serves health and explanations.
pub(crate) async fn serve_health(
    address: SocketAddr,
    health: Health,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(healthz))
        .route("/readyz", get(readyz))
        .route("/explain/{namespace}/{name}", get(explain))
        .with_state(health);
    serve(address, router, stop, "health").await
}

/// Serves metrics.
pub(crate) async fn serve_metrics(
    address: SocketAddr,
    health: Health,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new().route("/metrics", get(metrics)).with_state(health);
    serve(address, router, stop, "metrics").await
}

async fn serve(
    address: SocketAddr,
    router: Router,
    stop: CancellationToken,
    what: &'static str,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving {what}");
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn healthz(State(health): State<Health>) -> Response {
    if health.is_stuck() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the loop does not turn\n").into_response();
    }
    "ok\n".into_response()
}

async fn readyz(State(health): State<Health>) -> Response {
    if health.ready.load(Ordering::Relaxed) && !health.is_stuck() {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "not everything has been listed yet\n").into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, health.metrics.text()).into_response()
}

async fn explain(
    State(health): State<Health>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let (answer, answered) = oneshot::channel();
    let question = Question { key: Key::new(&namespace, &name), answer };
    let asked = health.questions.send(question);
    let answer = async {
        asked.await.ok()?;
        answered.await.ok()
    };
    match tokio::time::timeout(Duration::from_secs(2), answer).await {
        Ok(Some(Some(answer))) => Json(answer).into_response(),
        Ok(Some(None)) => {
            let text = format!("nothing is known about {namespace}/{name}\n");
            (StatusCode::NOT_FOUND, text).into_response()
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "this replica does not lead\n").into_response(),
    }
}
