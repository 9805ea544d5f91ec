//! Volumes and disk usage of containers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use agentaflow_agent::runtime::docker::{MountRoot, OUT_FOLDER};
use agentaflow_agent::runtime::{Launch, Runtime};
use agentaflow_api::end::EndReason;

use crate::bench::{Bench, connect, output, settings, until};
use crate::image::socket;

fn root(path: &Path, writable: bool) -> Vec<MountRoot> {
    vec![MountRoot { path: path.to_owned(), writable }]
}

fn volume(source: &Path, read_only: bool) -> Vec<agentaflow_api::job::Volume> {
    let volume: Value = json!({"source": source, "target": "/data", "read_only": read_only});
    vec![serde_json::from_value(volume).unwrap()]
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_mount_outside_the_allowed_roots_is_rejected_even_through_a_link() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), "from the host\n").unwrap();
    symlink("/etc", temp.path().join("link")).unwrap();
    let bench = Bench::with(|settings| settings.allowed_mounts = root(temp.path(), false)).await;
    for source in [PathBuf::from("/etc"), temp.path().join("link"), temp.path().join("../../etc")] {
        let mut launch = bench.launch("true");
        launch.assignment.volumes = volume(&source, true);
        let failure = bench.fails(&launch).await;
        assert_eq!(failure.reason, EndReason::StartFailed);
    }
    let mut launch = bench.launch("cat /data/file; touch /data/new");
    launch.assignment.volumes = volume(temp.path(), true);
    bench.run(&launch).await;
    assert!(output(&launch).contains("from the host\n"), "{}", output(&launch));
    assert!(!temp.path().join("new").exists(), "the mount is writable");
    launch.assignment.volumes = volume(temp.path(), false);
    assert_eq!(bench.fails(&bench.same(&launch)).await.reason, EndReason::StartFailed);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_writable_volume_keeps_its_files_and_leaves_no_docker_volume() {
    let temp = tempfile::tempdir().unwrap();
    let bench = Bench::with(|settings| settings.allowed_mounts = root(temp.path(), true)).await;
    fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut launch = bench.launch("touch /data/new");
    launch.assignment.volumes = volume(temp.path(), false);
    bench.run(&launch).await;
    let found = bench.inspect(launch.assignment.key).await.mounts.unwrap();
    let name = found.into_iter().find_map(|mount| mount.name).unwrap();
    assert!(bench.client.inspect_volume(&name).await.is_ok());
    bench.docker.remove(launch.assignment.key).await;
    assert!(bench.client.inspect_volume(&name).await.is_err(), "volume `{name}` is left");
    let files: Vec<_> = fs::read_dir(temp.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "{files:?}");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_link_swapped_in_between_check_and_mount_does_not_reach_the_host() {
    let (temp, bench, launch) = swapped_at("/containers/create").await;
    bench.run(&launch).await;
    assert!(temp.path().join("data").is_symlink());
    assert_eq!(output(&launch), "mine\n");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_link_swapped_in_while_the_image_is_fetched_is_rejected() {
    let (temp, bench, launch) = swapped_at("/images/").await;
    assert_eq!(bench.fails(&launch).await.reason, EndReason::StartFailed);
    assert!(temp.path().join("data").is_symlink());
}

#[tokio::test]
#[ignore = "needs a Docker engine with userns-remap; `cargo xtask test` starts one"]
async fn userns_root_of_a_container_is_not_root_in_a_volume() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("file"), "from the host\n").unwrap();
    let bench = Bench::remapped(|settings| settings.allowed_mounts = root(temp.path(), true)).await;
    let options = bench.client.info().await.unwrap().security_options.unwrap_or_default();
    assert!(options.iter().any(|option| option.starts_with("name=userns")), "{options:?}");
    fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut launch = bench.launch("cat /data/file; touch /data/new || echo refused");
    launch.assignment.volumes = volume(temp.path(), false);
    bench.run(&launch).await;
    let text = output(&launch);
    assert!(text.contains("from the host\n") && text.contains("refused\n"), "{text}");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_disk_usage_of_a_container_counts_its_layer_and_its_results() {
    let bench = Bench::new().await;
    let script = format!(
        "head -c 3000000 /dev/zero > /file; head -c 3000000 /dev/zero > {OUT_FOLDER}/file; \
         echo done; exec sleep 60"
    );
    let mut launch = bench.launch(&script);
    // Without quotas in Docker's storage driver the limit is not an error.
    launch.assignment.storage = 100;
    bench.start(&launch).await;
    until(|| output(&launch).contains("done")).await;
    let used = bench.docker.disk_used(launch.assignment.key).await.unwrap();
    assert!((6_000_000..8_000_000).contains(&used), "{used}");
}

/// A job that mounts `data`; a daemon behind a proxy that replaces `data` by a link to `/etc` when a request with this
/// path arrives.
async fn swapped_at(path: &'static str) -> (TempDir, Bench, Launch) {
    let temp = tempfile::tempdir().unwrap();
    let data = temp.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("hostname"), "mine\n").unwrap();
    let mut bench = Bench::new().await;
    let moved = temp.path().join("moved");
    let link = data.clone();
    let swap = move || {
        if !link.is_symlink() {
            fs::rename(&link, &moved).unwrap();
            symlink("/etc", &link).unwrap();
        }
    };
    let proxy = temp.path().join("proxy.sock");
    tokio::spawn(proxy_until(UnixListener::bind(&proxy).unwrap(), path, Arc::new(swap)));
    let mut changed = settings(bench.state.path());
    changed.socket = proxy;
    changed.allowed_mounts = root(temp.path(), true);
    bench.docker = connect(changed).await;
    let mut launch = bench.launch("cat /data/hostname");
    launch.assignment.volumes = volume(&data, true);
    (temp, bench, launch)
}

type Swap = Arc<dyn Fn() + Send + Sync>;

/// Forwards requests to the daemon; calls `swap` before a request with `path` reaches it.
async fn proxy_until(listener: UnixListener, path: &'static str, swap: Swap) {
    while let Ok((client, _)) = listener.accept().await {
        let swap = Arc::clone(&swap);
        tokio::spawn(async move {
            let server = UnixStream::connect(socket()).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
            });
            let mut bytes = vec![0; 64 << 10];
            while let Ok(read @ 1..) = from_client.read(&mut bytes).await {
                let text = String::from_utf8_lossy(&bytes[..read]);
                if text.lines().next().is_some_and(|line| line.contains(path)) {
                    swap();
                }
                to_server.write_all(&bytes[..read]).await.unwrap();
            }
        });
    }
}
