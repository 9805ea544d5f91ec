//! Phases of `cargo xtask test` and `cargo xtask check`. Every phase runs, even after a failed one.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::output::out;
use crate::report::Report;
use crate::test_programs::{self, Tier};
use crate::{
    commits, crds, examples, glossary, grafana, links, machine_paths, openapi, process, prose,
    reference, repo, tools, web,
};

/// One check of the repository.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Lowest tier that includes the phase.
    pub(crate) tier: Tier,
    /// Needs no build and takes less than a few seconds: part of `cargo xtask check`.
    pub(crate) cheap: bool,
    /// `Err` means that the check could not run; it counts as one failure.
    pub(crate) check: fn(Tier) -> Result<Report>,
}

pub(crate) const PHASES: [Phase; 20] = [
    cheap("fmt", "the code is formatted", |_| fmt()),
    ci("clippy", "clippy reports nothing", |_| clippy()),
    ci("deny", "dependencies: licences, sources, duplicates, advisories", |_| deny()),
    ci("tests", "unit, property, integration and end-to-end tests", test_programs::tests),
    ci("web", "the dashboard builds, fits its size and works in a browser", |_| web::check()),
    ci("rules", "the Prometheus rules are valid and each alert fires for its cause", |_| rules()),
    ci("openapi", "docs/openapi.json matches the code", |_| openapi::GENERATOR.check()),
    ci("reference", "docs/commands.md matches the code", |_| reference::GENERATOR.check()),
    ci("crds", "deploy/crds matches the code", |_| crds::GENERATOR.check()),
    cheap("grafana", "deploy/grafana matches its tables", |_| grafana::GENERATOR.check()),
    cheap("examples", "examples/k8s matches deploy", |_| examples::GENERATOR.check()),
    ci("doc", "the API documentation builds without warnings", |_| doc()),
    cheap("links", "relative links in Markdown files resolve", |_| links::check()),
    cheap("paths", "no file names a path of one machine", |_| machine_paths::check()),
    cheap("glossary", "every type in docs/glossary.md exists", |_| glossary::check()),
    cheap("prose", "comments and documents keep the prose rule", |_| prose::check()),
    cheap("commits", "commit subjects keep the commit rule", |_| commits::check()),
    full("bench", "the engine meets its speed limits", |_| bench()),
    full("bench-server", "the server benchmark completes", |_| bench_server()),
    full("traces", "the published results are reproduced on the real traces", |_| traces()),
];

type Check = fn(Tier) -> Result<Report>;

const fn ci(name: &'static str, about: &'static str, check: Check) -> Phase {
    Phase { name, about, tier: Tier::Ci, cheap: false, check }
}

const fn cheap(name: &'static str, about: &'static str, check: Check) -> Phase {
    Phase { name, about, tier: Tier::Ci, cheap: true, check }
}

const fn full(name: &'static str, about: &'static str, check: Check) -> Phase {
    Phase { name, about, tier: Tier::Full, cheap: false, check }
}

impl Phase {
    pub(crate) fn run(&self, tier: Tier) -> Report {
        timed(self.name, self.about, || (self.check)(tier))
    }
}

/// Prints the title, the result and the duration of a check.
pub(crate) fn timed(name: &str, about: &str, check: impl FnOnce() -> Result<Report>) -> Report {
    out!("== {name}: {about}");
    let started = Instant::now();
    let report = check().unwrap_or_else(|error| Report::failed(name, format!("{error:#}")));
    out!("   {} in {:.1} s", report.verdict(), started.elapsed().as_secs_f32());
    report
}

fn fmt() -> Result<Report> {
    tools::ensure_component("rustfmt")?;
    let mut command = repo::cargo(&["fmt", "--all", "--check"]);
    single("fmt", &mut command, "run `cargo fmt --all`")
}

/// Cargo checks only crates that changed since the last run, and the crates that depend on them.
pub(crate) fn clippy() -> Result<Report> {
    tools::ensure_component("clippy")?;
    let mut command = repo::cargo(&["clippy", "--workspace", "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    single("clippy", &mut command, "see the output above")
}

fn rules() -> Result<Report> {
    if let Err(error) = tools::ensure_program("promtool") {
        return Ok(Report::skipped("rules", format!("{error:#}")));
    }
    let mut report = Report::default();
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]] {
        let mut command = Command::new("promtool");
        command.args(arguments).current_dir(repo::root().join("deploy/prometheus"));
        report.add(single("rules", &mut command, "see the output above")?);
    }
    Ok(report)
}

/// Advisories need the network, so the summary counts them separately.
fn deny() -> Result<Report> {
    let cargo_deny = match tools::cargo_deny() {
        Ok(path) => path,
        Err(error) => return Ok(Report::skipped("deny", format!("{error:#}"))),
    };
    let check = |checks: &[&str]| {
        let mut command = Command::new(&cargo_deny);
        command.current_dir(repo::root()).arg("check").args(checks);
        command
    };
    let mut local = check(&["bans", "licenses", "sources"]);
    let mut report = single("deny", &mut local, "see the output above")?;
    let database = "https://github.com/RustSec/advisory-db";
    report.add(if is_reachable(database) {
        let mut command = check(&["advisories"]);
        single("advisories", &mut command, "see the output above")?
    } else {
        Report::skipped("advisories", format!("cannot reach {database}"))
    });
    Ok(report)
}

fn is_reachable(git_url: &str) -> bool {
    let mut command = Command::new("git");
    command
        .args(["ls-remote", "--exit-code", git_url, "HEAD"])
        // Without this variable git asks for a password when a proxy rejects the request.
        .env("GIT_TERMINAL_PROMPT", "0");
    process::succeeds_within(&mut command, Duration::from_secs(10))
}

fn doc() -> Result<Report> {
    let mut command = repo::cargo(&["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    single("doc", &mut command, "see the output above")
}

fn bench() -> Result<Report> {
    let mut command = repo::cargo(&["bench", "--package", "agentaflow-engine"]);
    command.args(["--bench", "ranges", "--", "--check"]);
    let mut report = single("bench", &mut command, "see the output above")?;
    // A short load peak on the machine makes one run slow.
    if report.is_failure() && process::run(&mut command)?.succeeded() {
        report.mark_flaky("missed a limit in the first run; see the figures above", |_| true);
    }
    Ok(report)
}

fn bench_server() -> Result<Report> {
    let mut command = crate::bench_server::command(&["--limits".to_owned()]);
    let finished = process::run(&mut command)?;
    finished.show_output();
    Ok(if finished.succeeded() {
        Report::passed()
    } else {
        Report::failed("bench-server", "the benchmark failed; see the output above")
    })
}

fn traces() -> Result<Report> {
    let variable = "AGENTAFLOW_TRACES";
    if std::env::var_os(variable).is_none() {
        let reason = format!("{variable} does not name a folder with the published traces");
        return Ok(Report::skipped("traces", reason));
    }
    let mut command = repo::cargo(&["test", "--release", "--package", "agentaflow-sim"]);
    command.args(["--test", "real_trace", "--", "--ignored"]);
    single("traces", &mut command, "see the output above")
}

/// A phase that is one program: passes or fails as a whole.
fn single(name: &str, command: &mut Command, advice: &str) -> Result<Report> {
    let finished = process::run(command)?;
    if finished.succeeded() {
        return Ok(Report::passed());
    }
    finished.show_output();
    let command = process::display(command);
    Ok(Report::failed(name, format!("`{command}` failed: {advice}")))
}
