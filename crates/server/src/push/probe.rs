//! Probe of a push agent: one request that stays open until the agent answers it.
//!
//! A blocked agent accepts no connection from the queue of its port, and a connection keeps its place there after the
//! server closed it. Repeated probes would fill the queue during a long job, and the port would look dead. Keep-alive
//! packets, which the kernel of the agent's host answers, therefore replace repeated probes.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use reqwest::{Client, ClientBuilder};
use url::Url;

use crate::core::PushReach;

/// Time after which the first keep-alive packet follows an exchange.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A connection fails after this many keep-alive packets without an answer.
const KEEPALIVE_RETRIES: u32 = 3;

/// Makes connections fail some seconds after their host is gone.
pub(super) fn with_keepalive(builder: ClientBuilder) -> ClientBuilder {
    builder
        .tcp_keepalive(KEEPALIVE_IDLE)
        .tcp_keepalive_interval(KEEPALIVE_INTERVAL)
        .tcp_keepalive_retries(KEEPALIVE_RETRIES)
}

/// Sends a request and awaits its end without a limit. Calls `silent` each time the agent has not answered for `patience`,
/// which must be longer than a connection attempt takes: the connection exists then.
pub(super) async fn reach(
    http: &Client,
    url: Url,
    patience: Duration,
    silent: impl Fn(),
) -> PushReach {
    let mut answer = std::pin::pin!(http.get(url).timeout(Duration::MAX).send());
    loop {
        match tokio::time::timeout(patience, &mut answer).await {
            Ok(Ok(response)) if response.status().is_success() => return PushReach::Answers,
            Ok(Ok(_)) => return PushReach::Accepts,
            Ok(Err(error)) => return reach_after(&error),
            Err(_) => silent(),
        }
    }
}

fn reach_after(error: &reqwest::Error) -> PushReach {
    match io_error(error) {
        Some(ErrorKind::ConnectionRefused) => PushReach::Refuses,
        Some(ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            PushReach::Unreachable
        }
        _ if error.is_connect() => PushReach::Unreachable,
        _ => PushReach::Accepts,
    }
}

fn io_error(error: &dyn Error) -> Option<ErrorKind> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        cause = inner.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(10);

    fn client() -> Client {
        agentaflow_api::client::install_crypto();
        with_keepalive(Client::builder()).tls_certs_only([]).no_proxy().build().unwrap()
    }

    /// A blocked agent: its port has room for as few connections as possible, and it accepts none.
    fn blocked_agent() -> (TcpListener, Url, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        (listener, format!("http://{address}/health").parse().unwrap(), address)
    }

    /// Timer `keepalive` in the kernel's table of the connection to this address.
    fn is_kept_alive(address: SocketAddr) -> bool {
        let remote = format!("0100007F:{:04X}", address.port());
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        rows.any(|row| row[2] == remote && row[5].starts_with("02:"))
    }

    #[tokio::test]
    async fn a_blocked_agent_has_one_connection_in_its_queue_however_long_it_blocks() {
        let (listener, url, address) = blocked_agent();
        let (silent, http) = (AtomicU32::new(0), client());
        let count = || {
            silent.fetch_add(1, Ordering::SeqCst);
        };
        let mut probe = std::pin::pin!(reach(&http, url.clone(), PATIENCE, count));
        let ended = tokio::time::timeout(Duration::from_secs(2), &mut probe).await;
        assert!(ended.is_err(), "{ended:?}");
        assert!(silent.load(Ordering::SeqCst) > 20, "{silent:?}");
        assert!(is_kept_alive(address));
        let queued = listener.accept().await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(100), listener.accept()).await;
        assert!(second.is_err(), "the only connection is the probe: {second:?}");
        // The agent dies.
        drop((listener, queued));
        assert_ne!(probe.await, PushReach::Answers);
        assert_eq!(reach(&http, url, PATIENCE, || ()).await, PushReach::Refuses);
    }
}
