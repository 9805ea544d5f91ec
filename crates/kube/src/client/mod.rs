//! What people ask of a cluster, answered in the words of the REST API: the same types, so that whoever shows them
//! need not know which of the two was asked.
//!
//! A job is a `GPUWorkload`, named by its name; a pod that our scheduler places and that belongs to no workload is a
//! job too, named `pod/` and its name. Both may be preceded by their namespace and a slash.

mod failure;

pub use failure::Failure;

use agentaflow_api::event::Event;
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::Node;
use agentaflow_api::queue::{Queue, QueueSpec};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde_json::Value;

/// A cluster, and where in it.
#[derive(Clone)]
pub struct Cluster {
    /// Speaks to its API server.
    pub client: kube::Client,
    /// Where work is looked for and handed in.
    pub namespace: String,
    /// Work of all namespaces is listed.
    pub everywhere: bool,
    /// The namespace of the product: its scheduler, its settings, what its monitors say.
    pub system: String,
    /// Where the scheduler answers questions; through the API server when nobody says.
    pub scheduler: Option<String>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Which part of a job's output is wanted.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// Go on until the task is over.
    pub follow: bool,
    /// Only so many lines from the end.
    pub tail: Option<u64>,
    /// The task, from 0.
    pub task: u32,
}

impl Cluster {
    /// Jobs, newest first; with one of these statuses, or all.
    pub async fn jobs(&self, status: &[JobStatus]) -> Result<Vec<Job>, Failure> {
        let _ = status;
        Err(Failure::unsupported("list jobs"))
    }

    /// One job.
    pub async fn job(&self, name: &str) -> Result<Job, Failure> {
        let _ = name;
        Err(Failure::unsupported("show a job"))
    }

    /// Makes an object as it is written: a `GPUWorkload`, or anything else that runs pods. A dry run is the API
    /// server's own: everything is checked, nothing is kept.
    pub async fn create(&self, object: &Value, dry_run: bool) -> Result<Job, Failure> {
        let _ = (object, dry_run);
        Err(Failure::unsupported("hand in work"))
    }

    /// Deletes a job; its pods are stopped politely.
    pub async fn cancel(&self, name: &str) -> Result<Job, Failure> {
        let _ = name;
        Err(Failure::unsupported("cancel a job"))
    }

    /// Ends a job as if it were done.
    pub async fn complete(&self, name: &str) -> Result<Job, Failure> {
        let _ = name;
        Err(Failure::unsupported("complete a job"))
    }

    /// Why a job waits, or what became of it.
    pub async fn explain(&self, name: &str) -> Result<Explanation, Failure> {
        let _ = name;
        Err(Failure::unsupported("explain a job"))
    }

    /// What would become of an object that is not handed in yet.
    pub async fn what_if(&self, object: &Value) -> Result<Explanation, Failure> {
        let _ = object;
        Err(Failure::unsupported("answer what-if questions"))
    }

    /// The output of a task.
    pub async fn logs(
        &self,
        name: &str,
        query: &LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, Failure>>, Failure> {
        let _ = (name, query);
        Err(Failure::unsupported("show output"))
    }

    /// What happened: to one job, or to all; oldest first.
    pub async fn events(&self, job: Option<&str>) -> Result<Vec<Event>, Failure> {
        let _ = job;
        Err(Failure::unsupported("show events"))
    }

    /// What happens from now on.
    pub async fn follow_events(
        &self,
        job: Option<&str>,
    ) -> Result<BoxStream<'static, Result<Event, Failure>>, Failure> {
        let _ = job;
        Err(Failure::unsupported("follow events"))
    }

    /// Nodes with GPUs.
    pub async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        Err(Failure::unsupported("list nodes"))
    }

    /// Closes a node, or a GPU of it (`node/gpu`), to new work; or opens it again.
    pub async fn cordon(&self, target: &str, closed: bool) -> Result<(), Failure> {
        let _ = (target, closed);
        Err(Failure::unsupported("cordon"))
    }

    /// Closes a node and evicts the GPU work on it; says what it evicted.
    pub async fn drain(&self, node: &str) -> Result<Vec<String>, Failure> {
        let _ = node;
        Err(Failure::unsupported("drain"))
    }

    /// Queues.
    pub async fn queues(&self) -> Result<Vec<Queue>, Failure> {
        Err(Failure::unsupported("list queues"))
    }

    /// Makes or changes a queue.
    pub async fn set_queue(&self, queue: &QueueSpec) -> Result<Queue, Failure> {
        let _ = queue;
        Err(Failure::unsupported("change queues"))
    }

    /// Removes a queue.
    pub async fn delete_queue(&self, name: &str) -> Result<(), Failure> {
        let _ = name;
        Err(Failure::unsupported("remove queues"))
    }

    /// The strategy in force.
    pub async fn strategy(&self) -> Result<String, Failure> {
        Err(Failure::unsupported("tell the strategy"))
    }

    /// Changes the strategy for what is placed from now on.
    pub async fn set_strategy(&self, name: &str) -> Result<(), Failure> {
        let _ = name;
        Err(Failure::unsupported("change the strategy"))
    }

    /// The scheduler's metrics, as Prometheus reads them.
    pub async fn metrics(&self) -> Result<String, Failure> {
        Err(Failure::unsupported("show metrics"))
    }
}
