//! `cargo xtask bench-server`: measures the server and the agent from outside.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::{CommandError, repo};

pub(crate) const HELP: &str = "\
Benchmark the server: jobs per second, latency, memory.

Usage: cargo xtask bench-server [--limits] [PART]...

Builds the program with full optimisation, runs it, and prints a Markdown table. Without
PART every part runs, which takes some minutes; an unknown PART prints the list. With
--limits a figure above its limit is a failure: 50 ms for the 99th percentile of heartbeats
beside reads, and 1 KiB for each job in the growth of memory over 20,000 jobs. The start time of a container needs AGENTAFLOW_TEST_DOCKER, the socket of a Docker engine.
AGENTAFLOW_BENCH_PROGRAM names another program to measure, such as one of an older version.";

pub(crate) fn run(parts: &[String]) -> Result<ExitCode, CommandError> {
    let status = command(parts).status().context("cannot start cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn command(parts: &[String]) -> Command {
    let mut cargo = repo::cargo(&["bench", "--package", "agentaflow", "--bench", "server", "--"]);
    // Without the variable the benchmark only prints its usage, so that `cargo bench` of the workspace stays short.
    cargo.args(parts).env("AGENTAFLOW_BENCH_SERVER", "1");
    cargo
}
