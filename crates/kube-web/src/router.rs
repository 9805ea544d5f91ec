//! Routes and shared state.

use std::ops::Deref;
use std::sync::Arc;

use agentaflow_api::Stamp;
use agentaflow_dashboard::{Dashboard, HEADERS};
use agentaflow_kube_serve::Rights;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use kube::Client;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Options;
use super::answer::Problem;
use super::board::Board;
use super::routes::{cluster, events, jobs, pages, session};
use super::sessions::Sessions;

/// Largest request body, in bytes.
const MAX_BODY: usize = 64 << 10;
/// Open event and output streams.
const MAX_STREAMS: usize = 512;

/// Shared state of the handlers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) board: Board,
    pub(crate) sessions: Sessions,
    pub(crate) rights: Rights,
    pub(crate) cluster: kube::Config,
    /// Namespace of agentaflow.
    pub(crate) system: String,
    pub(crate) dashboard: Option<Dashboard>,
    pub(crate) started: Stamp,
    pub(crate) streams: Arc<Semaphore>,
    /// Cancelled when the scheduler stops; ends all streams.
    pub(crate) stopping: CancellationToken,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

pub(crate) fn router(options: Options, client: &Client, stopping: CancellationToken) -> Router {
    let app = App(Arc::new(Parts {
        board: Board::new(options.reader),
        sessions: Sessions::new(client),
        rights: Rights::new(client.clone()),
        cluster: options.cluster,
        system: options.certificate.namespace,
        dashboard: options.dashboard,
        started: Stamp::now(),
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        stopping,
    }));
    Router::new()
        .route("/", get(pages::page))
        .route("/ui", get(pages::page))
        .route("/ui/{*path}", get(pages::page))
        .route("/assets/{file}", get(pages::file))
        .route("/favicon.svg", get(pages::file))
        .route("/version", get(session::version))
        .route("/auth/me", get(session::me))
        .route("/auth/login", post(session::login))
        .route("/auth/logout", post(session::logout))
        .route("/gpu-workers/jobs", get(jobs::list))
        .route("/gpu-workers/jobs/{id}", get(jobs::show))
        .route("/gpu-workers/jobs/{id}/cancel", post(jobs::cancel))
        .route("/gpu-workers/jobs/{id}/explain", get(jobs::explain))
        .route("/gpu-workers/jobs/{id}/events", get(jobs::events))
        .route("/gpu-workers/jobs/{id}/logs", get(jobs::logs))
        .route("/gpu-workers/nodes", get(cluster::nodes))
        .route("/queues", get(cluster::queues))
        .route("/events", get(events::stream))
        .route("/events/past", get(events::past))
        .fallback(async || Problem::not_found("Path not found"))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(finish))
        .with_state(app)
}

/// Adds the headers of every response.
async fn finish(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}
