//! `cargo xtask bench`: measures the speed of the engine.

use std::process::ExitCode;

use crate::{Failure, run};

pub(crate) const HELP: &str = "\
Measure the speed of the engine.

Usage: cargo xtask bench [FILTER]

Runs every benchmark of the workspace, or those whose name contains FILTER.
Results are compared with the last run; numbers are kept under target/criterion.";

pub(crate) fn run(filter: &[String]) -> Result<ExitCode, Failure> {
    // `--bench *` leaves out the unit tests that `--benches` would run as benchmarks too.
    let mut arguments = vec!["bench", "--workspace", "--bench", "*", "--"];
    arguments.extend(filter.iter().map(String::as_str));
    let passed = run::attached(&arguments)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
