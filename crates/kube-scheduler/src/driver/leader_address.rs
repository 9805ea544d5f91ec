//! Address of the leader, for requests that reach a standby replica through the Service.
//!
//! The leader writes its address into annotations of its Lease. A standby replica forwards questions about the cluster; a
//! forwarded request is never forwarded again.

use axum::body::Bytes;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Annotations of the Lease.
const HTTP: &str = "agentaflow.gpu/leader-http";
const METRICS: &str = "agentaflow.gpu/leader-metrics";
const DASHBOARD: &str = "agentaflow.gpu/leader-dashboard";
/// Header of a forwarded request.
pub(crate) const FORWARDED: &str = "x-agentaflow-forwarded";
/// Timeout of a forwarded request, above the leader's own.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Largest forwarded response.
const MAX_RESPONSE: usize = 16 << 20;

/// Addresses of a replica as other replicas reach them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) dashboard: Option<SocketAddr>,
}

impl Addresses {
    /// Addresses of this replica. An unspecified listen address stands for `own`.
    pub(crate) fn of(
        http: Option<SocketAddr>,
        metrics: Option<SocketAddr>,
        dashboard: Option<SocketAddr>,
        own: Option<IpAddr>,
    ) -> Self {
        let reachable = |listen: Option<SocketAddr>| match listen {
            Some(listen) if listen.ip().is_unspecified() => {
                own.map(|own| (own, listen.port()).into())
            }
            listen => listen,
        };
        Self { http: reachable(http), metrics: reachable(metrics), dashboard: reachable(dashboard) }
    }

    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        let pairs = [(HTTP, self.http), (METRICS, self.metrics), (DASHBOARD, self.dashboard)];
        let known = pairs.into_iter().filter_map(|(name, address)| Some((name, address?)));
        known.map(|(name, address)| (name.to_owned(), address.to_string())).collect()
    }

    pub(crate) fn read(annotations: &BTreeMap<String, String>) -> Self {
        let address = |name: &str| annotations.get(name).and_then(|text| text.parse().ok());
        Self { http: address(HTTP), metrics: address(METRICS), dashboard: address(DASHBOARD) }
    }
}

/// Addresses of the leader, as last read from the Lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaderAddress(Arc<Mutex<Addresses>>);

impl LeaderAddress {
    pub(crate) fn set(&self, addresses: Addresses) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    pub(crate) fn get(&self) -> Addresses {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Sends a request to the leader; none if the leader is unknown or does not answer.
pub(crate) async fn forward(
    leader: Option<SocketAddr>,
    method: Method,
    path_and_query: &str,
    body: Bytes,
) -> Option<Response> {
    let uri: http::Uri = format!("http://{}", leader?).parse().ok()?;
    let mut config = kube::Config::new(uri);
    config.default_retry = false;
    let client = kube::Client::try_from(config).ok()?;
    let request = http::Request::builder()
        .method(method)
        .uri(path_and_query)
        .header(header::CONTENT_TYPE, "application/json")
        .header(FORWARDED, "1")
        .body(Body::from(body.to_vec()))
        .ok()?;
    let exchange = async {
        let answer = client.send(request).await.ok()?;
        let (status, kind) = (answer.status(), answer.headers().get(header::CONTENT_TYPE).cloned());
        let body = Limited::new(answer.into_body(), MAX_RESPONSE).collect().await.ok()?;
        let status = StatusCode::from_u16(status.as_u16()).ok()?;
        let mut response = (status, body.to_bytes()).into_response();
        if let Some(kind) = kind {
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        Some(response)
    };
    tokio::time::timeout(TIMEOUT, exchange).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_listen_address_stands_for_the_pods_own() {
        let any: SocketAddr = "0.0.0.0:8080".parse().expect("an address");
        let local: SocketAddr = "127.0.0.1:9090".parse().expect("an address");
        let own: IpAddr = "10.1.2.3".parse().expect("an address");
        let addresses = Addresses::of(Some(any), Some(local), None, Some(own));
        assert_eq!(addresses.http.map(|one| one.to_string()).as_deref(), Some("10.1.2.3:8080"));
        assert_eq!(addresses.metrics, Some(local));
        assert_eq!(Addresses::read(&addresses.annotations()), addresses);
        assert_eq!(Addresses::of(Some(any), None, None, None), Addresses::default());
    }
}
