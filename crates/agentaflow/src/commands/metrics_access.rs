//! Options of the metrics endpoint of servers, agents, schedulers and monitors.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agentaflow_metrics::{Access, Endpoint, MetricSource};
use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::kubernetes;
use crate::failure::usage;

/// Port of a server's metrics, the usual one of programs with a Prometheus endpoint of their own.
const PORT: u16 = 9464;

/// Endpoint of a server. The API also serves /metrics, to admins and viewers.
#[derive(Debug, clap::Args)]
pub(crate) struct MetricsListener {
    /// Listen address for /metrics; `none` disables it [default: port 9464 in a pod, else 127.0.0.1:9464, or a free port if
    /// it is in use]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen)]
    metrics_listen: Option<kubernetes::Listen>,
    #[command(flatten)]
    access: MetricsAccess,
}

impl MetricsListener {
    /// Serves the sources until `stop`; returns the address.
    pub(crate) async fn serve(
        &self,
        sources: Vec<Arc<dyn MetricSource>>,
        stop: CancellationToken,
    ) -> Result<Option<SocketAddr>> {
        let Some(address) = kubernetes::listen_at(self.metrics_listen, PORT) else {
            return Ok(None);
        };
        let endpoint = Endpoint { access: self.access.at(address)?, sources };
        let listener = match TcpListener::bind(address).await {
            // Only a port that was not given moves.
            Err(error) if self.metrics_listen.is_none() && error.kind() == ErrorKind::AddrInUse => {
                TcpListener::bind((address.ip(), 0)).await
            }
            bound => bound,
        };
        let listener = listener.with_context(|| {
            format!("cannot listen on {address} for metrics; choose another address with --metrics-listen")
        })?;
        let address = listener.local_addr()?;
        tokio::spawn(endpoint.serve(listener, stop));
        Ok(Some(address))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct MetricsAccess {
    /// File with the token that readers of /metrics send as `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE")]
    metrics_token_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DcgmNames {
    /// Also export the metrics under the names and labels of dcgm-exporter (`DCGM_FI_DEV_GPU_UTIL`, …)
    #[arg(long)]
    pub(crate) dcgm_names: bool,
}

impl MetricsAccess {
    /// Rule for an address: loopback is open, any other address needs the token.
    pub(crate) fn at(&self, address: SocketAddr) -> Result<Access> {
        Ok(Access::of(address, self.token()?))
    }

    /// Rule of a Kubernetes daemon. In a pod network policies limit the readers: open without a token.
    pub(crate) fn of_daemon(&self, address: Option<SocketAddr>) -> Result<Access> {
        match (self.token()?, address) {
            (Some(token), _) => Ok(Access::Token(token)),
            (None, Some(address)) if !kubernetes::in_pod() => Ok(Access::of(address, None)),
            (None, _) => Ok(Access::Open),
        }
    }

    fn token(&self) -> Result<Option<String>> {
        let Some(path) = &self.metrics_token_file else { return Ok(None) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the token in {}", path.display()))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(usage(format!("--metrics-token-file: {} is empty", path.display())));
        }
        Ok(Some(token.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_of_a_pod_a_daemon_is_open_on_loopback_only() {
        let access = MetricsAccess { metrics_token_file: None };
        let of = |address: &str| access.of_daemon(Some(address.parse().unwrap())).unwrap();
        assert!(matches!(of("127.0.0.1:9090"), Access::Open));
        assert!(matches!(of("0.0.0.0:9090"), Access::Closed));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let access = MetricsAccess { metrics_token_file: Some(file) };
        let public = access.of_daemon(Some("0.0.0.0:9090".parse().unwrap())).unwrap();
        assert!(matches!(public, Access::Token(token) if token == "secret"));
    }
}
