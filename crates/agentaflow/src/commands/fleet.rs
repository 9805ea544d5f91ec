//! `agentaflow cordon`, `uncordon` and `drain`.

use anyhow::{Context as _, Result};

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Cordon nodes or GPUs: no new tasks; running tasks continue
#[derive(Debug, clap::Args)]
pub(crate) struct CordonArgs {
    /// Nodes or GPUs, such as `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Uncordon nodes or GPUs
#[derive(Debug, clap::Args)]
pub(crate) struct UncordonArgs {
    /// Nodes or GPUs, such as `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Cordon nodes or GPUs and move their jobs elsewhere
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// Nodes or GPUs, such as `gpu-7` or `gpu-7/0`
    #[arg(value_name = "NODE[/GPU]", required = true, add = ArgValueCandidates::new(candidates::nodes))]
    targets: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn cordon(args: &CordonArgs) -> Result<()> {
    set_cordon(&args.connect, &args.targets, true)
}

pub(crate) fn uncordon(args: &UncordonArgs) -> Result<()> {
    set_cordon(&args.connect, &args.targets, false)
}

fn set_cordon(connect: &Connect, targets: &[String], cordoned: bool) -> Result<()> {
    let (verb, done) = if cordoned { ("cordon", "cordoned") } else { ("uncordon", "uncordoned") };
    block_on(async {
        let backend = connect.backend().await?;
        failure::each(targets, async |target| {
            let result = backend.cordon(target, cordoned).await;
            result.with_context(|| format!("cannot {verb} {target}"))?;
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
            let more = if moved.is_empty() { "" } else { "; moving:" };
            output::print(&format!("{target} draining{more}\n"))?;
            for job in moved {
                output::print(&format!("  {job}\n"))?;
            }
            Ok(())
        })
        .await
    })
}
