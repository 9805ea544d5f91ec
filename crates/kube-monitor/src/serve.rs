//! What the monitor answers: `/healthz`, `/readyz` and `/metrics`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::MonitorError;
use super::metrics::Metrics;

/// After so many intervals without a sign of life the loop is stuck, and a restart is the better way on.
const INTERVALS: u32 = 5;

/// Signs of life of the loop.
#[derive(Debug)]
pub(super) struct Pulse {
    beat: Mutex<Instant>,
    limit: Duration,
    ready: AtomicBool,
}

impl Pulse {
    /// Begins to live.
    pub(super) fn new(interval: Duration) -> Self {
        let limit = interval * INTERVALS;
        Self { beat: Mutex::new(Instant::now()), limit, ready: AtomicBool::new(false) }
    }

    /// The loop lives.
    pub(super) fn beat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Something was published.
    pub(super) fn published(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    fn alive(&self, now: Instant) -> Result<(), String> {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = now.saturating_duration_since(beat);
        if silent <= self.limit {
            return Ok(());
        }
        Err(format!("no sign of life for {} s; the driver may hang", silent.as_secs()))
    }
}

/// Opens a port.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, MonitorError> {
    TcpListener::bind(address).await.map_err(|source| MonitorError::Listen { address, source })
}

/// Answers `/healthz` and `/readyz` until told to stop.
pub(super) async fn health(listener: TcpListener, pulse: Arc<Pulse>, stop: CancellationToken) {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(pulse);
    serve(listener, router, stop).await;
}

/// Answers `/metrics` until told to stop.
pub(super) async fn metrics(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) {
    let router = Router::new().route("/metrics", get(all_metrics)).with_state(metrics);
    serve(listener, router, stop).await;
}

async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::warn!(%error, "a port of the monitor no longer answers");
    }
}

async fn healthz(State(pulse): State<Arc<Pulse>>) -> (StatusCode, String) {
    match pulse.alive(Instant::now()) {
        Ok(()) => (StatusCode::OK, "ok".into()),
        Err(words) => (StatusCode::SERVICE_UNAVAILABLE, words),
    }
}

async fn readyz(State(pulse): State<Arc<Pulse>>) -> (StatusCode, &'static str) {
    if pulse.ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "nothing was published yet")
    }
}

async fn all_metrics(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, agentaflow_metrics::CONTENT_TYPE)], metrics.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_is_stuck_for_five_intervals_is_not_healthy() {
        let pulse = Pulse::new(Duration::from_secs(15));
        let now = Instant::now();
        assert!(pulse.alive(now + Duration::from_secs(74)).is_ok());
        assert!(pulse.alive(now + Duration::from_secs(77)).is_err());
    }
}
