//! `agentaflow submit`: hands in a job and leaves it alone.

use anyhow::Result;

use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::listing;
use crate::output::{self, Format};

/// Hand in a job and print its number
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// `json` prints the whole job
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let work = args.job.work()?;
    let job = block_on(async { args.connect.backend().await?.submit(&work).await })?;
    if args.output == Format::Json {
        return output::print(&listing::json(&job)?);
    }
    output::print(&format!("{}\n", job.handle()))
}
