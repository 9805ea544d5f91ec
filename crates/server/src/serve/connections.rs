//! Connections: accepted, served, and closed when the server stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower_http::normalize_path::NormalizePath;

use super::addresses::{Addresses, FromAddress};
use super::forwarded::TrustedProxies;
use crate::http::Peer;

/// Response to an address at its limit of connections.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\nretry-after: 10\r\n\
    content-type: application/json\r\ncontent-length: 92\r\n\r\n\
    {\"detail\":\"this address holds too many connections; close some\",\"code\":\"too_many_requests\"}\n";
/// Response to plain HTTP on a port with TLS.
const TLS_REQUIRED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 71\r\n\r\n\
    {\"detail\":\"this server requires TLS: use https://\",\"code\":\"malformed\"}\n";
/// Maximum concurrent connections; more wait in the backlog.
const MOST: usize = 10_000;
/// File descriptors reserved for other uses.
const OTHER_FILES: usize = 384;
/// Maximum concurrent connections of one address. Many agents may share the address of a proxy, with two or three
/// connections each.
const PER_ADDRESS: usize = 1024;
/// Timeout for the first request of a connection.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// Timeout for the head of a request, and for an idle connection. Longer than the idle timeout of our clients, so that the
/// client closes.
const HEAD: Duration = Duration::from_secs(95);
/// Maximum size of the head of a request.
const HEAD_SIZE: usize = 64 << 10;
/// Time for open requests to finish when the server stops.
const CLOSING_GRACE: Duration = Duration::from_secs(2);
/// A peer that acknowledges nothing for this long is gone.
const SILENCE_MS: u32 = 30_000;

type Site = NormalizePath<Router>;

/// TLS, proxies and routes of the server. Cheap to clone.
#[derive(Clone)]
pub(super) struct ConnectionContext {
    /// None for plain HTTP.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) proxies: Arc<TrustedProxies>,
    pub(super) site: Site,
}

/// Serves until `stopping` is cancelled, then lets open requests finish.
pub(super) async fn serve(
    listener: TcpListener,
    context: ConnectionContext,
    stopping: CancellationToken,
) {
    let total = max_connections(open_files());
    let free = Arc::new(Semaphore::new(total));
    let addresses = Addresses::new((total / 4).min(PER_ADDRESS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            taken = take(&listener, &free, &addresses, &context) => {
                let Some((stream, permits)) = taken else { continue };
                connections.spawn(connection(stream, permits, context.clone(), stopping.clone()));
            }
        }
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(CLOSING_GRACE, rest).await.is_err() {
        connections.shutdown().await;
    }
}

/// Limit of open files of this process.
fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Connections within the limit of open files; the rest is for the database, logs and calls to agents.
fn max_connections(files: Option<u64>) -> usize {
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    files.saturating_sub(OTHER_FILES).max(files / 2).clamp(1, MOST)
}

/// Permits of a connection: one of all, and one of its address.
type Permits = (OwnedSemaphorePermit, Option<FromAddress>);

async fn take(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
    addresses: &Addresses,
    context: &ConnectionContext,
) -> Option<(TcpStream, Permits)> {
    let permit = free.clone().acquire_owned().await.ok()?;
    let (stream, peer) = match listener.accept().await {
        Ok(taken) => taken,
        Err(error) => {
            // For example no free file descriptor: retry after a delay.
            tracing::warn!(%error, "Cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            return None;
        }
    };
    // A proxy holds the connections of many clients.
    if context.proxies.contains(peer.ip()) {
        return Some((stream, (permit, None)));
    }
    if let Ok(counted) = addresses.open(peer.ip()) {
        return Some((stream, (permit, counted)));
    }
    if context.tls.is_none() {
        // One write without waiting for the peer.
        let _ = stream.try_write(TOO_MANY_CONNECTIONS);
    }
    None
}

async fn connection(
    stream: TcpStream,
    _permits: Permits,
    context: ConnectionContext,
    stopping: CancellationToken,
) {
    let Ok(peer) = stream.peer_addr() else { return };
    tune(&stream);
    let Some(tls) = context.tls.clone() else {
        return requests(stream, peer, context, stopping).await;
    };
    let accepted = tokio::time::timeout(FIRST_HEAD, accept(stream, &tls));
    match stopping.run_until_cancelled(accepted).await {
        Some(Ok(Ok(stream))) => requests(stream, peer, context, stopping).await,
        Some(Ok(Err(error))) => tracing::debug!(%error, %peer, "TLS handshake failed"),
        Some(Err(_)) | None => {}
    }
}

/// Answers plain HTTP with an error instead of a TLS alert, which no browser or `curl` explains.
async fn accept(
    mut stream: TcpStream,
    tls: &TlsAcceptor,
) -> std::io::Result<tokio_rustls::server::TlsStream<TcpStream>> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        stream.write_all(TLS_REQUIRED).await?;
        stream.shutdown().await?;
        return Err(std::io::Error::other("plain HTTP"));
    }
    tls.accept(stream).await
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    context: ConnectionContext,
    stopping: CancellationToken,
) {
    let begun = Arc::new(AtomicBool::new(false));
    let first = begun.clone();
    let service = hyper::service::service_fn(move |mut request: hyper::Request<_>| {
        first.store(true, Ordering::Relaxed);
        let client = context.proxies.client(peer.ip(), request.headers());
        request.extensions_mut().insert(Peer(client));
        context.site.clone().oneshot(request.map(Body::new))
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_SIZE);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let patience = tokio::time::sleep(FIRST_HEAD);
    tokio::pin!(patience);
    let ended = loop {
        tokio::select! {
            ended = connection.as_mut() => break ended,
            () = patience.as_mut(), if !patience.is_elapsed() => {
                if !begun.load(Ordering::Relaxed) {
                    return;
                }
            }
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                break connection.await;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "Connection ended early");
    }
}

/// Sends small responses at once and detects dead peers. Errors of the system are ignored.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, SILENCE_MS);
    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(30));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stay_below_the_limit_of_open_files() {
        for (files, expected) in [
            (Some(1024), 640),
            (Some(256), 128),
            (Some(0), 1),
            (Some(1 << 20), MOST),
            (Some(u64::MAX), MOST),
            (None, MOST),
        ] {
            assert_eq!(max_connections(files), expected, "{files:?}");
        }
    }
}
