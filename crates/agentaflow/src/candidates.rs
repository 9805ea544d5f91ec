//! Shell completion of names. The backend is queried while the user types, with a short timeout.

use std::future::Future;
use std::time::Duration;

use agentaflow_api::client::user::JobQuery;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::labels;
use anyhow::Result;
use clap_complete::engine::CompletionCandidate;

use crate::backend::Backend;
use crate::connect::{Connect, block_on};
use crate::context::{self, Contexts};
use crate::listing;

const QUERY_TIMEOUT: Duration = Duration::from_millis(1500);

pub(crate) fn contexts() -> Vec<CompletionCandidate> {
    let read = context::file().and_then(|path| Contexts::read(&path));
    let known = read.map(|contexts| contexts.known).unwrap_or_default();
    known.iter().map(|(name, target)| candidate(name.clone(), target.description())).collect()
}

pub(crate) fn jobs() -> Vec<CompletionCandidate> {
    jobs_with(Vec::new())
}

pub(crate) fn unfinished_jobs() -> Vec<CompletionCandidate> {
    jobs_with(JobStatus::ALL.into_iter().filter(|status| !status.is_final()).collect())
}

fn jobs_with(status: Vec<JobStatus>) -> Vec<CompletionCandidate> {
    query(async move |backend: Backend| {
        let query = JobQuery { status, limit: Some(50), skip: None };
        let jobs = backend.jobs(&query).await?;
        let about = |job| format!("{} {}", listing::job_status(job), listing::short_job_name(job));
        let names = |job: &Job| {
            let named = job.spec.job_name.clone();
            let named = named.filter(|name| *name != job.handle() && !name.contains(' '));
            named.into_iter().chain([job.handle()]).collect::<Vec<_>>()
        };
        let all = |job| names(job).into_iter().map(move |name| candidate(name, about(job)));
        Ok(jobs.iter().flat_map(all).collect())
    })
}

pub(crate) fn nodes() -> Vec<CompletionCandidate> {
    query(async |backend: Backend| {
        let nodes = backend.nodes().await?;
        let named = |node| candidate(listing::node_name(node), labels::node_gpus(node));
        Ok(nodes.iter().map(named).collect())
    })
}

/// First operand of `describe`: a kind, or a job.
pub(crate) fn kinds_and_jobs() -> Vec<CompletionCandidate> {
    let kinds = ["workload", "node", "queue", "user"].map(CompletionCandidate::new);
    kinds.into_iter().chain(jobs()).collect()
}

/// Second operand of `describe`, of the kind of the first.
pub(crate) fn names_of_kind() -> Vec<CompletionCandidate> {
    let mut words = std::env::args().skip_while(|word| word != "describe").skip(1);
    match words.find(|word| !word.starts_with('-')).as_deref() {
        Some("node" | "nodes" | "gn") => nodes(),
        Some("queue" | "queues" | "gq") => queues(),
        Some("user" | "users") => users(),
        _ => jobs(),
    }
}

pub(crate) fn users() -> Vec<CompletionCandidate> {
    query(async |backend: Backend| {
        let users = backend.users().await;
        Ok(users.iter().map(|user| CompletionCandidate::new(user.username.clone())).collect())
    })
}

pub(crate) fn queues() -> Vec<CompletionCandidate> {
    query(async |backend: Backend| {
        let queues = backend.queues().await?;
        Ok(queues.iter().map(|queue| CompletionCandidate::new(queue.spec.name.clone())).collect())
    })
}

pub(crate) fn strategies() -> Vec<CompletionCandidate> {
    agentaflow_engine::Strategy::names().map(CompletionCandidate::new).collect()
}

fn candidate(name: String, about: String) -> CompletionCandidate {
    CompletionCandidate::new(name).help(Some(about.into()))
}

/// Queries the current context; empty on an error or a timeout.
fn query<F>(ask: impl FnOnce(Backend) -> F) -> Vec<CompletionCandidate>
where
    F: Future<Output = Result<Vec<CompletionCandidate>>>,
{
    let candidates = block_on(async {
        let ask = async { ask(Connect::default().backend().await?).await };
        tokio::time::timeout(QUERY_TIMEOUT, ask).await?
    });
    candidates.unwrap_or_default()
}
