//! Deletes Jobs and their pods; the kubelet sends TERM, and KILL after the grace.

use std::collections::BTreeSet;
use std::time::Duration;

use agentaflow_api::link::TaskKey;
use agentaflow_backoff::BackoffPolicy;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use tokio::time::sleep;
use tracing::warn;

use crate::{fault, names, object};

/// Retry interval while the API server does not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Delays between checks for a deleted Job and its pods. A pod on an unreachable node may stay for hours.
const DELETION_CHECKS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(250), Duration::from_secs(10));

/// UIDs of objects with a delete request.
type Requested = BTreeSet<Option<String>>;

#[derive(Clone, Debug)]
pub(crate) struct JobDeleter {
    pub(crate) jobs: Api<Job>,
    pub(crate) pods: Api<Pod>,
    pub(crate) owner: String,
}

impl JobDeleter {
    /// Deletes the objects of a task in the background; retries until the API server accepts.
    pub(crate) fn spawn_delete(self, key: TaskKey, grace: Duration) {
        tokio::spawn(async move {
            let mut requested = Requested::new();
            while let Err(error) = self.request_deletion(key, Some(grace), &mut requested).await {
                warn!(%key, %error, "cannot stop the task; retrying");
                sleep(RETRY_INTERVAL).await;
            }
        });
    }

    /// Requests the deletion once, with the given grace or the pod's own.
    pub(crate) async fn delete(&self, key: TaskKey, grace: Option<Duration>) {
        if let Err(error) = self.request_deletion(key, grace, &mut Requested::new()).await {
            warn!(%key, %error, "cannot delete the objects of the task");
        }
    }

    /// Deletes the objects of a task, and returns when none exists.
    pub(crate) async fn delete_until_gone(&self, key: TaskKey) {
        let (mut requested, mut backoff) = (Requested::new(), DELETION_CHECKS.start());
        loop {
            match self.request_deletion(key, Some(Duration::ZERO), &mut requested).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    warn!(%key, %error, "cannot confirm that the task is not running; retrying");
                }
            }
            backoff.sleep().await;
        }
    }

    /// Deletes the Job first, so that Kubernetes creates no other pod, then its pods; each once. Returns true if no
    /// object existed.
    async fn request_deletion(
        &self,
        key: TaskKey,
        grace: Option<Duration>,
        requested: &mut Requested,
    ) -> Result<bool, kube::Error> {
        let (jobs, pods) = self.objects(key).await?;
        let background = Some(PropagationPolicy::Background);
        let params = DeleteParams { propagation_policy: background, ..DeleteParams::default() };
        for job in jobs.iter().filter(|job| !requested.contains(&job.uid())) {
            ignore_missing(self.jobs.delete(&job.name_any(), &params).await.map(drop))?;
        }
        requested.extend(jobs.iter().map(Job::uid));
        let nothing = jobs.is_empty() && pods.is_empty();
        let Some(grace) = grace else { return Ok(nothing) };
        for pod in pods.iter().filter(|pod| !requested.contains(&pod.uid())) {
            ignore_missing(self.pods.delete(&pod.name_any(), &with_grace(grace)).await.map(drop))?;
        }
        requested.extend(pods.iter().map(Pod::uid));
        Ok(nothing)
    }

    async fn objects(&self, key: TaskKey) -> Result<(Vec<Job>, Vec<Pod>), kube::Error> {
        let label = format!("{}={},{}={key}", names::AGENT, self.owner, names::TASK);
        let selector = ListParams::default().labels(&label);
        Ok((self.jobs.list(&selector).await?.items, self.pods.list(&selector).await?.items))
    }
}

/// At least one second: with zero the API server removes the pod before its containers have ended.
fn with_grace(grace: Duration) -> DeleteParams {
    let seconds = u32::try_from(object::seconds(grace)).unwrap_or(u32::MAX);
    DeleteParams { grace_period_seconds: Some(seconds), ..DeleteParams::default() }
}

fn ignore_missing(deleted: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match deleted {
        Err(error) if fault::is_missing(&error) => Ok(()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApiServer;

    #[tokio::test]
    async fn a_stuck_pod_gets_one_delete_request_and_checks_with_backoff() {
        let pod = json!({"metadata": {"name": "p", "uid": "1", "deletionTimestamp": "2026-11-15T10:00:00Z"}});
        let api = FakeApiServer::new(move |path| {
            let items = if path.contains("/pods") { json!([pod]) } else { json!([]) };
            json!({"metadata": {}, "items": items})
        });
        let client = Client::new(api.clone(), "default");
        let (jobs, pods) =
            (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
        let deleter = JobDeleter { jobs, pods, owner: "o".to_owned() };
        let key = "7-1-1-0".parse().unwrap();
        let over =
            tokio::time::timeout(Duration::from_secs(1), deleter.delete_until_gone(key)).await;
        assert!(over.is_err(), "the pod still exists");
        let count = |method: &str| api.methods().iter().filter(|other| *other == method).count();
        assert_eq!(count("DELETE"), 1);
        assert!((2..=6).contains(&count("GET")), "{} times", count("GET"));
    }
}
