//! Finds the Docker engine, which may come later than the agent, and may come back later than it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{info, warn};

use agentaflow_api::job::Runtime as Kind;

use crate::AgentError;
use crate::backoff::RECONNECT;
use crate::runtime::docker::Docker;
use crate::session::Sessions;
use crate::settings::AgentSettings;
use crate::tasks::{Tasks, left_containers};

/// The engine, if the agent is to use one and it answers. Where containers of an earlier agent were left, nothing can be
/// said of them without it: then this waits for it.
pub(crate) async fn find(
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
                warn!(%socket, "jobs of this agent run in containers, but there is no Docker engine; waiting for it");
            }
            Err(error) if needed => {
                warn!(%error, "jobs of this agent run in containers, but Docker cannot be used; waiting for it");
            }
            Ok(None) => {
                info!("there is no Docker engine on this machine; looking for it now and then");
            }
            Err(error) => {
                warn!(%error, "Docker is there but cannot be used; trying again now and then");
            }
        }
        if !needed {
            return Ok(None);
        }
        backoff.sleep().await;
    }
}

/// Waits for an engine that was not there when the agent began, and then registers anew with it.
pub(crate) async fn await_late(
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
    let name = Kind::Docker.as_str().to_owned();
    runtimes.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    if settings.registration_token.is_some() {
        info!("Docker answers now: registering again, so that the server knows");
        sessions.renew().await;
    } else {
        warn!("Docker answers now, but without a registration token the server cannot be told");
    }
}
