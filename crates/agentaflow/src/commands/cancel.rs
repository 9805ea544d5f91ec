//! `agentaflow cancel` and `agentaflow complete`: end jobs.

use anyhow::{Context as _, Result};

use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::output;
use clap_complete::engine::ArgValueCandidates;

/// Stop jobs: politely first, then hard
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers or names of the jobs
    #[arg(value_name = "JOB", required = true, add = ArgValueCandidates::new(candidates::live_jobs))]
    jobs: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// End jobs as if they were done: they are stopped and count as completed
#[derive(Debug, clap::Args)]
pub(crate) struct CompleteArgs {
    /// Numbers or names of the jobs
    #[arg(value_name = "JOB", required = true, add = ArgValueCandidates::new(candidates::live_jobs))]
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
    let (verb, under_way) =
        if complete { ("complete", "being completed") } else { ("cancel", "being stopped") };
    block_on(async {
        let backend = connect.backend().await?;
        failure::each(names, async |name| {
            let job =
                if complete { backend.complete(name).await } else { backend.cancel(name).await };
            let job = job.with_context(|| format!("cannot {verb} job {name}"))?;
            let words = if job.status.is_final() { job.status.as_str() } else { under_way };
            output::print(&format!("job {} {words}\n", job.handle()))
        })
        .await
    })
}
