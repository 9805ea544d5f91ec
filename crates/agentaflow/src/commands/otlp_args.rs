//! Options of the export by OTLP.

use agentaflow_agent::AgentMetrics;
use agentaflow_otlp::{Collector, Exporter, Resource, push_gpu_metrics};
use anyhow::Result;
use tokio_util::sync::CancellationToken;

use crate::context::variable;
use crate::failure::usage;

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct OtlpArgs {
    /// Export traces and GPU metrics to this OTLP receiver, as JSON over HTTP: http://HOST:4318; OTEL_EXPORTER_OTLP_HEADERS
    /// holds its credentials [default: OTEL_EXPORTER_OTLP_ENDPOINT, else no export]
    #[arg(long, value_name = "URL", help_heading = "Logging")]
    otlp_endpoint: Option<String>,
}

impl OtlpArgs {
    pub(crate) fn collector(&self) -> Result<Option<Collector>> {
        let option = self.otlp_endpoint.clone().map(|url| (url, "--otlp-endpoint"));
        let Some((url, source)) = option.or_else(|| Some((variable(ENDPOINT)?, ENDPOINT))) else {
            return Ok(None);
        };
        // The errors do not repeat the values, which may hold credentials.
        let collector: Collector =
            url.parse().map_err(|problem| usage(format!("{source}: {problem}")))?;
        let Some(headers) = variable(HEADERS) else { return Ok(Some(collector)) };
        let collector = collector.with_headers(&headers);
        Ok(Some(collector.map_err(|problem| usage(format!("{HEADERS}: {problem}")))?))
    }

    /// Exports the metrics of the GPUs of this host until `stop`, if a receiver is set.
    pub(crate) fn push_gpu_metrics(
        &self,
        service: &'static str,
        metrics: AgentMetrics,
        stop: CancellationToken,
    ) -> Result<()> {
        if let Some(exporter) = self.exporter(service)? {
            tokio::spawn(push_gpu_metrics(exporter, move || metrics.device_readings(), stop));
        }
        Ok(())
    }

    /// Client of a program on the host of its GPUs.
    pub(crate) fn exporter(&self, service: &'static str) -> Result<Option<Exporter>> {
        let Some(collector) = self.collector()? else { return Ok(None) };
        let instance = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Some(Exporter::new(collector, Resource { service, instance })?))
    }
}
