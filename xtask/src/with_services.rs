//! The `tests` phase: all tests, and then those that need a service, with the service.
//!
//! A test that needs one is ignored, with a reason, and its name or its module's begins with the service's: `postgres_…`,
//! `docker_…`, `kube_…`, `kubelet_…`, `kinds_…`.

use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::report::Report;
use crate::services::{self, Service};
use crate::{generated, process, repo, test_output};

/// How many tests with services run at a time.
const SIDE_BY_SIDE: &str = "3";

pub(crate) fn tests() -> Result<Report> {
    let finished = process::run(&mut repo::cargo(&["test", "--workspace", "--no-fail-fast"]))?;
    let mut report = test_output::read(&finished.output, finished.succeeded());
    if report.is_failure() {
        finished.show_output();
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
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast"]);
    // No doc-tests: they would be chosen by the names of their files. Most of these tests wait most of the time: more run
    // side by side than there are cores.
    command.args(["--lib", "--bins", "--tests", "--", "--ignored", "--test-threads", SIDE_BY_SIDE]);
    for service in services.iter().filter(|service| service.runs()) {
        command.arg(service.kind.prefix).envs(service.variables());
    }
    let finished = process::run(&mut command)?;
    let second = test_output::read(&finished.output, finished.succeeded());
    if second.is_failure() {
        finished.show_output();
    }
    let run = test_output::names_of_run(&finished.output);
    report.skipped.retain(|entry| !run.contains(&entry.name));
    report.add(second);
    Ok(())
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
