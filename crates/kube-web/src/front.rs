//! Connections of browsers. A standby replica passes them to the leader as they are: TLS ends at the leader, which serves
//! the same certificate.

use std::net::SocketAddr;
use std::time::Duration;

use agentaflow_kube_scheduler::ClusterReader;
use agentaflow_kube_serve::ServeError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// First byte of a connection that another replica passes on; TLS never starts with it. It is not passed on again, so that
/// two replicas that take each other for the leader cannot loop.
const FORWARDED: u8 = 0;
/// Time for the first byte, for a leader, and for the connection to it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of looks for a leader.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) struct Front {
    listener: TcpListener,
    reader: ClusterReader,
}

impl Front {
    pub(crate) async fn bind(
        address: SocketAddr,
        reader: ClusterReader,
    ) -> Result<Self, ServeError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self { listener, reader })
    }

    /// Accepts connections until `stop`; `inner` is the TLS port of this replica.
    pub(crate) async fn accept(self, inner: SocketAddr, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => return,
            };
            let Ok((stream, _)) = accepted else {
                // Too many open files, for example.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (reader, stop) = (self.reader.clone(), stop.clone());
            tokio::spawn(async move {
                tokio::select! {
                    // Either end may break the connection off.
                    _ = pass_on(stream, inner, &reader) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}

/// Waits for a leader.
async fn target(inner: SocketAddr, reader: &ClusterReader, forwarded: bool) -> SocketAddr {
    loop {
        let leader = || reader.leader_dashboard().filter(|_| !forwarded);
        let found = if reader.is_leading() { Some(inner) } else { leader() };
        if let Some(found) = found {
            return found;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn pass_on(
    mut browser: TcpStream,
    inner: SocketAddr,
    reader: &ClusterReader,
) -> std::io::Result<()> {
    let mut first = [0; 1];
    tokio::time::timeout(TIMEOUT, browser.peek(&mut first)).await??;
    let forwarded = first[0] == FORWARDED;
    if forwarded {
        browser.read_exact(&mut first).await?;
    }
    let target = target(inner, reader, forwarded);
    let target = tokio::time::timeout(TIMEOUT, target).await?;
    let mut leader = tokio::time::timeout(TIMEOUT, TcpStream::connect(target)).await??;
    if target != inner {
        leader.write_all(&[FORWARDED]).await?;
    }
    copy_bidirectional(&mut browser, &mut leader).await?;
    Ok(())
}
