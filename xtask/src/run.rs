//! `cargo xtask run`: builds the program and replaces xtask with `agentaflow up`.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::output::out;
use crate::{CommandError, repo, web};

pub(crate) const HELP: &str = "\
Build the program and start `agentaflow up`: API, scheduler and one worker.

Usage: cargo xtask run [-- ARGUMENT...]

Arguments after `--` are passed to `agentaflow up`; `cargo xtask run -- --help` lists them.
Needs only Rust; with npm, the program includes the browser dashboard. Without an NVIDIA
driver the worker simulates GPUs. Ctrl-C stops the program. The first build takes several
minutes on two cores.";

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, CommandError> {
    let passed_on = passed_on(arguments)?;
    // The program works without the dashboard and then serves a plain start page.
    if let Err(error) = web::build() {
        out!("note: the program is built without the dashboard: {error:#}");
    }
    // Two steps: the build shows its progress, `cargo run` only the output of the program.
    if !attached(&["build", "--release", "--package", "agentaflow"])? {
        return Ok(ExitCode::FAILURE);
    }
    let start = ["run", "--release", "--quiet", "--package", "agentaflow", "--", "up"];
    let mut command = repo::cargo(&start);
    // Replaces this process, so that signals reach the program and the shell waits for the program.
    let error = command.args(passed_on).exec();
    Err(CommandError::Failed(anyhow::Error::new(error).context("cannot start `cargo run`")))
}

/// Arguments after `--`.
fn passed_on(arguments: &[String]) -> Result<&[String], CommandError> {
    match arguments.split_first() {
        None => Ok(&[]),
        Some((first, rest)) if first == "--" => Ok(rest),
        Some((first, _)) => Err(CommandError::Usage(format!(
            "unknown argument `{first}`; put arguments of `agentaflow up` after `--`"
        ))),
    }
}

/// Runs cargo on the terminal of xtask; cargo prints its own errors.
pub(crate) fn attached(arguments: &[&str]) -> Result<bool> {
    let status = repo::cargo(arguments)
        .status()
        .with_context(|| format!("cannot start `cargo {}`", arguments.join(" ")))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_arguments_after_two_dashes_are_passed_on() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        assert!(passed_on(&[]).is_ok_and(<[String]>::is_empty));
        assert!(
            passed_on(&words("-- --listen -- x")).is_ok_and(|rest| rest == words("--listen -- x"))
        );
        assert!(matches!(passed_on(&words("--listen x")), Err(CommandError::Usage(_))));
    }
}
