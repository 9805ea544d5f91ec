//! Makes the objects of a task, and waits until it runs.

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

use crate::ending::{self, Stage};
use crate::fault;
use crate::object::{self, BuildOutput, Spot};
use crate::runtime::{Jobs, job_name};

/// How long a scheduler may find no room: what was there a moment ago may still be on its way out.
const ROOM: Duration = Duration::from_mins(1);

/// How long the cluster may take to make a pod of a Job.
const POD: Duration = Duration::from_mins(1);

/// How long an earlier Job of the same name may take to go.
const GOING: Duration = Duration::from_mins(1);

/// Looks again at least so often, whatever the watches say.
const LOOK: Duration = Duration::from_secs(1);

impl Jobs {
    /// Makes the Job and waits until its container runs; the caller cleans up when this fails.
    pub(crate) async fn launch(
        &self,
        launch: &Launch,
        progress: Progress<'_>,
    ) -> Result<Stamp, StartError> {
        let node = self.watch.node();
        let node = node.ok_or_else(|| StartError::Node("the node has left the cluster".into()))?;
        if let Some(why) = self.offer().closed {
            return Err(StartError::Node(format!("the node takes no new jobs: {why}")));
        }
        let spot = Spot {
            node: &node,
            namespace: &self.settings.namespace,
            owner: &self.owner,
            lease: self.lease_left(),
            catalogue: &self.catalogue,
        };
        let made = object::make(launch, &spot)?;
        let job = Box::pin(self.create(launch.assignment.key, made)).await?;
        let (name, namespace) = (job.name_any(), &self.settings.namespace);
        progress(
            EventKind::Starting,
            format!("It is the Job `{name}` in the namespace `{namespace}`"),
        );
        self.until_begun(launch.assignment.key, progress).await
    }

    /// Nothing of a task that did not start may run: another node gets it next.
    pub(crate) async fn withdraw(&self, key: TaskKey) {
        self.remove_secrets(&job_name(key)).await;
        self.ends().until_gone(key).await;
    }

    /// The Job, with its Secrets, set going.
    async fn create(&self, key: TaskKey, made: BuildOutput) -> Result<Job, StartError> {
        let job = self.create_job(key, &made.job).await?;
        for mut secret in made.secrets {
            object::own(&mut secret, &job);
            self.create_secret(&secret).await.map_err(|error| fault::start("a Secret", &error))?;
        }
        let going = Patch::Merge(json!({"spec": {"suspend": false}}));
        let name = job.name_any();
        let started = self.jobs_api().patch(&name, &PatchParams::default(), &going).await;
        started.map_err(|error| fault::start("the Job", &error))
    }

    async fn create_job(&self, key: TaskKey, job: &Job) -> Result<Job, StartError> {
        let begun = Instant::now();
        loop {
            let created = self.jobs_api().create(&PostParams::default(), job).await;
            let error = match created {
                Ok(job) => return Ok(job),
                Err(error) if fault::is_conflict(&error) => error,
                Err(error) => return Err(fault::start("the Job", &error)),
            };
            let name = job_name(key);
            let there = self.jobs_api().get_opt(&name).await.map_err(|e| fault::node(&e))?;
            match there {
                // One of an earlier agent that never got to run, or is on its way out.
                Some(there) if self.is_ours(&there, key) && begun.elapsed() < GOING => {
                    self.ends().try_to(key, Some(Duration::ZERO)).await;
                }
                None if begun.elapsed() < GOING => {}
                _ => return Err(fault::start("the Job", &error)),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn create_secret(&self, secret: &Secret) -> Result<(), kube::Error> {
        let api = self.secrets_api();
        let made = api.create(&PostParams::default(), secret).await;
        match made {
            Err(error) if fault::is_conflict(&error) => {
                // What it holds may be of an earlier try; it cannot be read, and need not be.
                let name = secret.name_any();
                api.delete(&name, &DeleteParams::default()).await?;
                api.create(&PostParams::default(), secret).await.map(drop)
            }
            made => made.map(drop),
        }
    }

    async fn until_begun(&self, key: TaskKey, progress: Progress<'_>) -> Result<Stamp, StartError> {
        let mut changes = self.watch.changes();
        let begun = Instant::now();
        let (mut no_room, mut told, mut known) = (None, None, false);
        loop {
            let seen = self.watch.look(key);
            match ending::stage(seen.job.as_deref(), seen.pod.as_deref()) {
                Stage::Began(at) => return Ok(at),
                Stage::Failed(error) => return Err(error),
                Stage::NoRoom(why) => {
                    if no_room.get_or_insert_with(Instant::now).elapsed() > ROOM {
                        let detail = format!("the cluster finds no room for it: {why}");
                        return Err(StartError::Node(detail));
                    }
                }
                Stage::Waits(word) => {
                    no_room = None;
                    if word.is_some() && told != word {
                        progress(
                            EventKind::Pulling,
                            "Its pod is being set up, image and all".to_owned(),
                        );
                    }
                    told = word.or(told);
                }
            }
            if known && seen.job.is_none() {
                return Err(StartError::Node("somebody deleted its Job".to_owned()));
            }
            known |= seen.job.is_some();
            if seen.pod.is_none() && begun.elapsed() > POD {
                let name = job_name(key);
                return Err(StartError::Node(format!(
                    "no pod was made of the Job `{name}`: a quota or a policy of the namespace may forbid it"
                )));
            }
            // Fails only when nothing is watched any more.
            let _ = timeout(LOOK, changes.changed()).await;
        }
    }
}
