//! The server itself: health, version, strategy and documentation.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use agentaflow_api::error::{ErrorCode, ResourceKind};
use agentaflow_api::units::Stamp;
use agentaflow_engine::Strategy;
use agentaflow_metrics::{Access, Endpoint};

use crate::api_error::ApiError;
use crate::auth::{Principal, check_host};
use crate::http::answer::page;
use crate::http::app::App;
use crate::http::caller::{Admin, User, browser_cookie, holder, sees_all};
use crate::http::read::Exact;
use crate::http::{dashboard, docs, openapi, start_page};
use crate::store::JobFilter;

/// Health of the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthStatus {
    /// `ok`; `healthy` at `/health`.
    status: &'static str,
}

/// Name and version of the server.
#[derive(Debug, Serialize, ToSchema)]
#[allow(clippy::struct_field_names, reason = "the names are the API's")]
pub(crate) struct Version {
    /// Always `agentaflow`.
    name: &'static str,
    /// Version of the server.
    version: &'static str,
    /// Start time of the server.
    started_at: Stamp,
    /// Time of the server's clock, for comparison with other clocks.
    time: Stamp,
    /// Notice for users, for example about simulated GPUs.
    notice: Option<String>,
}

/// Scheduling strategy, which selects the GPUs of a job.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct StrategyChoice {
    /// Name, such as `least_utilized`.
    strategy: String,
}

/// Liveness probe.
#[utoipa::path(get, path = "/healthz", tag = "server",
    responses((status = 200, description = "Alive", body = HealthStatus)))]
pub(crate) async fn healthz() -> Answer<HealthStatus> {
    Answer(HealthStatus { status: "ok" })
}

/// Liveness probe of the original API.
#[utoipa::path(get, path = "/health", tag = "server",
    responses((status = 200, description = "Alive", body = HealthStatus)))]
pub(crate) async fn health() -> Answer<HealthStatus> {
    Answer(HealthStatus { status: "healthy" })
}

/// Readiness probe: the database answers.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses((status = 200, description = "Ready", body = HealthStatus)))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Answer<HealthStatus>, ApiError> {
    if app.stopping.is_cancelled() {
        return Err(ApiError::unavailable("the server is being stopped"));
    }
    app.core.ready().await?;
    Ok(Answer(HealthStatus { status: "ok" }))
}

/// Name and version of the server.
#[utoipa::path(get, path = "/version", tag = "server",
    responses((status = 200, description = "Name and version", body = Version)))]
pub(crate) async fn version(State(app): State<App>) -> Answer<Version> {
    Answer(Version {
        name: "agentaflow",
        version: env!("CARGO_PKG_VERSION"),
        started_at: app.started,
        time: Stamp::now(),
        notice: app.settings.notice.clone(),
    })
}

/// Metrics in Prometheus text, or `OpenMetrics` if the client accepts it. Admins and viewers only.
#[utoipa::path(get, path = "/metrics", tag = "server", security(("user" = [])),
    responses((status = 200, description = "Metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(
    State(app): State<App>,
    User(caller): User,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if !sees_all(&caller) {
        return Err(ApiError::forbidden(
            "Metrics cover all users; an admin or a viewer may read them",
        ));
    }
    let endpoint = Endpoint { access: Access::Open, sources: vec![Arc::new(app.core.clone())] };
    Ok(endpoint.respond(&headers))
}

/// Scheduling strategy of the cluster.
#[utoipa::path(get, path = "/strategy", tag = "server", security(("user" = [])),
    responses((status = 200, description = "Strategy", body = StrategyChoice)))]
pub(crate) async fn strategy(State(app): State<App>, _: User) -> Answer<StrategyChoice> {
    Answer(StrategyChoice { strategy: app.core.strategy().to_owned() })
}

/// Sets the scheduling strategy for all later placements.
#[utoipa::path(put, path = "/strategy", tag = "server", security(("user" = [])),
    request_body(content = StrategyChoice, example = json!({"strategy": "best_fit"})),
    responses((status = 200, description = "Strategy", body = StrategyChoice)))]
pub(crate) async fn set_strategy(
    State(app): State<App>,
    _: Admin,
    Exact(choice): Exact<StrategyChoice>,
) -> Result<Answer<StrategyChoice>, ApiError> {
    let Some(name) = Strategy::names().find(|name| *name == choice.strategy) else {
        let names: Vec<_> = Strategy::names().map(|name| format!("`{name}`")).collect();
        let detail = format!("`strategy` must be one of {}", names.join(", "));
        return Err(ApiError::invalid("strategy", detail));
    };
    app.core.set_strategy(name).await?;
    Ok(Answer(StrategyChoice { strategy: name.to_owned() }))
}

/// Result of a rotation of the secret key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Resealed {
    /// Number of jobs whose secrets were resealed with the new key.
    resealed: usize,
}

/// Creates a new key for secrets and reseals all secrets with it; older keys only decrypt from then on.
#[utoipa::path(post, path = "/secret-key/rotate", tag = "server", security(("user" = [])),
    responses((status = 200, description = "Number of secrets sealed again", body = Resealed)))]
pub(crate) async fn rotate_secret_key(
    State(app): State<App>,
    _: Admin,
) -> Result<Answer<Resealed>, ApiError> {
    Ok(Answer(Resealed { resealed: app.core.rotate_secret_key().await? }))
}

/// The OpenAPI document.
pub(crate) async fn openapi_json() -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], openapi::json()).into_response()
}

/// Human-readable page of the OpenAPI document.
pub(crate) async fn docs_page() -> Response {
    page(docs::page().to_owned())
}

/// The dashboard, or the plain start page of a program without one.
pub(crate) async fn start(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(dashboard) = app.settings.dashboard {
        return dashboard::shell(dashboard, &headers);
    }
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let token = browser_cookie(&app, &headers, &Method::GET, &app.cookies.access)?;
    let user = token.and_then(|token| match holder(&app, token, Stamp::now()) {
        Ok(Principal::User(user, None)) => Some(user),
        _ => None,
    });
    let Some(user) = user else {
        // Without a login, the page reveals nothing beyond the address, under any host name.
        let named = check_host(&app.site, host).is_ok();
        return Ok(page(start_page::for_visitors(&app.settings, named)));
    };
    let caller = crate::core::Caller { user: Arc::new(*user), by_cookie: true };
    let own = (!sees_all(&caller)).then_some(caller.user.id);
    let filter = JobFilter { user: own, limit: 20, ..JobFilter::default() };
    let rows = app.core.store().jobs(&filter).await?;
    let jobs: Vec<_> = app.core.show_jobs(rows).collect();
    Ok(page(start_page::for_user(&app.settings, &caller.user, &app.core.nodes(), &jobs)))
}

/// Response for an unknown path.
pub(crate) async fn nowhere() -> ApiError {
    ApiError::absent(ResourceKind::Path, "Path not found; GET /docs lists all paths")
}

/// Response for a wrong method; the router adds the permitted methods.
pub(crate) async fn wrong_method(method: Method) -> Response {
    let message = format!("{method} is not supported here; the Allow header lists the methods");
    ApiError::new(405, ErrorCode::MethodNotAllowed, message).into_response()
}
