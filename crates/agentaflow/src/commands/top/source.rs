//! A backend as the data source of the full-screen view.

use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_console::{Request, Snapshot, Source};
use anyhow::Result;
use futures_util::StreamExt as _;

use crate::backend::Backend;
use crate::failure;

const MAX_OPEN_JOBS: u64 = 1000;

const MAX_FINISHED_JOBS: u64 = 20;

pub(super) struct BackendSource(pub(super) Backend);

impl Source for BackendSource {
    fn address(&self) -> String {
        match &self.0 {
            Backend::Server(_) => self.0.address(),
            Backend::Cluster(cluster) => format!("namespace {}", cluster.namespace),
        }
    }

    fn snapshot(&self) -> Request<'_, Snapshot> {
        Box::pin(async { snapshot(&self.0).await.map_err(text) })
    }

    fn explain<'a>(&'a self, job: &'a str) -> Request<'a, Explanation> {
        Box::pin(async move { self.0.explain(job).await.map_err(text) })
    }

    fn logs<'a>(&'a self, job: &'a str, lines: u64, bytes: usize) -> Request<'a, Vec<u8>> {
        Box::pin(async move { logs(&self.0, job, lines, bytes).await.map_err(text) })
    }

    fn cancel<'a>(&'a self, job: &'a str) -> Request<'a, Job> {
        Box::pin(async move { self.0.cancel(job).await.map_err(text) })
    }
}

/// Reads nodes, open jobs and the jobs that finished last.
pub(super) async fn snapshot(backend: &Backend) -> Result<Snapshot> {
    let query = |status: &[JobStatus], limit| JobQuery {
        status: status.to_vec(),
        limit: Some(limit),
        skip: None,
    };
    let open =
        query(&[JobStatus::Pending, JobStatus::Scheduled, JobStatus::Running], MAX_OPEN_JOBS);
    let finished =
        query(&[JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled], MAX_FINISHED_JOBS);
    let (nodes, mut jobs, finished) =
        tokio::try_join!(backend.nodes(), backend.jobs(&open), backend.jobs(&finished))?;
    // A job that finished between the two responses is in both; its final state counts.
    jobs.retain(|job| !finished.iter().any(|other| other.handle() == job.handle()));
    jobs.extend(finished);
    Ok(Snapshot { nodes, jobs })
}

async fn logs(backend: &Backend, job: &str, lines: u64, most: usize) -> Result<Vec<u8>> {
    let query = LogQuery { follow: false, tail: Some(lines), task: None, offset: None };
    let mut pieces = backend.logs(job, &query).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > most {
            bytes.truncate(most);
            break;
        }
    }
    Ok(bytes)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` calls")]
fn text(error: anyhow::Error) -> String {
    failure::sentence(&error)
}
