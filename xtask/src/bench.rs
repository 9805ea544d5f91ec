//! `cargo xtask bench`: criterion benchmarks.

use std::process::ExitCode;

use crate::{CommandError, run};

pub(crate) const HELP: &str = "\
Benchmark the engine with criterion.

Usage: cargo xtask bench [FILTER]

Runs every benchmark, or the ones with FILTER in their name. Compares the results with
the last run; target/criterion keeps the numbers.";

pub(crate) fn run(filter: &[String]) -> Result<ExitCode, CommandError> {
    // `--bench *` excludes the unit tests, which `--benches` would run as benchmarks.
    let mut arguments = vec!["bench", "--workspace", "--bench", "*", "--"];
    arguments.extend(filter.iter().map(String::as_str));
    let passed = run::attached(&arguments)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
