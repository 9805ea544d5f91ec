//! `agentaflow submit`: hands in a job and leaves it alone.

use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::list::OneFormat;

/// Hand in a job and print its number
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// How to print it; `json` and `yaml` print the whole job
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let work = args.job.work()?;
    let job = block_on(async { args.connect.backend().await?.submit(&work).await })?;
    args.output.print(&job, |job| Ok(format!("{}\n", job.handle())))
}
