//! Endpoints of the agent: `/health` (liveness), `/ready` (readiness) and `/metrics`.

use agentaflow_metrics::Endpoint;
use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::session::Sessions;

pub(crate) async fn serve(
    listener: TcpListener,
    sessions: Sessions,
    metrics: Endpoint,
    stop: CancellationToken,
) {
    let ready = move || {
        let sessions = sessions.clone();
        async move { readiness(&sessions) }
    };
    let health = || async { axum::Json(json!({ "status": "healthy" })) };
    let routes = Router::new().route("/health", get(health)).route("/ready", get(ready));
    let routes = routes.merge(metrics.router());
    let served = axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await;
    if let Err(error) = served {
        warn!(%error, "the health endpoint failed");
    }
}

fn readiness(sessions: &Sessions) -> impl IntoResponse + use<> {
    if sessions.is_ready() {
        (StatusCode::OK, axum::Json(json!({ "status": "ready" })))
    } else {
        let detail = "The agent is not connected to the server";
        (
            StatusCode::SERVICE_UNAVAILABLE,
            axum::Json(json!({ "status": "not ready", "detail": detail })),
        )
    }
}
