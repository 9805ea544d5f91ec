//! An HTTPS port with a certificate that is renewed while it serves.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::FrontProxy;
use super::certificate::{self, Certificate, Identity};

/// Time between two checks of the certificate.
const CERTIFICATE_INTERVAL: Duration = Duration::from_mins(1);
/// Delay before the cluster is queried again after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Grace period for open requests at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// An HTTPS port of the scheduler.
#[derive(Debug)]
pub struct Port {
    /// For log and errors, such as `admission`.
    purpose: &'static str,
    listener: TcpListener,
    address: SocketAddr,
    certificate: Certificate,
    front_proxy: Option<FrontProxy>,
}

/// Objects of the cluster that name a port, such as webhook configurations.
pub trait Trust: Send + Sync {
    /// Writes the CA bundle into these objects; returns false to be called again soon.
    fn trust(&self, bundle: &str) -> impl Future<Output = bool> + Send;
}

/// No object names the port.
impl Trust for () {
    async fn trust(&self, _: &str) -> bool {
        true
    }
}

/// Fatal error of a port.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is in use or not local.
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot serve {purpose} on {address}")]
    Serve { purpose: &'static str, address: SocketAddr, source: std::io::Error },
}

impl Port {
    /// Opens the port. With a front proxy only its connections are accepted.
    pub fn bind(
        purpose: &'static str,
        address: SocketAddr,
        certificate: Certificate,
        front_proxy: Option<FrontProxy>,
    ) -> Result<Self, ServeError> {
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { purpose, listener, address, certificate, front_proxy })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`. Waits for the API server at startup.
    pub async fn serve(
        self,
        client: Client,
        router: Router,
        trust: impl Trust,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let (purpose, address) = (self.purpose, self.address);
        let (identity, tls) = tokio::select! {
            first = self.first_identity(&client) => first,
            () = stop.cancelled() => return Ok(()),
        };
        let handle = Handle::new();
        let listener = self.listener.try_clone();
        let server =
            listener.and_then(|listener| axum_server::from_tcp_rustls(listener, tls.clone()));
        let server = server.map_err(|source| ServeError::Listen { address, source })?;
        let server = server.handle(handle.clone()).serve(router.into_make_service());
        tokio::pin!(server);
        tracing::info!(%address, "serving {purpose}");
        let ended = |source| ServeError::Serve { purpose, address, source };
        tokio::select! {
            result = &mut server => return result.map_err(ended),
            () = self.keep_identity(&client, identity, &tls, trust) => {}
            () = stop.cancelled() => {}
        }
        handle.graceful_shutdown(Some(SHUTDOWN_GRACE));
        server.await.map_err(ended)
    }

    /// Waits for the first certificate.
    async fn first_identity(&self, client: &Client) -> (Identity, RustlsConfig) {
        let purpose = self.purpose;
        loop {
            match self.current(client).await {
                Ok((identity, server)) => return (identity, server),
                Err(error) => {
                    tracing::warn!(error = chain(&error), "{purpose} has no certificate yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn current(
        &self,
        client: &Client,
    ) -> Result<(Identity, RustlsConfig), certificate::CertificateError> {
        let identity = certificate::current(&self.certificate, client).await?;
        let server = identity.server(self.front_proxy.as_ref())?;
        Ok((identity, RustlsConfig::from_config(server)))
    }

    /// Renews the certificate, its trust and the authority of the front proxy; never returns.
    async fn keep_identity(
        &self,
        client: &Client,
        first: Identity,
        tls: &RustlsConfig,
        trust: impl Trust,
    ) {
        let (mut shown, purpose) = (first, self.purpose);
        loop {
            let mut settled = match self.current(client).await {
                Ok((identity, server)) => {
                    // The API server must trust a certificate before it is served.
                    let trusted = match identity.bundle() {
                        Some(bundle) => trust.trust(&bundle).await,
                        None => true,
                    };
                    if trusted && identity != shown {
                        tls.reload_from_config(server.get_inner());
                        tracing::info!("{purpose} serves a new certificate");
                        shown = identity;
                    }
                    trusted
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot check the certificate");
                    false
                }
            };
            if let Some(proxy) = &self.front_proxy {
                settled &= proxy.refresh(client).await;
            }
            tokio::time::sleep(if settled { CERTIFICATE_INTERVAL } else { RETRY }).await;
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
