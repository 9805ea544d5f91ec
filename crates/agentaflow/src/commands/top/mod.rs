//! `agentaflow top`: nodes, GPUs, jobs and the queue on one screen that keeps itself up to date.
//!
//! `model` holds what is known and what keys do, `layout` and `view` draw it, and neither does anything; `poll` asks,
//! and `screen` owns the terminal.

#[cfg(test)]
mod fixture;
mod layout;
mod model;
mod plain;
mod poll;
mod screen;
mod sheet;
mod text;
mod view;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use self::view::Theme;
use crate::connect::{Connect, block_on};
use crate::context::variable;
use crate::{amount, output};

/// The shortest time between two questions.
const SHORTEST: Duration = Duration::from_millis(100);

const KEYS: &str = "\
Keys: Tab and arrows move, Enter or e explains a job, l shows its logs, c cancels it, / filters,
s sorts, ? lists them all, q quits.

Without a terminal, as in a pipe, it prints one snapshot and ends.";

/// Watch nodes, GPUs, jobs and the queue, full-screen
#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    /// How often to ask for news
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = amount::some_duration)]
    interval: Duration,
    /// Print one snapshot as plain text and end
    #[arg(long)]
    once: bool,
    /// Draw with ASCII only, as where the locale is not UTF-8
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
        // Whoever cannot be reached at all is reported as everywhere else, not on a screen of its own.
        let first = poll::snapshot(&backend).await?;
        if plain {
            output::print(&plain::words(&backend.place(), &first))?;
            return Ok(ExitCode::SUCCESS);
        }
        let theme = Theme { colour: output::colour(true), ascii: args.ascii || !is_utf8() };
        screen::show(backend, first, args.interval.max(SHORTEST), theme).await
    })
}

/// Whether the locale says that the terminal shows more than ASCII.
fn is_utf8() -> bool {
    let name = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    name.is_some_and(|name| name.to_lowercase().replace('-', "").contains("utf8"))
}
