//! Ends containers: asks politely, and after a grace does not ask any more.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bollard::Docker as Engine;
use bollard::query_parameters::{KillContainerOptions, StopContainerOptions};
use futures_util::future::join_all;

use agentaflow_api::link::{StopCause, TaskKey};

use super::connect::{agent_label, by_labels, connect};
use super::{AGENT, Docker, GRACE, KEY, LEASED, fault};
use crate::clock::{boot_ms, millis, sleep_until};
use crate::runtime::Runtime;
use crate::runtime::stopped::{Stopped, remember};

impl Docker {
    /// The engine may have started the container, and only the answer was lost: another node must not get the task
    /// before it is certain that it does not run here. Returns when the engine says so.
    pub(super) async fn withdraw(&self, key: TaskKey) {
        loop {
            match self.container(key).await {
                Ok(None) => return,
                Ok(Some(_)) => self.remove(key).await,
                Err(error) => tracing::warn!(
                    "it is not certain that the task {key} does not run; asking again: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Begins to stop a container and returns at once.
pub(super) fn begin(engine: Engine, id: String, grace: Duration) {
    tokio::spawn(async move {
        if let Err(error) = stop(&engine, &id, grace).await {
            tracing::warn!("cannot stop the container {id}: {error}");
        }
    });
}

/// Stops containers, given by id or name, and returns when none of them runs any more. Unknown ones are fine.
pub async fn stop_containers(socket: &Path, ids: &[String], grace: Duration) -> Result<(), String> {
    let engine = connect(socket).await.map_err(|error| error.to_string())?;
    join_all(ids.iter().map(|id| stop(&engine, id, grace))).await.into_iter().collect()
}

/// Stops the containers of these tasks that must not outlive the lease, which ran out so long ago: each with what is
/// left of its own grace. Returns when none of them runs any more. `wait` will tell [`StopCause::LeaseLost`].
pub async fn stop_leased(
    socket: &Path,
    state_dir: &Path,
    tasks: &BTreeSet<TaskKey>,
    late: Duration,
) -> Result<(), String> {
    let engine = connect(socket).await.map_err(|error| error.to_string())?;
    let ours = format!("{AGENT}={}", agent_label(state_dir));
    let mut options = by_labels(vec![ours, format!("{LEASED}=true")]);
    // Only those that run.
    options.all = false;
    let listed = engine.list_containers(Some(options)).await;
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
        remember(&folder, Stopped::now(StopCause::LeaseLost, grace));
        let engine = engine.clone();
        stops.push(async move { stop(&engine, &id, grace).await });
    }
    join_all(stops).await.into_iter().collect()
}

/// TERM (or what the image asks for instead), grace, KILL. Returns when the container does not run any more.
///
/// The engine is told the grace too, in whole seconds, so that it ends the container even if we are ended first.
async fn stop(engine: &Engine, id: &str, grace: Duration) -> Result<(), String> {
    let end = boot_ms().saturating_add(millis(grace));
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let t = Some(i32::try_from(seconds).unwrap_or(i32::MAX));
    let polite = engine.stop_container(id, Some(StopContainerOptions { t, signal: None }));
    tokio::select! {
        stopped = polite => match stopped {
            Ok(()) => return Ok(()),
            Err(error) if fault::is_missing(&error) => return Ok(()),
            Err(error) => {
                tracing::warn!("the engine did not stop the container {id}, so it will be killed: {error}");
                sleep_until(end).await;
            }
        },
        () = sleep_until(end) => {}
    }
    let kill = KillContainerOptions { signal: "SIGKILL".to_owned() };
    match engine.kill_container(id, Some(kill)).await {
        // It is over, or gone.
        Err(error) if fault::is_conflict(&error) || fault::is_missing(&error) => Ok(()),
        Err(error) => Err(fault::node(&error).to_string()),
        Ok(()) => Ok(()),
    }
}
