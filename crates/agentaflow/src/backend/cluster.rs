//! Questions to a Kubernetes cluster that need a word more than the call itself.

use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::job::Job;
use agentaflow_kube_client::{self as client, Cluster, Failure};
use anyhow::Result;
use futures_util::StreamExt as _;

use super::{Happenings, Output};
use crate::nearest::nearest;

/// A cluster lists everything at once: the part that was asked for is cut out here.
pub(super) async fn jobs(cluster: &Cluster, query: &JobQuery) -> Result<Vec<Job>> {
    let jobs = cluster.jobs(&query.status).await?.into_iter();
    let jobs = jobs.skip(query.skip.unwrap_or(0) as usize);
    Ok(jobs.take(query.limit.map_or(usize::MAX, |limit| limit as usize)).collect())
}

/// The answer to a question about a job. If there is none of that name, one whose name is near may be meant.
pub(super) async fn near<T>(
    cluster: &Cluster,
    name: &str,
    question: impl Future<Output = Result<T, Failure>>,
) -> Result<T> {
    let known = async || {
        let jobs = cluster.jobs(&[]).await.unwrap_or_default();
        jobs.iter().map(Job::handle).collect()
    };
    suggest(Box::pin(question).await, name, known).await
}

/// The same for a question about a node, or a GPU of it (`node/gpu`).
pub(super) async fn near_node<T>(
    cluster: &Cluster,
    name: &str,
    question: impl Future<Output = Result<T, Failure>>,
) -> Result<T> {
    let known = async || {
        let nodes = cluster.nodes().await.unwrap_or_default();
        nodes.into_iter().map(|node| node.spec.node_name).collect()
    };
    let node = name.split('/').next().unwrap_or_default();
    suggest(Box::pin(question).await, node, known).await
}

async fn suggest<T>(
    answer: Result<T, Failure>,
    name: &str,
    known: impl AsyncFnOnce() -> Vec<String>,
) -> Result<T> {
    let Err(Failure::NotFound(why)) = answer else { return Ok(answer?) };
    let known = Box::pin(known()).await;
    // What is there under this very name lacks something else.
    let near = nearest(name, known.iter().map(String::as_str)).filter(|near| *near != name);
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Err(Failure::NotFound(format!("{why}{near}")).into())
}

pub(super) async fn logs(cluster: &Cluster, name: &str, query: &LogQuery) -> Result<Output> {
    let task = query.task.unwrap_or(0);
    let query = client::LogQuery { follow: query.follow, tail: query.tail, task };
    let pieces = near(cluster, name, cluster.logs(name, &query)).await?;
    Ok(pieces.map(|piece| Ok(piece?)).boxed())
}

pub(super) async fn happenings(cluster: &Cluster, name: Option<&str>) -> Result<Happenings> {
    Ok(cluster.follow_events(name).await?.map(|event| Ok(event?)).boxed())
}
