//! A server or a Kubernetes cluster behind one interface.

mod cluster;
mod server;
mod submission;

use agentaflow_api::account::User;
use agentaflow_api::alert::{AlertReport, AlertTest, AlertTestResult, Silence, SilenceCreate};
use agentaflow_api::client::Client;
use agentaflow_api::client::user::{JobQuery, LogQuery};
use agentaflow_api::event::Event;
use agentaflow_api::explain::Explanation;
use agentaflow_api::ids::EventSeq;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;
use agentaflow_api::queue::{Queue, QueueSpec};
use agentaflow_kube_client::Cluster;
use anyhow::Result;
use bytes::Bytes;
use futures_util::stream::BoxStream;

pub(crate) use submission::{SourceDocument, Submission, SubmissionContent};

pub(crate) type LogStream = BoxStream<'static, Result<Bytes>>;

pub(crate) type EventStream = BoxStream<'static, Result<Event>>;

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Server(Client),
    Cluster(Cluster),
}

impl Backend {
    /// URL of the server, or namespace in the cluster.
    pub(crate) fn address(&self) -> String {
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

    pub(crate) async fn job(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => server::job(client, name).await,
            Self::Cluster(cluster) => {
                cluster::with_suggestion(cluster, name, cluster.job(name)).await
            }
        }
    }

    /// Fills in the default queue of the owner for jobs without a queue.
    pub(crate) async fn fill_queues(&self, jobs: &mut [Job]) {
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

    /// Users visible to the caller: all for an admin, else the caller. A cluster has none.
    pub(crate) async fn users(&self) -> Vec<User> {
        match self {
            Self::Server(client) => server::users(client).await,
            Self::Cluster(_) => Vec::new(),
        }
    }

    /// Fails if the backend cannot express the job.
    pub(crate) fn check_supported(&self, submission: &Submission) -> Result<()> {
        match self {
            Self::Server(_) => submission.job().map(drop),
            Self::Cluster(_) => submission.object().map(drop),
        }
    }

    pub(crate) async fn submit(&self, submission: &Submission) -> Result<Job> {
        let result = match self {
            Self::Server(client) => server::submit(client, submission).await,
            Self::Cluster(cluster) => {
                cluster.create(&submission.object()?, false).await.map_err(Into::into)
            }
        };
        result.map_err(|error| submission.locate_error(error))
    }

    /// Validates a job without creating it.
    pub(crate) async fn dry_run(&self, submission: &Submission) -> Result<()> {
        let result: Result<()> = match self {
            Self::Server(client) => {
                client.what_if(&submission.job()?).await.map(drop).map_err(Into::into)
            }
            Self::Cluster(cluster) => {
                cluster.create(&submission.object()?, true).await.map(drop).map_err(Into::into)
            }
        };
        result.map_err(|error| submission.locate_error(error))
    }

    /// Forecast for a job that is not submitted.
    pub(crate) async fn what_if(&self, submission: &Submission) -> Result<Explanation> {
        let result: Result<Explanation> = match self {
            Self::Server(client) => client.what_if(&submission.job()?).await.map_err(Into::into),
            Self::Cluster(cluster) => {
                cluster.what_if(&submission.object()?).await.map_err(Into::into)
            }
        };
        result.map_err(|error| submission.locate_error(error))
    }

    pub(crate) async fn cancel(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => Ok(client.cancel(server::job_id(client, name).await?).await?),
            Self::Cluster(cluster) => {
                cluster::with_suggestion(cluster, name, cluster.cancel(name)).await
            }
        }
    }

    /// Stops a job and records it as completed.
    pub(crate) async fn complete(&self, name: &str) -> Result<Job> {
        match self {
            Self::Server(client) => {
                Ok(client.complete(server::job_id(client, name).await?).await?)
            }
            Self::Cluster(cluster) => {
                cluster::with_suggestion(cluster, name, cluster.complete(name)).await
            }
        }
    }

    /// Pending reason, placement or end reason of a job.
    pub(crate) async fn explain(&self, name: &str) -> Result<Explanation> {
        match self {
            Self::Server(client) => Ok(client.explain(server::job_id(client, name).await?).await?),
            Self::Cluster(cluster) => {
                cluster::with_suggestion(cluster, name, cluster.explain(name)).await
            }
        }
    }

    /// Logs of a task. A followed stream may end before the job.
    pub(crate) async fn logs(&self, name: &str, query: &LogQuery) -> Result<LogStream> {
        match self {
            Self::Server(client) => server::logs(client, name, query).await,
            Self::Cluster(cluster) => cluster::logs(cluster, name, query).await,
        }
    }

    /// Events of a job, oldest first.
    pub(crate) async fn events(&self, name: &str) -> Result<Vec<Event>> {
        match self {
            Self::Server(client) => server::events(client, name).await,
            Self::Cluster(cluster) => {
                cluster::with_suggestion(cluster, name, cluster.events(Some(name))).await
            }
        }
    }

    /// Recent events of all jobs and nodes, oldest first.
    pub(crate) async fn past_events(&self) -> Result<Vec<Event>> {
        match self {
            Self::Server(client) => Ok(client.past_events().await?),
            Self::Cluster(cluster) => Ok(cluster.events(None).await?),
        }
    }

    /// New events of one job or of all, starting after the given sequence number.
    pub(crate) async fn follow_events(
        &self,
        name: Option<&str>,
        after: Option<EventSeq>,
    ) -> Result<EventStream> {
        match self {
            Self::Server(client) => server::follow_events(client, name, after).await,
            Self::Cluster(cluster) => cluster::follow_events(cluster, name).await,
        }
    }

    /// Alerts, silences and sinks.
    pub(crate) async fn alerts(&self) -> Result<AlertReport> {
        match self {
            Self::Server(client) => Ok(client.get("/alerts").json().await?),
            Self::Cluster(cluster) => Ok(cluster.alerts().await?),
        }
    }

    /// Sends a test message to one sink, or to all, and returns the results.
    pub(crate) async fn test_alerts(&self, sink: Option<String>) -> Result<Vec<AlertTestResult>> {
        match self {
            Self::Server(client) => {
                Ok(client.post("/alerts/test").body(&AlertTest { sink }).json().await?)
            }
            Self::Cluster(cluster) => Ok(cluster.test_alerts(sink).await?),
        }
    }

    pub(crate) async fn silence(&self, wanted: &SilenceCreate) -> Result<Silence> {
        match self {
            Self::Server(client) => Ok(client.post("/alerts/silences").body(wanted).json().await?),
            Self::Cluster(cluster) => Ok(cluster.silence(wanted).await?),
        }
    }

    /// Ends a silence.
    pub(crate) async fn unsilence(&self, id: &str) -> Result<()> {
        match self {
            Self::Server(client) => server::unsilence(client, id).await,
            Self::Cluster(cluster) => Ok(cluster.unsilence(id).await?),
        }
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        match self {
            Self::Server(client) => Ok(client.nodes().await?),
            Self::Cluster(cluster) => Ok(cluster.nodes().await?),
        }
    }

    /// Cordons or uncordons `node` or `node/gpu`.
    pub(crate) async fn cordon(&self, target: &str, cordoned: bool) -> Result<()> {
        match self {
            Self::Server(client) => server::cordon(client, target, cordoned).await,
            Self::Cluster(cluster) => {
                cluster::with_node_suggestion(cluster, target, cluster.cordon(target, cordoned))
                    .await
            }
        }
    }

    /// Cordons `node` or `node/gpu` and moves its jobs; returns the moved jobs.
    pub(crate) async fn drain(&self, node: &str) -> Result<Vec<String>> {
        match self {
            Self::Server(client) => server::drain(client, node).await,
            Self::Cluster(cluster) => {
                cluster::with_node_suggestion(cluster, node, cluster.drain(node)).await
            }
        }
    }

    pub(crate) async fn queues(&self) -> Result<Vec<Queue>> {
        match self {
            Self::Server(client) => Ok(client.queues().await?),
            Self::Cluster(cluster) => Ok(cluster.queues().await?),
        }
    }

    /// Creates or updates a queue.
    pub(crate) async fn set_queue(&self, queue: &QueueSpec) -> Result<Queue> {
        match self {
            Self::Server(client) => server::set_queue(client, queue).await,
            Self::Cluster(cluster) => Ok(cluster.set_queue(queue).await?),
        }
    }

    pub(crate) async fn delete_queue(&self, name: &str) -> Result<()> {
        match self {
            Self::Server(client) => server::delete_queue(client, name).await,
            Self::Cluster(cluster) => Ok(cluster.delete_queue(name).await?),
        }
    }

    pub(crate) async fn strategy(&self) -> Result<String> {
        match self {
            Self::Server(client) => server::strategy(client).await,
            Self::Cluster(cluster) => Ok(cluster.strategy().await?),
        }
    }

    /// Sets the strategy for new placements.
    pub(crate) async fn set_strategy(&self, name: &str) -> Result<()> {
        match self {
            Self::Server(client) => server::set_strategy(client, name).await,
            Self::Cluster(cluster) => Ok(cluster.set_strategy(name).await?),
        }
    }
}
