//! The lease around the start of a container, with an engine that is made up. And a task for the tests of others.

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

/// A task with a password.
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
    }
}

/// What the engine was asked, as `METHOD end-of-path`.
type Asked = Arc<Mutex<Vec<String>>>;

/// An engine that says yes to everything; starting takes a while.
fn engine(socket: &Path) -> (Engine, Asked) {
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    let app = Router::new().fallback(move |request: Request| answer(request, Arc::clone(&noted)));
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let engine = Engine::connect_with_unix(socket.to_str().unwrap(), 10, API_DEFAULT_VERSION);
    (engine.unwrap(), asked)
}

async fn answer(request: Request, asked: Asked) -> Response {
    let path = request.uri().path();
    let end = path.rsplit('/').next().unwrap_or_default().to_owned();
    asked.lock().unwrap().push(format!("{} {end}", request.method()));
    match end.as_str() {
        "json" if path.ends_with("/containers/json") => Json(json!([])).into_response(),
        "json" if path.contains("/containers/") => Json(json!({"Id": "made", "State": {
            "Status": "exited", "ExitCode": 143,
            "StartedAt": "2026-11-15T06:43:29Z", "FinishedAt": "2126-11-15T06:43:29Z",
        }}))
        .into_response(),
        "create" => {
            (StatusCode::CREATED, Json(json!({"Id": "made", "Warnings": []}))).into_response()
        }
        "start" => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            StatusCode::NO_CONTENT.into_response()
        }
        "stop" | "made" => StatusCode::NO_CONTENT.into_response(),
        "logs" => StatusCode::OK.into_response(),
        _ => Json(json!({})).into_response(),
    }
}

/// A runtime that heeds a lease of twice this.
fn docker(place: &TempDir, interval: Duration) -> (Docker, Launch, Asked) {
    let settings = DockerSettings::new(place.path().to_owned());
    let (engine, asked) = engine(&place.path().join("docker.sock"));
    let lease = Some(Lease::new(interval, None));
    let docker = Docker { engine, settings, agent: "me".into(), lease, tasks: Mutex::default() };
    let mut launch = launch();
    launch.dir = docker.folder(launch.assignment.key);
    std::fs::create_dir_all(&launch.dir).unwrap();
    (docker, launch, asked)
}

fn was(asked: &Asked, what: &str) -> bool {
    asked.lock().unwrap().iter().any(|one| one == what)
}

#[tokio::test]
async fn a_container_is_not_started_after_the_lease_ran_out() {
    let place = tempfile::tempdir().unwrap();
    let (docker, launch, asked) = docker(&place, Duration::ZERO);
    let error = docker.start(&launch, &|_, _| {}).await.unwrap_err();
    assert!(matches!(&error, StartError::Node(why) if why.contains("lease")), "{error:?}");
    assert!(was(&asked, "POST create") && was(&asked, "DELETE made"), "{asked:?}");
    assert!(!was(&asked, "POST start"), "{asked:?}");
}

#[tokio::test]
async fn a_container_whose_lease_ran_out_while_it_started_is_stopped() {
    let place = tempfile::tempdir().unwrap();
    let (docker, launch, asked) = docker(&place, Duration::from_millis(100));
    docker.start(&launch, &|_, _| {}).await.unwrap();
    let exit = docker.wait(launch.assignment.key).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost), "{asked:?}");
    assert!(was(&asked, "POST start") && was(&asked, "POST stop"), "{asked:?}");
}

#[tokio::test]
async fn a_container_that_is_not_leased_starts_at_any_time() {
    let place = tempfile::tempdir().unwrap();
    let (docker, mut launch, asked) = docker(&place, Duration::ZERO);
    launch.assignment.leased = false;
    docker.start(&launch, &|_, _| {}).await.unwrap();
    assert!(was(&asked, "POST start") && !was(&asked, "POST stop"), "{asked:?}");
}
