//! `agentaflow cordon`, `uncordon` and `drain`: nodes and GPUs that are to be left alone.

use anyhow::{Context as _, Result};

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Close nodes or single GPUs to new work; what runs there stays
#[derive(Debug, clap::Args)]
pub(crate) struct CordonArgs {
    /// Nodes, or GPUs of nodes: `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Open nodes or GPUs again
#[derive(Debug, clap::Args)]
pub(crate) struct UncordonArgs {
    /// Nodes, or GPUs of nodes: `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Close nodes or single GPUs and move the work on them elsewhere
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Nodes, or GPUs of nodes: `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn cordon(args: &CordonArgs) -> Result<()> {
    close(&args.connect, &args.targets, true)
}

pub(crate) fn uncordon(args: &UncordonArgs) -> Result<()> {
    close(&args.connect, &args.targets, false)
}

fn close(connect: &Connect, targets: &[String], closed: bool) -> Result<()> {
    let (verb, done) = if closed { ("cordon", "cordoned") } else { ("uncordon", "uncordoned") };
    block_on(async {
        let backend = connect.backend().await?;
        failure::each(targets, async |target| {
            let answer = backend.cordon(target, closed).await;
            answer.with_context(|| format!("cannot {verb} {target}"))?;
            output::print(&format!("{target} {done}\n"))
        })
        .await
    })
}

pub(crate) fn drain(args: &DrainArgs) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        failure::each(&args.targets, async |target| {
            let moved = backend.drain(target).await;
            let moved = moved.with_context(|| format!("cannot drain {target}"))?;
            let more = if moved.is_empty() { "" } else { ", and this work moves elsewhere:" };
            output::print(&format!("{target} drains: nothing new goes there{more}\n"))?;
            for work in moved {
                output::print(&format!("  {work}\n"))?;
            }
            Ok(())
        })
        .await
    })
}
