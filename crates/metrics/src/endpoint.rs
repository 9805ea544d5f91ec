//! `GET /metrics`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exposition::{Exposition, Format, MetricType};

const CLOSED: &str = "\
Other machines reach this address, so metrics need a read token: start the program with --metrics-token-file FILE, or with \
a loopback address\n";

const WRONG: &str = "Metrics need the read token: `Authorization: Bearer TOKEN`\n";

/// A part of a program with metrics.
pub trait MetricSource: Send + Sync {
    /// Adds the current values.
    fn write(&self, text: &mut Exposition);
}

/// Permission to read the metrics.
#[derive(Clone, Default)]
pub enum Access {
    /// Every client that reaches the address.
    #[default]
    Open,
    /// Clients that send the token as `Authorization: Bearer TOKEN`.
    Token(String),
    /// Other machines reach the address, and no token is set.
    Closed,
}

impl Access {
    /// Rule of an address: loopback is open, any other address needs the token.
    pub fn of(address: SocketAddr, token: Option<String>) -> Self {
        match token {
            Some(token) => Self::Token(token),
            None if address.ip().is_loopback() => Self::Open,
            None => Self::Closed,
        }
    }

    /// Error for a request without permission.
    fn refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        let sent = || headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match self {
            Self::Open => None,
            Self::Closed => Some(CLOSED),
            Self::Token(token) => {
                let sent =
                    sent().and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
                let same = bool::from(sent.trim().as_bytes().ct_eq(token.as_bytes()));
                (!same).then_some(WRONG)
            }
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Token(_) => "Token",
            Self::Closed => "Closed",
        })
    }
}

/// Sources that one address serves.
#[derive(Clone)]
pub struct Endpoint {
    pub access: Access,
    pub sources: Vec<Arc<dyn MetricSource>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Route `/metrics`.
    pub fn router(self) -> Router {
        Router::new().route("/metrics", get(scrape)).with_state(self)
    }

    /// Serves the route on a port of its own until `stop`.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let served =
            axum::serve(listener, self.router()).with_graceful_shutdown(stop.cancelled_owned());
        // Accept errors are retried inside; this one cannot be.
        let _ = served.await;
    }

    /// Response to a request with these headers.
    pub fn respond(&self, headers: &HeaderMap) -> Response {
        if let Some(refusal) = self.access.refusal(headers) {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            return (StatusCode::UNAUTHORIZED, challenge, refusal).into_response();
        }
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let format = Format::accepted(accept);
        ([(header::CONTENT_TYPE, format.content_type())], self.text(format)).into_response()
    }

    /// Text of a scrape.
    pub fn text(&self, format: Format) -> String {
        let mut text = Exposition::new(format);
        for source in &self.sources {
            source.write(&mut text);
        }
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        let help = "Version of the program.";
        text.series("agentaflow_build_info", MetricType::Gauge, help, version);
        text.into_text()
    }
}

async fn scrape(State(endpoint): State<Endpoint>, headers: HeaderMap) -> Response {
    endpoint.respond(&headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(access: &Access, sent: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        if let Some(sent) = sent {
            headers.insert(header::AUTHORIZATION, sent.parse().unwrap());
        }
        access.refusal(&headers).is_some()
    }

    #[test]
    fn loopback_is_open_and_other_addresses_need_the_token() {
        let (loopback, public) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        assert!(!refused(&Access::of(loopback, None), None));
        assert!(refused(&Access::of(public, None), None));
        assert!(refused(&Access::of(public, None), Some("Bearer ")));
        for address in [loopback, public] {
            let access = Access::of(address, Some("secret".into()));
            assert!(!refused(&access, Some("Bearer secret")));
            for wrong in
                [None, Some("Bearer secre"), Some("Basic secret"), Some("secret"), Some("Bearer ")]
            {
                assert!(refused(&access, wrong), "{address} {wrong:?}");
            }
        }
    }

    #[test]
    fn the_token_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", Access::Token("secret".into())), "Token");
    }
}
