//! Admission webhook for pods, workloads and queues.
//!
//! Four paths: `/mutate-pods` sets the scheduler name of GPU pods, `/mutate-jobs` suspends jobs that become units,
//! `/validate-workloads` rejects a `GPUWorkload`
//! whose pods cannot be created, `/validate-queues` rejects an invalid `GPUQueue`. Pure functions compute the
//! responses (`pods`, `template`, `workloads`, `queues`); other functions read their input.

mod configuration;
mod jobs;
mod namespace_quota;
mod owners;
mod pods;
mod queues;
mod review;
mod server;
mod template;
mod workloads;

use agentaflow_kube_core::names;
use agentaflow_kube_serve::{Certificate, CertificateSource, ServeError};
use std::net::{Ipv4Addr, SocketAddr};

use kube::Client;
use tokio_util::sync::CancellationToken;

/// Address, certificate and scope of the webhook.
#[derive(Clone, Debug)]
pub struct Options {
    pub listen: SocketAddr,
    /// Namespace of agentaflow.
    pub namespace: String,
    /// Service name of the webhook.
    pub service: String,
    pub certificates: CertificateSource,
    /// Address such as `https://127.0.0.1:9443` for an API server that cannot reach services. The webhook then writes
    /// the configurations itself, with this address.
    pub url: Option<String>,
    /// Scheduler name to set on pods.
    pub scheduler_name: String,
    /// Name of both webhook configurations.
    pub configuration: String,
    /// Used with `url`: only pods and workloads of these namespaces; empty selects all.
    pub namespaces: Vec<String>,
}

impl Options {
    /// Certificate of the webhook's port.
    pub fn certificate(&self) -> Certificate {
        Certificate {
            namespace: self.namespace.clone(),
            service: self.service.clone(),
            url: self.url.clone(),
            source: self.certificates.clone(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: (Ipv4Addr::UNSPECIFIED, PORT).into(),
            namespace: names::NAMESPACE.to_owned(),
            service: SERVICE.to_owned(),
            certificates: CertificateSource::SelfMade,
            url: None,
            scheduler_name: names::SCHEDULER_NAME.to_owned(),
            configuration: CONFIGURATION.to_owned(),
            namespaces: Vec::new(),
        }
    }
}

/// Serves until `stop`. Waits for the API server at startup.
pub async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    server::serve(options, client, stop).await
}

/// Webhook configurations that [`serve`] expects, as in `deploy/kubernetes`: without the trusted certificate, which
/// `serve` adds.
pub fn configurations(options: &Options) -> [serde_json::Value; 2] {
    configuration::KINDS.map(|kind| configuration::configuration(kind, options))
}

/// Default port of the webhook.
pub const PORT: u16 = 9443;
/// Service of the scheduler.
pub const SERVICE: &str = "agentaflow-scheduler-service";
/// Default name of both webhook configurations.
pub const CONFIGURATION: &str = "agentaflow";
