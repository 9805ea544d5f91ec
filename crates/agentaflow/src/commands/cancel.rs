//! `agentaflow cancel` and `agentaflow complete`: end jobs.

use anyhow::{Context as _, Result};

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Cancel jobs: SIGTERM, then SIGKILL after the grace period
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job numbers or names
    #[arg(value_name = "JOB", required = true, add = ArgValueCandidates::new(candidates::unfinished_jobs))]
    jobs: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Stop jobs and record them as completed
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteArgs {
    /// Job numbers or names
    #[arg(value_name = "JOB", required = true, add = ArgValueCandidates::new(candidates::unfinished_jobs))]
    jobs: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    end(&args.connect, &args.jobs, false)
}

pub(crate) fn complete(args: &CompleteArgs) -> Result<()> {
    end(&args.connect, &args.jobs, true)
}

fn end(connect: &Connect, names: &[String], complete: bool) -> Result<()> {
    let (verb, in_progress) =
        if complete { ("complete", "completing") } else { ("cancel", "cancelling") };
    block_on(async {
        let backend = connect.backend().await?;
        failure::each(names, async |name| {
            let job =
                if complete { backend.complete(name).await } else { backend.cancel(name).await };
            let job = job.with_context(|| format!("cannot {verb} job {name}"))?;
            let state = if job.status.is_final() { job.status.as_str() } else { in_progress };
            output::print(&format!("job {} {state}\n", job.handle()))
        })
        .await
    })
}
