//! Health, metrics, and answers to "why does it wait?".

use agentaflow_api::explain::Explanation;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query as UrlQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use crate::state::{ClusterState, Key, WorkloadExplanation};

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_mins(1);

/// The largest object that is asked about.
const LARGEST: usize = 1 << 20;

/// How long a question may wait for its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question to whoever holds the world.
#[derive(Debug)]
pub(crate) enum Query {
    /// PendingCondition does it wait?
    Explain {
        /// ObjectRef what.
        key: Key,
        /// Where the answer goes.
        answer: oneshot::Sender<Option<WorkloadExplanation>>,
    },
    /// What would become of it?
    WhatIf {
        /// Where it would be handed in, if it does not say.
        namespace: String,
        /// ObjectRef what.
        object: serde_json::Value,
        /// Where the answer goes.
        answer: oneshot::Sender<Result<Explanation, String>>,
    },
}

impl Query {
    /// Answers, unless nobody waits for the answer any more. Changes nothing.
    pub(crate) fn put(self, world: &mut ClusterState) {
        match self {
            Self::Explain { key, answer } if !answer.is_closed() => {
                let _ = answer.send(world.explain(&key));
            }
            Self::WhatIf { namespace, object, answer } if !answer.is_closed() => {
                let _ = answer.send(world.what_if(&namespace, &object));
            }
            _ => {}
        }
    }
}

/// How this replica is.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    questions: mpsc::Sender<Query>,
    /// When this replica started; the clock on the wall may jump.
    started: Instant,
    /// When the loop last turned, in milliseconds since the start; [`NEVER`] while we do not lead.
    turned: Arc<AtomicU64>,
    ready: Arc<AtomicBool>,
}

/// The loop has not turned yet.
const NEVER: u64 = u64::MAX;

impl Health {
    pub(crate) fn new(metrics: Arc<Metrics>) -> (Self, mpsc::Receiver<Query>) {
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

    /// Asks whoever holds the world; none when nobody does, or when it takes too long.
    async fn ask<T>(&self, question: Query, answered: oneshot::Receiver<T>) -> Option<T> {
        let answer = async {
            self.questions.send(question).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(PATIENCE, answer).await.ok().flatten()
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
pub(crate) async fn serve_health(listener: TcpListener, health: Health, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(healthz))
        .route("/readyz", get(readyz))
        .route("/explain/{namespace}/{name}", get(explain))
        .route("/what-if", post(what_if).layer(DefaultBodyLimit::max(LARGEST)))
        .with_state(health);
    serve(listener, router, stop, "health").await;
}

/// Serves metrics.
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
        tracing::error!(%error, "{what} is no longer served");
    }
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
    let kind = [(header::CONTENT_TYPE, agentaflow_metrics::CONTENT_TYPE)];
    (kind, health.metrics.text()).into_response()
}

async fn explain(
    State(health): State<Health>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let (answer, answered) = oneshot::channel();
    let question = Query::Explain { key: Key::new(&namespace, &name), answer };
    match health.ask(question, answered).await {
        Some(Some(answer)) => Json(answer).into_response(),
        Some(None) => {
            let text = format!("nothing is known about {namespace}/{name}\n");
            (StatusCode::NOT_FOUND, text).into_response()
        }
        None => does_not_lead(),
    }
}

/// Where an object would be handed in that does not say so itself.
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
    body: Bytes,
) -> Response {
    let object = match serde_json::from_slice(&body) {
        Ok(object) => object,
        Err(error) => {
            return (StatusCode::BAD_REQUEST, format!("this is not JSON: {error}\n"))
                .into_response();
        }
    };
    let (answer, answered) = oneshot::channel();
    match health.ask(Query::WhatIf { namespace, object, answer }, answered).await {
        Some(Ok(explanation)) => Json(explanation).into_response(),
        Some(Err(why)) => (StatusCode::UNPROCESSABLE_ENTITY, format!("{why}\n")).into_response(),
        None => does_not_lead(),
    }
}

fn does_not_lead() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "this replica does not lead\n").into_response()
}
