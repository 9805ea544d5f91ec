//! `agentaflow logs`: logs of a job.

use agentaflow_api::client::user::LogQuery;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::format::one_line;
use agentaflow_kube_client::Failure;
use anyhow::{Context as _, Result};

use clap_complete::engine::ArgValueCandidates;
use futures_util::TryStreamExt as _;

use super::run::follow::{follow_pods, follow_stream};
use crate::amount;
use crate::backend::Backend;
use crate::candidates;
use crate::connect::{Connect, block_on};
use crate::output;

/// Print the logs of a job
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Job number or name
    #[arg(value_name = "JOB", add = ArgValueCandidates::new(candidates::jobs))]
    job: String,
    /// Follow the logs until the job finishes
    #[arg(short, long)]
    follow: bool,
    /// Number of lines from the end
    #[arg(long, value_name = "LINES", value_parser = amount::whole::<u64>)]
    tail: Option<u64>,
    /// Task of a gang, from 0
    #[arg(long, value_name = "NUMBER", value_parser = amount::whole::<u32>)]
    task: Option<u32>,
    #[command(flatten)]
    connect: Connect,
}

/// Prints the reason for missing logs of an unstarted job.
fn report_unstarted(job: &Job) {
    let reason = match job.status {
        JobStatus::Pending => job.wait_reason.as_deref().map(one_line),
        JobStatus::Scheduled => Some("starting".to_owned()),
        _ => return,
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    eprintln!("Job {} has not started{reason}", job.handle());
}

/// The logs are missing because the pod does not exist or has not started.
fn is_before_start(job: &Job, error: &anyhow::Error) -> bool {
    let early = matches!(job.status, JobStatus::Pending | JobStatus::Scheduled);
    let absent =
        matches!(error.downcast_ref(), Some(Failure::NotFound(_) | Failure::Refused { .. }));
    early && absent
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let query = LogQuery { follow: args.follow, tail: args.tail, task: args.task, offset: None };
    let about = || format!("cannot read the logs of job {}", args.job);
    block_on(async {
        match args.connect.backend().await? {
            Backend::Server(client) if args.follow => {
                let job = Backend::Server(client.clone()).job(&args.job).await;
                let job = job.with_context(about)?;
                // A pending job without a reason is about to start.
                if job.wait_reason.is_some() {
                    report_unstarted(&job);
                }
                let id = job.id;
                let bytes = client.logs(id, &query).await.with_context(about)?;
                follow_stream(&client, id, args.task, bytes, output::print_bytes).await
            }
            backend => {
                let job = backend.job(&args.job).await.with_context(about)?;
                if args.follow && job.wait_reason.is_some() {
                    report_unstarted(&job);
                }
                let mut pieces = match backend.logs(&args.job, &query).await {
                    Err(error) if !args.follow && is_before_start(&job, &error) => {
                        report_unstarted(&job);
                        return Ok(());
                    }
                    pieces => pieces.with_context(about)?,
                };
                let task = args.task.unwrap_or(0);
                let followed = match &backend {
                    // The UID distinguishes this pod from its replacements.
                    Backend::Cluster(cluster) if args.follow => {
                        Some((cluster, cluster.pod_uid(&args.job, task).await.ok()))
                    }
                    _ => None,
                };
                let mut silent = true;
                while let Some(piece) = pieces.try_next().await? {
                    silent &= piece.is_empty();
                    output::print_bytes(&piece)?;
                }
                if silent && followed.is_none() {
                    report_unstarted(&backend.job(&args.job).await.with_context(about)?);
                }
                let Some((cluster, pod)) = followed else { return Ok(()) };
                follow_pods(cluster, &args.job, task, false, pod, output::print_bytes).await
            }
        }
    })
}
