//! What every test here stands on: an image made from busybox, an agent's folder, a connection to the engine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{CreateImageOptions, LogsOptions};
use bollard::{API_DEFAULT_VERSION, Docker as Engine};
use futures_util::StreamExt;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use agentaflow_agent::runtime::docker::{Docker, DockerSettings};
use agentaflow_agent::runtime::{Exit, Launch, Runtime, StartError};
use agentaflow_api::end::StartFailure;
use agentaflow_api::link::TaskKey;

const IMAGE: &str = "agentaflow-test/busybox:1";

/// An agent's folder, a connection to the engine, and a launch to be changed by each test.
pub(crate) struct Bench {
    pub(crate) state: TempDir,
    pub(crate) docker: Docker,
    pub(crate) engine: Engine,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut DockerSettings)) -> Self {
        static IMPORTED: OnceCell<()> = OnceCell::const_new();
        let engine = engine().await;
        IMPORTED.get_or_init(|| import(&engine)).await;
        let state = tempfile::tempdir().unwrap();
        let mut settings = settings(state.path());
        change(&mut settings);
        let docker = connect(settings).await;
        Self { state, docker, engine }
    }

    /// `sh -c script` in the test image, under a key of its own.
    pub(crate) fn launch(&self, script: &str) -> Launch {
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let job = i64::from(std::process::id()) * 1000 + NEXT.fetch_add(1, Ordering::Relaxed);
        let assignment = json!({
            "job": job, "epoch": 1, "task": 0, "runtime": "docker", "image": IMAGE,
            "command": ["/bin/sh", "-c", script], "env": {}, "job_data": {}, "gpus": [], "cpu": 0,
            "memory": 0, "shm": 0, "volumes": [], "read_only": false, "grace_ms": 300,
            "leased": true, "simulated": false, "user": "ada", "job_name": "a test",
        });
        let dir = self.state.path().join(format!("tasks/{job}-1-0"));
        fs::create_dir_all(&dir).unwrap();
        let env = vec![("PATH".to_owned(), "/bin".to_owned())];
        let assignment = serde_json::from_value(assignment).unwrap();
        Launch { assignment, env, dir, devices: Vec::new() }
    }

    pub(crate) async fn start(&self, launch: &Launch) {
        self.docker.start(launch, &|_, _| {}).await.unwrap();
    }

    pub(crate) async fn run(&self, launch: &Launch) -> Exit {
        self.start(launch).await;
        self.docker.wait(launch.assignment.key).await.unwrap()
    }

    pub(crate) async fn fails(&self, launch: &Launch) -> StartFailure {
        match self.docker.start(launch, &|_, _| {}).await {
            Err(StartError::Job(failure)) => failure,
            other => panic!("not the job's fault: {other:?}"),
        }
    }

    /// The output that the engine itself has.
    pub(crate) async fn kept(&self, key: TaskKey) -> String {
        let options = LogsOptions { stdout: true, stderr: true, ..LogsOptions::default() };
        let mut lines = self.engine.logs(&name(key), Some(options));
        let mut text = String::new();
        while let Some(line) = lines.next().await {
            text.push_str(&line.expect("a line").to_string());
        }
        text
    }

    pub(crate) async fn inspect(&self, key: TaskKey) -> ContainerInspectResponse {
        self.engine.inspect_container(&name(key), None).await.unwrap()
    }
}

impl Drop for Bench {
    /// Also after a failure nothing stays behind.
    fn drop(&mut self) {
        let tasks = fs::read_dir(self.state.path().join("tasks")).into_iter().flatten().flatten();
        let keys = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let (keys, settings) = (keys.collect::<Vec<TaskKey>>(), settings(self.state.path()));
        let clean = async move {
            let docker = connect(settings).await;
            for key in keys {
                docker.remove(key).await;
            }
        };
        // A test's own runtime cannot wait here.
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _ = std::thread::spawn(move || runtime().block_on(clean)).join();
    }
}

pub(crate) fn name(key: TaskKey) -> String {
    format!("agentaflow-{key}")
}

pub(crate) fn output(launch: &Launch) -> String {
    fs::read_to_string(launch.dir.join("output.log")).unwrap_or_default()
}

pub(crate) fn socket() -> PathBuf {
    std::env::var_os("AGENTAFLOW_TEST_DOCKER")
        .expect(
            "AGENTAFLOW_TEST_DOCKER names the engine's socket; `cargo xtask services` starts one",
        )
        .into()
}

pub(crate) fn settings(state: &Path) -> DockerSettings {
    DockerSettings { socket: socket(), ..DockerSettings::new(state.to_owned()) }
}

pub(crate) async fn connect(settings: DockerSettings) -> Docker {
    Docker::connect(settings).await.unwrap().expect("the socket is there")
}

async fn engine() -> Engine {
    let socket = socket();
    let engine = Engine::connect_with_unix(socket.to_str().unwrap(), 60, API_DEFAULT_VERSION);
    engine.unwrap().negotiate_version().await.unwrap()
}

/// An image that holds busybox and nothing else.
async fn import(engine: &Engine) {
    let root = tempfile::tempdir().unwrap();
    let bin = root.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy("/bin/busybox", bin.join("busybox")).expect("Debian's busybox-static is installed");
    for applet in ["cat", "grep", "head", "seq", "sh", "sleep", "tail", "touch", "tr", "true"] {
        symlink("busybox", bin.join(applet)).unwrap();
    }
    let tar = Command::new("tar").arg("-C").arg(root.path()).args(["-c", "."]).output().unwrap();
    assert!(tar.status.success());
    let (repo, tag) = IMAGE.split_once(':').unwrap();
    let options = CreateImageOptions {
        from_src: Some("-".to_owned()),
        repo: Some(repo.to_owned()),
        tag: Some(tag.to_owned()),
        ..CreateImageOptions::default()
    };
    let body = bollard::body_full(tar.stdout.into());
    let mut news = engine.create_image(Some(options), Some(body), None);
    while let Some(item) = news.next().await {
        item.unwrap();
    }
}

pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "it takes too long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
