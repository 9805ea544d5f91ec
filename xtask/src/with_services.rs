//! The `tests` phase: all tests, and then those that need a service, with the service.
//!
//! A test that needs one is ignored, with a reason, and its name or its module's begins with the service's: `postgres_…`,
//! `docker_…`, `kube_…`, `kubelet_…`, `kinds_…`.

use std::process::Command;
use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::report::Report;
use crate::services::{self, Service};
use crate::{generated, process, repo, test_output};

/// More failures than these are no accident, and are not looked at again.
const ACCIDENTS: usize = 5;

/// How many tests with services run at a time: most wait most of the time, so more than there are cores.
const SIDE_BY_SIDE: &str = "3";

pub(crate) fn tests() -> Result<Report> {
    let finished = process::run(&mut repo::cargo(&["test", "--workspace", "--no-fail-fast"]))?;
    let mut report = test_output::read(&finished.output, finished.succeeded());
    if report.is_failure() {
        finished.show_output();
        try_again(&mut report, &[])?;
    }
    generated::BUILT.store(true, Ordering::Relaxed);
    let skipped: Vec<&str> = report.skipped.iter().map(|entry| entry.name.as_str()).collect();
    let kinds = services::needed_by(&skipped);
    let services = services::start(kinds);
    explain_skips(&mut report, &services);
    if services.iter().any(Service::runs) {
        run_ignored(&mut report, &services)?;
    }
    Ok(report)
}

/// Says of each test that needs a service which cannot be started why that is so.
fn explain_skips(report: &mut Report, services: &[Service]) {
    for service in services {
        let Some(problem) = service.problem() else { continue };
        let own = |name: &str| services::belongs(name, service.kind);
        for entry in report.skipped.iter_mut().filter(|entry| own(&entry.name)) {
            entry.reason.clone_from(&problem);
        }
    }
}

/// Runs the tests of the services that are there. What was run is not skipped any more.
fn run_ignored(report: &mut Report, services: &[Service]) -> Result<()> {
    let mut command = with(services, &["--ignored", "--test-threads", SIDE_BY_SIDE]);
    command.args(services.iter().filter(|service| service.runs()).map(|one| one.kind.prefix));
    let finished = process::run(&mut command)?;
    let mut second = test_output::read(&finished.output, finished.succeeded());
    if second.is_failure() {
        finished.show_output();
        try_again(&mut second, services)?;
    }
    let run = test_output::names_of_run(&finished.output);
    report.skipped.retain(|entry| !run.contains(&entry.name));
    report.add(second);
    Ok(())
}

/// Tests under `tests/` watch programs from outside, on machines that do much else: those that failed are run once more,
/// one at a time. What passes then is named as unsteady; what fails again has failed.
fn try_again(report: &mut Report, services: &[Service]) -> Result<()> {
    let names = report.failed.iter();
    let tests: Vec<&str> =
        names.filter_map(|entry| test_output::path_of_integration_test(&entry.name)).collect();
    if tests.is_empty() || report.failed.len() > ACCIDENTS {
        return Ok(());
    }
    println!("   {} failed; once more by themselves: {}", report.failed.len(), tests.join(", "));
    let mut command = with(services, &["--include-ignored", "--test-threads", "1", "--exact"]);
    let finished = process::run(command.args(tests))?;
    let second = test_output::read(&finished.output, finished.succeeded());
    if second.is_failure() {
        finished.show_output();
    }
    let run = test_output::names_of_run(&finished.output);
    report.forgive("failed at first; its output is above", |name| {
        run.contains(name) && !second.failed.iter().any(|entry| entry.name == name)
    });
    Ok(())
}

/// All test programs, told where the services are. No doc-tests: they would be chosen by the names of their files.
fn with(services: &[Service], options: &[&str]) -> Command {
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(["--lib", "--bins", "--tests", "--"]).args(options);
    command.envs(services.iter().flat_map(Service::variables));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_whose_service_cannot_be_started_is_skipped_for_that_reason() {
        let mut report = Report::default();
        report.skip("agent (tests/docker.rs) docker_runs", "needs a Docker engine");
        report.skip("engine (tests/traces.rs) replays", "needs a trace");
        explain_skips(&mut report, &[Service::broken("docker_", "not root")]);
        let reasons: Vec<&str> = report.skipped.iter().map(|entry| &*entry.reason).collect();
        assert_eq!(reasons, ["there is no Docker engine: not root", "needs a trace"]);
    }
}
