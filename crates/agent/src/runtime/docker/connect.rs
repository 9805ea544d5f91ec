//! Connects to the Docker daemon and selects the containers of this agent.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentaflow_units::hash64;
use bollard::errors::Error as DockerError;
use bollard::query_parameters::ListContainersOptions;
use bollard::{API_DEFAULT_VERSION, Docker as DockerClient};
use thiserror::Error;
use tokio::net::UnixStream;

use super::fault;

/// API version of Docker 20.10.
const OLDEST_API: (usize, usize) = (1, 41);

const REQUEST_TIMEOUT_SECONDS: u64 = 120;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket exists, but no usable Docker daemon answers.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("the socket path `{}` is not valid UTF-8", socket.display())]
    NotUtf8 { socket: PathBuf },
    #[error(
        "access to Docker at `{}` denied: {cause}; run the agent as root or as a member of the socket's group",
        socket.display()
    )]
    PermissionDenied { socket: PathBuf, cause: String },
    #[error("Docker at `{}` does not answer: {cause}; check that the daemon is running", socket.display())]
    Unreachable { socket: PathBuf, cause: String },
    #[error("Docker at `{}` did not answer within {} seconds", socket.display(), CONNECT_TIMEOUT.as_secs())]
    Timeout { socket: PathBuf },
    #[error(
        "Docker at `{}` is too old: it supports API {version}, required is 1.41 (Docker 20.10) or newer",
        socket.display()
    )]
    TooOld { socket: PathBuf, version: String },
}

pub(super) async fn connect(socket: &Path) -> Result<DockerClient, ConnectError> {
    let owned = || socket.to_owned();
    let path = socket.to_str().ok_or_else(|| ConnectError::NotUtf8 { socket: owned() })?;
    let failed = |error: &DockerError| {
        let (socket, cause) = (owned(), fault::cause(error));
        if fault::is_permission_denied(error) {
            ConnectError::PermissionDenied { socket, cause }
        } else {
            ConnectError::Unreachable { socket, cause }
        }
    };
    let client =
        DockerClient::connect_with_unix(path, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
            .map_err(|error| failed(&error))?;
    let answer = tokio::time::timeout(CONNECT_TIMEOUT, client.negotiate_version()).await;
    let client = answer
        .map_err(|_| ConnectError::Timeout { socket: owned() })?
        .map_err(|error| failed(&error))?;
    let version = client.client_version();
    if (version.major_version, version.minor_version) < OLDEST_API {
        return Err(ConnectError::TooOld { socket: owned(), version: version.to_string() });
    }
    Ok(client)
}

/// True if the process at the other end of the socket has the same process ids as this one.
pub(super) async fn shares_pids(socket: &Path) -> bool {
    let peer = peer(socket).await;
    let status = peer.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    status.is_some_and(|status| has_one_pid(&status))
}

/// True if the process at the other end of the socket has the same network as this one. Only root can tell.
pub(super) async fn shares_network(socket: &Path) -> bool {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let daemon = peer(socket).await.and_then(|pid| network(&pid.to_string()));
    daemon.is_some() && daemon == network("self")
}

/// Pid of the process that listens at the socket; `None` if it is outside this pid namespace.
async fn peer(socket: &Path) -> Option<i32> {
    let stream = UnixStream::connect(socket).await.ok()?;
    stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
}

/// A process of a nested pid namespace has several ids.
fn has_one_pid(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_none_or(|ids| ids.split_whitespace().count() == 1)
}

/// Label value derived from the state directory (FNV-1a), so that a restarted agent finds its containers.
pub(super) fn agent_label(state_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let full = state_dir.canonicalize().unwrap_or_else(|_| state_dir.to_owned());
    format!("{:016x}", hash64(full.as_os_str().as_bytes()))
}

pub(super) fn by_labels(labels: Vec<String>) -> ListContainersOptions {
    let filters = HashMap::from([("label".to_owned(), labels)]);
    ListContainersOptions { all: true, filters: Some(filters), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::super::{Docker, DockerSettings};
    use super::*;

    #[test]
    fn labels_are_stable_and_differ_between_state_directories() {
        let label = |path: &str| agent_label(Path::new(path));
        assert_ne!(label("/nowhere/a"), label("/nowhere/b"));
        assert_eq!(label("/nowhere/a"), "ad42ac61061acb94");
    }

    #[test]
    fn a_daemon_in_a_nested_pid_namespace_has_other_process_ids() {
        assert!(has_one_pid("Pid:\t7\nNSpid:\t7\n") && has_one_pid("Pid:\t7\n"));
        assert!(!has_one_pid("Pid:\t7\nNSpid:\t7\t1\n"));
    }

    #[tokio::test]
    async fn a_missing_socket_is_no_error_and_a_dead_socket_is() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = DockerSettings::new(folder.path().to_owned());
        settings.socket = folder.path().join("docker.sock");
        assert!(Docker::connect(settings.clone()).await.unwrap().is_none());
        drop(std::os::unix::net::UnixListener::bind(&settings.socket).unwrap());
        let error = Docker::connect(settings).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    }
}
