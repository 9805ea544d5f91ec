//! `agentaflow nodes`: lists nodes.

use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::listing::{self, NODES};
use crate::output::{self, Format};

/// List the nodes and their GPUs
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How to print the list
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let nodes = block_on(async { args.connect.backend().await?.nodes().await })?;
    let none = "There are no nodes; `agentaflow agent --server URL` on a GPU host adds one.";
    output::print(&listing::listing(&NODES, &nodes, args.output, none)?)
}
