//! A client for the API: JSON calls, streams of lines, streams of bytes.
//!
//! A [`Client`] has the address of one server and one token, and is cheap to clone. Build a call, then send it:
//!
//! ```no_run
//! # async fn example() -> Result<(), agentaflow_api::client::ClientError> {
//! use agentaflow_api::client::Client;
//! let client = Client::new("http://127.0.0.1:8000", Some("token".into()))?;
//! let jobs: Vec<agentaflow_api::job::Job> =
//!     client.get("/gpu-workers/jobs/").query("limit", 10).json().await?;
//! # Ok(())
//! # }
//! ```

pub mod agent;
mod call;
mod certificate;
mod stream;
mod trust;
mod unreachable;
pub mod user;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Once;
use std::time::Duration;

use reqwest::Method;
use rustls::pki_types::CertificateDer;
use thiserror::Error;
use url::{Host, Url};

use crate::error::{ErrorBody, ErrorCode};
use crate::units::{Secret, Stamp};

pub use call::Call;
pub use certificate::not_after;
pub use stream::{Bytes, Lines};
pub use trust::{
    CertificateProblem, Fingerprint, NotAFingerprint, Trust, server_proof, token_hash,
};
pub use unreachable::UnreachableCause;

/// Timeout for a new connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of one server with one token.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
}

/// Error of a call.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The address of the server is not valid.
    #[error(
        "`{address}` is not the address of a server: {problem}; write it like `http://127.0.0.1:8000`"
    )]
    Address {
        /// Address as given.
        address: String,
        problem: String,
    },
    /// The server did not answer, or the connection broke.
    #[error("cannot reach {url}: {cause}")]
    Unreachable {
        /// URL without its query.
        url: String,
        cause: UnreachableCause,
    },
    /// The certificate of the server is not trusted. Nothing was sent.
    #[error("the certificate of {url} is not trusted: {problem}")]
    Untrusted {
        /// URL without its query.
        url: String,
        problem: CertificateProblem,
    },
    /// The server returned an error.
    #[error("{}", body.detail)]
    Refused { status: u16, body: Box<ErrorBody> },
    /// The response is not one of this API.
    #[error("{url} answered with something that is not from an agentaflow server: {cause}")]
    Garbled {
        /// URL without its query.
        url: String,
        cause: String,
    },
}

impl ClientError {
    /// HTTP status, where the server answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Error code of the response, where the server answered.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { body, .. } => Some(body.code),
            _ => None,
        }
    }

    /// Returns true if a retry of the same call may succeed: no response, rate limit, or server error.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Garbled { .. } => true,
            Self::Refused { status, .. } => *status == 429 || *status >= 500,
            Self::Address { .. } | Self::Untrusted { .. } => false,
        }
    }

    fn unreachable(url: &Url, error: &reqwest::Error) -> Self {
        match trust::certificate_problem(error) {
            Some(problem) => Self::Untrusted { url: shown(url), problem },
            None => Self::Unreachable { url: shown(url), cause: UnreachableCause::of(error) },
        }
    }
}

impl Client {
    /// Creates a client for a server address such as `http://127.0.0.1:8000`. Keeps a path as a prefix, without the
    /// base path of the worker API at its end.
    pub fn new(address: &str, token: Option<Secret>) -> Result<Self, ClientError> {
        Self::trusting(address, token, &Trust::System)
    }

    /// Like [`Client::new`], with other accepted certificates than the system's. They require an `https://`
    /// address.
    pub fn trusting(
        address: &str,
        token: Option<Secret>,
        trust: &Trust,
    ) -> Result<Self, ClientError> {
        let base = parse_base(address)?;
        let wrong = |problem: String| ClientError::Address { address: shown(&base), problem };
        if *trust != Trust::System && base.scheme() != "https" {
            return Err(wrong(
                "a fingerprint or authority requires `https://`; plain HTTP has no certificate"
                    .to_owned(),
            ));
        }
        let builder = trusted(builder(&base), trust).map_err(wrong)?;
        let http = builder.build().map_err(|error| {
            wrong(format!("no connection can be set up: {}", UnreachableCause::of(&error)))
        })?;
        Ok(Self { http, base, token })
    }

    /// Fingerprint of a server, without trust in it and without sending anything to it.
    pub async fn fingerprint(address: &str) -> Result<Fingerprint, ClientError> {
        let client = Self::trusting(address, None, &Trust::Nothing)?;
        let url = shown(client.base());
        match client.get("/healthz").nothing().await {
            Err(ClientError::Untrusted {
                problem: CertificateProblem::NotPinned { found },
                ..
            }) => Ok(found),
            Err(error @ ClientError::Unreachable { .. }) => Err(error),
            _ => Err(ClientError::Garbled { url, cause: "it has no certificate".to_owned() }),
        }
    }

    /// End of the validity of the server's certificate; none for plain HTTP.
    pub async fn certificate_expiry(&self) -> Result<Option<Stamp>, ClientError> {
        let response = self.http.get(self.base.clone()).send().await;
        let response = response.map_err(|error| ClientError::unreachable(&self.base, &error))?;
        let info = response.extensions().get::<reqwest::tls::TlsInfo>();
        let certificate = info.and_then(reqwest::tls::TlsInfo::peer_certificate);
        let expires = certificate.and_then(|der| not_after(&CertificateDer::from(der)));
        Ok(expires.map(|at| Stamp(at.as_millisecond())))
    }

    /// Client of the same server with another token.
    #[must_use]
    pub fn with_token(&self, token: Secret) -> Self {
        Self { http: self.http.clone(), base: self.base.clone(), token: Some(token) }
    }

    /// Address of the server.
    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Starts a call. `path` is the whole path, such as `/gpu-workers/jobs/`; escape names from outside with
    /// [`segment`].
    pub fn call(&self, method: Method, path: &str) -> Call {
        let mut url = self.base.clone();
        let prefix = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{prefix}{path}"));
        Call::new(self.http.clone(), method, url, self.token.clone())
    }

    /// Starts a `GET`.
    pub fn get(&self, path: &str) -> Call {
        self.call(Method::GET, path)
    }

    /// Starts a `POST`.
    pub fn post(&self, path: &str) -> Call {
        self.call(Method::POST, path)
    }

    /// Starts a `PUT`.
    pub fn put(&self, path: &str) -> Call {
        self.call(Method::PUT, path)
    }

    /// Starts a `DELETE`.
    pub fn delete(&self, path: &str) -> Call {
        self.call(Method::DELETE, path)
    }
}

/// Escapes a path segment, so that a `/` in a name stays within it.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

const NO_SCHEME: &str = "it must begin with `http://` or `https://`";

/// Parses and normalises the address of a server.
fn parse_base(address: &str) -> Result<Url, ClientError> {
    let wrong = |problem: String| ClientError::Address { address: hide_password(address), problem };
    let mut url: Url = address.trim().parse().map_err(|error: url::ParseError| {
        wrong(match error {
            url::ParseError::RelativeUrlWithoutBase => NO_SCHEME.to_owned(),
            other => other.to_string(),
        })
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong(NO_SCHEME.to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a user name or password does not belong in it".to_owned()));
    }
    url.set_query(None);
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix(crate::BASE).unwrap_or(path).to_owned();
    url.set_path(&path);
    Ok(url)
}

/// An address with its password hidden.
fn hide_password(address: &str) -> String {
    match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}://***{}", &address[..scheme], &address[at..])
        }
        _ => address.to_owned(),
    }
}

fn builder(base: &Url) -> reqwest::ClientBuilder {
    install_crypto();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("agentaflow/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        // A redirect could carry the token to another host.
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(unreachable::resolver())
        // For `certificate_expiry`.
        .tls_info(true);
    if base.scheme() == "http" {
        // Plain HTTP needs no system certificates, which take time and memory to read.
        builder = builder.tls_certs_only([]);
    }
    if is_loopback(base) {
        builder = builder.no_proxy();
    }
    builder
}

fn trusted(
    builder: reqwest::ClientBuilder,
    trust: &Trust,
) -> Result<reqwest::ClientBuilder, String> {
    let config =
        |pin| trust::pinned_config(pin).map_err(|error| format!("TLS cannot be set up: {error}"));
    Ok(match trust {
        Trust::System => builder,
        Trust::Authority(pem) => {
            let read = reqwest::Certificate::from_pem_bundle(pem).unwrap_or_default();
            if read.is_empty() {
                return Err("the file of its authority has no PEM certificate".to_owned());
            }
            builder.tls_certs_only(read)
        }
        Trust::Pinned(pin) => builder.tls_backend_preconfigured(config(Some(*pin))?),
        Trust::Nothing => builder.tls_backend_preconfigured(config(None)?),
    })
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => IpAddr::from(address).is_loopback(),
        Some(Host::Ipv6(address)) => IpAddr::from(address).is_loopback(),
        None => false,
    }
}

/// Selects the TLS cryptography of the process once; an earlier selection stays.
pub fn install_crypto() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// A URL without its query, which may hold secrets.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_prefix_and_loses_the_base_path() {
        let path = |text: &str| {
            Client::new(text, None).map(|client| client.get("/healthz").url().to_string())
        };
        assert_eq!(path("http://a:8000").unwrap(), "http://a:8000/healthz");
        assert_eq!(path("http://a:8000/gpu-workers/").unwrap(), "http://a:8000/healthz");
        assert_eq!(path("http://a/x/").unwrap(), "http://a/x/healthz");
    }

    #[test]
    fn an_address_that_cannot_be_one_is_refused_without_its_password() {
        let text = Client::new("http://me:hunter2@a", None).unwrap_err().to_string();
        assert!(text.contains("does not belong") && !text.contains("hunter2"), "{text}");
        assert!(Client::new("ftp://a", None).unwrap_err().to_string().contains("must begin with"));
        assert!(Client::new("a:8000", None).is_err());
    }

    #[test]
    fn a_name_cannot_leave_its_part_of_the_path() {
        assert_eq!(segment("../a b"), "%2E%2E%2Fa%20b");
    }
}
