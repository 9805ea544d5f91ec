//! Assembles the agent from its parts and runs them until shutdown.

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

use agentaflow_api::client::ClientError;
use agentaflow_gpu::GpuError;
use agentaflow_metrics::Endpoint;

use crate::gpus::GpuWatch;
use crate::guardian::client::Guardian;
use crate::heartbeat::{HeartbeatSender, watch_gpus, watch_lease};
use crate::lease::Lease;
use crate::register::Registrar;
use crate::report::{Outbox, report};
use crate::runtime::Runtime;
use crate::runtime::docker::Docker;
use crate::runtime::process::{Process, ProcessLimits};
use crate::runtime::user::JobUsers;
use crate::session::Sessions;
use crate::settings::AgentSettings;
use crate::storage::watch_storage;
use crate::tasks::{FolderRemover, Host, Tasks, prepare_root, remove_orphans, tidy_root};
use crate::trust::Connector;
use crate::usage::{UsageTable, watch_usage};
use crate::{docker_daemon, facts, identity, link, memory, port};

/// Longest wait for the last task updates to reach the server at shutdown.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for the removal of task folders at shutdown.
const TIDY_LIMIT: Duration = Duration::from_millis(200);

/// Limits the lease, which is two intervals long, to 20 minutes.
const LONGEST_INTERVAL: Duration = Duration::from_mins(10);

/// Error that keeps an agent from starting.
#[derive(Debug, Error)]
pub enum AgentError {
    #[error("cannot use the state directory `{}`", dir.display())]
    StateDir { dir: PathBuf, source: io::Error },
    #[error("another agent uses `{}`; stop it or choose another state directory", dir.display())]
    InUse { dir: PathBuf },
    /// An earlier agent left containers that this agent cannot manage.
    #[error(
        "tasks in `{}` run in containers, but this agent does not use Docker; start Docker or enable it until these \
        tasks end",
        dir.display()
    )]
    NoDocker { dir: PathBuf },
    #[error(
        "a heartbeat interval of {} seconds is too long; the maximum is 600 seconds", .0.as_secs()
    )]
    Interval(Duration),
    #[error(transparent)]
    Server(#[from] ClientError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The operator allowed process jobs, but the host cannot run them safely.
    #[error("process jobs cannot run on this machine: {0}")]
    Process(String),
    #[error("cannot listen on {address}; another program may use the port, choose another one")]
    Port { address: SocketAddr, source: io::Error },
}

/// Runs an agent until `shutdown`. Its tasks keep running: to stop them, cancel the jobs or drain the node first.
pub async fn run(settings: AgentSettings, shutdown: CancellationToken) -> Result<(), AgentError> {
    let settings = Arc::new(prepare(settings)?);
    let _lock = lock(&settings)?;
    let connector = Connector::new(Arc::clone(&settings))?;
    let agent_id =
        identity::agent_id(&settings.state_dir).map_err(|source| folder(&settings, source))?;
    let sessions = Sessions::default();
    let mut parts = JoinSet::new();
    if let Some(address) = settings.listen {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| AgentError::Port { address, source })?;
        let access = settings.metrics_access.clone();
        let metrics = Endpoint { access, sources: vec![Arc::new(settings.metrics.clone())] };
        parts.spawn(port::serve(listener, sessions.clone(), metrics, shutdown.clone()));
    }
    let gpus = Arc::new(GpuWatch::open(Arc::clone(&settings.gpus), &settings.state_dir).await?);
    let Some(host) = shutdown.run_until_cancelled(host(&settings, &gpus)).await else {
        parts.shutdown().await;
        return Ok(());
    };
    let (host, runtimes) = host?;
    let (outbox, lease) = (Arc::clone(&host.outbox), host.lease.clone());
    let runtimes = Arc::new(Mutex::new(runtimes));
    let (closed, guardian) = (host.closed.clone(), host.guardian.clone());
    let (dir, remover) = (host.dir.clone(), Arc::clone(&host.folder_remover));
    let tasks = Tasks::new(host);
    tasks.adopt().await;
    settings.metrics.start(
        facts::node_name(&settings),
        Arc::clone(&gpus),
        sessions.clone(),
        tasks.clone(),
    );
    let registrar = Registrar {
        settings: Arc::clone(&settings),
        connector,
        agent_id,
        runtimes: Arc::clone(&runtimes),
        sessions: sessions.clone(),
        lease: lease.clone(),
        gpus: Arc::clone(&gpus),
        guardian: guardian.clone().filter(|_| settings.allow_process),
    };
    let late = (Arc::clone(&settings), tasks.clone(), runtimes, sessions.clone());
    parts.spawn(docker_daemon::connect_later(late.0, late.1, late.2, late.3));
    parts.spawn(watch_usage(tasks.clone(), settings.heartbeat_interval));
    let heartbeats = HeartbeatSender {
        settings,
        sessions: sessions.clone(),
        tasks: tasks.clone(),
        lease: lease.clone(),
        gpus: Arc::clone(&gpus),
    };
    parts.spawn(watch_gpus(gpus, tasks.clone()));
    parts.spawn(registrar.run());
    parts.spawn(heartbeats.run());
    parts.spawn(watch_lease(lease, tasks.clone()));
    parts.spawn(watch_storage(tasks.clone()));
    parts.spawn(link::listen(sessions.clone(), tasks.clone()));
    parts.spawn(report(Arc::clone(&outbox), sessions, tasks));
    parts.spawn(memory::release_start_pages());
    shutdown.cancelled().await;
    flush(&outbox).await;
    if let Some(guardian) = guardian {
        guardian.leave().await;
    }
    closed.cancel();
    parts.shutdown().await;
    remover.wait(TIDY_LIMIT).await;
    tidy_root(&dir);
    Ok(())
}

/// Creates the state directory and replaces it by its canonical path, by which the guardian identifies the agent.
fn prepare(mut settings: AgentSettings) -> Result<AgentSettings, AgentError> {
    if settings.heartbeat_interval > LONGEST_INTERVAL {
        return Err(AgentError::Interval(settings.heartbeat_interval));
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&settings.state_dir);
    let dir = made.and_then(|()| fs::canonicalize(&settings.state_dir));
    let dir = dir.and_then(|dir| restrict_access(&dir).map(|()| dir));
    settings.state_dir = dir.map_err(|source| folder(&settings, source))?;
    if settings.remote_node.is_some() {
        settings.docker = None;
        settings.allow_process = false;
    }
    if let Some(docker) = &mut settings.docker {
        docker.state_dir.clone_from(&settings.state_dir);
        docker.log_limit = settings.log_limit;
    }
    Ok(settings)
}

/// Removes access of other users to the state directory. A directory that other users may only traverse stays as it
/// is: process jobs then have their folders in it.
fn restrict_access(dir: &Path) -> io::Result<()> {
    let mode = fs::metadata(dir)?.permissions().mode();
    if mode & 0o066 == 0 {
        return Ok(());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Locks the state directory for the lifetime of the returned file: two agents would remove each other's tasks.
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
    AgentError::StateDir { dir: settings.state_dir.clone(), source }
}

/// Determines the runtimes of this host.
async fn host(
    settings: &AgentSettings,
    gpus: &Arc<GpuWatch>,
) -> Result<(Host, Vec<String>), AgentError> {
    let job_users = if settings.allow_process {
        JobUsers::choose(settings.job_user.as_deref(), settings.job_uids)
            .map_err(AgentError::Process)?
    } else {
        JobUsers::Agent
    };
    let dir = prepare_root(&settings.state_dir, job_users.differ_from_agent())
        .map_err(|source| folder(settings, source))?;
    let remote = settings.remote_node.as_ref().map(|node| Arc::clone(&node.runtime));
    let docker = match &remote {
        Some(_) => None,
        None => docker_daemon::connect_at_start(settings, &dir).await?,
    };
    let interval = settings.heartbeat_interval;
    let guardian = (settings.allow_process || settings.docker.is_some())
        .then(|| Guardian::new(settings.state_dir.clone(), settings.guardian.clone(), interval));
    let mut runtimes: Vec<Arc<dyn Runtime>> = Vec::new();
    let docker_socket = settings.docker.as_ref().map(|docker| docker.socket.clone());
    let lease =
        Lease::new(settings.first_lease(), guardian.clone()).with_remote_runtime(remote.clone());
    let leased = |docker: Docker| Arc::new(docker.with_lease(lease.clone())) as Arc<dyn Runtime>;
    runtimes.extend(docker.map(leased));
    if let Some(guardian) = guardian.as_ref().filter(|_| settings.allow_process) {
        let limits = ProcessLimits {
            pids: settings.pids_limit,
            open_files: settings.open_files_limit,
            log: settings.log_limit,
        };
        runtimes.push(Arc::new(Process::new(guardian.clone(), dir.clone(), limits)));
    }
    runtimes.extend(remote);
    let names: Vec<String> = runtimes.iter().map(|runtime| runtime.name().to_owned()).collect();
    info!(runtimes = names.join(", "), "ready to run tasks");
    let host = Host {
        runtimes,
        late_docker: OnceLock::new(),
        lease,
        guardian,
        docker_socket,
        job_users,
        log_limit: settings.log_limit,
        outbox: Arc::new(Outbox::default()),
        gpus: Arc::clone(gpus),
        usage: UsageTable::default(),
        folder_remover: start_folder_remover(&dir),
        dir,
        server: settings.server.clone(),
        closed: CancellationToken::new(),
    };
    Ok((host, names))
}

/// Resumes the removals that earlier agents did not finish.
fn start_folder_remover(dir: &Path) -> Arc<FolderRemover> {
    let remover = FolderRemover::start();
    remover.resume(dir);
    remove_orphans(&remover);
    Arc::new(remover)
}

/// Waits until the server has the last task updates, up to `FLUSH_LIMIT`.
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
    fn a_readable_state_directory_becomes_private_and_a_traversable_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let closed =
            [(0o755, 0o700), (0o770, 0o700), (0o702, 0o700), (0o700, 0o700), (0o711, 0o711)];
        for (before, after) in closed {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(before)).unwrap();
            restrict_access(dir.path()).unwrap();
            let mode = fs::metadata(dir.path()).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, after, "{before:o}");
        }
    }
}
