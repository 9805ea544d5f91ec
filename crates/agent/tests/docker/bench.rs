//! Fixture: an image with busybox, a state directory, a connection to Docker.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker as DockerClient;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::LogsOptions;
use futures_util::StreamExt;
use serde_json::json;
use tempfile::TempDir;

use agentaflow_agent::runtime::docker::{Docker, DockerSettings};
use agentaflow_agent::runtime::{Exit, Launch, Runtime, StartError};
use agentaflow_api::end::StartFailure;
use agentaflow_api::link::TaskKey;

use crate::image::{IMAGE, client, client_of, ensure_image, import, socket};

pub(crate) struct Bench {
    pub(crate) state: TempDir,
    pub(crate) docker: Docker,
    pub(crate) client: DockerClient,
    socket: PathBuf,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut DockerSettings)) -> Self {
        let client = client().await;
        ensure_image(&client).await;
        Self::of(client, socket(), change).await
    }

    /// On an engine with user-namespace remapping.
    pub(crate) async fn remapped(change: impl FnOnce(&mut DockerSettings)) -> Self {
        let client = client_of(&userns_socket()).await;
        import(&client).await;
        let change = |settings: &mut DockerSettings| {
            // The engine has a network of its own.
            settings.allow_host_access = true;
            change(settings);
        };
        Self::of(client, userns_socket(), change).await
    }

    async fn of(
        client: DockerClient,
        socket: PathBuf,
        change: impl FnOnce(&mut DockerSettings),
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut settings = DockerSettings {
            socket: socket.clone(),
            ..DockerSettings::new(state.path().to_owned())
        };
        change(&mut settings);
        let docker = connect(settings).await;
        Self { state, docker, client, socket }
    }

    /// `sh -c script` in the test image, with a new key.
    pub(crate) fn launch(&self, script: &str) -> Launch {
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let job = i64::from(std::process::id()) * 1000 + NEXT.fetch_add(1, Ordering::Relaxed);
        let assignment = json!({
            "job": job, "epoch": 1, "task": 0, "runtime": "docker", "image": IMAGE,
            "command": ["/bin/sh", "-c", script], "env": {}, "job_data": {}, "gpus": [], "cpu": 0,
            "memory": 0, "shm": 0, "volumes": [], "read_only": false, "grace_ms": 300,
            "leased": true, "simulated": false, "user": "ada", "job_name": "a test",
        });
        let dir = self.state.path().join(format!("tasks/{job}-1-0-00000000"));
        fs::create_dir_all(&dir).unwrap();
        let env = vec![("PATH".to_owned(), "/bin".to_owned())];
        let assignment = serde_json::from_value(assignment).unwrap();
        Launch { assignment, env, dir, devices: Vec::new(), user: None, mps_pipes: None }
    }

    /// The same task with a new key.
    pub(crate) fn same(&self, launch: &Launch) -> Launch {
        let new = self.launch("");
        let mut assignment = launch.assignment.clone();
        assignment.key = new.assignment.key;
        Launch { assignment, env: launch.env.clone(), ..new }
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
            other => panic!("not a failure of the job: {other:?}"),
        }
    }

    /// Docker's own copy of the output.
    pub(crate) async fn kept(&self, key: TaskKey) -> String {
        let options = LogsOptions { stdout: true, stderr: true, ..LogsOptions::default() };
        let mut lines = self.client.logs(&name(key), Some(options));
        let mut text = String::new();
        while let Some(line) = lines.next().await {
            text.push_str(&line.expect("a line").to_string());
        }
        text
    }

    pub(crate) async fn inspect(&self, key: TaskKey) -> ContainerInspectResponse {
        self.client.inspect_container(&name(key), None).await.unwrap()
    }
}

impl Drop for Bench {
    /// Removes containers, also after a failed test.
    fn drop(&mut self) {
        let tasks = fs::read_dir(self.state.path().join("tasks")).into_iter().flatten().flatten();
        let keys = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let keys = keys.collect::<Vec<TaskKey>>();
        let state = self.state.path().to_owned();
        let settings = DockerSettings { socket: self.socket.clone(), ..DockerSettings::new(state) };
        let clean = async move {
            let docker = connect(settings).await;
            for key in keys {
                docker.remove(key).await;
            }
        };
        // The runtime of the test cannot block here.
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _ = std::thread::spawn(move || runtime().block_on(clean)).join();
    }
}

/// Socket of an engine with user-namespace remapping.
fn userns_socket() -> PathBuf {
    std::env::var_os("AGENTAFLOW_TEST_USERNS")
        .expect(
            "AGENTAFLOW_TEST_USERNS must be the path of the socket of a Docker engine with userns-remap; run `cargo xtask \
             services`",
        )
        .into()
}

pub(crate) fn name(key: TaskKey) -> String {
    format!("agentaflow-{key}")
}

pub(crate) fn output(launch: &Launch) -> String {
    fs::read_to_string(launch.dir.join("output.log")).unwrap_or_default()
}

pub(crate) fn settings(state: &Path) -> DockerSettings {
    DockerSettings { socket: socket(), ..DockerSettings::new(state.to_owned()) }
}

pub(crate) async fn connect(settings: DockerSettings) -> Docker {
    Docker::connect(settings).await.unwrap().expect("the socket exists")
}

pub(crate) async fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "timeout");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
