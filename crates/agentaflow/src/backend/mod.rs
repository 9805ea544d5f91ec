//! Who answers: a server of ours, or a Kubernetes cluster. Commands ask here and do not care which.

mod cluster;
mod server;
mod work;

use agentaflow_api::account::User;
use agentaflow_api::client::Client;
use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::event::Event;
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;
use agentaflow_api::queue::{Queue, QueueSpec};
use agentaflow_kube_client::Cluster;
use anyhow::Result;
use bytes::Bytes;
use futures_util::stream::BoxStream;

pub(crate) use work::{Said, Work, Written};

/// Pieces of output as they come.
pub(crate) type Output = BoxStream<'static, Result<Bytes>>;

/// Events as they happen.
pub(crate) type Happenings = BoxStream<'static, Result<Event>>;

/// Who answers.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    /// A server of ours.
    Server(Client),
    /// A Kubernetes cluster.
    Cluster(Cluster),
}

impl Backend {
    /// Where it is, for people.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Server(client) => client.base().as_str().trim_end_matches('/').to_owned(),
            Self::Cluster(cluster) => format!("Kubernetes, namespace {}", cluster.namespace),
        }
    }

    /// Jobs, newest first.
    pub(crate) async fn jobs(&self, query: &JobQuery) -> Result<Vec<Job>> {
        match self {
            Self::Server(client) => Ok(client.jobs(query).await?),
            Self::Cluster(cluster) => cluster::jobs(cluster, query).await,
        }
    }

    /// One job.
    pub(crate) async fn job(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => server::job(client, name).await,
            Self::Cluster(cluster) => cluster::near(cluster, name, cluster.job(name)).await,
        }
    }

    /// Names the queue of every job that was handed in without one, as far as it is known.
    pub(crate) async fn name_queues(&self, jobs: &mut [Job]) {
        if !jobs.iter().any(|job| job.spec.queue.is_none()) {
            return;
        }
        let users = self.users().await;
        for job in jobs.iter_mut().filter(|job| job.spec.queue.is_none()) {
            let owner = users.iter().find(|user| user.id == job.user_id);
            job.spec.queue =
                owner.map(|user| user.default_queue.clone()).filter(|queue| !queue.is_empty());
        }
    }

    /// The users that the caller may look at: all, or only the caller; a cluster has none.
    pub(crate) async fn users(&self) -> Vec<User> {
        match self {
            Self::Server(client) => server::users(client).await,
            Self::Cluster(_) => Vec::new(),
        }
    }

    /// Whether work can be said in the words of whoever is meant.
    pub(crate) fn understands(&self, work: &Work) -> Result<()> {
        match self {
            Self::Server(_) => work.job().map(drop),
            Self::Cluster(_) => work.object().map(drop),
        }
    }

    /// Hands in work.
    pub(crate) async fn submit(&self, work: &Work) -> Result<Job> {
        let answer = match self {
            Self::Server(client) => server::submit(client, work).await,
            Self::Cluster(cluster) => {
                cluster.create(&work.object()?, false).await.map_err(Into::into)
            }
        };
        answer.map_err(|error| work.refused(error))
    }

    /// Whether work would be taken: hands in nothing.
    pub(crate) async fn would_take(&self, work: &Work) -> Result<()> {
        let answer: Result<()> = match self {
            Self::Server(client) => {
                client.what_if(&work.job()?).await.map(drop).map_err(Into::into)
            }
            Self::Cluster(cluster) => {
                cluster.create(&work.object()?, true).await.map(drop).map_err(Into::into)
            }
        };
        answer.map_err(|error| work.refused(error))
    }

    /// Says whether work would be taken, and what it would become.
    pub(crate) async fn try_out(&self, work: &Work) -> Result<Explanation> {
        let answer: Result<Explanation> = match self {
            Self::Server(client) => client.what_if(&work.job()?).await.map_err(Into::into),
            Self::Cluster(cluster) => cluster.what_if(&work.object()?).await.map_err(Into::into),
        };
        answer.map_err(|error| work.refused(error))
    }

    /// Stops a job.
    pub(crate) async fn cancel(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => Ok(client.cancel(server::number(client, name).await?).await?),
            Self::Cluster(cluster) => cluster::near(cluster, name, cluster.cancel(name)).await,
        }
    }

    /// Ends a job as if it were done.
    pub(crate) async fn complete(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => {
                Ok(client.complete(server::number(client, name).await?).await?)
            }
            Self::Cluster(cluster) => cluster::near(cluster, name, cluster.complete(name)).await,
        }
    }

    /// Why a job waits, or what became of it.
    pub(crate) async fn explain(&self, name: &str) -> Result<Explanation> {
        match self {
            Self::Server(client) => Ok(client.explain(server::number(client, name).await?).await?),
            Self::Cluster(cluster) => cluster::near(cluster, name, cluster.explain(name)).await,
        }
    }

    /// What a task of a job wrote. A stream that is followed may end before the job does.
    pub(crate) async fn logs(&self, name: &str, query: &LogQuery) -> Result<Output> {
        match self {
            Self::Server(client) => server::logs(client, name, query).await,
            Self::Cluster(cluster) => cluster::logs(cluster, name, query).await,
        }
    }

    /// What happened to a job, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Result<Vec<Event>> {
        match self {
            Self::Server(client) => server::events(client, name).await,
            Self::Cluster(cluster) => {
                cluster::near(cluster, name, cluster.events(Some(name))).await
            }
        }
    }

    /// What happened last to all jobs and nodes, oldest first.
    pub(crate) async fn past_events(&self) -> Result<Vec<Event>> {
        match self {
            Self::Server(client) => Ok(client.past_events().await?),
            Self::Cluster(cluster) => Ok(cluster.events(None).await?),
        }
    }

    /// What happens from now on, or since an event: to one job, or to all.
    pub(crate) async fn happenings(
        &self,
        name: Option<&str>,
        after: Option<i64>,
    ) -> Result<Happenings> {
        match self {
            Self::Server(client) => server::happenings(client, name, after).await,
            Self::Cluster(cluster) => cluster::happenings(cluster, name).await,
        }
    }

    /// Nodes.
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        match self {
            Self::Server(client) => Ok(client.nodes().await?),
            Self::Cluster(cluster) => Ok(cluster.nodes().await?),
        }
    }

    /// Closes a node, or a GPU of it (`node/gpu`), to new work; or opens it again.
    pub(crate) async fn cordon(&self, target: &str, closed: bool) -> Result<()> {
        match self {
            Self::Server(client) => server::cordon(client, target, closed).await,
            Self::Cluster(cluster) => {
                cluster::near_node(cluster, target, cluster.cordon(target, closed)).await
            }
        }
    }

    /// Closes a node and moves the work on it elsewhere; says what it moves.
    pub(crate) async fn drain(&self, node: &str) -> Result<Vec<String>> {
        match self {
            Self::Server(client) => server::drain(client, node).await,
            Self::Cluster(cluster) => cluster::near_node(cluster, node, cluster.drain(node)).await,
        }
    }

    /// Queues.
    pub(crate) async fn queues(&self) -> Result<Vec<Queue>> {
        match self {
            Self::Server(client) => Ok(client.queues().await?),
            Self::Cluster(cluster) => Ok(cluster.queues().await?),
        }
    }

    /// Makes or changes a queue.
    pub(crate) async fn set_queue(&self, queue: &QueueSpec) -> Result<Queue> {
        match self {
            Self::Server(client) => server::set_queue(client, queue).await,
            Self::Cluster(cluster) => Ok(cluster.set_queue(queue).await?),
        }
    }

    /// Removes a queue.
    pub(crate) async fn delete_queue(&self, name: &str) -> Result<()> {
        match self {
            Self::Server(client) => server::delete_queue(client, name).await,
            Self::Cluster(cluster) => Ok(cluster.delete_queue(name).await?),
        }
    }

    /// The strategy in force.
    pub(crate) async fn strategy(&self) -> Result<String> {
        match self {
            Self::Server(client) => server::strategy(client).await,
            Self::Cluster(cluster) => Ok(cluster.strategy().await?),
        }
    }

    /// Changes the strategy for what is placed from now on.
    pub(crate) async fn set_strategy(&self, name: &str) -> Result<()> {
        match self {
            Self::Server(client) => server::set_strategy(client, name).await,
            Self::Cluster(cluster) => Ok(cluster.set_strategy(name).await?),
        }
    }
}
