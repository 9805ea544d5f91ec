//! `cargo xtask run`: from a fresh checkout to a running system.

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{Failure, repo};

pub(crate) const HELP: &str = "\
Build the program and start everything on this machine: `agentaflow up`.

Usage: cargo xtask run [-- ARGUMENT...]

What stands after `--` goes to `agentaflow up`: `cargo xtask run -- --help` lists it.
Needs nothing but Rust; without a GPU, simulated ones are used. Ctrl-C stops it.
The first build takes a few minutes, later ones seconds.";

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let passed_on = passed_on(arguments)?;
    // Two steps: the build shows its progress, the program only itself.
    if !attached(&["build", "--release", "--package", "agentaflow"])? {
        return Ok(ExitCode::FAILURE);
    }
    let start = ["run", "--release", "--quiet", "--package", "agentaflow", "--", "up"];
    let mut command = repo::cargo(&start);
    // In our place: Ctrl-C and TERM reach the program itself, and nobody returns before it has ended.
    let error = command.args(passed_on).exec();
    Err(Failure::Work(anyhow::Error::new(error).context("cannot start `cargo run`")))
}

/// What stands after `--`.
fn passed_on(arguments: &[String]) -> Result<&[String], Failure> {
    match arguments.split_first() {
        None => Ok(&[]),
        Some((first, rest)) if first == "--" => Ok(rest),
        Some((first, _)) => Err(Failure::Usage(format!(
            "`{first}` is not for `cargo xtask run`; arguments of `agentaflow up` stand after `--`"
        ))),
    }
}

/// Runs cargo with our own terminal; cargo and the program report their errors themselves.
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
    fn arguments_after_two_dashes_are_passed_on_and_others_are_refused() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        assert!(passed_on(&[]).is_ok_and(<[String]>::is_empty));
        assert!(
            passed_on(&words("-- --listen -- x")).is_ok_and(|rest| rest == words("--listen -- x"))
        );
        assert!(matches!(passed_on(&words("--listen x")), Err(Failure::Usage(_))));
    }
}
