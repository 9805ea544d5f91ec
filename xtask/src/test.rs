//! `cargo xtask test`: every check that a change must pass, in two tiers.

use std::process::ExitCode;
use std::time::Instant;

use crate::CommandError;
use crate::output::out;
use crate::phases::{PHASES, Phase};
use crate::report::Report;
use crate::test_programs::Tier;
use agentaflow_units::{did_you_mean, nearest};

pub(crate) const HELP: &str = "\
Run every check that CI runs, install missing tools, and count the results.

Usage: cargo xtask test [--full] [--only PHASE]... [--list]

Options:
  --full        Release tier: adds the benchmarks, the published traces, four times
                as many property cases and long crash campaigns
  --only PHASE  Run only this phase; repeatable
  --list        List the phases and their tiers
  -h, --help    Show this text

All phases run, even after a failed one. The last line counts passed, failed and skipped
checks; the lines before it name each failure and each skip with the reason. The exit code
is 0 if nothing failed, otherwise 1. Without a terminal only failed phases print their
output. Installed tools stay in ~/.cache/agentaflow/tools.

PostgreSQL, a Docker engine, a Kubernetes control plane and a Kubernetes node are started
for the tests that need them, where the machine allows it. Up to five failed tests of
programs under tests/ run a second time, one by one; a test that passes then is reported
as flaky.";

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, CommandError> {
    match parse(arguments)? {
        Request::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Request::Run { tier, phases } => Ok(run_phases(tier, &phases)),
    }
}

fn run_phases(tier: Tier, phases: &[&Phase]) -> ExitCode {
    let started = Instant::now();
    let mut total = Report::default();
    for phase in phases {
        total.add(phase.run(tier));
    }
    out!("");
    let slowest = total.slowest();
    if !slowest.is_empty() {
        out!("Slowest test programs:");
    }
    for (program, time) in slowest {
        out!("  {:>4} s  {program}", time.as_secs());
    }
    let minutes = started.elapsed().as_secs() / 60;
    let seconds = started.elapsed().as_secs() % 60;
    out!("Tier: {tier}, {} of {} phases, {minutes} min {seconds} s", phases.len(), PHASES.len());
    out!("{total}");
    if total.is_failure() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

enum Request {
    List,
    Run { tier: Tier, phases: Vec<&'static Phase> },
}

fn parse(arguments: &[String]) -> Result<Request, CommandError> {
    let mut tier = Tier::Ci;
    let mut only = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), argument.strip_prefix("--only=")) {
            ("--list", _) => return Ok(Request::List),
            ("--full", _) => tier = Tier::Full,
            ("--only", _) => {
                let name = arguments.next();
                let name = name.ok_or_else(|| usage("`--only` needs the name of a phase"))?;
                only.push(phase(name)?.name);
            }
            (_, Some(name)) => only.push(phase(name)?.name),
            (unknown, None) => return Err(usage(&format!("unknown argument `{unknown}`"))),
        }
    }
    let is_selected = |phase: &&Phase| {
        if only.is_empty() { phase.tier <= tier } else { only.contains(&phase.name) }
    };
    Ok(Request::Run { tier, phases: PHASES.iter().filter(is_selected).collect() })
}

fn phase(name: &str) -> Result<&'static Phase, CommandError> {
    let known = PHASES.iter().find(|phase| phase.name == name);
    known.ok_or_else(|| {
        let names = PHASES.iter().map(|phase| phase.name);
        let nearest = did_you_mean(nearest(name, names));
        CommandError::Usage(format!(
            "unknown phase `{name}`{nearest}; `cargo xtask test --list` lists the phases"
        ))
    })
}

fn usage(message: &str) -> CommandError {
    CommandError::Usage(format!("{message}; see `cargo xtask test --help`"))
}

fn list() {
    for phase in &PHASES {
        out!("{:<13} {:<5} {}", phase.name, phase.tier.to_string(), phase.about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(arguments: &[&str]) -> Result<Vec<&'static str>, String> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        match parse(&arguments) {
            Ok(Request::Run { phases, .. }) => Ok(phases.iter().map(|phase| phase.name).collect()),
            Ok(Request::List) => Ok(vec!["--list"]),
            Err(CommandError::Usage(message)) => Err(message),
            Err(CommandError::Failed(error)) => panic!("not a usage error: {error}"),
        }
    }

    #[test]
    fn the_ci_tier_leaves_out_the_benchmarks_and_full_runs_every_phase() {
        assert!(!selected(&[]).unwrap().contains(&"bench"));
        assert_eq!(selected(&["--full"]).unwrap().len(), PHASES.len());
    }

    #[test]
    fn only_is_repeatable_ignores_tiers_and_keeps_the_order_of_phases() {
        let phases = selected(&["--only", "bench", "--only=fmt"]);
        assert_eq!(phases.unwrap(), ["fmt", "bench"]);
    }

    #[test]
    fn a_mistyped_phase_gets_a_suggestion() {
        let message = selected(&["--only", "clipy"]).unwrap_err();
        assert!(message.contains("did you mean `clippy`?"), "{message}");
    }

    #[test]
    fn only_without_a_phase_is_a_usage_error() {
        let message = selected(&["--only"]).unwrap_err();
        assert!(message.starts_with("`--only` needs"), "{message}");
    }
}
