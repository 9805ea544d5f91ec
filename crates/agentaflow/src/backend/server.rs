//! Server requests that need more than one API call.

use agentaflow_api::account::User;
use agentaflow_api::alert::Silence;
use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::client::{Client, ClientError, segment};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{EventSeq, JobId};
use agentaflow_api::job::{Job, JobStatus, TaskPlace};
use agentaflow_api::node::{Node, NodeStatus, NodeUpdate};
use agentaflow_api::queue::{Queue, QueueSpec};
use agentaflow_console::labels::{gpu_number, job_name};
use anyhow::Result;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::{EventStream, LogStream, Submission};
use crate::context::variable;
use crate::failure::{NotFound, usage};
use crate::nearest::not_found;

/// Newest jobs searched for a name.
const SEARCHED_JOBS: u64 = 1000;

/// Id of a job given by id or name; the newest job of that name.
pub(super) async fn job_id(client: &Client, name: &str) -> Result<JobId> {
    match name.parse() {
        Ok(id @ 1..) => Ok(JobId(id)),
        _ => Ok(job(client, name).await?.id),
    }
}

pub(super) async fn job(client: &Client, name: &str) -> Result<Job> {
    if let Ok(id @ 1..) = name.parse() {
        return Ok(client.job(JobId(id)).await?);
    }
    // An unset variable in a script must not select a job.
    if name.trim().is_empty() {
        return Err(usage("the job name is empty"));
    }
    let query = JobQuery { limit: Some(SEARCHED_JOBS), ..JobQuery::default() };
    let jobs = client.jobs(&query).await?;
    let named = |job: &&Job| job.spec.job_name.as_deref() == Some(name);
    // Tables show an unnamed job by its image or command.
    let listed = |job: &&Job| job.spec.job_name.is_none() && job_name(job) == name;
    let newest = jobs.iter().filter(named).max_by_key(|job| job.id);
    let newest = newest.or_else(|| jobs.iter().filter(listed).max_by_key(|job| job.id));
    newest.cloned().ok_or_else(|| {
        let known: Vec<_> = jobs.iter().filter_map(|job| job.spec.job_name.clone()).collect();
        not_found("job", name, &known).into()
    })
}

/// All users for an admin, else only the caller.
pub(super) async fn users(client: &Client) -> Vec<User> {
    match client.get("/users").json().await {
        Ok(users) => users,
        Err(_) => client.get("/auth/me").json().await.into_iter().collect(),
    }
}

/// Submits a job, and retries once if the response is lost. The idempotency key prevents a duplicate.
pub(super) async fn submit(client: &Client, submission: &Submission) -> Result<Job> {
    let (mut job, key) = (submission.job()?, idempotency_key());
    job.trace = variable("TRACEPARENT").and_then(|parent| parent.parse().ok());
    match client.submit(&job, Some(&key)).await {
        Err(ClientError::Unreachable { .. }) => Ok(client.submit(&job, Some(&key)).await?),
        result => Ok(result?),
    }
}

pub(super) async fn unsilence(client: &Client, id: &str) -> Result<()> {
    let path = format!("/alerts/silences/{}", segment(id));
    let _: Silence = client.delete(&path).json().await?;
    Ok(())
}

pub(super) async fn logs(client: &Client, name: &str, query: &LogQuery) -> Result<LogStream> {
    let id = job_id(client, name).await?;
    let bytes = client.logs(id, query).await?;
    let pieces = futures_util::stream::try_unfold(bytes, |mut bytes| async move {
        Ok(bytes.next().await?.map(|piece| (piece, bytes)))
    });
    Ok(pieces.boxed())
}

pub(super) async fn events(client: &Client, name: &str) -> Result<Vec<Event>> {
    let id = job_id(client, name).await?;
    let mut events: Vec<Event> = Vec::new();
    loop {
        let page =
            client.job_events(id, events.last().map_or(EventSeq(0), |event| event.seq)).await?;
        if page.is_empty() {
            return Ok(events);
        }
        events.extend(page);
    }
}

pub(super) async fn follow_events(
    client: &Client,
    name: Option<&str>,
    after: Option<EventSeq>,
) -> Result<EventStream> {
    let id = match name {
        Some(name) => Some(job_id(client, name).await?),
        None => None,
    };
    let events = client.events(after, id).await?;
    let events = futures_util::stream::try_unfold(events, |mut events| async move {
        Ok(events.next().await?.map(|event| (event, events)))
    });
    let matches = move |event: &Result<Event>| match event {
        Ok(event) => id.is_none() || event.job_id == id,
        Err(_) => true,
    };
    Ok(events.filter(move |event| std::future::ready(matches(event))).boxed())
}

pub(super) async fn cordon(client: &Client, target: &str, cordoned: bool) -> Result<()> {
    let (node, gpu) = node_or_gpu(client, target).await?;
    let update = match &gpu {
        None => {
            let status = if cordoned { NodeStatus::Maintenance } else { NodeStatus::Active };
            NodeUpdate { status: Some(status), ..NodeUpdate::default() }
        }
        Some(gpu) if cordoned => {
            NodeUpdate { cordon_gpus: Some(vec![gpu.clone()]), ..NodeUpdate::default() }
        }
        Some(gpu) => NodeUpdate { uncordon_gpus: Some(vec![gpu.clone()]), ..NodeUpdate::default() },
    };
    client.update_node(&node.node_id, &update).await?;
    Ok(())
}

/// Resolves `node` or `node/gpu`; the GPU is given by number or UUID.
async fn node_or_gpu(client: &Client, target: &str) -> Result<(Node, Option<String>)> {
    let Some((name, gpu)) = target.split_once('/') else {
        return Ok((node(client, target).await?, None));
    };
    let node = node(client, name).await?;
    let mut known = node.spec.gpu_instances.iter().enumerate();
    let number = known.find_map(|(position, known)| {
        let number = gpu_number(position, known);
        (number == gpu || known.gpu_uuid.as_deref() == Some(gpu)).then_some(number)
    });
    match number {
        Some(number) => Ok((node, Some(number))),
        None => Err(NotFound(format!("node `{name}` has no GPU `{gpu}`")).into()),
    }
}

pub(super) async fn drain(client: &Client, target: &str) -> Result<Vec<String>> {
    let (node, gpu) = node_or_gpu(client, target).await?;
    let placed = vec![JobStatus::Scheduled, JobStatus::Running];
    let query = JobQuery { status: placed, limit: Some(SEARCHED_JOBS), ..JobQuery::default() };
    let on_gpu = |task: &TaskPlace| gpu.as_ref().is_none_or(|gpu| task.gpus.contains(gpu));
    let affected = |task: &TaskPlace| task.node_id == node.node_id && on_gpu(task);
    // Listed before the update, since a drained job may leave the node at once.
    let jobs = client.jobs(&query).await?;
    let update = match &gpu {
        None => {
            let status = Some(NodeStatus::Maintenance);
            NodeUpdate { status, drain: Some(true), ..NodeUpdate::default() }
        }
        Some(gpu) => NodeUpdate { drain_gpus: Some(vec![gpu.clone()]), ..NodeUpdate::default() },
    };
    client.update_node(&node.node_id, &update).await?;
    let moved = jobs.iter().rev().filter(|job| job.tasks.iter().any(affected));
    Ok(moved.map(|job| format!("job {}", job.handle())).collect())
}

/// Finds a node by name or id.
async fn node(client: &Client, name: &str) -> Result<Node> {
    let nodes = client.nodes().await?;
    let matches = |node: &&Node| node.spec.node_name == name || node.node_id == name;
    nodes.iter().find(matches).cloned().ok_or_else(|| {
        let names: Vec<_> = nodes.iter().map(|node| node.spec.node_name.clone()).collect();
        not_found("node", name, &names).into()
    })
}

pub(super) async fn set_queue(client: &Client, queue: &QueueSpec) -> Result<Queue> {
    Ok(client.put(&format!("/queues/{}", segment(&queue.name))).body(queue).json().await?)
}

pub(super) async fn delete_queue(client: &Client, name: &str) -> Result<()> {
    Ok(client.delete(&format!("/queues/{}", segment(name))).nothing().await?)
}

#[derive(Debug, Serialize, Deserialize)]
struct StrategyBody {
    strategy: String,
}

pub(super) async fn strategy(client: &Client) -> Result<String> {
    Ok(client.get("/strategy").json::<StrategyBody>().await?.strategy)
}

pub(super) async fn set_strategy(client: &Client, name: &str) -> Result<()> {
    let body = StrategyBody { strategy: name.to_owned() };
    client.put("/strategy").body(&body).json::<StrategyBody>().await?;
    Ok(())
}

/// A unique key; not a secret.
fn idempotency_key() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let now = agentaflow_api::Stamp::now().0;
    let random = || RandomState::new().hash_one(now);
    format!("cli-{:016x}{:016x}", random(), random())
}
