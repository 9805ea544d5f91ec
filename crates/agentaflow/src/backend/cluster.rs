//! Cluster requests that need more than one API call.

use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::job::Job;
use agentaflow_kube_client::{self as client, Cluster, Failure};
use anyhow::Result;
use futures_util::StreamExt as _;

use super::{EventStream, LogStream};
use agentaflow_units::{did_you_mean, nearest};

/// Applies offset and limit on the client; the API server lists all jobs.
pub(super) async fn jobs(cluster: &Cluster, query: &JobQuery) -> Result<Vec<Job>> {
    let jobs = cluster.jobs(&query.status).await?.into_iter();
    let jobs = jobs.skip(query.skip.unwrap_or(0) as usize);
    Ok(jobs.take(query.limit.map_or(usize::MAX, |limit| limit as usize)).collect())
}

/// Adds the nearest job name to a not-found error.
pub(super) async fn with_suggestion<T>(
    cluster: &Cluster,
    name: &str,
    request: impl Future<Output = Result<T, Failure>>,
) -> Result<T> {
    let known = async || {
        let jobs = cluster.jobs(&[]).await.unwrap_or_default();
        jobs.iter().map(Job::handle).collect()
    };
    suggest(Box::pin(request).await, name, known).await
}

/// Adds the nearest node name to a not-found error about `node` or `node/gpu`.
pub(super) async fn with_node_suggestion<T>(
    cluster: &Cluster,
    name: &str,
    request: impl Future<Output = Result<T, Failure>>,
) -> Result<T> {
    let known = async || {
        let nodes = cluster.nodes().await.unwrap_or_default();
        nodes.into_iter().map(|node| node.spec.node_name).collect()
    };
    let node = name.split('/').next().unwrap_or_default();
    suggest(Box::pin(request).await, node, known).await
}

async fn suggest<T>(
    result: Result<T, Failure>,
    name: &str,
    known: impl AsyncFnOnce() -> Vec<String>,
) -> Result<T> {
    let Err(Failure::NotFound(why)) = result else { return Ok(result?) };
    let known = Box::pin(known()).await;
    // If the name exists, the error is about another object.
    let near = nearest(name, known.iter().map(String::as_str)).filter(|near| *near != name);
    Err(Failure::NotFound(format!("{why}{}", did_you_mean(near))).into())
}

pub(super) async fn logs(cluster: &Cluster, name: &str, query: &LogQuery) -> Result<LogStream> {
    let task = query.task.unwrap_or(0);
    let query = client::LogQuery { follow: query.follow, tail: query.tail, task };
    let pieces = with_suggestion(cluster, name, cluster.logs(name, &query)).await?;
    Ok(pieces.map(|piece| Ok(piece?)).boxed())
}

pub(super) async fn follow_events(cluster: &Cluster, name: Option<&str>) -> Result<EventStream> {
    Ok(cluster.follow_events(name).await?.map(|event| Ok(event?)).boxed())
}
