//! Questions to a Kubernetes cluster that need a word more than the call itself.

use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::job::Job;
use agentaflow_kube::client::{self, Cluster};
use anyhow::Result;
use futures_util::StreamExt as _;

use super::{Happenings, Output};

/// A cluster lists everything at once: the part that was asked for is cut out here.
pub(super) async fn jobs(cluster: &Cluster, query: &JobQuery) -> Result<Vec<Job>> {
    let jobs = cluster.jobs(&query.status).await?.into_iter();
    let jobs = jobs.skip(query.skip.unwrap_or(0) as usize);
    Ok(jobs.take(query.limit.map_or(usize::MAX, |limit| limit as usize)).collect())
}

pub(super) async fn logs(cluster: &Cluster, name: &str, query: &LogQuery) -> Result<Output> {
    let task = query.task.unwrap_or(0);
    let query = client::LogQuery { follow: query.follow, tail: query.tail, task };
    let pieces = cluster.logs(name, &query).await?;
    Ok(pieces.map(|piece| Ok(piece?)).boxed())
}

pub(super) async fn happenings(cluster: &Cluster, name: Option<&str>) -> Result<Happenings> {
    Ok(cluster.follow_events(name).await?.map(|event| Ok(event?)).boxed())
}
