//! `agentaflow logs`: the output of a job.

use agentaflow_api::client::user::LogQuery;
use anyhow::{Context as _, Result};

use clap_complete::engine::ArgValueCandidates;
use futures_util::TryStreamExt as _;

use super::run::follow::{on_and_on, pods_to_the_end};
use crate::backend::Backend;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::output;

/// Print the output of a job
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number or name of the job
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: String,
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
    let query = LogQuery { follow: args.follow, tail: args.tail, task: args.task, offset: None };
    let about = || format!("cannot read the output of job {}", args.job);
    block_on(async {
        match args.connect.backend().await? {
            Backend::Server(client) if args.follow => {
                let id =
                    Backend::Server(client.clone()).job(&args.job).await.with_context(about)?.id;
                let bytes = client.logs(id, &query).await.with_context(about)?;
                on_and_on(&client, id, args.task, bytes, output::print_bytes).await
            }
            backend => {
                let mut pieces = backend.logs(&args.job, &query).await.with_context(about)?;
                let task = args.task.unwrap_or(0);
                let followed = match &backend {
                    // Which pod it is whose output this is: others may follow.
                    Backend::Cluster(cluster) if args.follow => {
                        Some((cluster, cluster.pod_uid(&args.job, task).await.ok()))
                    }
                    _ => None,
                };
                while let Some(piece) = pieces.try_next().await? {
                    output::print_bytes(&piece)?;
                }
                let Some((cluster, pod)) = followed else { return Ok(()) };
                pods_to_the_end(cluster, &args.job, task, false, pod, output::print_bytes).await
            }
        }
    })
}
