//! Complete agent with real processes against a fake server.

mod failures;
mod fake_docker;
#[path = "../docker/image.rs"]
mod image;
mod isolation;
#[path = "../../../../tests/job_folder.rs"]
mod job_folder;
mod killed_guardian;
mod lifecycle;
mod server;
#[path = "../../../../tests/skip.rs"]
mod skip;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use agentaflow_agent::runtime::docker::{DockerSettings, NetworkMode};
use agentaflow_agent::{AgentError, AgentSettings};
use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::job::Runtime;
use agentaflow_api::link::{Assignment, Message, TaskKey};
use agentaflow_api::units::{Cores, Secret};
use agentaflow_gpu::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};

use job_folder::job_folder;
use server::FakeServer;

const SWITCH: &str = "AGENTAFLOW_TEST_GUARDIAN";
/// Fourth argument of the guardian.
const SWEEP: &str = "AGENTAFLOW_TEST_SWEEP";
const AGENT: &str = "AGENTAFLOW_TEST_AGENT";
const AGENT_SERVER: &str = "AGENTAFLOW_TEST_SERVER";
const AGENT_DOCKER: &str = "AGENTAFLOW_TEST_AGENT_DOCKER";

/// Heartbeat interval of an agent with Docker, whose daemon needs time to stop a container.
const DOCKER_INTERVAL: Duration = Duration::from_secs(2);

/// Entry point, not a test: the agents of the tests start this program again as their guardian.
#[test]
fn the_guardian_of_other_tests_runs_in_this_program() {
    let Some(dir) = std::env::var_os(SWITCH) else { return };
    if std::env::var(SWEEP).is_ok_and(|option| option == "--sweep") {
        agentaflow_agent::guardian::sweep(Path::new(&dir)).unwrap();
    } else {
        agentaflow_agent::guardian::run(Path::new(&dir)).unwrap();
    }
}

/// Entry point, not a test: tests that kill agents start this program again as their agent.
#[test]
fn the_agent_of_other_tests_runs_in_this_program() {
    if let (Some(dir), Ok(server)) = (std::env::var_os(AGENT), std::env::var(AGENT_SERVER)) {
        let mut settings = settings(Path::new(&dir), &server);
        if let Some(socket) = std::env::var_os(AGENT_DOCKER) {
            let docker = DockerSettings::new(settings.state_dir.clone());
            let network = NetworkMode::Host;
            settings.docker = Some(DockerSettings { socket: socket.into(), network, ..docker });
            settings.heartbeat_interval = DOCKER_INTERVAL;
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(agentaflow_agent::run(settings, CancellationToken::new())).unwrap();
    }
}

fn settings(dir: &Path, server: &str) -> AgentSettings {
    AgentSettings {
        registration_token: Some("token".into()),
        node_name: Some("worker".into()),
        allow_process: true,
        heartbeat_interval: Duration::from_millis(300),
        guardian: dir.join("agentaflow"),
        ..AgentSettings::new(server, dir.join("agent"), Arc::new(NoGpus))
    }
}

struct NoGpus;

impl GpuSource for NoGpus {
    fn host(&self) -> Host {
        Host { source: "none", ..Host::default() }
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        Ok(Vec::new())
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        Ok(Vec::new())
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(Vec::new())
    }
}

/// State directory of an agent and a fake server.
struct TestBed {
    dir: TempDir,
    server: FakeServer,
}

struct Agent {
    stop: CancellationToken,
    running: JoinHandle<Result<(), AgentError>>,
}

impl Agent {
    async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}

impl TestBed {
    async fn new() -> Self {
        let dir = job_folder();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let script = dir.path().join("agentaflow");
        let program = std::env::current_exe().unwrap();
        let name = "the_guardian_of_other_tests_runs_in_this_program";
        let text = format!(
            "#!/bin/sh\n{SWITCH}=\"$3\" {SWEEP}=\"$4\" exec {} --exact {name} --nocapture\n",
            program.display()
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Self { dir, server: FakeServer::start().await }
    }

    fn settings(&self) -> AgentSettings {
        settings(self.dir.path(), &self.server.url)
    }

    /// Agent in a separate process, which inherits an open file as descriptor 9.
    fn agent_process(&self) -> std::process::Child {
        self.agent_command().spawn().unwrap()
    }

    fn agent_process_with_docker(&self) -> std::process::Child {
        self.agent_command().env(AGENT_DOCKER, image::socket()).spawn().unwrap()
    }

    fn sweep(&self) {
        let mut program = std::process::Command::new(self.dir.path().join("agentaflow"));
        let dir = self.dir.path().join("agent");
        let status = program.args(["guardian", "--dir"]).arg(dir).arg("--sweep").status();
        assert!(status.unwrap().success());
    }

    fn agent_command(&self) -> std::process::Command {
        self.open_settings();
        let mut command = std::process::Command::new("sh");
        command
            .args(["-c", "exec 9< /etc/passwd \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_agent_of_other_tests_runs_in_this_program", "--nocapture"])
            .env(AGENT, self.dir.path())
            .env(AGENT_SERVER, &self.server.url);
        command
    }

    fn agent_with(settings: AgentSettings) -> Agent {
        let stop = CancellationToken::new();
        let running = tokio::spawn(agentaflow_agent::run(settings, stop.clone()));
        Agent { stop, running }
    }

    /// Settings with a state directory that the user of process jobs can traverse.
    fn open_settings(&self) -> AgentSettings {
        let dir = self.dir.path().join("agent");
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).unwrap();
        self.settings()
    }

    fn agent(&self) -> Agent {
        Self::agent_with(self.open_settings())
    }

    fn assign(&self, assignment: Assignment) -> TaskKey {
        let key = assignment.key;
        self.server.send(Message::Assign(Box::new(assignment)));
        key
    }

    fn folder_is_gone(&self, key: TaskKey) -> bool {
        !self.dir.path().join("agent/tasks").join(key.to_string()).exists()
    }
}

impl TestBed {
    /// Log of a task on this host: `logs` of the server, without its lock.
    fn server_log(&self, key: TaskKey) -> String {
        let file = self.dir.path().join("agent/tasks").join(key.to_string()).join("output.log");
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Guardians and their helpers whose environment matches.
    fn processes(&self, test: impl Fn(&str) -> bool) -> Vec<i32> {
        let ours = format!("{SWITCH}={}", self.dir.path().join("agent").display());
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        pids.filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let environ = String::from_utf8_lossy(&environ).into_owned();
            environ.split('\0').any(|entry| entry == ours) && test(&environ)
        })
        .collect()
    }

    fn guardians(&self) -> Vec<i32> {
        self.processes(|environ| !environ.contains("AGENTAFLOW_GUARDIAN_ROLE"))
    }

    fn kill(pid: i32) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        let ours = self.dir.path().display().to_string();
        let Ok(entries) = fs::read_dir("/proc") else { return };
        for pid in
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let marked = environ.split(|byte| *byte == 0).any(|entry| {
                let entry = String::from_utf8_lossy(entry);
                (entry.starts_with(SWITCH) || entry.starts_with("AGENTAFLOW_OUTPUT"))
                    && entry.contains(&ours)
            });
            if let (true, Some(pid)) = (marked, rustix::process::Pid::from_raw(pid)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn shell(job: i64, script: &str) -> Assignment {
    Assignment {
        key: TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 },
        job_name: None,
        runtime: Runtime::Process,
        image: None,
        registry_auth: None,
        command: Some(["sh", "-c", script].map(str::to_owned).to_vec()),
        working_dir: None,
        env: BTreeMap::from([("SECRET".to_owned(), Secret::from("hidden"))]),
        job_data: Map::from_iter([("input_data".to_owned(), json!({"lr": 0.1}))]),
        gpus: Vec::new(),
        cpu: Cores(0),
        memory: 0,
        storage: 0,
        shm: 0,
        volumes: Vec::new(),
        read_only: false,
        gang: None,
        timeout_ms: None,
        grace_ms: 500,
        restart_on_gpu_error: false,
        leased: false,
        simulated: false,
        user: "someone".to_owned(),
        user_id: Some(UserId(7)),
        running: false,
        trace_id: None,
    }
}

fn data_of(bytes: usize) -> Map<String, Value> {
    Map::from_iter([("input_data".to_owned(), Value::from("x".repeat(bytes)))])
}
