//! `agentaflow top`: connects the full-screen view to a backend, or prints one snapshot.

mod snapshot;
mod source;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_console::Theme;
use anyhow::Result;

use self::source::BackendSource;
use crate::connect::{Connect, block_on};
use crate::context::variable;
use crate::{amount, output};

const MIN_INTERVAL: Duration = Duration::from_millis(100);

const KEYS: &str = "\
Keys: Tab and arrows move, Enter or e explains a job, l shows its logs, c cancels it, / filters,
s sorts, ? lists all keys, q quits.

Without a terminal, such as in a pipe, top prints one snapshot.";

/// Show nodes, GPUs, jobs and the queue, full-screen
#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    /// Refresh interval
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = amount::positive_duration)]
    interval: Duration,
    /// Print one snapshot as plain text
    #[arg(long)]
    once: bool,
    /// Draw ASCII only; the default where the locale is not UTF-8
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dumb = variable("TERM").is_none_or(|name| name == "dumb");
    let plain = args.once || dumb || !io::stdout().is_terminal();
    block_on(async {
        let backend = args.connect.backend().await?;
        // An unreachable backend is an error as in every other command, not an empty screen.
        let first = source::snapshot(&backend).await?;
        if plain {
            output::print(&snapshot::text(&backend.address(), &first))?;
            return Ok(ExitCode::SUCCESS);
        }
        let theme = Theme { colour: output::colour(true), ascii: args.ascii || !is_utf8() };
        let source = Arc::new(BackendSource(backend));
        agentaflow_console::run(source, first, args.interval.max(MIN_INTERVAL), theme).await
    })
}

/// The locale of the environment is UTF-8.
fn is_utf8() -> bool {
    let name = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    name.is_some_and(|name| name.to_lowercase().replace('-', "").contains("utf8"))
}
