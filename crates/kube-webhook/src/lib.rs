//! Admission: what the API server asks us before it stores a pod, a workload or a queue.
//!
//! Three questions, each on a path of its own: `/mutate-pods` gives GPU pods our scheduler's name,
//! `/validate-workloads` refuses a `GPUWorkload` whose pods could never be made, `/validate-queues` refuses a
//! `GPUQueue` that could never be used. The answers are computed by pure functions (`pods`, `template`,
//! `workloads`, `queues`); reading what they need is done beside them.

mod certificates;
mod configuration;
mod owners;
mod pods;
mod queues;
mod review;
mod server;
mod template;
mod workloads;

use agentaflow_kube_core::names;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use kube::Client;
use tokio_util::sync::CancellationToken;

/// Where admission listens and how the API server reaches it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The namespace of the product.
    pub namespace: String,
    /// The service through which the API server reaches us.
    pub service: String,
    /// Where the certificate comes from.
    pub certificates: Certificates,
    /// An address such as `https://127.0.0.1:9443` for an API server that cannot reach services. The webhook
    /// configurations are then made by us and name it.
    pub url: Option<String>,
    /// The scheduler that pods are given to.
    pub scheduler_name: String,
    /// The name of both webhook configurations.
    pub configuration: String,
    /// With an address of our own: only pods and workloads of these namespaces; empty means all.
    pub namespaces: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            namespace: names::NAMESPACE.to_owned(),
            service: SERVICE.to_owned(),
            certificates: Certificates::SelfMade,
            url: None,
            scheduler_name: names::SCHEDULER_NAME.to_owned(),
            configuration: CONFIGURATION.to_owned(),
            namespaces: Vec::new(),
        }
    }
}

/// Where the certificate comes from.
#[derive(Clone, Debug)]
pub enum Certificates {
    /// We make one and share it among the replicas in a Secret.
    SelfMade,
    /// Somebody else keeps these PEM files up to date; they are read again when they change.
    Files {
        /// The certificate and those that vouch for it.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
        /// What the API server is told to trust; without it, the configurations are left alone.
        authority: Option<PathBuf>,
    },
}

/// Why admission cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Serving ended by itself.
    #[error("cannot serve admission on {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

/// Answers the API server until `stop`. Waits for what it needs of the cluster: an API server that is away at the
/// start delays it, and nothing more.
pub async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), WebhookError> {
    server::serve(options, client, stop).await
}

/// The webhook configurations that [`serve`] expects, as `deploy/kubernetes` has them: without the certificate to
/// trust, which it adds.
pub fn configurations(options: &Options) -> [serde_json::Value; 2] {
    configuration::KINDS.map(|kind| configuration::configuration(kind, options))
}

/// The port of admission.
pub const PORT: u16 = 9443;
/// The service of the scheduler.
pub const SERVICE: &str = "agentaflow-scheduler-service";
/// The Secret that the replicas share.
pub const SECRET: &str = "agentaflow-webhook-certs";
/// The usual name of both webhook configurations.
pub const CONFIGURATION: &str = "agentaflow";
