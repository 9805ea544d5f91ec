//! `cargo xtask run`: from a fresh checkout to something to look at.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::{Failure, repo};

pub(crate) const HELP: &str = "\
Build the program and show it at work on a small demo cluster.

Usage: cargo xtask run

Needs nothing but Rust. The first build takes a few minutes, later ones seconds.";

const WHERE_TO_LOOK: &str = "
The program is target/release/agentaflow; `cargo install --path crates/agentaflow` puts it on your PATH.";

pub(crate) fn run() -> Result<ExitCode, Failure> {
    // Two steps: the build shows its progress, the demo only itself.
    let build = ["build", "--release", "--package", "agentaflow"];
    let demo =
        ["run", "--release", "--quiet", "--package", "agentaflow", "--", "simulate", "--demo"];
    if !attached(&build)? || !attached(&demo)? {
        return Ok(ExitCode::FAILURE);
    }
    println!("{WHERE_TO_LOOK}");
    Ok(ExitCode::SUCCESS)
}

/// Runs cargo with our own terminal; cargo and the program report their errors themselves.
pub(crate) fn attached(arguments: &[&str]) -> Result<bool> {
    let status = repo::cargo(arguments)
        .status()
        .with_context(|| format!("cannot start `cargo {}`", arguments.join(" ")))?;
    Ok(status.success())
}
