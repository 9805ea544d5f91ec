//! Requests to the receiver.

use std::time::Duration;

use agentaflow_backoff::BackoffPolicy;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Value, json};
use thiserror::Error;

use crate::attribute::{self, Attribute};
use crate::collector::Collector;
use crate::span::Span;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest delay that a receiver may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);
const RETRY: BackoffPolicy =
    BackoffPolicy::new(Duration::from_secs(1), Duration::from_mins(1)).with_jitter();
const SCOPE: &str = "agentaflow";

/// Program that exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `service.name`, such as `agentaflow-server`.
    pub service: &'static str,
    /// `service.instance.id`: differs between instances of one service.
    pub instance: String,
}

/// Client of one receiver.
#[derive(Clone, Debug)]
pub struct Exporter {
    collector: Collector,
    resource: Resource,
    http: reqwest::Client,
}

#[derive(Debug, Error)]
pub enum ExportError {
    /// The receiver may accept the same data later.
    #[error("cannot reach the OTLP receiver {collector}")]
    Unreachable { collector: String, source: reqwest::Error },
    #[error("the OTLP receiver {collector} is not ready: status {status}")]
    NotReady { collector: String, status: StatusCode, retry_after: Option<Duration> },
    /// The receiver will not accept the same data.
    #[error("the OTLP receiver {collector} rejected the data: status {status}")]
    Rejected { collector: String, status: StatusCode },
    #[error("cannot create an HTTP client")]
    Client(#[source] reqwest::Error),
}

impl ExportError {
    /// Returns true if the same data may be accepted later.
    fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotReady { .. })
    }

    /// Delay that the receiver asked for.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NotReady { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Exporter {
    pub fn new(collector: Collector, resource: Resource) -> Result<Self, ExportError> {
        agentaflow_api::client::install_crypto();
        let mut builder = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // A redirect could carry credentials to another host.
            .redirect(reqwest::redirect::Policy::none());
        if collector.is_plain() {
            // Plain HTTP needs no system certificates, which take time and memory to read.
            builder = builder.tls_certs_only([]);
        }
        // The address may hold credentials.
        let http = builder.build().map_err(|error| ExportError::Client(error.without_url()))?;
        Ok(Self { collector, resource, http })
    }

    async fn send_spans(&self, spans: &[Span]) -> Result<(), ExportError> {
        let spans: Vec<Value> = spans.iter().map(Span::encode).collect();
        let scope = json!({ "scope": scope(), "spans": spans });
        let body = json!({ "resourceSpans": [
            { "resource": self.encode_resource(), "scopeSpans": [scope] }
        ] });
        self.send("traces", &body).await
    }

    /// Sends spans until the receiver has accepted or rejected them.
    pub async fn deliver(&self, spans: &[Span]) {
        let mut backoff = RETRY.start();
        let mut reported = false;
        while !spans.is_empty() {
            let Err(error) = self.send_spans(spans).await else {
                if reported {
                    tracing::info!(receiver = %self.collector, "Traces are exported again");
                }
                return;
            };
            if !error.is_retryable() {
                return warn(&error, "The receiver accepts no spans; dropped them");
            }
            if !reported {
                warn(&error, "Cannot export traces; retrying");
                reported = true;
            }
            let delay = backoff.next_delay();
            tokio::time::sleep(error.retry_after().map_or(delay, |asked| asked.max(delay))).await;
        }
    }

    /// Sends metrics in their encoded form.
    pub(crate) async fn send_metrics(&self, metrics: &[Value]) -> Result<(), ExportError> {
        let scope = json!({ "scope": scope(), "metrics": metrics });
        let body = json!({ "resourceMetrics": [
            { "resource": self.encode_resource(), "scopeMetrics": [scope] }
        ] });
        self.send("metrics", &body).await
    }

    async fn send(&self, signal: &str, body: &Value) -> Result<(), ExportError> {
        let mut request = self
            .http
            .post(self.collector.address(signal))
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string());
        for (name, value) in self.collector.headers() {
            request = request.header(name, value);
        }
        let collector = self.collector.to_string();
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => {
                let source = error.without_url();
                return Err(ExportError::Unreachable { collector, source });
            }
        };
        let status = answer.status();
        match status {
            _ if status.is_success() => Ok(()),
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                let seconds =
                    answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
                let delay = seconds.and_then(|text| text.parse().ok()).map(Duration::from_secs);
                let retry_after = delay.map(|delay| delay.min(LONGEST_RETRY_AFTER));
                Err(ExportError::NotReady { collector, status, retry_after })
            }
            _ => Err(ExportError::Rejected { collector, status }),
        }
    }

    fn encode_resource(&self) -> Value {
        json!({ "attributes": attribute::encode(&[
            Attribute::new("service.name", self.resource.service),
            Attribute::new("service.version", env!("CARGO_PKG_VERSION")),
            Attribute::new("service.instance.id", self.resource.instance.as_str()),
        ]) })
    }
}

/// Logs an error with its causes.
fn warn(error: &(dyn std::error::Error + 'static), message: &'static str) {
    tracing::warn!(error, "{message}");
}

fn scope() -> Value {
    json!({ "name": SCOPE, "version": env!("CARGO_PKG_VERSION") })
}
