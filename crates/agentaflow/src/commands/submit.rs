//! `agentaflow submit`: submits jobs.

use anyhow::Result;

use super::explain;
use super::run::progress::warn_if_unschedulable;
use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::list::OneFormat;

/// Submit jobs and print their numbers or names
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Output format; `json` and `yaml` print the whole job
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    /// Print the forecast without submitting
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let submissions = args.job.submissions()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        // Validate all jobs before the first is submitted.
        submissions.iter().try_for_each(|one| backend.check_supported(one))?;
        if !args.dry_run && submissions.len() > 1 {
            for one in &submissions {
                backend.dry_run(one).await?;
            }
        }
        for one in &submissions {
            if args.dry_run {
                let forecast = backend.what_if(one).await?;
                let text = |forecast: &_| {
                    Ok(explain::named(one, &submissions) + &explain::render(forecast))
                };
                args.output.print(&forecast, text)?;
                continue;
            }
            let job = backend.submit(one).await?;
            args.output.print(&job, |job| Ok(format!("{}\n", job.handle())))?;
            warn_if_unschedulable(&backend, one).await;
        }
        Ok(())
    })
}
