//! Puts the agent together and runs it.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use agentaflow_api::client::{Client, ClientError};
use agentaflow_gpu::GpuError;

use crate::gpus::GpuWatch;
use crate::guardian::client::Guardian;
use crate::heart::{Heart, watch_gpus, watch_lease};
use crate::lease::Lease;
use crate::register::Registrar;
use crate::report::{Outbox, report};
use crate::runtime::Runtime;
use crate::runtime::docker::Docker;
use crate::runtime::process::Process;
use crate::runtime::user::JobUser;
use crate::session::Sessions;
use crate::settings::AgentSettings;
use crate::tasks::{Host, Tasks, prepare_root, tidy_root};
use crate::{identity, link, port};

/// How long news may take to reach the server when the agent is told to stop.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Why an agent cannot work.
#[derive(Debug, Error)]
pub enum AgentError {
    /// Its folder cannot be used.
    #[error("cannot use the agent's folder `{}`", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server's address is wrong.
    #[error(transparent)]
    Server(#[from] ClientError),
    /// The GPUs cannot be read.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Process jobs were allowed, but cannot be run safely.
    #[error("process jobs cannot run on this machine: {0}")]
    Process(String),
    /// Its own port cannot be used.
    #[error(
        "cannot listen on {address}; another program may use it: choose another port for the agent"
    )]
    Port {
        /// The port.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// Runs an agent until it is told to stop. Its tasks go on running: whoever wants them stopped tells the server first.
pub async fn run(settings: AgentSettings, shutdown: CancellationToken) -> Result<(), AgentError> {
    let settings = Arc::new(prepare(settings)?);
    let client = Client::new(&settings.server, None)?;
    let agent_id =
        identity::agent_id(&settings.state_dir).map_err(|source| folder(&settings, source))?;
    let sessions = Sessions::default();
    let mut parts = JoinSet::new();
    if let Some(address) = settings.listen {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| AgentError::Port { address, source })?;
        parts.spawn(port::serve(listener, sessions.clone(), shutdown.clone()));
    }
    let gpus = Arc::new(GpuWatch::open(Arc::clone(&settings.gpus)).await?);
    let (host, runtimes) = host(&settings, &gpus).await?;
    let outbox = Arc::clone(&host.outbox);
    let lease = Lease::new(settings.heartbeat_interval, host.guardian.clone());
    let (closed, guardian) = (host.closed.clone(), host.guardian.clone());
    let dir = host.dir.clone();
    let tasks = Tasks::new(host);
    tasks.adopt().await;
    let registrar = Registrar {
        settings: Arc::clone(&settings),
        client,
        agent_id,
        runtimes,
        sessions: sessions.clone(),
        lease: lease.clone(),
        gpus: Arc::clone(&gpus),
    };
    let heart = Heart {
        settings,
        sessions: sessions.clone(),
        tasks: tasks.clone(),
        lease: lease.clone(),
        gpus: Arc::clone(&gpus),
    };
    parts.spawn(watch_gpus(gpus, tasks.clone()));
    parts.spawn(registrar.run());
    parts.spawn(heart.beat());
    parts.spawn(watch_lease(lease, tasks.clone()));
    parts.spawn(link::listen(sessions.clone(), tasks.clone()));
    parts.spawn(report(Arc::clone(&outbox), sessions, tasks));
    shutdown.cancelled().await;
    flush(&outbox).await;
    if let Some(guardian) = guardian {
        guardian.leave().await;
    }
    closed.cancel();
    parts.shutdown().await;
    tidy_root(&dir);
    Ok(())
}

/// Makes the folder, and names it by its true name, which is also how the guardian knows it.
fn prepare(mut settings: AgentSettings) -> Result<AgentSettings, AgentError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&settings.state_dir);
    let dir = made.and_then(|()| fs::canonicalize(&settings.state_dir));
    settings.state_dir = dir.map_err(|source| folder(&settings, source))?;
    if let Some(docker) = &mut settings.docker {
        docker.state_dir.clone_from(&settings.state_dir);
    }
    Ok(settings)
}

fn folder(settings: &AgentSettings, source: io::Error) -> AgentError {
    AgentError::Folder { dir: settings.state_dir.clone(), source }
}

/// Finds out how tasks can be run here.
async fn host(
    settings: &AgentSettings,
    gpus: &Arc<GpuWatch>,
) -> Result<(Host, Vec<String>), AgentError> {
    let job_user = if settings.allow_process {
        JobUser::choose(settings.job_user.as_deref()).map_err(AgentError::Process)?
    } else {
        None
    };
    let dir = prepare_root(&settings.state_dir, job_user.as_ref())
        .map_err(|source| folder(settings, source))?;
    let docker = docker(settings).await;
    let guarded = settings.allow_process || docker.is_some();
    let guardian =
        guarded.then(|| Guardian::new(settings.state_dir.clone(), settings.guardian.clone()));
    let mut runtimes: Vec<Arc<dyn Runtime>> = Vec::new();
    let engine =
        settings.docker.as_ref().filter(|_| docker.is_some()).map(|docker| docker.socket.clone());
    runtimes.extend(docker.map(|docker| Arc::new(docker) as Arc<dyn Runtime>));
    if let Some(guardian) = guardian.as_ref().filter(|_| settings.allow_process) {
        let user = job_user.clone();
        let process = Process::new(guardian.clone(), user, settings.pids_limit, settings.log_limit);
        runtimes.push(Arc::new(process));
    }
    let names: Vec<String> =
        runtimes.iter().map(|runtime| runtime.kind().as_str().to_owned()).collect();
    info!(runtimes = names.join(", "), "ready to run tasks");
    let host = Host {
        dir,
        runtimes,
        guardian,
        engine,
        job_user,
        log_limit: settings.log_limit,
        outbox: Arc::new(Outbox::default()),
        gpus: Arc::clone(gpus),
        server: settings.server.clone(),
        closed: CancellationToken::new(),
    };
    Ok((host, names))
}

async fn docker(settings: &AgentSettings) -> Option<Docker> {
    let docker = settings.docker.clone()?;
    match Docker::connect(docker).await {
        Ok(Some(docker)) => Some(docker),
        Ok(None) => {
            info!("there is no Docker engine on this machine");
            None
        }
        Err(error) => {
            warn!(%error, "Docker is there but cannot be used");
            None
        }
    }
}

/// Gives the last news a moment to get through.
async fn flush(outbox: &Outbox) {
    let empty = async {
        while !outbox.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(FLUSH_LIMIT, empty).await;
}
