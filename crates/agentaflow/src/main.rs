//! The command line of `agentaflow`: reads arguments, runs one command, turns its end into an exit
//! code. Everything a command does lives in its own module under `commands`.

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

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;

/// A GPU scheduler that decides where work runs and explains itself.
#[derive(Debug, Parser)]
#[command(
    name = "agentaflow",
    version,
    disable_help_subcommand = true,
    after_help = "Start here: agentaflow up"
)]
struct Cli {
    /// Speak to the current cluster of the kubeconfig, whatever the current context is
    #[arg(long, global = true, hide = true)]
    kubernetes: bool,
    #[command(subcommand)]
    command: Option<commands::Command>,
}

fn main() -> ExitCode {
    // A shell that wants completions sets this variable; nothing else happens then.
    CompleteEnv::with_factory(Cli::command).var(commands::COMPLETE_VARIABLE).complete();
    let ended = alias::arguments(std::env::args_os().collect()).map_err(failure::usage).and_then(
        |arguments| Cli::try_parse_from(arguments).map_or_else(|said| parsed_otherwise(&said), run),
    );
    match ended {
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
    printed.context("cannot write the output")?;
    Ok(ExitCode::SUCCESS)
}

/// Help, the version, or what is wrong with the command line. Help that cannot be printed is a
/// failure like any other.
fn parsed_otherwise(said: &clap::Error) -> Result<ExitCode> {
    let printed = said.print().and_then(|()| io::stdout().flush());
    if !said.use_stderr() {
        printed.context("cannot write the output")?;
    }
    Ok(u8::try_from(said.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from))
}
