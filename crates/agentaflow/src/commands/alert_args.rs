//! Options of a server about alerts.

use std::path::PathBuf;

use agentaflow_alerts::{Config, SecretRef};
use anyhow::{Context as _, Result};

use crate::context::variable;
use crate::failure::usage;

/// Variable with the URL of a webhook. A URL of a chat is a secret, so no option takes it.
const WEBHOOK: &str = "AGENTAFLOW_ALERT_WEBHOOK";

#[derive(Debug, clap::Args)]
pub(crate) struct AlertArgs {
    /// TOML file with alert rules, quiet hours and sinks
    #[arg(long = "alerts", value_name = "FILE", help_heading = "Alerts")]
    file: Option<PathBuf>,
    /// File with the webhook URL for alerts, read for each message; Slack and Teams are detected [default:
    /// `AGENTAFLOW_ALERT_WEBHOOK`]
    #[arg(long = "alert-webhook-file", value_name = "FILE", help_heading = "Alerts")]
    webhook: Option<PathBuf>,
}

impl AlertArgs {
    pub(crate) fn config(&self) -> Result<Config> {
        let config = match &self.file {
            None => Config::default(),
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("cannot read `{}`", file.display()))?;
                let read = Config::parse(&text);
                read.map_err(|error| usage(format!("--alerts: `{}`: {error}", file.display())))?
            }
        };
        let file = self.webhook.as_ref().map(std::path::absolute).transpose()?;
        let file = file.map(|file| SecretRef::File(file.display().to_string()));
        let place = file.or_else(|| variable(WEBHOOK).map(|_| SecretRef::Env(WEBHOOK.to_owned())));
        Ok(match place {
            Some(place) => config.or_webhook(place),
            None => config,
        })
    }
}
