//! `cargo xtask test`: every check there is, in phases that all run even when one fails.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::report::Report;
use crate::{
    Failure, crds, examples, links, openapi, process, reference, repo, suggest, tools,
    with_services, words,
};

pub(crate) const HELP: &str = "\
Check everything, installing what is missing, and count the results.

Usage: cargo xtask test [--only PHASE]... [--list]

Options:
  --only PHASE  Run this phase alone; may be given several times
  --list        List the phases
  -h, --help    Show this text

All phases run even when one fails. The last line counts what passed, failed and
was skipped; the lines before it name each failure and each skip with its reason.
Ends with 0 when nothing failed, with 1 otherwise. Without a terminal only failed
phases show their output. Installed tools are kept in ~/.cache/agentaflow/tools.
Tests under tests/ watch programs from outside: where no more than five failed, they
are run once more by themselves, and what passes then is named as unsteady. So it is
with the bars of speed.
Tests that need a PostgreSQL, a Docker engine, a Kubernetes control plane or a node of it get
one, where it can be started.";

/// One kind of check.
struct Phase {
    name: &'static str,
    about: &'static str,
    /// An error means that the check could not be made; it counts as one failure.
    check: fn() -> Result<Report>,
}

const PHASES: [Phase; 12] = [
    Phase { name: "fmt", about: "the code is formatted", check: fmt },
    Phase { name: "clippy", about: "no lint complains", check: clippy },
    Phase {
        name: "deny",
        about: "dependencies: licences, sources, duplicates, advisories",
        check: deny,
    },
    Phase {
        name: "tests",
        about: "unit, property, integration and end-to-end tests",
        check: with_services::tests,
    },
    Phase {
        name: "openapi",
        about: "the committed description of the API is what the code says",
        check: || openapi::CHORE.check(),
    },
    Phase {
        name: "reference",
        about: "the committed reference of all commands is what the code says",
        check: || reference::CHORE.check(),
    },
    Phase {
        name: "crds",
        about: "the committed definitions of the Kubernetes kinds are what the code says",
        check: || crds::CHORE.check(),
    },
    Phase {
        name: "examples",
        about: "the committed files of the documented installation are what deploy says",
        check: || examples::CHORE.check(),
    },
    Phase { name: "doc", about: "the API documentation builds without warnings", check: doc },
    Phase {
        name: "links",
        about: "every relative link in a Markdown file leads somewhere",
        check: links::check,
    },
    Phase {
        name: "words",
        about: "no file names a path of somebody's machine",
        check: words::check,
    },
    Phase { name: "bench", about: "the engine is as fast as it promises", check: bench },
];

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let selected = match parse(arguments)? {
        Request::List => {
            list();
            return Ok(ExitCode::SUCCESS);
        }
        Request::Run(selected) => selected,
    };
    let mut total = Report::default();
    for phase in selected {
        total.add(run_phase(phase));
    }
    println!("\n{total}");
    Ok(if total.is_failure() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

enum Request {
    List,
    Run(Vec<&'static Phase>),
}

fn parse(arguments: &[String]) -> Result<Request, Failure> {
    let mut only = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), argument.strip_prefix("--only=")) {
            ("--list", _) => return Ok(Request::List),
            ("--only", _) => {
                let name = arguments.next();
                let name = name.ok_or_else(|| usage("`--only` needs the name of a phase"))?;
                only.push(phase(name)?.name);
            }
            (_, Some(name)) => only.push(phase(name)?.name),
            (unknown, None) => return Err(usage(&format!("unknown argument `{unknown}`"))),
        }
    }
    let wanted = |phase: &&Phase| only.is_empty() || only.contains(&phase.name);
    Ok(Request::Run(PHASES.iter().filter(wanted).collect()))
}

fn phase(name: &str) -> Result<&'static Phase, Failure> {
    let known = PHASES.iter().find(|phase| phase.name == name);
    known.ok_or_else(|| {
        let names = PHASES.iter().map(|phase| phase.name);
        let nearest = suggest::did_you_mean(name, names);
        Failure::Usage(format!(
            "unknown phase `{name}`{nearest}; `cargo xtask test --list` lists them"
        ))
    })
}

fn usage(message: &str) -> Failure {
    Failure::Usage(format!("{message}; see `cargo xtask test --help`"))
}

fn list() {
    for phase in &PHASES {
        println!("{:<8} {}", phase.name, phase.about);
    }
}

fn run_phase(phase: &Phase) -> Report {
    println!("== {}: {}", phase.name, phase.about);
    let started = Instant::now();
    let report =
        (phase.check)().unwrap_or_else(|error| Report::failed(phase.name, format!("{error:#}")));
    println!("   {} in {:.1} s", report.verdict(), started.elapsed().as_secs_f32());
    report
}

fn fmt() -> Result<Report> {
    tools::ensure_component("rustfmt")?;
    let mut command = repo::cargo(&["fmt", "--all", "--check"]);
    one("fmt", &mut command, "`cargo fmt --all` repairs it")
}

fn clippy() -> Result<Report> {
    tools::ensure_component("clippy")?;
    let mut command = repo::cargo(&["clippy", "--workspace", "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    one("clippy", &mut command, "see the output above")
}

/// Advisories need the network, so they count on their own.
fn deny() -> Result<Report> {
    let cargo_deny = match tools::cargo_deny() {
        Ok(path) => path,
        Err(error) => return Ok(Report::skipped("deny", format!("{error:#}"))),
    };
    let check = |what: &[&str]| {
        let mut command = Command::new(&cargo_deny);
        command.current_dir(repo::root()).arg("check").args(what);
        command
    };
    let mut local = check(&["bans", "licenses", "sources"]);
    let mut report = one("deny", &mut local, "see the output above")?;
    let database = "https://github.com/RustSec/advisory-db";
    report.add(if is_reachable(database) {
        let mut command = check(&["advisories"]);
        one("advisories", &mut command, "see the output above")?
    } else {
        Report::skipped("advisories", format!("{database} cannot be reached"))
    });
    Ok(report)
}

fn is_reachable(git_url: &str) -> bool {
    let mut command = Command::new("git");
    command
        .args(["ls-remote", "--exit-code", git_url, "HEAD"])
        // Without this git would ask for a password where a proxy refuses it.
        .env("GIT_TERMINAL_PROMPT", "0");
    process::succeeds_within(&mut command, Duration::from_secs(10))
}

fn doc() -> Result<Report> {
    let mut command = repo::cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    one("doc", &mut command, "see the output above")
}

fn bench() -> Result<Report> {
    if !repo::root().join("crates/engine/benches/ranges.rs").is_file() {
        return Ok(Report::default());
    }
    let mut command = repo::cargo(&["bench", "--package", "agentaflow-engine"]);
    command.args(["--bench", "ranges", "--", "--check"]);
    let mut report = one("bench", &mut command, "see the output above")?;
    // A machine that does something else for a moment is slow for a moment.
    if report.is_failure() && process::run(&mut command)?.succeeded() {
        report.forgive("missed its bars at first; the figures are above", |_| true);
    }
    Ok(report)
}

/// A phase that is one program: it passes or fails as a whole.
fn one(name: &str, command: &mut Command, advice: &str) -> Result<Report> {
    let finished = process::run(command)?;
    if finished.succeeded() {
        return Ok(Report::passed());
    }
    finished.show_output();
    let command = process::display(command);
    Ok(Report::failed(name, format!("`{command}` failed: {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        match parse(&arguments) {
            Ok(Request::Run(phases)) => Ok(phases.iter().map(|phase| phase.name).collect()),
            Ok(Request::List) => Ok(vec!["--list"]),
            Err(Failure::Usage(message)) => Err(message),
            Err(Failure::Work(error)) => panic!("not a usage error: {error}"),
        }
    }

    #[test]
    fn without_arguments_every_phase_runs() {
        assert_eq!(selected(&[]).unwrap().len(), PHASES.len());
    }

    #[test]
    fn only_may_be_given_twice_and_keeps_the_order_of_phases() {
        let phases = selected(&["--only", "doc", "--only=fmt"]);
        assert_eq!(phases.unwrap(), ["fmt", "doc"]);
    }

    #[test]
    fn a_mistyped_phase_is_answered_with_the_nearest_one() {
        let message = selected(&["--only", "clipy"]).unwrap_err();
        assert!(message.contains("did you mean `clippy`?"), "{message}");
    }

    #[test]
    fn only_without_a_phase_is_a_usage_error() {
        let message = selected(&["--only"]).unwrap_err();
        assert!(message.starts_with("`--only` needs"), "{message}");
    }
}
