//! `agentaflow complete`: ends jobs as if they were done.

use anyhow::{Context as _, Result};

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// End jobs as if they were done: they are stopped and count as completed
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers or names of the jobs
    #[arg(value_name = "JOB", required = true, add = ArgValueCandidates::new(candidates::jobs))]
    jobs: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    block_on(async {
        let backend = args.connect.backend().await?;
        for name in &args.jobs {
            let job = backend.complete(name).await;
            let job = job.with_context(|| format!("cannot complete job {name}"))?;
            let words = if job.status.is_final() { job.status.as_str() } else { "being completed" };
            output::print(&format!("job {} {words}\n", job.handle()))?;
        }
        Ok(())
    })
}
