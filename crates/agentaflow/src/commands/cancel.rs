//! `agentaflow cancel`: stops jobs.

use anyhow::{Context as _, Result};

use crate::connect::{Connect, block_on};
use crate::output;

/// Stop jobs: politely first, then hard
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers or names of the jobs
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        for name in &args.jobs {
            let job = backend.cancel(name).await;
            let job = job.with_context(|| format!("cannot cancel job {name}"))?;
            let words = if job.status.is_final() { job.status.as_str() } else { "being stopped" };
            output::print(&format!("job {} {words}\n", job.handle()))?;
        }
        Ok(())
    })
}
