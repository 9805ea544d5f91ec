//! Ends Jobs: asks politely, and after a grace the kubelet does not ask any more.

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

/// How often an API server that does not answer is asked again.
const RETRY: Duration = Duration::from_secs(1);

/// Delays between checks for a deleted Job and its pods. A pod on an unreachable node may stay for hours.
const DELETION_CHECKS: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(250), Duration::from_secs(10));

/// The uids of what was asked to go.
type Asked = BTreeSet<Option<String>>;

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
            let mut asked = Asked::new();
            while let Err(error) = self.end(key, Some(grace), &mut asked).await {
                warn!(%key, %error, "cannot stop the task; trying again");
                sleep(RETRY).await;
            }
        });
    }

    /// Ends a task as far as the API server lets us: with this grace, or with its own.
    pub(crate) async fn try_to(&self, key: TaskKey, grace: Option<Duration>) {
        if let Err(error) = self.end(key, grace, &mut Asked::new()).await {
            warn!(%key, %error, "cannot delete what is left of the task");
        }
    }

    /// Ends a task, and returns when the API server has nothing of it any more.
    pub(crate) async fn until_gone(&self, key: TaskKey) {
        let (mut asked, mut backoff) = (Asked::new(), DELETION_CHECKS.start());
        loop {
            match self.end(key, Some(Duration::ZERO), &mut asked).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    warn!(%key, %error, "it is not certain that the task does not run; asking again");
                }
            }
            backoff.sleep().await;
        }
    }

    /// The Job first, so that nobody makes another pod; then its pods. Each is asked to go once. True when there was
    /// nothing.
    async fn end(
        &self,
        key: TaskKey,
        grace: Option<Duration>,
        asked: &mut Asked,
    ) -> Result<bool, kube::Error> {
        let (jobs, pods) = self.all(key).await?;
        let background = Some(PropagationPolicy::Background);
        let how = DeleteParams { propagation_policy: background, ..DeleteParams::default() };
        for job in jobs.iter().filter(|job| !asked.contains(&job.uid())) {
            gone(self.jobs.delete(&job.name_any(), &how).await.map(drop))?;
        }
        asked.extend(jobs.iter().map(Job::uid));
        let nothing = jobs.is_empty() && pods.is_empty();
        let Some(grace) = grace else { return Ok(nothing) };
        for pod in pods.iter().filter(|pod| !asked.contains(&pod.uid())) {
            gone(self.pods.delete(&pod.name_any(), &with_grace(grace)).await.map(drop))?;
        }
        asked.extend(pods.iter().map(Pod::uid));
        Ok(nothing)
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

#[cfg(test)]
mod tests {
    use kube::Client;
    use serde_json::json;

    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn a_pod_that_does_not_go_is_asked_once_and_looked_at_ever_less_often() {
        let pod = json!({"metadata": {"name": "p", "uid": "1", "deletionTimestamp": "2026-11-15T10:00:00Z"}});
        let api = fake::Api::new(move |path| {
            let items = if path.contains("/pods") { json!([pod]) } else { json!([]) };
            json!({"metadata": {}, "items": items})
        });
        let client = Client::new(api.clone(), "default");
        let (jobs, pods) =
            (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
        let ends = Ends { jobs, pods, owner: "o".to_owned() };
        let key = "7-1-1".parse().unwrap();
        let over = tokio::time::timeout(Duration::from_secs(1), ends.until_gone(key)).await;
        assert!(over.is_err(), "it is still there");
        let count = |method: &str| api.asked().iter().filter(|asked| *asked == method).count();
        assert_eq!(count("DELETE"), 1);
        assert!((2..=6).contains(&count("GET")), "{} times", count("GET"));
    }
}
