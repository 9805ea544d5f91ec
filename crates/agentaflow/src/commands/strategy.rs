//! `agentaflow strategy`: shows or sets the placement strategy.

use agentaflow_engine::Strategy;
use agentaflow_units::{did_you_mean, nearest};
use anyhow::Result;

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure::usage;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Show or set the placement strategy
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// New strategy, such as `least_utilized`, `best_fit`, `priority` or `round_robin`
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(candidates::strategies))]
    name: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(name) = &args.name {
        check(name)?;
    }
    block_on(async {
        let backend = args.connect.backend().await?;
        match &args.name {
            None => output::print(&format!("{}\n", backend.strategy().await?)),
            Some(name) => {
                backend.set_strategy(name).await?;
                output::print(&format!("strategy set to {name}; running jobs are not moved\n"))
            }
        }
    })
}

/// Rejects an unknown name before the request.
fn check(name: &str) -> Result<()> {
    let known: Vec<&str> = Strategy::names().collect();
    if known.contains(&name) {
        return Ok(());
    }
    let near = did_you_mean(nearest(name, known.iter().copied()));
    Err(usage(format!("unknown strategy `{name}`{near}; known strategies: {}", known.join(", "))))
}
