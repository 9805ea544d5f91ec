//! `cargo xtask check`: a quick verdict on the current change.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::changes::{Base, Member, changed_members};
use crate::output::out;
use crate::phases::{self, PHASES};
use crate::report::Report;
use crate::test_programs::Tier;
use crate::{CommandError, cargo_test, process, repo};

pub(crate) const HELP: &str = "\
Check the current change: format, clippy, unit tests of the changed crates, and the
checks of documents that need no build.

Usage: cargo xtask check [--since REVISION]

Options:
  --since REVISION  Compare with this revision [default: merge base with main; on main
                    the last commit]
  -h, --help        Show this text

Clippy covers the changed crates and the crates that depend on them; unit tests cover the
changed crates. Takes less than two minutes when the dependencies are built. Integration
tests and services are left to `cargo xtask test`.";

/// Packages selected in every test run. Together they enable all features of shared dependencies that the whole workspace
/// enables; with fewer features cargo would build the dependencies a second time.
const ALWAYS: [&str; 2] = ["agentaflow", "agentaflow-engine"];

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, CommandError> {
    let base = match arguments {
        [] => Base::find()?,
        [option, revision] if option == "--since" => Base::at(revision)?,
        [unknown, ..] => {
            return Err(CommandError::Usage(format!(
                "unknown argument `{unknown}`; see `cargo xtask check --help`"
            )));
        }
    };
    let started = Instant::now();
    let members = changed_members(&base.changed_files()?)?;
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    out!("Crates changed since {}: {listed}", base.name);
    let mut total = Report::default();
    for phase in PHASES.iter().filter(|phase| phase.cheap) {
        total.add(phase.run(Tier::Ci));
    }
    if !members.is_empty() {
        total.add(phases::timed("clippy", "clippy reports nothing", phases::clippy));
        total.add(phases::timed("tests", "unit tests of the changed crates", || {
            unit_tests(&members)
        }));
    }
    out!("\n{} s; `cargo xtask test` runs the remaining checks", started.elapsed().as_secs());
    out!("{total}");
    Ok(if total.is_failure() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn unit_tests(members: &[Member]) -> Result<Report> {
    let mut command = repo::cargo(&["test", "--no-fail-fast"]);
    let changed = members.iter().map(|member| member.name.as_str());
    let packages: BTreeSet<&str> = changed.chain(ALWAYS).collect();
    for package in packages {
        command.args(["--package", package]);
    }
    if members.iter().any(|member| member.has_library) {
        command.arg("--lib");
    }
    for member in members.iter().filter(|member| !member.has_library) {
        command.args(["--bin", &member.name]);
    }
    let finished = process::run(&mut command)?;
    let mut report = cargo_test::read(&finished.output, finished.succeeded());
    // Ignored tests need services, which this command never starts.
    report.skipped.clear();
    if report.is_failure() {
        finished.show_output();
    }
    Ok(report)
}
