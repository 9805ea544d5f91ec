//! Finds the engine, and our containers among others.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::query_parameters::ListContainersOptions;
use bollard::{API_DEFAULT_VERSION, Docker as Engine};
use thiserror::Error;

use super::fault;

/// The oldest interface of the engine that has all we need: Docker 20.10.
const OLDEST_API: (usize, usize) = (1, 41);

/// How long an engine may take for one answer.
const PATIENCE_SECONDS: u64 = 120;

/// A socket is there, but no usable engine answers on it.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ConnectError(String);

/// Connects, and says in words what is wrong when nothing usable answers.
pub(super) async fn connect(socket: &Path) -> Result<Engine, ConnectError> {
    let place = socket.display();
    let path = socket.to_str();
    let path =
        path.ok_or_else(|| ConnectError(format!("the path `{place}` is not readable text")))?;
    let wrong = |error: &EngineError| {
        let why = fault::cause(error);
        let advice = if why.to_lowercase().contains("permission denied") {
            "; run the agent as root or as a member of the group that owns the socket"
        } else {
            "; is the engine running?"
        };
        ConnectError(format!("the Docker engine at `{place}` does not answer: {why}{advice}"))
    };
    let engine = Engine::connect_with_unix(path, PATIENCE_SECONDS, API_DEFAULT_VERSION)
        .map_err(|error| wrong(&error))?;
    let answer = tokio::time::timeout(Duration::from_secs(10), engine.negotiate_version()).await;
    let late = format!("the Docker engine at `{place}` did not answer within 10 seconds");
    let engine = answer.map_err(|_| ConnectError(late))?.map_err(|error| wrong(&error))?;
    let version = engine.client_version();
    if (version.major_version, version.minor_version) < OLDEST_API {
        return Err(ConnectError(format!(
            "the Docker engine at `{place}` is too old: it speaks API {version}, and 1.41 \
             (Docker 20.10) or newer is needed"
        )));
    }
    Ok(engine)
}

/// A short name made from the agent's folder (FNV-1a), the same after every start.
pub(super) fn agent_label(state_dir: &Path) -> String {
    use std::hash::Hasher as _;
    use std::os::unix::ffi::OsStrExt;

    use fnv::FnvHasher;
    let full = state_dir.canonicalize().unwrap_or_else(|_| state_dir.to_owned());
    let mut hasher = FnvHasher::default();
    hasher.write(full.as_os_str().as_bytes());
    let hash = hasher.finish();
    format!("{hash:016x}")
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
    fn agents_with_different_folders_have_different_labels_that_never_change() {
        let label = |path: &str| agent_label(Path::new(path));
        assert_ne!(label("/nowhere/a"), label("/nowhere/b"));
        assert_eq!(label("/nowhere/a"), "ad42ac61061acb94");
    }

    #[tokio::test]
    async fn without_a_socket_there_is_no_docker_and_a_dead_socket_is_an_error_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = DockerSettings::new(folder.path().to_owned());
        settings.socket = folder.path().join("docker.sock");
        assert!(Docker::connect(settings.clone()).await.unwrap().is_none());
        drop(std::os::unix::net::UnixListener::bind(&settings.socket).unwrap());
        let error = Docker::connect(settings).await.unwrap_err().to_string();
        assert!(error.contains("does not answer") && error.contains("refused"), "{error}");
    }
}
