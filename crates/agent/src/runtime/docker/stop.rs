//! Stops containers: TERM, then KILL after the grace.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bollard::Docker as DockerClient;
use bollard::query_parameters::{KillContainerOptions, StopContainerOptions};
use futures_util::future::join_all;

use agentaflow_api::link::{StopCause, TaskKey};

use super::connect::{agent_label, by_labels, connect};
use super::kill::kill_overdue;
use super::{AGENT, Docker, GRACE, KEY, LEASED, fault};
use crate::backoff::RECONNECT;
use crate::clock::{boot_ms, millis, sleep_until};
use crate::guardian::TASKS;
use crate::runtime::Runtime;
use crate::runtime::stop_record::{self, StopRecord};

impl Docker {
    /// Ensures that the container of a task does not run. Docker may have started the container although its answer was
    /// lost; the server must not assign the task to another node before Docker confirms the opposite.
    pub(super) async fn withdraw(&self, key: TaskKey) {
        loop {
            match self.container(key).await {
                Ok(None) => return,
                Ok(Some(_)) => self.remove(key).await,
                Err(error) => tracing::warn!(
                    "cannot confirm that task {key} is not running; retrying: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Stops a container in the background.
pub(super) fn spawn_stop(client: DockerClient, id: String, grace: Duration) {
    tokio::spawn(async move {
        if let Err(error) = stop(&client, &id, grace).await {
            tracing::warn!("cannot stop container {id}: {error}");
        }
    });
}

/// Stops containers by id or name, and returns when none of them runs. Ignores unknown containers.
pub async fn stop_containers(socket: &Path, ids: &[String], grace: Duration) -> Result<(), String> {
    let client = connect(socket).await.map_err(|error| error.to_string())?;
    join_all(ids.iter().map(|id| stop(&client, id, grace))).await.into_iter().collect()
}

/// Stops the leased containers of `tasks`, `late` after the lease expired: each with the rest of its grace. Returns
/// when none of them runs. `wait` then reports [`StopCause::LeaseLost`].
pub async fn stop_leased(
    socket: &Path,
    state_dir: &Path,
    tasks: &BTreeSet<TaskKey>,
    late: Duration,
) -> Result<(), String> {
    let client = connect(socket).await.map_err(|error| error.to_string())?;
    let ours = format!("{AGENT}={}", agent_label(state_dir));
    let mut options = by_labels(vec![ours, format!("{LEASED}=true")]);
    // Only running containers.
    options.all = false;
    let listed = client.list_containers(Some(options)).await;
    let listed = listed.map_err(|error| fault::node(&error).to_string())?;
    let mut stops = Vec::new();
    for container in listed {
        let labels = container.labels.unwrap_or_default();
        let label = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
        let (Ok(key), Some(id)) = (label(KEY).parse::<TaskKey>(), container.id) else { continue };
        if !tasks.contains(&key) {
            continue;
        }
        let grace = Duration::from_millis(label(GRACE).parse().unwrap_or_default());
        let grace = grace.saturating_sub(late);
        let folder = state_dir.join("tasks").join(key.to_string());
        stop_record::save(&folder, StopRecord::now(StopCause::LeaseLost, grace));
        let client = client.clone();
        stops.push(async move { stop(&client, &id, grace).await });
    }
    join_all(stops).await.into_iter().collect()
}

/// Stops the leased containers of `tasks`, whose lease expired at `since_ms` of the boot-time clock. Retries until Docker
/// confirms that none of them runs; meanwhile kills the processes of containers that Docker does not stop in time.
pub async fn stop_overdue(
    socket: &Path,
    state_dir: &Path,
    tasks: &BTreeSet<TaskKey>,
    since_ms: u64,
) {
    let mut backoff = RECONNECT.start();
    let by_docker = async {
        loop {
            let late = Duration::from_millis(boot_ms().saturating_sub(since_ms));
            match stop_leased(socket, state_dir, tasks, late).await {
                Ok(()) => break,
                Err(error) => tracing::warn!("cannot stop containers; retrying: {error}"),
            }
            backoff.sleep().await;
        }
    };
    let folders = state_dir.join(TASKS);
    tokio::select! {
        () = by_docker => {}
        () = kill_overdue(&folders, tasks, since_ms) => {}
    }
}

/// Sends TERM (or the image's stop signal), and KILL after the grace. Returns when the container has ended.
///
/// Docker gets the grace too, in whole seconds, so that it kills the container even if the agent ends first.
async fn stop(client: &DockerClient, id: &str, grace: Duration) -> Result<(), String> {
    let end = boot_ms().saturating_add(millis(grace));
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let t = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
    let stop = client.stop_container(id, Some(StopContainerOptions { t, signal: None }));
    tokio::select! {
        stopped = stop => match stopped {
            Ok(()) => return Ok(()),
            Err(error) if fault::is_missing(&error) => return Ok(()),
            Err(error) => {
                tracing::warn!("Docker did not stop container {id}; killing it after the grace: {error}");
                sleep_until(end).await;
            }
        },
        () = sleep_until(end) => {}
    }
    let kill = KillContainerOptions { signal: "SIGKILL".to_owned() };
    match client.kill_container(id, Some(kill)).await {
        // The container has ended or is removed.
        Err(error) if fault::is_conflict(&error) || fault::is_missing(&error) => Ok(()),
        Err(error) => Err(fault::node(&error).to_string()),
        Ok(()) => Ok(()),
    }
}
