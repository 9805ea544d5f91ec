//! The dashboard of a cluster.
//!
//! It has the pages and the calls of the server's REST API. Lists and events come from the state of the leading scheduler and
//! contain the objects that the reader may list (`board`, `sight`); output, explanations and cancellations of one job are
//! requests to the API server with the reader's own token. Start with `router.rs`.

mod answer;
mod board;
mod diff;
mod front;
mod person;
mod router;
mod routes;
mod rows;
mod sessions;
mod sight;

use std::net::{Ipv4Addr, SocketAddr};

use agentaflow_dashboard::Dashboard;
use agentaflow_kube_scheduler::ClusterReader;
use agentaflow_kube_serve::{Certificate, Port, ServeError};
use kube::Client;
use tokio_util::sync::CancellationToken;

/// Default port.
pub const PORT: u16 = 8443;

/// Address and sources of the dashboard.
#[derive(Clone, Debug)]
pub struct Options {
    pub listen: SocketAddr,
    pub certificate: Certificate,
    /// Connection to the API server; its credentials are never used for requests of readers.
    pub cluster: kube::Config,
    pub reader: ClusterReader,
    /// Files of the pages, if the program was built with them.
    pub dashboard: Option<Dashboard>,
}

/// Serves until `stop`. Waits for the API server at startup.
pub async fn serve(
    options: Options,
    client: Client,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let front = front::Front::bind(options.listen, options.reader.clone()).await?;
    let inner = (Ipv4Addr::LOCALHOST, 0).into();
    let port = Port::bind("the dashboard", inner, options.certificate.clone(), None)?;
    let accepting = front.accept(port.address(), stop.clone());
    let router = router::router(options, &client, stop.clone());
    let (served, ()) = tokio::join!(port.serve(client, router, (), stop), accepting);
    served
}
