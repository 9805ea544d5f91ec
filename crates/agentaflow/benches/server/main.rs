//! Speed of server and agent as a Markdown table: `cargo xtask bench-server`.
//!
//! All figures are measured from outside on a fully optimised program. Figures depend on the machine; with `--limits` the
//! program fails if one exceeds its limit.

#[path = "../../tests/standalone/http.rs"]
mod http;
#[path = "../../tests/standalone/image.rs"]
mod image;
mod latency;
mod load;
mod memory;
#[path = "../../../../tests/ports.rs"]
mod ports;
mod system;

use std::process::ExitCode;

/// One line of the table.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) result: String,
    pub(crate) exceeds_limit: bool,
}

impl Row {
    pub(crate) fn new(what: impl Into<String>, result: impl Into<String>) -> Self {
        Self { what: what.into(), result: result.into(), exceeds_limit: false }
    }
}

/// A measurement, by the name under which it can be asked for.
type Measurement = (&'static str, fn() -> Vec<Row>);

const MEASUREMENTS: [Measurement; 8] = [
    ("jobs", load::thousand_jobs),
    ("submit", load::submissions),
    ("heartbeats", load::heartbeats),
    ("reads", load::reads_beside_heartbeats),
    ("memory", memory::idle),
    ("memory-jobs", memory::over_jobs),
    ("start", latency::process_start),
    ("container", latency::container_start),
];

fn main() -> ExitCode {
    if std::env::var_os("AGENTAFLOW_BENCH_SERVER").is_none() {
        println!("`cargo xtask bench-server` measures the standalone server");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<_> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let limits = std::env::args().any(|word| word == "--limits");
    let mut status = ExitCode::SUCCESS;
    println!("| what | result |\n|---|---|");
    for (name, measure) in MEASUREMENTS {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word)) {
            for row in measure() {
                println!("| {} | {} |", row.what, row.result);
                if limits && row.exceeds_limit {
                    eprintln!("exceeds its limit: {}", row.what);
                    status = ExitCode::FAILURE;
                }
            }
        }
    }
    status
}
