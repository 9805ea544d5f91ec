//! `agentaflow cancel`: stops jobs.

use anyhow::{Context as _, Result};

use crate::connect::{Connect, block_on};
use crate::output;

/// Stop jobs: politely first, then hard
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of the jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let client = args.connect.client()?;
    block_on(async {
        for id in &args.ids {
            let job =
                client.cancel(*id).await.with_context(|| format!("cannot cancel job {id}"))?;
            let words = if job.status.is_final() { job.status.as_str() } else { "being stopped" };
            output::print(&format!("job {id} {words}\n"))?;
        }
        Ok(())
    })
}
