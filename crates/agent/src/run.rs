//! Puts the agent together and runs it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

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
use crate::tasks::{Host, Tasks, Trash, prepare_root, remove_orphans, tidy_root};
use crate::{engine, identity, link, port};

/// How long news may take to reach the server when the agent is told to stop.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// How long an agent that is told to stop waits for the folders of its last tasks to go.
const TIDY_LIMIT: Duration = Duration::from_millis(200);

/// The longest time between two signs of life: a lease of twice this is long enough.
const LONGEST_INTERVAL: Duration = Duration::from_mins(10);

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
    /// Another agent has the same folder.
    #[error(
        "another agent uses `{}`: stop it first, or give this one a folder of its own", dir.display()
    )]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// Tasks were left that this agent cannot look after.
    #[error(
        "jobs in `{}` run in containers, but there is no Docker that this agent may use: start Docker, or let the \
         agent use it, until they are over",
        dir.display()
    )]
    NoDocker {
        /// The folder of the tasks.
        dir: PathBuf,
    },
    /// Signs of life would be too seldom.
    #[error(
        "a heartbeat every {} seconds is too seldom: choose an interval of at most 600 seconds", .0.as_secs()
    )]
    Interval(Duration),
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
    let _lock = lock(&settings)?;
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
    let Some(host) = shutdown.run_until_cancelled(host(&settings, &gpus)).await else {
        parts.shutdown().await;
        return Ok(());
    };
    let (host, runtimes) = host?;
    let (outbox, lease) = (Arc::clone(&host.outbox), host.lease.clone());
    let runtimes = Arc::new(Mutex::new(runtimes));
    let (closed, guardian) = (host.closed.clone(), host.guardian.clone());
    let (dir, trash) = (host.dir.clone(), Arc::clone(&host.trash));
    let tasks = Tasks::new(host);
    tasks.adopt().await;
    let registrar = Registrar {
        settings: Arc::clone(&settings),
        client,
        agent_id,
        runtimes: Arc::clone(&runtimes),
        sessions: sessions.clone(),
        lease: lease.clone(),
        gpus: Arc::clone(&gpus),
    };
    let late = (Arc::clone(&settings), tasks.clone(), runtimes, sessions.clone());
    parts.spawn(engine::await_late(late.0, late.1, late.2, late.3));
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
    trash.settle(TIDY_LIMIT).await;
    tidy_root(&dir);
    Ok(())
}

/// Makes the folder, and names it by its true name, which is also how the guardian knows it.
fn prepare(mut settings: AgentSettings) -> Result<AgentSettings, AgentError> {
    if settings.heartbeat_interval > LONGEST_INTERVAL {
        return Err(AgentError::Interval(settings.heartbeat_interval));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&settings.state_dir);
    let dir = made.and_then(|()| fs::canonicalize(&settings.state_dir));
    let dir = dir.and_then(|dir| close(&dir).map(|()| dir));
    settings.state_dir = dir.map_err(|source| folder(&settings, source))?;
    if settings.elsewhere.is_some() {
        (settings.docker, settings.allow_process) = (None, false);
    }
    if let Some(docker) = &mut settings.docker {
        docker.state_dir.clone_from(&settings.state_dir);
        docker.log_limit = settings.log_limit;
    }
    Ok(settings)
}

/// Keeps others from seeing what is in the agent's folder. One that they may pass through but neither read nor change
/// stays so: then process jobs have their folders in it.
fn close(dir: &Path) -> io::Result<()> {
    let mode = fs::metadata(dir)?.permissions().mode();
    if mode & 0o066 == 0 {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// The right to be the agent of a folder, as long as it is held: two would throw away each other's tasks.
fn lock(settings: &AgentSettings) -> Result<File, AgentError> {
    let dir = &settings.state_dir;
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600);
    let file = file.open(dir.join("agent.lock")).map_err(|source| folder(settings, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(AgentError::InUse { dir: dir.clone() }),
        Err(error) => Err(folder(settings, error.into())),
    }
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
    let elsewhere = settings.elsewhere.as_ref().map(|elsewhere| Arc::clone(&elsewhere.runtime));
    let docker = match &elsewhere {
        Some(_) => None,
        None => engine::find(settings, &dir).await?,
    };
    let interval = settings.heartbeat_interval;
    let guardian = (settings.allow_process || settings.docker.is_some())
        .then(|| Guardian::new(settings.state_dir.clone(), settings.guardian.clone(), interval));
    let mut runtimes: Vec<Arc<dyn Runtime>> = Vec::new();
    let engine = settings.docker.as_ref().map(|docker| docker.socket.clone());
    let lease = Lease::new(interval, guardian.clone()).telling(elsewhere.clone());
    let heeding = |docker: Docker| Arc::new(docker.heeding(lease.clone())) as Arc<dyn Runtime>;
    runtimes.extend(docker.map(heeding));
    if let Some(guardian) = guardian.as_ref().filter(|_| settings.allow_process) {
        let user = job_user.clone();
        let process = Process::new(guardian.clone(), user, settings.pids_limit, settings.log_limit);
        runtimes.push(Arc::new(process));
    }
    runtimes.extend(elsewhere);
    let names: Vec<String> = runtimes.iter().map(|runtime| runtime.name().to_owned()).collect();
    info!(runtimes = names.join(", "), "ready to run tasks");
    let host = Host {
        runtimes,
        late_docker: OnceLock::new(),
        lease,
        guardian,
        engine,
        job_user,
        log_limit: settings.log_limit,
        outbox: Arc::new(Outbox::default()),
        gpus: Arc::clone(gpus),
        trash: open_trash(&dir),
        dir,
        server: settings.server.clone(),
        closed: CancellationToken::new(),
    };
    Ok((host, names))
}

/// Goes on with what earlier agents left to be removed.
fn open_trash(dir: &Path) -> Arc<Trash> {
    let trash = Trash::open();
    trash.sweep(dir);
    remove_orphans(&trash);
    Arc::new(trash)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_could_read_is_closed_and_one_they_may_only_pass_through_stays() {
        let dir = tempfile::tempdir().unwrap();
        let closed =
            [(0o755, 0o700), (0o770, 0o700), (0o702, 0o700), (0o700, 0o700), (0o711, 0o711)];
        for (before, after) in closed {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(before)).unwrap();
            close(dir.path()).unwrap();
            let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, after, "{before:o}");
        }
    }
}
