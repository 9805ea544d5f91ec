//! Starts a container, or adopts one that an earlier agent started.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::errors::Error as DockerError;
use bollard::models::{ContainerCreateBody, ContainerStateStatusEnum as State};
use bollard::query_parameters::CreateContainerOptions;

use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::Stamp;

use super::super::{Launch, Progress, Runtime, StartError};
use super::fault::{self, Secrets};
use super::firewall::{self, Firewall};
use super::kill::ContainerRecord;
use super::{Docker, NetworkMode, connect, create, pull, status, stop, watch};

const LEASE_EXPIRED: &str = "the lease expired before the container started";

const OTHER_PIDS: &str = "volumes need an agent and a Docker daemon with the same process ids and mounts; run both on \
     the host, or neither in a container";

impl Docker {
    /// Creates and starts the container; the caller cleans up after a failure.
    pub(super) async fn launch(
        &self,
        launch: &Launch,
        progress: Progress<'_>,
    ) -> Result<Stamp, StartError> {
        let key = launch.assignment.key;
        let secrets = Secrets::of(launch);
        if let Some(started_at) = self.adopt(key).await.map_err(|error| fault::node(&error))? {
            return Ok(started_at);
        }
        create::prepare_folder(launch, &self.folder(key))?;
        let image = pull::reference(launch)?;
        self.ensure_image(launch, &image, progress, &secrets).await?;
        let volumes = create::open_volumes(&self.settings, launch)?;
        if !volumes.is_empty() && !connect::shares_pids(&self.settings.socket).await {
            return Err(StartError::Node(OTHER_PIDS.to_owned()));
        }
        self.restrict_host_access().await?;
        let creating = self.networks.lock().await;
        let network = self.ensure_network(key).await.map_err(|error| fault::node(&error))?;
        let resources = create::ContainerResources { volumes: &volumes, network: &network };
        let body = create::body(&self.settings, &self.agent, launch, &image, &resources)?;
        let created = self.create_with_quota(key, body).await;
        drop(creating);
        let id = created.map_err(|error| fault::start(&error, &secrets))?;
        self.tasks().entry(key).or_default().container = Some(id.clone());
        let grace_ms = launch.assignment.grace_ms;
        ContainerRecord { id: id.clone(), grace_ms }.save(&self.folder(key));
        // At the end of the lease the guardian stops running containers, but does not see created ones.
        if self.is_expired(launch) {
            return Err(StartError::Node(LEASE_EXPIRED.to_owned()));
        }
        let started = self.client.start_container(&id, None).await;
        drop(volumes);
        started.map_err(|error| fault::start(&error, &secrets))?;
        let started_at = self.follow_started(key, id).await.map_err(|error| fault::node(&error))?;
        if self.is_expired(launch) {
            let grace = Duration::from_millis(launch.assignment.grace_ms);
            self.stop(key, StopCause::LeaseLost, grace).await;
        }
        Ok(started_at)
    }

    /// Adopts a container of an agent that crashed. Removes a container that was created but never started.
    async fn adopt(&self, key: TaskKey) -> Result<Option<Stamp>, DockerError> {
        let Some(id) = self.container(key).await? else { return Ok(None) };
        let found = match self.client.inspect_container(&id, None).await {
            Err(error) if fault::is_missing(&error) => {
                self.forget_container(key);
                return Ok(None);
            }
            found => found?,
        };
        if status(&found) == State::CREATED {
            self.remove_container(&id).await;
            self.forget_container(key);
            return Ok(None);
        }
        self.follow_started(key, id).await.map(Some)
    }

    /// Watches a started container, executes a stop that arrived meanwhile, and returns the start time.
    async fn follow_started(&self, key: TaskKey, id: String) -> Result<Stamp, DockerError> {
        let found = self.client.inspect_container(&id, None).await?;
        self.watch(key, id.clone());
        let stop = self.tasks().get(&key).and_then(|task| task.stopped.get().copied());
        if let Some(stop) = stop {
            stop::spawn_stop(self.client.clone(), id, stop.grace());
        }
        Ok(watch::started_at(&found).unwrap_or_else(Stamp::now))
    }

    /// Keeps containers from services of the host and from cloud metadata. Fails unless this host can do that or its
    /// operator permits the access.
    pub(super) async fn restrict_host_access(&self) -> Result<(), StartError> {
        if self.settings.allow_host_access || self.settings.network == NetworkMode::Host {
            return Ok(());
        }
        let enforced = if connect::shares_network(&self.settings.socket).await {
            firewall::enforce().await
        } else {
            Firewall::OtherNetwork
        };
        match enforced.problem() {
            None => Ok(()),
            Some(problem) => Err(StartError::Node(format!(
                "containers could reach services of this host and cloud metadata: {problem}; start the agent as root on a \
                 host with iptables, or permit the access with --allow-host-access"
            ))),
        }
    }

    /// Most storage drivers have no quotas and refuse a disk limit; the agent then measures the container.
    async fn create_with_quota(
        &self,
        key: TaskKey,
        mut body: ContainerCreateBody,
    ) -> Result<String, DockerError> {
        let options =
            |body: &mut ContainerCreateBody| body.host_config.as_mut()?.storage_opt.take();
        if !self.disk_quotas.load(Ordering::Relaxed) {
            options(&mut body);
        }
        let first = self.create(key, body.clone()).await;
        if first.is_ok() || options(&mut body).is_none() {
            return first;
        }
        let second = self.create(key, body).await;
        if second.is_ok() {
            self.disk_quotas.store(false, Ordering::Relaxed);
        }
        second
    }

    /// An agent of another server may use the same key on this Docker daemon; then the name gets a suffix.
    async fn create(&self, key: TaskKey, body: ContainerCreateBody) -> Result<String, DockerError> {
        let named = |name: String| {
            let options = CreateContainerOptions { name: Some(name), ..Default::default() };
            self.client.create_container(Some(options), body.clone())
        };
        let created = match named(format!("agentaflow-{key}")).await {
            Err(error) if fault::is_conflict(&error) => {
                named(format!("agentaflow-{key}-{}", self.agent)).await?
            }
            created => created?,
        };
        Ok(created.id)
    }
}
