//! HTTP endpoints `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_metrics::Endpoint;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::MonitorError;

/// Intervals without progress after which `/healthz` fails and the kubelet restarts the monitor.
const INTERVALS: u32 = 5;

/// Progress of the main loop.
#[derive(Debug)]
pub(super) struct Liveness {
    beat: Mutex<Instant>,
    limit: Duration,
    ready: AtomicBool,
}

impl Liveness {
    pub(super) fn new(interval: Duration) -> Self {
        let limit = interval * INTERVALS;
        Self { beat: Mutex::new(Instant::now()), limit, ready: AtomicBool::new(false) }
    }

    /// Records progress.
    pub(super) fn record(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Marks the monitor as ready.
    pub(super) fn published(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    fn alive(&self, now: Instant) -> Result<(), String> {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(beat);
        if silent <= self.limit {
            return Ok(());
        }
        Err(format!("no progress for {} s; the driver may hang", silent.as_secs()))
    }
}

pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, MonitorError> {
    TcpListener::bind(address).await.map_err(|source| MonitorError::Listen { address, source })
}

/// Serves `/healthz` and `/readyz` until `stop`.
pub(super) async fn health(
    listener: TcpListener,
    liveness: Arc<Liveness>,
    stop: CancellationToken,
) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(liveness);
    serve(listener, router, stop).await;
}

/// Serves `/metrics` until `stop`.
pub(super) async fn metrics(listener: TcpListener, endpoint: Endpoint, stop: CancellationToken) {
    serve(listener, endpoint.router(), stop).await;
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::warn!(%error, "an endpoint of the monitor failed");
    }
}

async fn healthz(State(liveness): State<Arc<Liveness>>) -> (StatusCode, String) {
    match liveness.alive(Instant::now()) {
        Ok(()) => (StatusCode::OK, "ok".into()),
        Err(message) => (StatusCode::SERVICE_UNAVAILABLE, message),
    }
}

async fn readyz(State(liveness): State<Arc<Liveness>>) -> (StatusCode, &'static str) {
    if liveness.ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "nothing published yet")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_stuck_for_five_intervals_is_not_healthy() {
        let liveness = Liveness::new(Duration::from_secs(15));
        let now = Instant::now();
        assert!(liveness.alive(now + Duration::from_secs(74)).is_ok());
        assert!(liveness.alive(now + Duration::from_secs(77)).is_err());
    }
}
