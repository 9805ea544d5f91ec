//! The chores of this repository: `cargo xtask <command>`.

mod bench;
mod links;
mod process;
mod repo;
mod report;
mod run;
mod suggest;
mod test;
mod test_output;
mod tools;
mod words;

use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
Chores of this repository.

Usage: cargo xtask <command>

Commands:
  run    Build the program and show it at work on a small demo cluster
  test   Check everything: format, lints, licences, tests, docs, links, speed
  bench  Measure the speed of the engine
  help   Show this text

`cargo xtask <command> --help` says more about one command.";

const COMMANDS: [&str; 4] = ["run", "test", "bench", "help"];

/// How a command ends when it did not end well.
enum Failure {
    /// The command line was wrong; exits with 2.
    Usage(String),
    /// The work could not be done; exits with 1.
    Work(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Work(error.into())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Work(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<ExitCode, Failure> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Failure::Usage(format!("no command given\n\n{HELP}")));
    };
    let wants_help = rest.iter().any(|a| a == "--help" || a == "-h");
    match command.as_str() {
        "run" if wants_help => Ok(say(run::HELP)),
        "test" if wants_help => Ok(say(test::HELP)),
        "bench" if wants_help => Ok(say(bench::HELP)),
        "run" => no_arguments("run", rest).and_then(|()| run::run()),
        "test" => test::run(rest),
        "bench" => bench::run(rest),
        "help" | "--help" | "-h" => Ok(say(HELP)),
        unknown => Err(Failure::Usage(format!(
            "unknown command `{unknown}`{}; `cargo xtask help` lists them",
            suggest::did_you_mean(unknown, COMMANDS)
        ))),
    }
}

fn say(text: &str) -> ExitCode {
    // Whoever closed the pipe, as `head` does, has read enough.
    let _ = writeln!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}

fn no_arguments(command: &str, rest: &[String]) -> Result<(), Failure> {
    match rest.first() {
        None => Ok(()),
        Some(extra) => Err(Failure::Usage(format!(
            "`cargo xtask {command}` takes no arguments, but got `{extra}`"
        ))),
    }
}
