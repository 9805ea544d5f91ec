//! Sinks with a URL: one POST with JSON.

use std::error::Error as _;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::{DeliveryError, tls};
use crate::config::{HttpConfig, SinkKind};
use crate::message::Message;
use crate::secret::Secrets;
use crate::sink::{Origin, alertmanager, slack, teams, webhook};

const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause that a sink may ask for.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Slack,
    Teams,
    Webhook,
    Alertmanager,
}

impl Format {
    /// Format of a sink; chats have well-known hosts.
    fn of(kind: &SinkKind, url: &Url) -> Self {
        match kind {
            SinkKind::Slack(_) => Self::Slack,
            SinkKind::Teams(_) => Self::Teams,
            SinkKind::Alertmanager(_) => Self::Alertmanager,
            SinkKind::Webhook(_) | SinkKind::Email(_) => Self::Webhook,
            SinkKind::Auto(_) => Self::by_host(url.host_str().unwrap_or_default()),
        }
    }

    fn by_host(host: &str) -> Self {
        let below =
            |domain: &str| host.strip_suffix(domain).is_some_and(|name| name.ends_with('.'));
        if host == "hooks.slack.com" || host == "hooks.slack-gov.com" {
            Self::Slack
        } else if ["logic.azure.com", "api.powerplatform.com", "webhook.office.com"]
            .into_iter()
            .any(below)
        {
            Self::Teams
        } else {
            Self::Webhook
        }
    }

    fn payload(self, message: &Message, origin: Origin<'_>) -> Value {
        match self {
            Self::Slack => slack::payload(message, origin),
            Self::Teams => teams::payload(message, origin),
            Self::Webhook => webhook::payload(message, origin),
            Self::Alertmanager => alertmanager::payload(message, origin),
        }
    }
}

pub(super) async fn post(
    kind: &SinkKind,
    target: &HttpConfig,
    message: &Message,
    secrets: &Secrets,
    origin: Origin<'_>,
) -> Result<(), DeliveryError> {
    let address = secrets.read(&target.url)?;
    let url = Url::parse(address.expose()).map_err(|_| DeliveryError::Url)?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(DeliveryError::Url);
    }
    let format = Format::of(kind, &url);
    let client = client(&url, target.ca_file.as_deref())?;
    let url = if format == Format::Alertmanager { alertmanager::endpoint(&url) } else { url };
    let mut request = client.post(url).json(&format.payload(message, origin));
    if format == Format::Webhook {
        request = request.header("Idempotency-Key", &message.id);
    }
    if let Some(token) = &target.token {
        request = request.bearer_auth(secrets.read(token)?.expose());
    }
    let answer = request.send().await.map_err(|error| failure(&error))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let retry_after = retry_after.and_then(|seconds| seconds.trim().parse().ok());
    let retry_after = retry_after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE));
    Err(DeliveryError::Status { status: status.as_u16(), retry_after })
}

fn client(url: &Url, ca_file: Option<&str>) -> Result<reqwest::Client, DeliveryError> {
    agentaflow_api::client::install_crypto();
    let mut builder = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("agentaflow/", env!("CARGO_PKG_VERSION")))
        // A redirect would lead the secret path to another host.
        .redirect(reqwest::redirect::Policy::none());
    if url.scheme() == "http" {
        // Plain HTTP needs no system certificates, which take time and memory to read.
        builder = builder.tls_certs_only([]);
    } else if let Some(path) = ca_file {
        let pem = tls::read_authority(path)?;
        let found = reqwest::Certificate::from_pem_bundle(&pem);
        builder =
            builder.tls_certs_merge(found.map_err(|_| DeliveryError::Authority(path.to_owned()))?);
    }
    builder.build().map_err(|_| DeliveryError::Broken)
}

/// The error without its URL, and without the texts of libraries, which may contain the address.
fn failure(error: &reqwest::Error) -> DeliveryError {
    if error.is_timeout() {
        return DeliveryError::Timeout(TIMEOUT);
    }
    if !error.is_connect() {
        return DeliveryError::Broken;
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(problem) = tls::problem(inner) {
            return DeliveryError::Connect(problem);
        }
        cause = inner.source();
    }
    DeliveryError::Connect("the host is not known".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_a_bare_url_follows_from_its_host() {
        for (host, format) in [
            ("hooks.slack.com", Format::Slack),
            ("prod-07.westeurope.logic.azure.com", Format::Teams),
            ("default1.12.environment.api.powerplatform.com", Format::Teams),
            ("contoso.webhook.office.com", Format::Teams),
            ("evil-logic.azure.com.example.org", Format::Webhook),
            ("hooks.slack.com.example.org", Format::Webhook),
            ("127.0.0.1", Format::Webhook),
        ] {
            assert_eq!(Format::by_host(host), format, "{host}");
        }
    }
}
