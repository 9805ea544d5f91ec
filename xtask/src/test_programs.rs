//! The `tests` phase: all tests, then the tests that need a service, with the service running.
//!
//! A test that needs a service is ignored with a reason, and its name or the name of its module starts with the prefix of
//! the service: `postgres_`, `docker_`, `userns_`, `kube_`, `kubelet_`, `kinds_`.

use std::fmt;
use std::process::Command;
use std::sync::atomic::Ordering;

use anyhow::Result;

use crate::leftovers::TestRun;
use crate::output::out;
use crate::report::Report;
use crate::services::{self, Service};
use crate::{cargo_test, generate, process, repo, tools};

/// A run with more failures is not retried: the change is broken, not the machine busy.
const RETRY_LIMIT: usize = 5;

/// Tests with services that run at the same time. Most of them wait for a program, so more than there are cores.
const SERVICE_TEST_THREADS: &str = "3";

/// Tells tests to run their long form: more kills, more rounds.
const FULL_VARIABLE: &str = "AGENTAFLOW_TEST_FULL";

/// Property cases of the full tier; the default of proptest is 256.
const FULL_PROPERTY_CASES: &str = "1024";

/// Length of each crash campaign against server and agents; 15 or 20 seconds in CI.
const FULL_CHAOS_SECONDS: &str = "120";

/// Programs that tests without a service use: the firewall of Docker jobs is tested with real rules.
const OPTIONAL_PROGRAMS: [&str; 5] =
    ["ip", "iptables", "prometheus-alertmanager", "promtool", "script"];

/// Size of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Runs for every change.
    Ci,
    /// Runs before a release.
    Full,
}

impl Tier {
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Ci => &[],
            Self::Full => &[
                (FULL_VARIABLE, "1"),
                ("PROPTEST_CASES", FULL_PROPERTY_CASES),
                ("CHAOS_SECONDS", FULL_CHAOS_SECONDS),
            ],
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ci => "ci",
            Self::Full => "full",
        })
    }
}

pub(crate) fn tests(tier: Tier) -> Result<Report> {
    install_optional_tools();
    let run = TestRun::begin();
    let mut report = run_tests(tier, &run)?;
    for process in run.leftovers() {
        report.fail(process, "still runs after the tests; a test must stop it");
    }
    Ok(report)
}

/// Tests that miss one of these tools skip a part of themselves and report it.
fn install_optional_tools() {
    let programs = OPTIONAL_PROGRAMS.map(tools::ensure_program);
    let others = [tools::ensure_faketime(), tools::ensure_static_busybox()];
    for error in programs.into_iter().chain(others).filter_map(Result::err) {
        out!("   {error:#}");
    }
}

fn run_tests(tier: Tier, run: &TestRun) -> Result<Report> {
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.envs(tier.variables().iter().copied());
    run.mark(&mut command);
    let finished = process::run(&mut command)?;
    let mut report = cargo_test::read(&finished.output, finished.succeeded());
    if report.is_failure() {
        finished.show_output();
        retry(&mut report, tier, run, &[])?;
    }
    generate::PROGRAMS_BUILT.store(true, Ordering::Relaxed);
    let skipped: Vec<&str> = report.skipped.iter().map(|entry| entry.name.as_str()).collect();
    let kinds = services::needed_by(&skipped);
    let services = services::start(kinds);
    explain_skips(&mut report, &services);
    if services.iter().any(Service::is_running) {
        run_service_tests(&mut report, tier, run, &services)?;
    }
    Ok(report)
}

/// Sets the start error of a service as the reason of its skipped tests.
fn explain_skips(report: &mut Report, services: &[Service]) {
    for service in services {
        let Some(problem) = service.problem() else { continue };
        let needs = |name: &str| services::needs(name, service.kind);
        for entry in report.skipped.iter_mut().filter(|entry| needs(&entry.name)) {
            entry.reason.clone_from(&problem);
        }
    }
}

/// Runs the ignored tests of the running services and removes these tests from the skipped ones.
fn run_service_tests(
    report: &mut Report,
    tier: Tier,
    run: &TestRun,
    services: &[Service],
) -> Result<()> {
    let options = ["--ignored", "--test-threads", SERVICE_TEST_THREADS];
    let mut command = test_programs(tier, run, services, &options);
    let running = services.iter().filter(|service| service.is_running());
    command.args(running.map(|service| service.kind.prefix));
    let finished = process::run(&mut command)?;
    let mut second = cargo_test::read(&finished.output, finished.succeeded());
    if second.is_failure() {
        finished.show_output();
        retry(&mut second, tier, run, services)?;
    }
    let names = cargo_test::names_of_run(&finished.output);
    report.skipped.retain(|entry| !names.contains(&entry.name));
    report.add(second);
    Ok(())
}

/// Runs failed tests of programs under `tests/` a second time, one by one: they observe real programs and miss a deadline on
/// a busy machine. A test that passes then is flaky.
fn retry(report: &mut Report, tier: Tier, run: &TestRun, services: &[Service]) -> Result<()> {
    let names = report.failed.iter();
    let tests: Vec<&str> =
        names.filter_map(|entry| cargo_test::path_of_integration_test(&entry.name)).collect();
    if tests.is_empty() || report.failed.len() > RETRY_LIMIT {
        return Ok(());
    }
    out!("   {} failed; retrying: {}", report.failed.len(), tests.join(", "));
    let options = ["--include-ignored", "--test-threads", "1", "--exact"];
    let mut command = test_programs(tier, run, services, &options);
    let finished = process::run(command.args(tests))?;
    let second = cargo_test::read(&finished.output, finished.succeeded());
    if second.is_failure() {
        finished.show_output();
    }
    let names = cargo_test::names_of_run(&finished.output);
    report.mark_flaky("failed in the first run; see the output above", |name| {
        names.contains(name) && !second.failed.iter().any(|entry| entry.name == name)
    });
    Ok(())
}

/// All test programs with the variables of the services. Without doc-tests: filters would match names of their files.
fn test_programs(tier: Tier, run: &TestRun, services: &[Service], options: &[&str]) -> Command {
    let mut command = repo::cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(["--lib", "--bins", "--tests", "--"]).args(options);
    command.envs(tier.variables().iter().copied());
    command.envs(services.iter().flat_map(Service::variables));
    run.mark(&mut command);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_names_the_start_error_of_its_service() {
        let mut report = Report::default();
        report.skip("agent (tests/docker.rs) docker_runs", "needs a Docker engine");
        report.skip("engine (tests/traces.rs) replays", "needs a trace");
        explain_skips(&mut report, &[Service::failed("docker_", "not root")]);
        let reasons: Vec<&str> = report.skipped.iter().map(|entry| &*entry.reason).collect();
        assert_eq!(reasons, ["no Docker engine: not root", "needs a trace"]);
    }

    #[test]
    fn a_package_is_known_for_every_optional_program() {
        assert!(OPTIONAL_PROGRAMS.into_iter().all(|program| tools::package_of(program).is_ok()));
    }
}
