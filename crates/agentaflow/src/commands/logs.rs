//! `agentaflow logs`: the output of a job.

use agentaflow_api::client::user::LogQuery;
use anyhow::{Context as _, Result};

use super::run::follow::on_and_on;
use crate::connect::{Connect, block_on};
use crate::output;

/// Print the output of a job
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of the job
    #[arg(value_name = "ID")]
    id: i64,
    /// Go on until the job is over
    #[arg(short, long)]
    follow: bool,
    /// Only so many lines from the end
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Which of a gang's tasks, from 0
    #[arg(long, value_name = "NUMBER")]
    task: Option<u32>,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let client = args.connect.client()?;
    let query = LogQuery { follow: args.follow, tail: args.tail, task: args.task, offset: None };
    block_on(async {
        let begun = client.logs(args.id, &query).await;
        let mut bytes =
            begun.with_context(|| format!("cannot read the output of job {}", args.id))?;
        if args.follow {
            return on_and_on(&client, args.id, args.task, bytes, output::print_bytes).await;
        }
        while let Some(piece) = bytes.next().await? {
            output::print_bytes(&piece)?;
        }
        Ok(())
    })
}
