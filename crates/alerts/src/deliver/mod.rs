//! Delivery of one message to one sink. Errors never contain an address or a secret: they are logged and shown to users.

mod http;
mod smtp;
mod tls;

use std::time::Duration;

use thiserror::Error;

use crate::config::{Config, SinkConfig, SinkKind};
use crate::message::Message;
use crate::secret::{SecretError, Secrets};
use crate::sink::Origin;

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeliveryError {
    #[error("{0}")]
    Secret(#[from] SecretError),
    #[error("the URL is not valid")]
    Url,
    #[error("cannot read the file of authorities `{0}`")]
    Authority(String),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection broke")]
    Broken,
    #[error("the sink answered {status}")]
    Status {
        status: u16,
        /// Pause that the sink asks for.
        retry_after: Option<Duration>,
    },
    #[error("the mail server answered {code} to {command}")]
    Mail { command: &'static str, code: u16 },
    #[error("the mail server does not offer {0}")]
    Missing(&'static str),
}

impl DeliveryError {
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Delivers a message.
pub async fn deliver(
    config: &Config,
    sink: &SinkConfig,
    message: &Message,
    secrets: &Secrets,
) -> Result<(), DeliveryError> {
    let origin = Origin::of(config);
    match &sink.kind {
        SinkKind::Email(email) => smtp::send(email, message, secrets, origin).await,
        SinkKind::Auto(target)
        | SinkKind::Slack(target)
        | SinkKind::Teams(target)
        | SinkKind::Webhook(target)
        | SinkKind::Alertmanager(target) => {
            http::post(&sink.kind, target, message, secrets, origin).await
        }
    }
}
