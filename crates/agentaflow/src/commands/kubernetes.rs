//! Client, namespace and listen address of the Kubernetes daemons.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use agentaflow_kube_core::names;
use anyhow::{Context as _, Result};

use crate::connect;
use crate::context::{Kubernetes, variable};

pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client> {
    // Fails only if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let target = Kubernetes { kubeconfig: kubeconfig.map(Path::to_owned), ..Kubernetes::default() };
    let config = connect::config(&target).await?;
    kube::Client::try_from(config).context("cannot create a client for the cluster")
}

/// Namespace of the agentaflow installation.
pub(crate) fn namespace(given: Option<&str>) -> String {
    let named = given.map(str::to_owned).or_else(|| variable("KUBERNETES_NAMESPACE"));
    named.unwrap_or_else(|| names::NAMESPACE.to_owned())
}

/// The given address, else the port on the default address: in a pod all addresses of the pod, because kubelets and services
/// use its IP and `kubectl port-forward` its loopback; elsewhere the loopback only.
pub(crate) fn listen_at(given: Option<Listen>, port: u16) -> Option<SocketAddr> {
    let in_pod = variable("KUBERNETES_SERVICE_HOST").is_some();
    let host = if in_pod { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
    given.map_or(Some((host, port).into()), |given| given.0)
}

/// As [`listen_at`]; a free port if the port was not given and is in use.
pub(crate) fn listen_at_free(given: Option<Listen>, port: u16) -> Option<SocketAddr> {
    let address = listen_at(given, port)?;
    let in_use = |error: std::io::Error| error.kind() == std::io::ErrorKind::AddrInUse;
    if given.is_some() || !TcpListener::bind(address).is_err_and(in_use) {
        return Some(address);
    }
    let free = TcpListener::bind((address.ip(), 0)).and_then(|listener| listener.local_addr());
    let free = free.unwrap_or(address);
    tracing::info!(%free, "port {port} is in use; choosing a free port");
    Some(free)
}

/// IP of this machine or pod on the way to the API server; none outside of a cluster.
pub(crate) fn own_address() -> Option<IpAddr> {
    let host: IpAddr = variable("KUBERNETES_SERVICE_HOST")?.parse().ok()?;
    let any: IpAddr =
        if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Connecting a UDP socket sends nothing.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((host, 443)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Optional listen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen(pub(crate) Option<SocketAddr>);

/// Parses an address, or `none`.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "none" | "off" => Ok(Listen(None)),
        address => address
            .parse()
            .map(|address| Listen(Some(address)))
            .map_err(|_| "use an address such as 0.0.0.0:8080, or `none`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_that_was_not_given_moves_to_a_free_port() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = taken.local_addr().expect("an address");
        let moved = listen_at_free(None, address.port()).expect("an address");
        assert!(moved.ip().is_loopback(), "{moved}");
        assert_ne!(moved.port(), address.port());
        let given = Some(Listen(Some(address)));
        assert_eq!(listen_at_free(given, 1), Some(address));
        assert_eq!(listen_at_free(Some(Listen(None)), 1), None);
    }
}
