//! The HTTP layer: routes, authentication and validation.
//!
//! A request passes through `caller.rs` (authentication), `read.rs` (parsing) and `check/` (validation) before it reaches
//! the core. Handlers are thin.

mod answer;
mod app;
mod caller;
pub mod check;
mod dashboard;
mod docs;
mod html;
mod limits;
mod openapi;
mod pages;
mod params;
mod query;
mod read;
mod routes;
mod start_page;
mod streams;
mod unique_keys;

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Instant;

use agentaflow_api::error::ErrorCode;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::normalize_path::NormalizePath;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api_error::ApiError;
use routes::{
    agents, alerts, auth, billing, events, history, jobs, keys, link, logs, nodes, proof, queues,
    system, users,
};

pub use app::{App, Parts, Peer};

/// OpenAPI document as pretty-printed JSON, in a stable order, with a newline at its end.
pub fn openapi_json() -> String {
    openapi::json().to_owned()
}

/// All routes of the server. A slash at the end of a path is optional.
pub fn service(app: App) -> NormalizePath<Router> {
    let (router, _) = described_router().split_for_parts();
    let router = router
        .route("/", get(system::start))
        .route("/ui", get(dashboard::page))
        .route("/ui/{*path}", get(dashboard::page))
        .route("/assets/{file}", get(dashboard::file))
        .route("/favicon.svg", get(dashboard::file))
        .route("/docs", get(system::docs_page))
        .route("/openapi.json", get(system::openapi_json))
        .fallback(system::nowhere)
        .method_not_allowed_fallback(system::wrong_method)
        .route_layer(from_fn_with_state(app.clone(), measure))
        .with_state(app)
        .layer(from_fn(query::known_parameters))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(finish));
    NormalizePath::trim_trailing_slash(router)
}

/// OpenAPI document derived from the handlers.
fn described() -> utoipa::openapi::OpenApi {
    described_router().split_for_parts().1
}

fn described_router() -> OpenApiRouter<App> {
    OpenApiRouter::default().merge(worker_routes()).merge(user_routes()).merge(other_routes())
}

fn worker_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(nodes::register))
        .routes(routes!(nodes::list))
        .routes(routes!(nodes::show, nodes::update, nodes::delete))
        .routes(routes!(nodes::approve))
        .routes(routes!(nodes::heartbeat))
        .routes(routes!(nodes::stats))
        .routes(routes!(nodes::available))
        .routes(routes!(agents::register))
        .routes(routes!(agents::list))
        .routes(routes!(agents::show, agents::update))
        .routes(routes!(link::stream))
        .routes(routes!(link::poll))
        .routes(routes!(link::report))
        .routes(routes!(jobs::create, jobs::list))
        .routes(routes!(jobs::create_on_node))
        .routes(routes!(jobs::what_if))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::complete))
        .routes(routes!(jobs::status))
        .routes(routes!(jobs::explain))
        .routes(routes!(logs::logs))
        .routes(routes!(events::of_job))
}

fn user_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(auth::register))
        .routes(routes!(auth::login))
        .routes(routes!(auth::refresh))
        .routes(routes!(auth::logout))
        .routes(routes!(auth::me, auth::update_me))
        .routes(routes!(auth::link))
        .routes(routes!(proof::server_proof))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::rotate))
        .routes(routes!(keys::create_token, keys::list_tokens))
        .routes(routes!(keys::revoke_token))
        .routes(routes!(users::create, users::list))
        .routes(routes!(users::show, users::update, users::delete))
        .routes(routes!(users::credit))
}

fn other_routes() -> OpenApiRouter<App> {
    OpenApiRouter::default()
        .routes(routes!(events::stream))
        .routes(routes!(events::past))
        .routes(routes!(alerts::report))
        .routes(routes!(alerts::test))
        .routes(routes!(alerts::silence))
        .routes(routes!(alerts::unsilence))
        .routes(routes!(queues::list, queues::create))
        .routes(routes!(queues::show, queues::put, queues::delete))
        .routes(routes!(billing::usage))
        .routes(routes!(billing::ledger))
        .routes(routes!(billing::waste))
        .routes(routes!(history::cluster))
        .routes(routes!(history::node))
        .routes(routes!(history::job))
        .routes(routes!(system::strategy, system::set_strategy))
        .routes(routes!(system::rotate_secret_key))
        .routes(routes!(system::healthz))
        .routes(routes!(system::health))
        .routes(routes!(system::readyz))
        .routes(routes!(system::version))
        .routes(routes!(system::metrics))
}

/// Adds the headers of every response: no content sniffing, no framing, no caching.
async fn finish(request: Request, next: Next) -> Response {
    // Without the query, which may hold the code of a one-time link.
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    tracing::debug!(%method, path, status = response.status().as_u16(), "Request answered");
    let headers = response.headers_mut();
    for (name, value) in agentaflow_dashboard::HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

/// Records the duration of a request by route.
async fn measure(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().and_then(known_route);
    let method = known_method(request.method());
    let began = Instant::now();
    let response = next.run(request).await;
    if let Some(route) = route {
        let class = response.status().as_u16() / 100;
        let code = ["1xx", "2xx", "3xx", "4xx", "5xx"][usize::from(class.clamp(1, 5)) - 1];
        app.core.activity().requests.observe([route, method, code], began.elapsed());
    }
    response
}

/// Routes as label values, so that their number is bounded.
static ROUTES: LazyLock<BTreeSet<String>> =
    LazyLock::new(|| described().paths.paths.into_keys().collect());

/// A poll is held until a message arrives, so its duration says nothing.
const HELD: &str = "/gpu-workers/agents/{agent_id}/poll";

fn known_route(path: &MatchedPath) -> Option<&'static str> {
    ROUTES.get(path.as_str()).map(String::as_str).filter(|route| *route != HELD)
}

fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

/// Response after a panic in a handler; other requests continue.
fn panicked(_: Box<dyn std::any::Any + Send + 'static>) -> Response {
    tracing::error!("Handler panicked");
    ApiError::new(500, ErrorCode::Internal, "Internal error; see the log of the server")
        .into_response()
}
