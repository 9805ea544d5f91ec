//! Docker daemon of the tests, and an image with busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use bollard::query_parameters::CreateImageOptions;
use bollard::{API_DEFAULT_VERSION, Docker as DockerClient};
use futures_util::StreamExt;
use tokio::sync::OnceCell;

pub(crate) const IMAGE: &str = "agentaflow-test/busybox:1";

pub(crate) fn socket() -> PathBuf {
    std::env::var_os("AGENTAFLOW_TEST_DOCKER")
        .expect(
            "AGENTAFLOW_TEST_DOCKER must be the path of Docker's socket; run `cargo xtask services`",
        )
        .into()
}

pub(crate) async fn client() -> DockerClient {
    client_of(&socket()).await
}

pub(crate) async fn client_of(socket: &Path) -> DockerClient {
    let client = DockerClient::connect_with_unix(socket.to_str().unwrap(), 60, API_DEFAULT_VERSION);
    client.unwrap().negotiate_version().await.unwrap()
}

/// Imports the image once.
pub(crate) async fn ensure_image(client: &DockerClient) {
    static IMPORTED: OnceCell<()> = OnceCell::const_new();
    IMPORTED.get_or_init(|| import(client)).await;
}

/// Tar archive with busybox only.
pub(crate) fn archive() -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy("/bin/busybox", bin.join("busybox")).expect("Debian's busybox-static is installed");
    for applet in ["cat", "grep", "head", "nc", "seq", "sh", "sleep", "tail", "touch", "tr", "true"]
    {
        symlink("busybox", bin.join(applet)).unwrap();
    }
    let tar = Command::new("tar").arg("-C").arg(root.path()).args(["-c", "."]).output().unwrap();
    assert!(tar.status.success());
    tar.stdout
}

pub(crate) async fn import(client: &DockerClient) {
    let (repo, tag) = IMAGE.split_once(':').unwrap();
    let options = CreateImageOptions {
        from_src: Some("-".to_owned()),
        repo: Some(repo.to_owned()),
        tag: Some(tag.to_owned()),
        ..CreateImageOptions::default()
    };
    let body = bollard::body_full(archive().into());
    let mut events = client.create_image(Some(options), Some(body), None);
    while let Some(item) = events.next().await {
        item.unwrap();
    }
}
