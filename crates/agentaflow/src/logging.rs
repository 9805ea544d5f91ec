//! Logs of servers and agents on stderr, as text or JSON.

use std::io::{self, IsTerminal as _};

use anyhow::Result;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::context::variable;
use crate::failure::usage;
use crate::output;

#[derive(Debug, clap::Args)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct LogArgs {
    /// Log level: error, warn, info, debug, trace, or a filter such as `info,agentaflow_server=debug`
    /// [default: LOG_LEVEL, else info]
    #[arg(long, value_name = "LEVEL", help_heading = "Logging")]
    log_level: Option<String>,
    #[command(flatten)]
    format: LogFormatArg,
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct LogFormatArg {
    /// Log format
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

impl LogArgs {
    pub(crate) fn start(&self) -> Result<()> {
        let level = self.log_level.clone().or_else(|| variable("LOG_LEVEL"));
        let level = level.unwrap_or_else(|| "info".to_owned()).to_lowercase();
        init(&level, self.format.log_format)
    }
}

/// Logs of `up`: warnings only, unless `LOG_LEVEL` is set.
pub(crate) fn warnings_only(format: LogFormatArg) -> Result<()> {
    init(
        &variable("LOG_LEVEL").unwrap_or_else(|| "warn".to_owned()).to_lowercase(),
        format.log_format,
    )
}

fn init(level: &str, format: LogFormat) -> Result<()> {
    // Python, for example, calls the level `warning`.
    let level = if level == "warning" { "warn" } else { level };
    // Debug logs of libraries would hide the logs of agentaflow; a filter can enable them.
    let level = match level {
        "debug" | "trace" => format!("info,agentaflow={level}"),
        _ => level.to_owned(),
    };
    let filter = EnvFilter::try_new(&level).map_err(|_| {
        usage(format!("`{level}` is not a log level: use error, warn, info, debug or trace"))
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_timer(SystemTime)
        .with_ansi(output::colour(io::stderr().is_terminal()));
    // A second subscriber can only come from a test in the same process.
    let _ = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    Ok(())
}
