//! Connections: taken, served, and ended in time when the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower_http::normalize_path::NormalizePath;

use super::words::InWords;
use crate::http::Peer;

/// Connections at the same time; more wait to be taken. Below the usual limit of open files.
const MOST: usize = 10_000;
/// How long a request's head may take, which is also how long a connection may be idle. Longer than clients of
/// ours keep theirs, so that it is they who close.
const HEAD: Duration = Duration::from_secs(95);
/// Bytes of a request's head.
const HEAD_SIZE: usize = 64 << 10;
/// How long requests under way may take to finish when the server stops.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// A peer that does not acknowledge anything for so long is gone.
const SILENCE_MS: u32 = 30_000;

type Site = NormalizePath<Router>;

/// Serves until told to stop, then lets requests finish for a moment.
pub(super) async fn serve(listener: TcpListener, site: Site, stopping: CancellationToken) {
    let places = Arc::new(Semaphore::new(MOST));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            taken = take(&listener, &places) => {
                let Some((stream, place)) = taken else { continue };
                connections.spawn(connection(stream, place, site.clone(), stopping.clone()));
            }
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_WORDS, rest).await.is_err() {
        connections.shutdown().await;
    }
}

async fn take(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            // Out of files, for example: waiting a little is all that helps.
            tracing::warn!(%error, "a connection could not be taken");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
    site: Site,
    stopping: CancellationToken,
) {
    let Ok(peer) = stream.peer_addr() else { return };
    tune(&stream);
    let service = hyper::service::service_fn(move |mut request: hyper::Request<_>| {
        request.extensions_mut().insert(Peer(peer.ip()));
        site.clone().oneshot(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_SIZE);
    let connection = builder.serve_connection(InWords::new(TokioIo::new(stream)), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection ended early");
    }
}

/// Small answers go out at once, and dead peers are noticed. What the system refuses is done without.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, SILENCE_MS);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(30));
}
