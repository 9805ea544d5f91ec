//! Client, namespace and listen address of the Kubernetes daemons.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;

use agentaflow_kube_core::names;
use anyhow::{Context as _, Result};

use crate::connect;
use crate::context::{Kubernetes, variable};

pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client> {
    client_of(config(kubeconfig).await?)
}

pub(crate) async fn config(kubeconfig: Option<&Path>) -> Result<kube::Config> {
    let target = Kubernetes { kubeconfig: kubeconfig.map(Path::to_owned), ..Kubernetes::default() };
    connect::config(&target).await
}

pub(crate) fn client_of(config: kube::Config) -> Result<kube::Client> {
    // Fails only if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    kube::Client::try_from(config).context("cannot create a client for the cluster")
}

/// Namespace of the agentaflow installation.
pub(crate) fn namespace(given: Option<&str>) -> String {
    let named = given.map(str::to_owned).or_else(|| variable("KUBERNETES_NAMESPACE"));
    named.unwrap_or_else(|| names::NAMESPACE.to_owned())
}

/// The given address, else the port on the default address.
pub(crate) fn listen_at(given: Option<Listen>, port: u16) -> Option<SocketAddr> {
    let default = || default_host(in_pod(), pod_ip());
    given.map_or_else(|| Some((default(), port).into()), |given| given.0)
}

/// As [`listen_at`], but no address by default outside of a pod.
pub(crate) fn listen_in_pod(given: Option<Listen>, port: u16) -> Option<SocketAddr> {
    if given.is_some() || in_pod() { listen_at(given, port) } else { None }
}

/// True in a pod.
pub(crate) fn in_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some()
}

/// In a pod its address, which kubelets and services use, or all addresses if the pod does not know its own; elsewhere the
/// loopback.
fn default_host(in_pod: bool, pod_ip: Option<IpAddr>) -> IpAddr {
    match pod_ip {
        Some(address) if in_pod => address,
        None if in_pod => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    }
}

/// Address of this pod, by the downward API.
fn pod_ip() -> Option<IpAddr> {
    variable("POD_IP")?.parse().ok()
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
    if let Some(address) = pod_ip() {
        return Some(address);
    }
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
    fn a_pod_listens_on_its_own_address() {
        let own: IpAddr = "10.1.2.3".parse().expect("an address");
        assert_eq!(default_host(true, Some(own)), own);
        assert_eq!(default_host(true, None), Ipv4Addr::UNSPECIFIED);
        assert_eq!(default_host(false, Some(own)), Ipv4Addr::LOCALHOST);
    }

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
