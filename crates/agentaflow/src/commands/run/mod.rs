//! `agentaflow run`: submits a job, prints its logs, and exits with its exit code.

pub(super) mod follow;
mod interrupt;
pub(super) mod progress;
mod status_line;

use std::process::ExitCode;

use agentaflow_api::end::EndReason;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::format::one_line;
use agentaflow_kube_client::Failure;
use anyhow::{Context as _, Result};

use super::{RUN_FAILURE, explain};
use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::job_args::JobArgs;
use crate::output;

/// Exit code of a program that SIGPIPE ended.
const CLOSED_PIPE: u8 = 128 + 13;

const EXAMPLES: &str = "\
Examples:
  agentaflow run -- echo hello
      Run a process on a node that allows processes
  agentaflow run --gpus 1 --memory 8G pytorch/pytorch:latest -- python train.py
      Run a container with one GPU
  agentaflow run --fraction 0.5 --timeout 1h -d my/model -- python serve.py
      Run in the background with half a GPU, for at most one hour

Ctrl-C detaches; the job keeps running. A second Ctrl-C within three seconds cancels the job.
Without a terminal, SIGINT and SIGTERM cancel the job. The standard input of a job is empty.

Exit codes: the exit code of the job; 128 + N if signal N ended the job; 125 if the job could
not run.";

/// Run a job, print its logs and exit with its exit code
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Print the job number or name and exit
    #[arg(short, long)]
    detach: bool,
    /// Print placement and cost without submitting
    #[arg(long)]
    dry_run: bool,
    /// Print only the logs of the job
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: Connect,
}

enum WatchResult {
    Finished(Box<Job>),
    Detached,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let submission = args.job.submission()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        if args.dry_run {
            let forecast = backend.what_if(&submission).await?;
            output::print(&explain::render(&forecast))?;
            return Ok(ExitCode::SUCCESS);
        }
        // From here on signals are handled: a submitted job must not be lost.
        let mut signals = interrupt::Signals::new()?;
        if !args.quiet && !args.detach {
            tokio::select! {
                () = progress::print_forecast(&backend, &submission) => {}
                // Nothing is submitted yet.
                () = signals.next() => return Ok(ExitCode::from(interrupt::INTERRUPTED)),
            }
        }
        let Some(job) = signals.during(backend.submit(&submission)).await else {
            eprintln!("The job may have been submitted; check with `agentaflow get workloads`");
            return Ok(ExitCode::from(interrupt::INTERRUPTED));
        };
        let job = job.context("cannot submit the job")?;
        let name = job.handle();
        if args.detach {
            output::print(&format!("{name}\n"))?;
            if !args.quiet {
                progress::warn_if_unschedulable(&backend, &submission).await;
            }
            return Ok(ExitCode::SUCCESS);
        }
        match Box::pin(watch(&backend, &job, &mut signals, args.quiet)).await {
            Ok(WatchResult::Finished(job)) => Ok(report_end(&job)),
            Ok(WatchResult::Detached) => Ok(ExitCode::from(interrupt::INTERRUPTED)),
            Err(error) if failure::is_closed_pipe(&error) => {
                backend.cancel(&name).await.with_context(|| format!("cannot cancel job {name}"))?;
                Ok(ExitCode::from(CLOSED_PIPE))
            }
            Err(error) => Err(error.context(format!(
                "connection lost; job {name} keeps running, reattach with `agentaflow logs -f {name}`"
            ))),
        }
    })
}

async fn watch(
    backend: &Backend,
    submitted: &Job,
    signals: &mut interrupt::Signals,
    quiet: bool,
) -> Result<WatchResult> {
    let name = submitted.handle();
    let line = status_line::StatusLine::new();
    let output = follow::follow_job(backend, submitted, &line);
    let progress = async {
        if quiet {
            std::future::pending::<()>().await;
        } else {
            progress::print_progress(backend, &name, &line).await;
        }
    };
    tokio::pin!(output, progress);
    let mut cancelling = false;
    loop {
        tokio::select! {
            // Logs first: print all lines written before the cancellation.
            biased;
            job = &mut output => {
                line.clear();
                let job = job.or_else(|error| if_deleted(error, submitted))?;
                return Ok(WatchResult::Finished(Box::new(job)));
            }
            // No progress during a cancellation.
            () = &mut progress, if !cancelling => {}
            () = signals.next() => {
                line.finish(signals.terminal);
                match signals.handle(backend, &name).await? {
                    interrupt::SignalEffect::Detached => return Ok(WatchResult::Detached),
                    interrupt::SignalEffect::Cancelling => cancelling = true,
                }
            }
        }
    }
}

/// In a cluster cancelling deletes the workload, so a missing workload counts as cancelled.
fn if_deleted(error: anyhow::Error, job: &Job) -> Result<Job> {
    if !matches!(error.downcast_ref(), Some(Failure::NotFound(_))) {
        return Err(error);
    }
    Ok(follow::deleted(job))
}

/// Prints the end reason if the exit code does not tell it, and returns the exit code.
fn report_end(job: &Job) -> ExitCode {
    if job.status != JobStatus::Completed && job.end_reason != Some(EndReason::Exited) {
        let reason = job.end_reason.map_or("no reason reported", EndReason::as_str);
        let message = job.error_message.as_deref().map_or_else(|| reason.to_owned(), one_line);
        let message = output::stderr_line(&message);
        eprintln!("Job {} {}: {message}", job.handle(), job.status.as_str());
    }
    ExitCode::from(code(job))
}

fn code(job: &Job) -> u8 {
    match (job.status, job.exit_code) {
        (JobStatus::Completed, _) => 0,
        // Stopped with exit code 0: a script must still see a failure.
        (_, Some(0)) => 1,
        (_, Some(code)) => (code & 0xff) as u8,
        (JobStatus::Cancelled, None) => interrupt::INTERRUPTED,
        (_, None) => RUN_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_job_and_not_0_after_a_failure() {
        let job = |status, exit_code| Job { status, exit_code, ..Job::default() };
        assert_eq!(code(&job(JobStatus::Completed, Some(0))), 0);
        assert_eq!(code(&job(JobStatus::Failed, Some(3))), 3);
        assert_eq!(code(&job(JobStatus::Failed, Some(137))), 137);
        assert_eq!(code(&job(JobStatus::Cancelled, Some(0))), 1);
        assert_eq!(code(&job(JobStatus::Cancelled, None)), 130);
        assert_eq!(code(&job(JobStatus::Failed, None)), RUN_FAILURE);
    }
}
