//! Ends Jobs: asks politely, and after a grace the kubelet does not ask any more.

use std::time::Duration;

use agentaflow_api::link::TaskKey;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use tokio::time::sleep;
use tracing::warn;

use crate::{fault, names, object};

/// How often an API server that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// The ways to what is to be ended.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    pub(crate) jobs: Api<Job>,
    pub(crate) pods: Api<Pod>,
    pub(crate) owner: String,
}

impl Ends {
    /// Begins to stop a task and returns at once.
    pub(crate) fn begin(self, key: TaskKey, grace: Duration) {
        tokio::spawn(async move {
            while let Err(error) = self.end(key, Some(grace)).await {
                warn!(%key, %error, "cannot stop the task; trying again");
                sleep(RETRY).await;
            }
        });
    }

    /// Ends a task as far as the API server lets us: with this grace, or with its own.
    pub(crate) async fn try_to(&self, key: TaskKey, grace: Option<Duration>) {
        if let Err(error) = self.end(key, grace).await {
            warn!(%key, %error, "cannot delete what is left of the task");
        }
    }

    /// The API server has nothing of this task any more.
    pub(crate) async fn is_gone(&self, key: TaskKey) -> Result<bool, kube::Error> {
        let (jobs, pods) = self.all(key).await?;
        Ok(jobs.is_empty() && pods.is_empty())
    }

    /// The Job first, so that nobody makes another pod; then its pods.
    async fn end(&self, key: TaskKey, grace: Option<Duration>) -> Result<(), kube::Error> {
        let (jobs, pods) = self.all(key).await?;
        let background = Some(PropagationPolicy::Background);
        let how = DeleteParams { propagation_policy: background, ..DeleteParams::default() };
        for job in jobs {
            gone(self.jobs.delete(&job.name_any(), &how).await.map(drop))?;
        }
        let Some(grace) = grace else { return Ok(()) };
        for pod in pods {
            gone(self.pods.delete(&pod.name_any(), &with_grace(grace)).await.map(drop))?;
        }
        Ok(())
    }

    async fn all(&self, key: TaskKey) -> Result<(Vec<Job>, Vec<Pod>), kube::Error> {
        let label = format!("{}={},{}={key}", names::AGENT, self.owner, names::TASK);
        let which = ListParams::default().labels(&label);
        Ok((self.jobs.list(&which).await?.items, self.pods.list(&which).await?.items))
    }
}

/// Zero would take the pod away before its containers have ended; one second is the least that waits for them.
fn with_grace(grace: Duration) -> DeleteParams {
    let seconds = u32::try_from(object::seconds(grace)).unwrap_or(u32::MAX);
    DeleteParams { grace_period_seconds: Some(seconds), ..DeleteParams::default() }
}

/// What is not there need not be deleted.
fn gone(deleted: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match deleted {
        Err(error) if fault::is_missing(&error) => Ok(()),
        deleted => deleted,
    }
}
