//! `agentaflow node`: decisions of an admin about nodes.

use agentaflow_api::client::segment;
use agentaflow_api::node::{Node, NodeApproval};
use anyhow::Result;
use clap_complete::engine::ArgValueCandidates;

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::nearest::not_found;
use crate::output;

/// Manage the registration of nodes
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: NodeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    Approve(ApproveArgs),
}

/// Approve a registration with the name of a known node, from another address and without the key of the node
#[derive(Debug, clap::Args)]
struct ApproveArgs {
    /// Node name
    #[arg(add = ArgValueCandidates::new(candidates::nodes))]
    name: String,
    /// Expected address of the registration [default: the pending one]
    #[arg(long, value_name = "ADDRESS")]
    address: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        NodeCommand::Approve(args) => block_on(approve(args)),
    }
}

/// Approves the registration that the list shows, and no later one.
async fn approve(args: &ApproveArgs) -> Result<()> {
    let client = args.connect.client()?;
    let nodes = client.nodes().await?;
    let matches = |node: &&Node| node.spec.node_name == args.name || node.node_id == args.name;
    let Some(node) = nodes.iter().find(matches) else {
        let names: Vec<_> = nodes.iter().map(|node| node.spec.node_name.clone()).collect();
        return Err(not_found("node", &args.name, &names).into());
    };
    let pending = node.pending_registration.as_ref().map(|claim| claim.address.clone());
    let approval = NodeApproval { address: args.address.clone().or(pending) };
    let path = format!("/gpu-workers/nodes/{}/approve", segment(&node.node_id));
    let node: Node = client.post(&path).body(&approval).json().await?;
    let address = node.pending_registration.map(|claim| claim.address).unwrap_or_default();
    output::print(&format!(
        "node {} approved; its next registration from {address} within one hour is accepted\n",
        args.name
    ))
}
