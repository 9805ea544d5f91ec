//! `agentaflow guardian`: watches over the tasks of one agent and outlives it. Agents start it themselves.

use std::path::PathBuf;

use anyhow::Result;

/// Watch over the tasks of an agent (started by agents)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's state folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    Ok(agentaflow_agent::guardian::run(&args.dir)?)
}
