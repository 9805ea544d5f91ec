//! Private images, with a registry played by this test.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bollard::query_parameters::RemoveImageOptions;
use serde_json::json;
use tempfile::TempDir;

use agentaflow_agent::runtime::{Launch, Runtime};
use agentaflow_api::end::EndReason;

use crate::bench::{Bench, output};
use crate::image::archive;

/// `ada:secret` in base64.
const BASIC: &str = "Basic YWRhOnNlY3JldA==";

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Blobs by digest, and the manifest under its digest and the tag `1`.
type Blobs = Arc<HashMap<String, Vec<u8>>>;

/// Registry on a port of this host with one image that needs a password.
async fn registry() -> (String, String) {
    let temp = tempfile::tempdir().unwrap();
    let layer = archive();
    let diff = digest(&temp, &layer);
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [diff]},
        "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "test"}],
    })
    .to_string()
    .into_bytes();
    let config_digest = digest(&temp, &config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json",
                   "size": config.len(), "digest": config_digest},
        "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar",
                    "size": layer.len(), "digest": diff}],
    })
    .to_string()
    .into_bytes();
    let manifest_digest = digest(&temp, &manifest);
    let blobs = HashMap::from([
        (diff, layer),
        (config_digest.clone(), config),
        (manifest_digest, manifest.clone()),
        ("1".to_owned(), manifest),
    ]);
    let routes = Router::new()
        .route("/v2/", get(|headers: HeaderMap| async move { allowed(&headers).into_response() }))
        .route("/v2/team/private/{kind}/{digest}", get(blob))
        .with_state(Arc::new(blobs));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (format!("127.0.0.1:{port}/team/private:1"), config_digest)
}

fn digest(temp: &TempDir, bytes: &[u8]) -> String {
    let file = temp.path().join("blob");
    fs::write(&file, bytes).unwrap();
    let sum = Command::new("sha256sum").arg(file).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    format!("sha256:{}", sum.split_whitespace().next().unwrap())
}

#[expect(clippy::result_large_err, reason = "a response of the played registry")]
fn allowed(headers: &HeaderMap) -> Result<(), Response> {
    if headers.get(header::AUTHORIZATION).is_some_and(|value| value == BASIC) {
        return Ok(());
    }
    let realm = [(header::WWW_AUTHENTICATE, "Basic realm=\"test\"")];
    let body = json!({"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]});
    Err((StatusCode::UNAUTHORIZED, realm, body.to_string()).into_response())
}

async fn blob(
    State(blobs): State<Blobs>,
    Path((kind, digest)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    allowed(&headers)?;
    let bytes = blobs.get(&digest).ok_or_else(|| StatusCode::NOT_FOUND.into_response())?;
    let content = if kind == "manifests" { MANIFEST } else { "application/octet-stream" };
    Ok(([(header::CONTENT_TYPE, content)], Body::from(bytes.clone())).into_response())
}

fn with_password(mut launch: Launch, image: &str) -> Launch {
    let server = image.split_once('/').unwrap().0;
    let auth = json!({"server": server, "username": "ada", "password": "secret"});
    launch.assignment.registry_auth = serde_json::from_value(auth).unwrap();
    launch.assignment.image = Some(image.to_owned());
    launch
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_private_image_on_the_node_needs_the_credentials_of_each_job() {
    let (image, id) = registry().await;
    let bench = Bench::with(|settings| settings.allow_local_registry = true).await;
    // Not on the node yet.
    let mut stranger = bench.launch("echo stolen");
    stranger.assignment.image = Some(image.clone());
    assert_eq!(bench.fails(&stranger).await.reason, EndReason::ImagePull);
    let first = with_password(bench.launch("echo mine"), &image);
    assert_eq!(bench.run(&first).await.code, Some(0));
    assert_eq!(output(&first), "mine\n");
    // On the node now.
    for name in [image.as_str(), id.as_str()] {
        let mut stranger = bench.launch("echo stolen");
        stranger.assignment.image = Some(name.to_owned());
        assert_eq!(bench.fails(&stranger).await.reason, EndReason::ImagePull, "{name}");
        assert_eq!(output(&stranger), "");
    }
    let again = with_password(bench.launch("echo again"), &image);
    assert_eq!(bench.run(&again).await.code, Some(0));
    // An agent that does not know who pulled the image: a second one on this engine, or one that lost its state.
    let other = Bench::with(|settings| settings.allow_local_registry = true).await;
    let mut stranger = other.launch("echo stolen");
    stranger.assignment.image = Some(image.clone());
    assert_eq!(other.fails(&stranger).await.reason, EndReason::ImagePull);
    assert_eq!(output(&stranger), "");
    let owner = with_password(other.launch("echo mine"), &image);
    assert_eq!(other.run(&owner).await.code, Some(0));
    other.docker.remove(owner.assignment.key).await;
    for launch in [&first, &again] {
        bench.docker.remove(launch.assignment.key).await;
    }
    let _ = bench.client.remove_image(&image, None::<RemoveImageOptions>, None).await;
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_registry_on_the_node_is_rejected_unless_allowed() {
    let (image, _) = registry().await;
    let bench = Bench::new().await;
    let launch = with_password(bench.launch("true"), &image);
    let failure = bench.fails(&launch).await;
    assert_eq!(failure.reason, EndReason::ImagePull);
    // Rejected before the registry was asked, although the password is right.
    assert!(failure.detail.contains("--allow-local-registry"), "{}", failure.detail);
}
