//! The `agentaflow` program: parses arguments, runs one command, and returns its exit code. Each command has a module in
//! `commands`.

mod alias;
mod amount;
mod backend;
mod candidates;
mod commands;
mod connect;
mod context;
mod failure;
mod files;
mod job_args;
mod list;
mod listing;
mod logging;
mod nearest;
mod output;
mod trust;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;

/// A GPU scheduler that explains its decisions.
#[derive(Debug, Parser)]
#[command(
    name = "agentaflow",
    version,
    disable_help_subcommand = true,
    after_help = "Start here: agentaflow up"
)]
struct Cli {
    /// Use the current cluster of the kubeconfig instead of the current context
    #[arg(long, global = true, hide = true)]
    kubernetes: bool,
    #[command(subcommand)]
    command: Option<commands::Command>,
}

fn main() -> ExitCode {
    // A shell sets this variable to request completions; the program then exits here.
    CompleteEnv::with_factory(Cli::command).var(commands::COMPLETE_VARIABLE).complete();
    let result = alias::arguments(std::env::args_os().collect()).map_err(failure::usage).and_then(
        |arguments| {
            Cli::try_parse_from(arguments).map_or_else(|error| print_clap_output(&error), run)
        },
    );
    output::reset_terminal();
    match result {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    if cli.kubernetes {
        connect::prefer_kubernetes();
    }
    if let Some(command) = cli.command {
        return command.run();
    }
    let printed = Cli::command().print_help().and_then(|()| io::stdout().flush());
    printed.context("cannot write to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints help, version or a parse error. Help that cannot be printed is an error.
fn print_clap_output(error: &clap::Error) -> Result<ExitCode> {
    let printed = error.print().and_then(|()| io::stdout().flush());
    if !error.use_stderr() {
        printed.context("cannot write to stdout")?;
    }
    Ok(u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
}
