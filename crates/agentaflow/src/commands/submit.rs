//! `agentaflow submit`: hands in a job and leaves it alone.

use anyhow::Result;

use super::explain;
use super::run::place::warn_if_never;
use crate::connect::{Connect, block_on};
use crate::job_args::JobArgs;
use crate::list::OneFormat;

/// Hand in work and print its number or name
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// How to print it; `json` and `yaml` print the whole job
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    /// Only say what would become of it; nothing is handed in
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let work = args.job.all()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        // Of several, all or none are handed in, as far as it can be told before.
        work.iter().try_for_each(|one| backend.understands(one))?;
        if !args.dry_run && work.len() > 1 {
            for one in &work {
                backend.would_take(one).await?;
            }
        }
        for one in &work {
            if args.dry_run {
                let said = backend.try_out(one).await?;
                let text = |said: &_| Ok(explain::named(one, &work) + &explain::words(said));
                args.output.print(&said, text)?;
                continue;
            }
            let job = backend.submit(one).await?;
            args.output.print(&job, |job| Ok(format!("{}\n", job.handle())))?;
            warn_if_never(&backend, one).await;
        }
        Ok(())
    })
}
