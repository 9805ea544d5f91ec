//! Development commands of this repository: `cargo xtask <command>`.

mod bench;
mod bench_kube;
mod bench_server;
mod cargo_test;
mod changes;
mod check;
mod commits;
mod crds;
mod examples;
mod generate;
mod glossary;
mod grafana;
mod kube;
mod leftovers;
mod links;
mod machine_paths;
mod openapi;
mod output;
mod phases;
#[path = "../../tests/ports.rs"]
mod ports;
mod process;
mod prose;
mod reference;
mod repo;
mod report;
mod run;
mod services;
mod test;
mod test_programs;
mod tools;
mod web;

use std::process::ExitCode;

use agentaflow_units::{did_you_mean, nearest};
use output::out;

const HELP_HEADER: &str = "\
Development commands of this repository.

Usage: cargo xtask <command>

Commands:";

const HELP_FOOTER: &str = "\
  help          Show this text

`cargo xtask <command> --help` describes one command.";

struct Subcommand {
    name: &'static str,
    about: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<ExitCode, CommandError>,
}

const SUBCOMMANDS: [Subcommand; 15] = [
    Subcommand {
        name: "run",
        about: "Build the program and start it: API, scheduler and one worker",
        help: run::HELP,
        run: run::run,
    },
    Subcommand {
        name: "check",
        about: "Check the current change: format, lints and unit tests of changed crates",
        help: check::HELP,
        run: check::run,
    },
    Subcommand {
        name: "test",
        about: "Run every check that CI runs; --full adds the release checks",
        help: test::HELP,
        run: test::run,
    },
    Subcommand {
        name: "services",
        about: "Start PostgreSQL, Docker and Kubernetes for tests until Ctrl-C",
        help: services::HELP,
        run: services::run,
    },
    Subcommand {
        name: "kube",
        about: "Start a Kubernetes control plane with simulated GPU nodes",
        help: kube::HELP,
        run: kube::run,
    },
    Subcommand {
        name: "web",
        about: "Build the browser dashboard",
        help: web::HELP,
        run: web::run,
    },
    Subcommand {
        name: "openapi",
        about: "Generate docs/openapi.json from the code",
        help: openapi::HELP,
        run: |rest| openapi::GENERATOR.run(rest),
    },
    Subcommand {
        name: "reference",
        about: "Generate docs/commands.md from the code",
        help: reference::HELP,
        run: |rest| reference::GENERATOR.run(rest),
    },
    Subcommand {
        name: "crds",
        about: "Generate deploy/crds from the code",
        help: crds::HELP,
        run: |rest| crds::GENERATOR.run(rest),
    },
    Subcommand {
        name: "grafana",
        about: "Generate the dashboards in deploy/grafana",
        help: grafana::HELP,
        run: |rest| grafana::GENERATOR.run(rest),
    },
    Subcommand {
        name: "examples",
        about: "Generate examples/k8s from deploy",
        help: examples::HELP,
        run: |rest| examples::GENERATOR.run(rest),
    },
    Subcommand {
        name: "prose",
        about: "List sentences that break the prose rule",
        help: prose::HELP,
        run: prose::run,
    },
    Subcommand { name: "bench", about: "Benchmark the engine", help: bench::HELP, run: bench::run },
    Subcommand {
        name: "bench-server",
        about: "Benchmark the server: throughput, latency, memory",
        help: bench_server::HELP,
        run: bench_server::run,
    },
    Subcommand {
        name: "bench-kube",
        about: "Benchmark the Kubernetes scheduler on a control plane",
        help: bench_kube::HELP,
        run: bench_kube::run,
    },
];

enum CommandError {
    /// Wrong command line; exit code 2.
    Usage(String),
    /// The command failed; exit code 1.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for CommandError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(CommandError::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        Err(CommandError::Failed(error)) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<ExitCode, CommandError> {
    let Some((name, rest)) = arguments.split_first() else {
        return Err(CommandError::Usage(format!("no command given\n\n{}", help())));
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        out!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(subcommand) = SUBCOMMANDS.iter().find(|subcommand| subcommand.name == name) else {
        let names = SUBCOMMANDS.iter().map(|subcommand| subcommand.name).chain(["help"]);
        return Err(CommandError::Usage(format!(
            "unknown command `{name}`{}; `cargo xtask help` lists the commands",
            did_you_mean(nearest(name, names))
        )));
    };
    // Arguments after `--` belong to the started program.
    let mut own = rest.iter().take_while(|argument| *argument != "--");
    if own.any(|argument| argument == "--help" || argument == "-h") {
        out!("{}", subcommand.help);
        return Ok(ExitCode::SUCCESS);
    }
    (subcommand.run)(rest)
}

fn help() -> String {
    let line = |subcommand: &Subcommand| format!("  {:<13} {}", subcommand.name, subcommand.about);
    let lines: Vec<String> = SUBCOMMANDS.iter().map(line).collect();
    format!("{HELP_HEADER}\n{}\n{HELP_FOOTER}", lines.join("\n"))
}

fn no_arguments(command: &str, rest: &[String]) -> Result<(), CommandError> {
    match rest.first() {
        None => Ok(()),
        Some(extra) => Err(CommandError::Usage(format!(
            "`cargo xtask {command}` takes no arguments, but got `{extra}`"
        ))),
    }
}
