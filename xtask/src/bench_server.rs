//! `cargo xtask bench-server`: measures the standalone body from outside.

use std::process::ExitCode;

use anyhow::Context as _;

use crate::{Failure, repo};

pub(crate) const HELP: &str = "\
Measure the standalone body: jobs a second, latencies, memory.

Usage: cargo xtask bench-server [PART]...

Builds the release program, runs it, and prints a Markdown table. Parts are jobs, submit,
heartbeats, memory, start and container; without any all are measured, which takes a minute.
The time to the start of a container needs AGENTAFLOW_TEST_DOCKER (the socket of an engine).";

pub(crate) fn run(parts: &[String]) -> Result<ExitCode, Failure> {
    let mut cargo = repo::cargo(&["bench", "--package", "agentaflow", "--bench", "server", "--"]);
    // Without it the benchmark says how to be run: `cargo bench` of everything is for the engine.
    cargo.args(parts).env("AGENTAFLOW_BENCH_SERVER", "1");
    let status = cargo.status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
