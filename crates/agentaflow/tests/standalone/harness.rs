//! Starts the program on free ports in its own directories, and stops all its processes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{Answer, Connection};
use crate::job_folder::job_folder;
pub(crate) use crate::ports::free_port;
use crate::procs::{kill_all, processes};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");

/// Heartbeat interval of agents: short, so that a loss is detected soon.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);

/// Timeout of expected events on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Self {
        let file = fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Self { child: command.spawn().unwrap(), log: log.to_owned() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // The process may have exited.
        let _ = kill_process(self.pid(), signal);
    }

    /// Sends SIGKILL and waits for the exit.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(&mut self, within: Duration) -> ExitStatus {
        eventually("the program ends", within, || self.child.try_wait().unwrap())
    }

    /// Sends SIGTERM; returns the duration and the exit status.
    pub(crate) fn terminate(&mut self) -> (ExitStatus, Duration) {
        let since = Instant::now();
        self.signal(Signal::TERM);
        (self.wait(SOON), since.elapsed())
    }
}

/// A server with its agents, or `up`, and their directories.
pub(crate) struct Cluster {
    home: TempDir,
    pub(crate) port: u16,
    tls: bool,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    pub(crate) server: Process,
    pub(crate) agents: BTreeMap<String, Process>,
    agent_arguments: BTreeMap<String, Vec<String>>,
    agent_environments: BTreeMap<String, Vec<(String, String)>>,
    /// Network namespaces of agents on other hosts.
    agent_networks: BTreeMap<String, PathBuf>,
}

impl Cluster {
    /// `agentaflow server`, ready.
    pub(crate) fn server(extra: &[&str]) -> Self {
        Self::server_with(extra, Vec::new())
    }

    /// [`Self::server`] with environment variables.
    pub(crate) fn server_with(extra: &[&str], environment: Vec<(String, String)>) -> Self {
        Self::start("server", "127.0.0.1", extra, environment)
    }

    /// `agentaflow server` on another address than loopback, ready.
    pub(crate) fn server_at(address: &str, extra: &[&str]) -> Self {
        Self::server_at_with(address, extra, Vec::new())
    }

    /// [`Self::server_at`] with environment variables.
    pub(crate) fn server_at_with(
        address: &str,
        extra: &[&str],
        environment: Vec<(String, String)>,
    ) -> Self {
        Self::start("server", address, extra, environment)
    }

    /// `agentaflow up` with simulated GPUs, ready.
    pub(crate) fn up(extra: &[&str]) -> Self {
        Self::up_with(extra, Vec::new())
    }

    /// [`Self::up`] with environment variables.
    pub(crate) fn up_with(extra: &[&str], environment: Vec<(String, String)>) -> Self {
        let mut all = vec!["--sim-gpus", "2", "--heartbeat", "300ms"];
        all.extend(extra);
        let cluster = Self::start("up", "127.0.0.1", &all, environment);
        cluster.wait_for_nodes(1);
        cluster
    }

    fn start(
        command: &str,
        address: &str,
        extra: &[&str],
        environment: Vec<(String, String)>,
    ) -> Self {
        let home = job_folder();
        // Jobs run as another user if the tests run as root, and write to `shared`.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(home.path().join("shared")).unwrap();
        fs::set_permissions(home.path().join("shared"), fs::Permissions::from_mode(0o777)).unwrap();
        let port = free_port();
        let data = home.path().join("data");
        let mut arguments = vec![command.to_owned()];
        arguments.extend(["--listen".to_owned(), format!("{address}:{port}")]);
        arguments.extend(["--data-dir".to_owned(), data.display().to_string()]);
        if !extra.contains(&"--lease") {
            // The minimum: two heartbeat intervals.
            arguments.extend(["--lease", "1ms"].map(String::from));
        }
        arguments.extend(extra.iter().map(ToString::to_string));
        let server = begin(home.path(), &arguments, &environment, "server", None);
        let mut cluster = Self {
            home,
            port,
            tls: extra.iter().any(|option| option.starts_with("--tls-")),
            arguments,
            environment,
            server,
            agents: BTreeMap::new(),
            agent_arguments: BTreeMap::new(),
            agent_environments: BTreeMap::new(),
            agent_networks: BTreeMap::new(),
        };
        cluster.wait_until_ready();
        cluster
    }

    /// Address for clients on this machine.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Restarts the server with the same port and directory.
    pub(crate) fn restart_server(&mut self) {
        self.server = begin(self.home.path(), &self.arguments, &self.environment, "server", None);
        self.wait_until_ready();
    }

    /// Replaces the value of an option of the server, for its next start.
    pub(crate) fn set_option(&mut self, option: &str, value: &str) {
        let position = self.arguments.iter().position(|word| word == option).unwrap();
        value.clone_into(&mut self.arguments[position + 1]);
    }

    fn wait_until_ready(&mut self) {
        let since = Instant::now();
        // A server with TLS answers plain HTTP with 400.
        let ready = if self.tls { 400 } else { 200 };
        while self
            .try_call("GET", "/readyz", None, None)
            .is_none_or(|answer| answer.status != ready)
        {
            let ended = self.server.child.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {}", self.server.output());
            assert!(since.elapsed() < SOON, "the server is not ready: {}", self.server.output());
            sleep(Duration::from_millis(20));
        }
    }

    /// Starts an agent with the process runtime and two simulated GPUs.
    pub(crate) fn agent(&mut self, name: &str, extra: &[&str]) {
        let server = self.url();
        self.agent_at(name, &server, extra);
    }

    /// [`Self::agent`] with another server address.
    pub(crate) fn agent_at(&mut self, name: &str, server: &str, extra: &[&str]) {
        let arguments = self.agent_options(name, server, extra);
        self.agent_arguments.insert(name.to_owned(), arguments);
        self.restart_agent(name);
    }

    /// [`Self::agent`] with the GPUs of a played `nvidia-smi` in this folder.
    pub(crate) fn agent_with_driver(&mut self, name: &str, folder: &Path) {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", folder.display());
        self.set_agent_environment(name, vec![("PATH".to_owned(), path)]);
        let mut arguments = self.agent_options(name, &self.url(), &[]);
        let at = arguments.iter().position(|word| word == "--sim-gpus").unwrap();
        arguments.drain(at..at + 2);
        self.agent_arguments.insert(name.to_owned(), arguments);
        self.restart_agent(name);
    }

    fn agent_options(&self, name: &str, server: &str, extra: &[&str]) -> Vec<String> {
        let state = self.state_dir(name).display().to_string();
        let token = self.path("data/registration-token").display().to_string();
        let interval = format!("{}ms", HEARTBEAT.as_millis());
        let mut arguments: Vec<String> = [
            "agent",
            "--server",
            server,
            "--token-file",
            &token,
            "--name",
            name,
            "--state-dir",
            &state,
            "--heartbeat",
            &interval,
            "--health-listen",
            "127.0.0.1:0",
            "--sim-gpus",
            "2",
            "--stop-grace",
            "1s",
        ]
        .map(String::from)
        .into();
        for option in ["--token-file", "--health-listen"] {
            if extra.contains(&option) {
                let at = arguments.iter().position(|word| word == option).unwrap();
                arguments.drain(at..at + 2);
            }
        }
        if !extra.contains(&"--runtime") {
            arguments.extend(["--runtime", "process", "--allow-process"].map(String::from));
        }
        arguments.extend(extra.iter().map(ToString::to_string));
        arguments
    }

    /// Sets environment variables of an agent that starts later.
    pub(crate) fn set_agent_environment(&mut self, name: &str, environment: Vec<(String, String)>) {
        self.agent_environments.insert(name.to_owned(), environment);
    }

    /// Sets the network namespace of an agent that starts later.
    pub(crate) fn set_agent_network(&mut self, name: &str, network: PathBuf) {
        self.agent_networks.insert(name.to_owned(), network);
    }

    /// Restarts a killed agent.
    pub(crate) fn restart_agent(&mut self, name: &str) {
        let environment = self.agent_environments.get(name).map_or(&[][..], Vec::as_slice);
        let network = self.agent_networks.get(name).map(PathBuf::as_path);
        let arguments = &self.agent_arguments[name];
        let agent = begin(self.home.path(), arguments, environment, name, network);
        self.agents.insert(name.to_owned(), agent);
    }

    /// Waits until this many nodes are ready.
    pub(crate) fn wait_for_nodes(&self, count: usize) {
        let ready = |node: &&Value| node["status"] == "active" && node["reachable"] == true;
        eventually("the nodes take work", SOON, || {
            let nodes = self.get("/gpu-workers/nodes/").ok();
            (nodes.as_array().unwrap().iter().filter(ready).count() >= count).then_some(())
        });
    }

    /// A path in the directory of the cluster.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    /// A directory that jobs can write to.
    pub(crate) fn shared(&self, file: &str) -> String {
        self.path("shared").join(file).display().to_string()
    }

    fn state_dir(&self, agent: &str) -> PathBuf {
        self.path(&format!("agent-{agent}"))
    }

    /// The guardian of an agent.
    pub(crate) fn guardian(&self, agent: &str) -> Option<Pid> {
        let dir = self.state_dir(agent).display().to_string();
        processes(|command, environment| is_guardian(command, &dir) && !is_helper(environment))
            .first()
            .copied()
    }

    /// Kills the guardian of an agent; its sentinel survives.
    pub(crate) fn kill_guardian(&self, agent: &str) {
        if let Some(guardian) = self.guardian(agent) {
            // It may have ended by itself.
            let _ = kill_process(guardian, Signal::KILL);
        }
    }

    /// Kills all processes of an agent, like a power failure.
    pub(crate) fn lose_machine(&mut self, agent: &str) {
        let dir = self.state_dir(agent).display().to_string();
        self.agents.get_mut(agent).unwrap().kill();
        // The guardian must die first, or it would record the end of its tasks.
        kill_all(|command, environment| is_guardian(command, &dir) && is_helper(environment));
        kill_all(|command, _| is_guardian(command, &dir));
        kill_all(|_, environment| environment.contains(&dir));
    }

    pub(crate) fn token(&self) -> String {
        fs::read_to_string(self.path("data/admin-token")).unwrap_or_default().trim().to_owned()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, Some(body))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, Some(body))
    }

    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let answer = self.try_call(method, path, body, Some(&self.token()));
        answer.unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    /// A request that tolerates an unreachable server.
    pub(crate) fn try_call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        token: Option<&str>,
    ) -> Option<Answer> {
        Connection::open(self.port, token).ok()?.call(method, path, body).ok()
    }

    /// A command with the context of this cluster.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Command {
        let mut command = program(self.home.path());
        command.args(arguments);
        if self.arguments[0] != "up" {
            command.env("AGENTAFLOW_SERVER", self.url());
            command.env("AGENTAFLOW_TOKEN", self.token());
        }
        command
    }

    /// Runs a command until it exits.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.cli(arguments).stdin(Stdio::null()).output().unwrap())
    }

    /// Submits a shell job with additional fields; returns its id.
    #[track_caller]
    pub(crate) fn submit(&self, script: &str, more: Value) -> i64 {
        let answer = self.post("/gpu-workers/jobs/", &shell_job(script, more));
        answer.ok()["id"].as_i64().unwrap()
    }

    pub(crate) fn job(&self, id: i64) -> Value {
        self.get(&format!("/gpu-workers/jobs/{id}")).ok()
    }

    /// Waits for a state of the job; tolerates an unreachable server.
    #[track_caller]
    pub(crate) fn wait_for(&self, id: i64, wanted: &str, test: impl Fn(&Value) -> bool) -> Value {
        let token = self.token();
        let path = format!("/gpu-workers/jobs/{id}");
        let mut last = Value::Null;
        let since = Instant::now();
        loop {
            if let Some(answer) = self.try_call("GET", &path, None, Some(&token)) {
                last = answer.json();
            }
            if test(&last) {
                return last;
            }
            assert!(since.elapsed() < SOON, "job {id} is not {wanted}: {last:#}");
            sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub(crate) fn wait_for_status(&self, id: i64, status: &str) -> Value {
        self.wait_for(id, status, |job| job["status"] == status)
    }

    pub(crate) fn logs(&self, id: i64) -> String {
        self.get(&format!("/gpu-workers/jobs/{id}/logs")).body
    }

    /// Kinds of the events of a job, in order.
    pub(crate) fn events(&self, id: i64) -> Vec<String> {
        let events = self.get(&format!("/gpu-workers/jobs/{id}/events")).ok();
        let events = events.as_array().unwrap().iter();
        events.map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.server.kill();
        self.agents.values_mut().for_each(Process::kill);
        let home = self.home.path().display().to_string();
        for _ in 0..3 {
            kill_all(|command, environment| command.contains(&home) || environment.contains(&home));
        }
        remove_task_folders(&home);
        if std::thread::panicking() {
            for (name, process) in [("server", &self.server)]
                .into_iter()
                .chain(self.agents.iter().map(|(name, process)| (name.as_str(), process)))
            {
                eprintln!("---- {name} said:\n{}", process.output());
            }
        }
    }
}

/// Agents of root keep task folders here, and remove the folders of deleted agents when they start.
fn remove_task_folders(home: &str) {
    let entries = fs::read_dir("/var/lib/agentaflow-tasks").into_iter().flatten().flatten();
    let owners = entries.map(|entry| entry.path()).filter(|path| {
        path.extension().is_some_and(|extension| extension == "owner")
            && fs::read_to_string(path).is_ok_and(|agent| agent.starts_with(home))
    });
    for owner in owners {
        // An agent of another test may remove them at the same time.
        let _ = fs::remove_dir_all(owner.with_extension(""));
        let _ = fs::remove_file(owner);
    }
}

/// Guardian of a state directory, or a process that it started from its own program.
fn is_guardian(command: &str, dir: &str) -> bool {
    command.contains("\0guardian\0") && command.contains(dir)
}

fn is_helper(environment: &str) -> bool {
    environment.contains("AGENTAFLOW_GUARDIAN_ROLE=")
}

/// Result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// The program with its own configuration directory.
pub(crate) fn program(home: &Path) -> Command {
    with_home(Command::new(PROGRAM), home)
}

fn with_home(mut command: Command, home: &Path) -> Command {
    command.env("HOME", home).env("XDG_CONFIG_HOME", home.join("config"));
    for name in [
        "AGENTAFLOW_SERVER",
        "AGENTAFLOW_TOKEN",
        "AGENTAFLOW_CONTEXT",
        "AGENTAFLOW_SERVER_FINGERPRINT",
        "AGENTAFLOW_CA_CERT",
        "XDG_DATA_HOME",
        "LOG_LEVEL",
    ] {
        command.env_remove(name);
    }
    command
}

fn begin(
    home: &Path,
    arguments: &[String],
    environment: &[(String, String)],
    name: &str,
    network: Option<&Path>,
) -> Process {
    let mut command = match network {
        None => program(home),
        Some(network) => {
            let mut enter = Command::new("nsenter");
            enter.arg(format!("--net={}", network.display())).arg(PROGRAM);
            with_home(enter, home)
        }
    };
    command.args(arguments).env("LOG_LEVEL", "info").envs(environment.iter().cloned());
    Process::start(command, &home.join(format!("{name}.log")))
}

pub(crate) fn shell_job(script: &str, more: Value) -> Value {
    let mut job = json!({"runtime": "process", "command": ["/bin/sh", "-c", script]});
    if let (Value::Object(job), Value::Object(more)) = (&mut job, more) {
        job.extend(more);
    }
    job
}

/// Polls until there is a result.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, within: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < within, "not within {within:?}: {what}");
        sleep(Duration::from_millis(20));
    }
}
