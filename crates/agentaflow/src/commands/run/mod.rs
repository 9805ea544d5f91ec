//! `agentaflow run`: hands in a job, shows its output as if it ran here, and ends as it ended.

pub(super) mod follow;
mod interrupt;
mod line;
pub(super) mod place;

use std::process::ExitCode;

use agentaflow_api::end::EndReason;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::format::one_line;
use agentaflow_kube_client::Failure;
use anyhow::{Context as _, Result};

use super::{OWN_FAILURE, explain};
use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::failure;
use crate::job_args::JobArgs;
use crate::output;

/// What a shell reports for a program whose reader went away.
const CLOSED_PIPE: u8 = 128 + 13;

const EXAMPLES: &str = "\
Examples:
  agentaflow run -- echo hello
      A command as a plain process on any node that allows it
  agentaflow run --gpus 1 --memory 8G pytorch/pytorch:latest -- python train.py
      A container with one GPU
  agentaflow run --fraction 0.5 --timeout 1h -d my/model -- python serve.py
      Half a GPU, an hour at most, in the background

Ctrl-C lets go of the job, which goes on; Ctrl-C again within three seconds stops it.
Without a terminal SIGINT and SIGTERM stop it. A job has no standard input: it reads an
empty one, whatever is piped into `run`.

Exit codes: the job's own; 128 and the number of the signal that ended it; 125 when it
could not be run.";

/// Run a job: show its output, end with its exit code
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Print the job's number or name and leave it alone
    #[arg(short, long)]
    detach: bool,
    /// Only say where it would go and what it would cost; nothing is handed in
    #[arg(long)]
    dry_run: bool,
    /// Say nothing but what the job says
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    connect: Connect,
}

/// What became of watching a job.
enum Watched {
    /// It is over.
    Ended(Box<Job>),
    /// It goes on without us.
    LetGo,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let work = args.job.work()?;
    block_on(async {
        let backend = args.connect.backend().await?;
        if args.dry_run {
            let said = backend.try_out(&work).await?;
            output::print(&explain::words(&said))?;
            return Ok(ExitCode::SUCCESS);
        }
        // From here on a signal is ours to answer: a job that was handed in must not be forgotten.
        let mut signals = interrupt::Signals::new()?;
        if !args.quiet && !args.detach {
            tokio::select! {
                () = place::foretell(&backend, &work) => {}
                // Nothing was handed in yet.
                () = signals.next() => return Ok(ExitCode::from(interrupt::INTERRUPTED)),
            }
        }
        let Some(job) = signals.during(backend.submit(&work)).await else {
            eprintln!(
                "it is not known whether the job was taken; `agentaflow get workloads` tells"
            );
            return Ok(ExitCode::from(interrupt::INTERRUPTED));
        };
        let job = job.context("cannot hand in the job")?;
        let name = job.handle();
        if args.detach {
            output::print(&format!("{name}\n"))?;
            if !args.quiet {
                place::warn_if_never(&backend, &work).await;
            }
            return Ok(ExitCode::SUCCESS);
        }
        match Box::pin(watch(&backend, &job, &mut signals, args.quiet)).await {
            Ok(Watched::Ended(job)) => Ok(ended(&job)),
            Ok(Watched::LetGo) => Ok(ExitCode::from(interrupt::INTERRUPTED)),
            Err(error) if failure::is_closed_pipe(&error) => {
                backend.cancel(&name).await.with_context(|| format!("cannot stop job {name}"))?;
                Ok(ExitCode::from(CLOSED_PIPE))
            }
            Err(error) => Err(error.context(format!(
                "lost touch with job {name}, which goes on; `agentaflow logs -f {name}` comes back to it"
            ))),
        }
    })
}

async fn watch(
    backend: &Backend,
    job_handed_in: &Job,
    signals: &mut interrupt::Signals,
    quiet: bool,
) -> Result<Watched> {
    let name = job_handed_in.handle();
    let line = line::Line::new();
    let output = follow::to_the_end(backend, job_handed_in, &line);
    let place = async {
        if quiet { std::future::pending().await } else { place::tell(backend, &name, &line).await }
    };
    tokio::pin!(output, place);
    let mut stopping = false;
    loop {
        tokio::select! {
            // Output first: what a job wrote before it was stopped is shown.
            biased;
            job = &mut output => {
                line.clear();
                let job = job.or_else(|error| if_deleted(error, job_handed_in))?;
                return Ok(Watched::Ended(Box::new(job)));
            }
            // Why a job waits that is being stopped concerns nobody.
            () = &mut place, if !stopping => {}
            () = signals.next() => {
                line.leave(signals.terminal);
                match signals.answer(backend, &name).await? {
                    interrupt::Answer::LetGo => return Ok(Watched::LetGo),
                    interrupt::Answer::Stopping => stopping = true,
                }
            }
        }
    }
}

/// A cluster forgets what is cancelled: a workload that is gone was deleted, by us or by somebody else.
fn if_deleted(error: anyhow::Error, job: &Job) -> Result<Job> {
    if !matches!(error.downcast_ref(), Some(Failure::NotFound(_))) {
        return Err(error);
    }
    Ok(follow::deleted(job))
}

/// The exit code for a job that is over, with a word where the code alone does not tell.
fn ended(job: &Job) -> ExitCode {
    if job.status != JobStatus::Completed && job.end_reason != Some(EndReason::Exited) {
        let reason = job.end_reason.map_or("no reason reported", EndReason::as_str);
        let message = job.error_message.as_deref().map_or_else(|| reason.to_owned(), one_line);
        eprintln!("job {} {}: {message}", job.handle(), job.status.as_str());
    }
    ExitCode::from(code(job))
}

fn code(job: &Job) -> u8 {
    match (job.status, job.exit_code) {
        (JobStatus::Completed, _) => 0,
        // Stopped, and it took that well; for a script it failed all the same.
        (_, Some(0)) => 1,
        (_, Some(code)) => (code & 0xff) as u8,
        (JobStatus::Cancelled, None) => interrupt::INTERRUPTED,
        (_, None) => OWN_FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_jobs_own_and_never_0_for_a_job_that_failed() {
        let job = |status, exit_code| Job { status, exit_code, ..Job::default() };
        assert_eq!(code(&job(JobStatus::Completed, Some(0))), 0);
        assert_eq!(code(&job(JobStatus::Failed, Some(3))), 3);
        assert_eq!(code(&job(JobStatus::Failed, Some(137))), 137);
        assert_eq!(code(&job(JobStatus::Cancelled, Some(0))), 1);
        assert_eq!(code(&job(JobStatus::Cancelled, None)), 130);
        assert_eq!(code(&job(JobStatus::Failed, None)), OWN_FAILURE);
    }
}
