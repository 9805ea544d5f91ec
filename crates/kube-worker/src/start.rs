//! Creates the objects of a task, and waits until its container runs.

use std::time::Duration;

use agentaflow_agent::runtime::{Launch, Progress, StartError};
use agentaflow_api::event::EventKind;
use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::fault;
use crate::names;
use crate::object::{self, JobTarget, TaskObjects};
use crate::offer::NodeClosed;
use crate::pod_status::{self, StartState};
use crate::runtime::Jobs;
use crate::secrets;

/// Longest time for which the pod may be unschedulable: an earlier pod may still be terminating.
const UNSCHEDULABLE_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait for the pod of a Job.
const POD_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait for the deletion of an earlier Job of the same name.
const DELETION_LIMIT: Duration = Duration::from_mins(1);

/// Longest interval between two checks, independent of watch events.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Jobs {
    /// Creates the Job and waits until its container runs; the caller cleans up after a failure.
    pub(crate) async fn launch(
        &self,
        launch: &Launch,
        progress: Progress<'_>,
    ) -> Result<Stamp, StartError> {
        let node = self.watch.node();
        let node = node.ok_or_else(|| StartError::Node(NodeClosed::Removed.to_string()))?;
        if let Some(closed) = self.offer().closed {
            return Err(StartError::Node(closed.to_string()));
        }
        let target = JobTarget {
            node: &node,
            namespace: &self.settings.namespace,
            owner: &self.owner,
            lease: self.lease_left(),
            trust_local_images: self.settings.trust_local_images,
        };
        let objects = object::build(launch, &target)?;
        let job = Box::pin(self.create(launch.assignment.key, objects)).await?;
        let (name, namespace) = (job.name_any(), &self.settings.namespace);
        progress(EventKind::Starting, format!("Created Job `{namespace}/{name}`"));
        self.wait_until_started(launch.assignment.key, progress).await
    }

    /// Deletes all objects of a task that did not start: the server assigns the task to another node next.
    pub(crate) async fn withdraw(&self, key: TaskKey) {
        self.remove_secrets(&names::job(key)).await;
        self.deleter().delete_until_gone(key).await;
    }

    /// Creates the suspended Job and its Secrets, then resumes the Job.
    async fn create(&self, key: TaskKey, objects: TaskObjects) -> Result<Job, StartError> {
        let job = self.create_job(key, &objects.job).await?;
        for mut secret in objects.secrets {
            secrets::set_owner(&mut secret, &job);
            self.create_secret(&secret).await.map_err(|error| fault::start("Secret", &error))?;
        }
        let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
        let name = job.name_any();
        let started = self.jobs_api().patch(&name, &PatchParams::default(), &resume).await;
        started.map_err(|error| fault::start("Job", &error))
    }

    async fn create_job(&self, key: TaskKey, job: &Job) -> Result<Job, StartError> {
        let begun = Instant::now();
        loop {
            let created = self.jobs_api().create(&PostParams::default(), job).await;
            let error = match created {
                Ok(job) => return Ok(job),
                Err(error) if fault::is_conflict(&error) => error,
                Err(error) => return Err(fault::start("Job", &error)),
            };
            let name = names::job(key);
            let existing = self.jobs_api().get_opt(&name).await.map_err(|e| fault::node(&e))?;
            match existing {
                // A Job of an earlier agent that never ran, or is terminating.
                Some(existing)
                    if self.is_ours(&existing, key) && begun.elapsed() < DELETION_LIMIT =>
                {
                    self.deleter().delete(key, Some(Duration::ZERO)).await;
                }
                None if begun.elapsed() < DELETION_LIMIT => {}
                _ => return Err(fault::start("Job", &error)),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn create_secret(&self, secret: &Secret) -> Result<(), kube::Error> {
        let api = self.secrets_api();
        let created = api.create(&PostParams::default(), secret).await;
        match created {
            Err(error) if fault::is_conflict(&error) => {
                // The Secret may be of an earlier attempt; the agent has no permission to read it.
                let name = secret.name_any();
                api.delete(&name, &DeleteParams::default()).await?;
                api.create(&PostParams::default(), secret).await.map(drop)
            }
            created => created.map(drop),
        }
    }

    async fn wait_until_started(
        &self,
        key: TaskKey,
        progress: Progress<'_>,
    ) -> Result<Stamp, StartError> {
        let mut changes = self.watch.changes();
        let begun = Instant::now();
        let (mut unschedulable_since, mut reported, mut known) = (None, None, false);
        loop {
            let task = self.watch.task(key);
            match pod_status::start_state(task.job.as_deref(), task.pod.as_deref()) {
                StartState::Started(at) => return Ok(at),
                StartState::Failed(error) => return Err(error),
                StartState::Unschedulable(message) => {
                    let since = *unschedulable_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > UNSCHEDULABLE_LIMIT {
                        return Err(StartError::Node(format!("pod is unschedulable: {message}")));
                    }
                }
                StartState::Pending(reason) => {
                    unschedulable_since = None;
                    if reason.is_some() && reported != reason {
                        progress(EventKind::Pulling, "Preparing the pod and its image".to_owned());
                    }
                    reported = reason.or(reported);
                }
            }
            if known && task.job.is_none() {
                return Err(StartError::Node("the Job was deleted".to_owned()));
            }
            known |= task.job.is_some();
            if task.pod.is_none() && begun.elapsed() > POD_LIMIT {
                let name = names::job(key);
                return Err(StartError::Node(format!(
                    "Job `{name}` has no pod; check quotas and policies of the namespace"
                )));
            }
            // Fails only when the watches have ended.
            let _ = timeout(CHECK_INTERVAL, changes.changed()).await;
        }
    }
}
