//! Lease checks around the start of a container, with a fake Docker daemon.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use bollard::API_DEFAULT_VERSION;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::*;
use crate::lease::Lease;

/// Task with a registry password.
pub(super) fn launch() -> Launch {
    let assignment = json!({
        "job": 1, "epoch": 1, "task": 0, "runtime": "docker", "image": "busybox", "env": {},
        "registry_auth": {"username": "ada", "password": "hunter2222"},
        "job_data": {}, "gpus": [], "cpu": 0, "memory": 0, "shm": 0, "volumes": [],
        "read_only": false, "grace_ms": 1000, "leased": true, "simulated": false, "user": "ada",
    });
    Launch {
        assignment: serde_json::from_value(assignment).unwrap(),
        env: Vec::new(),
        dir: PathBuf::from("/nowhere"),
        devices: Vec::new(),
        user: None,
        mps_pipes: None,
    }
}

/// Received requests as `METHOD last-path-segment`.
type Requests = Arc<Mutex<Vec<String>>>;

/// Fake daemon that accepts every request; a start takes 300 ms.
fn fake_docker(socket: &Path) -> (DockerClient, Requests) {
    let requests = Requests::default();
    let log = Arc::clone(&requests);
    let app = Router::new().fallback(move |request: Request| respond(request, Arc::clone(&log)));
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = DockerClient::connect_with_unix(socket.to_str().unwrap(), 10, API_DEFAULT_VERSION);
    (client.unwrap(), requests)
}

async fn respond(request: Request, requests: Requests) -> Response {
    let path = request.uri().path();
    let end = path.rsplit('/').next().unwrap_or_default().to_owned();
    requests.lock().unwrap().push(format!("{} {end}", request.method()));
    match end.as_str() {
        "json" if path.ends_with("/containers/json") => Json(json!([])).into_response(),
        "json" if path.contains("/containers/") => Json(json!({"Id": "made", "State": {
            "Status": "exited", "ExitCode": 143,
            "StartedAt": "2026-11-15T06:43:29Z", "FinishedAt": "2126-11-15T06:43:29Z",
        }}))
        .into_response(),
        "create" => {
            (StatusCode::CREATED, Json(json!({"Id": "made", "Warning": "", "Warnings": []})))
                .into_response()
        }
        "start" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            StatusCode::NO_CONTENT.into_response()
        }
        "networks" => Json(json!([])).into_response(),
        "stop" | "made" => StatusCode::NO_CONTENT.into_response(),
        "logs" => StatusCode::OK.into_response(),
        _ => Json(json!({})).into_response(),
    }
}

/// Runtime with a lease.
fn docker(temp: &TempDir, lease: Duration) -> (Docker, Launch, Requests) {
    let settings = DockerSettings {
        network: NetworkMode::Host,
        ..DockerSettings::new(temp.path().to_owned())
    };
    let (client, requests) = fake_docker(&temp.path().join("docker.sock"));
    let lease = Some(Lease::new(lease, None));
    let docker = Docker { lease, ..Docker::new(client, settings, "me".into()) };
    let mut launch = launch();
    launch.dir = docker.folder(launch.assignment.key);
    std::fs::create_dir_all(&launch.dir).unwrap();
    (docker, launch, requests)
}

fn received(requests: &Requests, request: &str) -> bool {
    requests.lock().unwrap().iter().any(|one| one == request)
}

#[tokio::test]
async fn a_container_is_not_started_after_the_lease_expired() {
    let temp = tempfile::tempdir().unwrap();
    let (docker, launch, requests) = docker(&temp, Duration::ZERO);
    let error = docker.start(&launch, &|_, _| {}).await.unwrap_err();
    assert!(matches!(&error, StartError::Node(_)), "{error:?}");
    assert!(
        received(&requests, "POST create") && received(&requests, "DELETE made"),
        "{requests:?}"
    );
    assert!(!received(&requests, "POST start"), "{requests:?}");
}

/// The agent cannot tell that it has the network of the daemon, so it cannot keep the container from the host.
#[tokio::test]
async fn a_container_is_not_created_if_the_host_cannot_restrict_it() {
    let temp = tempfile::tempdir().unwrap();
    let (mut docker, launch, requests) = docker(&temp, Duration::from_mins(1));
    docker.settings.network = NetworkMode::Job;
    docker.settings.socket = temp.path().join("unknown.sock");
    let error = docker.start(&launch, &|_, _| {}).await.unwrap_err();
    assert!(matches!(&error, StartError::Node(_)), "{error:?}");
    assert!(!received(&requests, "POST create"), "{requests:?}");
    docker.settings.allow_host_access = true;
    docker.start(&launch, &|_, _| {}).await.unwrap();
    assert!(received(&requests, "POST create"), "{requests:?}");
}

#[tokio::test]
async fn a_container_is_stopped_if_the_lease_expired_during_the_start() {
    let temp = tempfile::tempdir().unwrap();
    let (docker, launch, requests) = docker(&temp, Duration::from_millis(100));
    docker.start(&launch, &|_, _| {}).await.unwrap();
    let exit = docker.wait(launch.assignment.key).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost), "{requests:?}");
    assert!(received(&requests, "POST start") && received(&requests, "POST stop"), "{requests:?}");
}

#[tokio::test]
async fn a_container_without_a_lease_starts_at_any_time() {
    let temp = tempfile::tempdir().unwrap();
    let (docker, mut launch, requests) = docker(&temp, Duration::ZERO);
    launch.assignment.leased = false;
    docker.start(&launch, &|_, _| {}).await.unwrap();
    assert!(received(&requests, "POST start") && !received(&requests, "POST stop"), "{requests:?}");
}
