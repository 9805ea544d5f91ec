//! The command line of `agentaflow`: reads arguments, runs one command, turns its end into an exit
//! code. Everything a command does lives in its own module under `commands`.

mod commands;
mod failure;
mod output;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// A GPU scheduler that decides where work runs and explains itself.
#[derive(Debug, Parser)]
#[command(
    name = "agentaflow",
    version,
    disable_help_subcommand = true,
    after_help = "Start here: agentaflow simulate --demo"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<commands::Command>,
}

fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Some(command) => command.run(),
        None => Cli::command().print_help().map_err(Into::into),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
