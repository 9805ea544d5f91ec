//! `agentaflow guardian`: supervises the tasks of an agent and survives it. Agents start the guardian.

use std::path::PathBuf;

use anyhow::Result;

/// Supervise the tasks of an agent (started by agents)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// State directory of the agent
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// End the tasks of a killed guardian and exit; does nothing while a guardian runs. Containers end with their lease
    #[arg(long)]
    sweep: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.sweep {
        return Ok(agentaflow_agent::guardian::sweep(&args.dir)?);
    }
    Ok(agentaflow_agent::guardian::run(&args.dir)?)
}
