//! Connects to the Docker daemon, which may start, or start again, later than the agent.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{info, warn};

use agentaflow_api::job::Runtime as RuntimeKind;

use crate::AgentError;
use crate::backoff::RECONNECT;
use crate::runtime::docker::Docker;
use crate::session::Sessions;
use crate::settings::AgentSettings;
use crate::tasks::{Tasks, left_containers};

/// Connects to Docker if the settings enable it and the daemon answers. If an earlier agent left containers, waits for
/// the daemon: without it the agent cannot report them.
pub(crate) async fn connect_at_start(
    settings: &AgentSettings,
    tasks: &Path,
) -> Result<Option<Docker>, AgentError> {
    let needed = left_containers(tasks);
    let Some(docker) = &settings.docker else {
        let missing = AgentError::NoDocker { dir: tasks.to_owned() };
        return if needed { Err(missing) } else { Ok(None) };
    };
    let mut backoff = RECONNECT.start();
    loop {
        match Docker::connect(docker.clone()).await {
            Ok(Some(docker)) => return Ok(Some(docker)),
            Ok(None) if needed => {
                let socket = docker.socket.display();
                warn!(%socket, "tasks run in containers, but Docker is not running; waiting for it");
            }
            Err(error) if needed => {
                warn!(%error, "tasks run in containers, but Docker is not usable; waiting for it");
            }
            Ok(None) => {
                info!("Docker is not running on this host; checking again periodically");
            }
            Err(error) => {
                warn!(%error, "Docker is running but not usable; retrying periodically");
            }
        }
        if !needed {
            return Ok(None);
        }
        backoff.sleep().await;
    }
}

/// Waits for a daemon that did not run when the agent started, then registers again with the Docker runtime.
pub(crate) async fn connect_later(
    settings: Arc<AgentSettings>,
    tasks: Tasks,
    runtimes: Arc<Mutex<Vec<String>>>,
    sessions: Sessions,
) {
    let Some(wanted) = settings.docker.as_ref().filter(|_| !tasks.has_docker()) else { return };
    let mut backoff = RECONNECT.start();
    let docker = loop {
        backoff.sleep().await;
        if let Ok(Some(docker)) = Docker::connect(wanted.clone()).await {
            break docker;
        }
    };
    tasks.add_docker(docker).await;
    let name = RuntimeKind::Docker.as_str().to_owned();
    runtimes.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    if settings.registration_token.is_some() {
        info!("Docker is running now; registering again with the Docker runtime");
        sessions.restart().await;
    } else {
        warn!(
            "Docker is running now, but the agent cannot register it without a registration token"
        );
    }
}
