//! Custom metrics of Kubernetes for autoscalers: `gpu_utilization` of pods and `queue_depth` of `GPUQueue`s.
//!
//! The API server forwards requests for `custom.metrics.k8s.io` to the port of [`serve`]. Every replica answers from the
//! reports of the monitors and from the status of the queues, so that no request depends on the leader. Nothing is read
//! until an autoscaler asks.

mod answer;
mod api_service;
mod readings;
mod router;

use std::net::SocketAddr;

use agentaflow_kube_serve::{Certificate, FrontProxy, Port, ServeError};
use kube::Client;
use tokio_util::sync::CancellationToken;

/// Default port.
pub const PORT: u16 = 9444;

/// Address and certificate of the metrics API.
#[derive(Clone, Debug)]
pub struct Options {
    pub listen: SocketAddr,
    pub certificate: Certificate,
}

/// Serves until `stop`. Waits for the API server at startup.
pub async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let front_proxy = FrontProxy::default();
    let Certificate { namespace, service, .. } = &options.certificate;
    let api_service = api_service::ApiService::new(&client, namespace, service);
    let router = router::router(&client, namespace, front_proxy.clone());
    let (listen, certificate) = (options.listen, options.certificate);
    let port = Port::bind("custom metrics", listen, certificate, Some(front_proxy))?;
    port.serve(client, router, api_service, stop).await
}
