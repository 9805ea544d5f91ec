//! The chores of this repository: `cargo xtask <command>`.

mod bench;
mod bench_kube;
mod bench_server;
mod crds;
mod examples;
mod generated;
mod kube;
mod links;
mod openapi;
#[path = "../../tests/ports.rs"]
mod ports;
mod process;
mod reference;
mod repo;
mod report;
mod run;
mod services;
mod suggest;
mod test;
mod test_output;
mod tools;
mod with_services;
mod words;

use std::io::Write;
use std::process::ExitCode;

const HELP: &str = "\
Chores of this repository.

Usage: cargo xtask <command>

Commands:
  run       Build the program and start everything on this machine
  test      Check everything: format, lints, licences, tests, docs, links, speed
  services  Start the services that some tests need, and hold them
  kube      Start a Kubernetes control plane on this machine, with nodes that have GPUs
  openapi   Write the description of the API from the code
  reference Write the reference of all commands from the code
  crds      Write the definitions of the Kubernetes kinds from the code
  examples  Write the files of the documented installation from deploy
  bench     Measure the speed of the engine
  bench-server
            Measure the standalone body: jobs a second, latencies, memory
  bench-kube
            Measure the scheduler on Kubernetes
  help      Show this text

`cargo xtask <command> --help` says more about one command.";

const COMMANDS: [&str; 12] = [
    "run",
    "test",
    "services",
    "kube",
    "openapi",
    "reference",
    "crds",
    "examples",
    "bench",
    "bench-server",
    "bench-kube",
    "help",
];

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
    // What stands after `--` is for somebody else.
    let mut ours = rest.iter().take_while(|argument| *argument != "--");
    let wants_help = ours.any(|argument| argument == "--help" || argument == "-h");
    match command.as_str() {
        "run" if wants_help => Ok(say(run::HELP)),
        "test" if wants_help => Ok(say(test::HELP)),
        "services" if wants_help => Ok(say(services::HELP)),
        "kube" if wants_help => Ok(say(kube::HELP)),
        "openapi" if wants_help => Ok(say(openapi::HELP)),
        "reference" if wants_help => Ok(say(reference::HELP)),
        "crds" if wants_help => Ok(say(crds::HELP)),
        "examples" if wants_help => Ok(say(examples::HELP)),
        "bench" if wants_help => Ok(say(bench::HELP)),
        "bench-server" if wants_help => Ok(say(bench_server::HELP)),
        "bench-kube" if wants_help => Ok(say(bench_kube::HELP)),
        "run" => run::run(rest),
        "test" => test::run(rest),
        "services" => no_arguments("services", rest).and_then(|()| services::run()),
        "kube" => kube::run(rest),
        "openapi" => openapi::CHORE.run(rest),
        "reference" => reference::CHORE.run(rest),
        "crds" => crds::CHORE.run(rest),
        "examples" => examples::CHORE.run(rest),
        "bench" => bench::run(rest),
        "bench-server" => bench_server::run(rest),
        "bench-kube" => bench_kube::run(rest),
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
