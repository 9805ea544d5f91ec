//! Client, namespace and listen address of the Kubernetes daemons.

use std::net::SocketAddr;
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
