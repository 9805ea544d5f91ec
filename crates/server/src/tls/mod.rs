//! Certificate of the server: from files or self-signed, replaced without closing connections.
//!
//! Open connections keep their keys; each new handshake takes the current certificate ([`ResolvesServerCert`]).

mod expiry;
mod self_signed;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use agentaflow_api::client::{Fingerprint, not_after};

use crate::secrets::SecretError;

/// Interval between two reads of the certificate.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Interval between two warnings about an early expiry.
const WARN_EVERY: Duration = Duration::from_hours(24);
/// Remaining lifetime at which the server warns, and renews its own certificate.
const MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Origin of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// PEM files; the certificate may be followed by its chain.
    Files { certificate: PathBuf, key: PathBuf },
    /// A key and a certificate in the data directory, created and renewed by the server.
    SelfSigned,
}

/// No usable certificate.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` has no PEM certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("`{}` has no PEM private key", path.display())]
    NoKey { path: PathBuf },
    #[error("the certificate `{}` and the key `{}` cannot be used together", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("cannot set up TLS")]
    Setup(#[from] rustls::Error),
    #[error("cannot create a certificate")]
    Create(#[from] rcgen::Error),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// Certificate of the server.
#[derive(Debug)]
pub struct Certificates {
    files: Files,
    /// Creates and renews the files; none for files of the operator.
    own: Option<self_signed::SelfSigned>,
    current: RwLock<Current>,
    warned: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Clone, Debug)]
struct Current {
    /// Content of the files, also if it is not usable.
    read: (Vec<u8>, Vec<u8>),
    key: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    expires: Option<Timestamp>,
}

impl Certificates {
    /// Reads or creates the certificate. `names` are the names and addresses of a self-signed certificate.
    pub fn load(tls: &Tls, data: &Path, names: Vec<String>) -> Result<Self, TlsError> {
        let (files, own) = match tls {
            Tls::Files { certificate, key } => {
                (Files { certificate: certificate.clone(), key: key.clone() }, None)
            }
            Tls::SelfSigned => {
                let files =
                    Files { certificate: data.join("tls-cert.pem"), key: data.join("tls-key.pem") };
                (files, Some(self_signed::SelfSigned { names }))
            }
        };
        if let Some(own) = &own {
            own.keep(&files.certificate, &files.key, Timestamp::now())?;
        }
        let current = RwLock::new(files.load(files.read()?)?);
        Ok(Self { files, own, current, warned: Mutex::default() })
    }

    /// Fingerprint that agents and users pin. Renewal of a self-signed certificate keeps it.
    pub fn fingerprint(&self) -> Fingerprint {
        self.current().fingerprint
    }

    /// End of the validity of the certificate, if it can be read.
    pub fn expires(&self) -> Option<Timestamp> {
        self.current().expires
    }

    /// File of the certificate.
    pub fn path(&self) -> &Path {
        &self.files.certificate
    }

    pub fn is_self_signed(&self) -> bool {
        self.own.is_some()
    }

    /// TLS configuration that always serves the current certificate. The server speaks HTTP/1.1.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let versions: [&SupportedProtocolVersion; 2] =
            [&rustls::version::TLS13, &rustls::version::TLS12];
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&versions)?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Replaces the certificate when its files change, renews it before it expires, and warns about an early expiry.
    pub(crate) async fn watch(self: Arc<Self>, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            let certificates = self.clone();
            // Fails only at shutdown.
            let _ = tokio::task::spawn_blocking(move || certificates.check()).await;
        }
    }

    fn check(&self) {
        if let Some(own) = &self.own
            && let Err(error) = own.keep(&self.files.certificate, &self.files.key, Timestamp::now())
        {
            tracing::warn!(%error, "Cannot renew the certificate");
        }
        // A file may be missing for a moment while it is replaced.
        if let Ok(read) = self.files.read()
            && read != self.current().read
        {
            self.replace(read);
        }
        self.warn_before_expiry(Timestamp::now());
    }

    fn replace(&self, read: (Vec<u8>, Vec<u8>)) {
        let next = match self.files.load(read.clone()) {
            Ok(next) => {
                tracing::info!(fingerprint = %next.fingerprint, "Certificate replaced");
                next
            }
            Err(error) => {
                // Certificate and key are two files: the other one may follow.
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "The new certificate is not usable; the old one stays in use"
                );
                Current { read, ..self.current() }
            }
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn warn_before_expiry(&self, now: Timestamp) {
        let Some(warning) = expiry::warning(self.expires(), now, MARGIN) else { return };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        *warned = Some(Instant::now());
        tracing::warn!(certificate = %self.files.certificate.display(), "{warning}");
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Some(current.key.clone())
    }
}

impl Files {
    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
        };
        Ok((read(&self.certificate)?, read(&self.key)?))
    }

    fn load(&self, read: (Vec<u8>, Vec<u8>)) -> Result<Current, TlsError> {
        let (certificate, key) = (self.certificate.clone(), self.key.clone());
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&read.0).filter_map(Result::ok).collect();
        let Some(first) = chain.first().cloned() else {
            return Err(TlsError::NoCertificate { path: certificate });
        };
        let Ok(private) = PrivateKeyDer::from_pem_slice(&read.1) else {
            return Err(TlsError::NoKey { path: key });
        };
        let unusable = |source| TlsError::Unusable { certificate, key, source };
        let (made, fingerprint) = CertifiedKey::from_der(chain, private, &provider())
            .and_then(|made| Ok((made, Fingerprint::of_certificate(&first)?)))
            .map_err(unusable)?;
        Ok(Current { read, key: Arc::new(made), fingerprint, expires: not_after(&first) })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests;
