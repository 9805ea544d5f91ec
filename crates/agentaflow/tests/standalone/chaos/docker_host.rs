//! A Docker engine of the campaign, which kills it. Other tests use the shared one.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{SOON, eventually};
use crate::image::make_image;
use crate::procs::{kill_all, processes};

pub(super) struct DockerHost {
    network: OwnNetwork,
    folder: TempDir,
    engine: Child,
}

impl DockerHost {
    /// Reason for which no engine can be started.
    pub(super) fn missing() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            return Some("needs root to start a Docker engine of its own");
        }
        let is_missing = |program: &str, version: &str| {
            Command::new(program).arg(version).stdout(Stdio::null()).status().is_err()
        };
        (is_missing("dockerd", "--version") || is_missing("ip", "-V")).then_some(
            "needs dockerd and ip; `sudo apt-get install docker.io iproute2` installs them",
        )
    }

    pub(super) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("agentaflow-docker-").tempdir().unwrap();
        let network = OwnNetwork::new();
        let engine = spawn(&folder, &network);
        let mut this = Self { network, folder, engine };
        this.wait_until_ready();
        make_image(&this.socket());
        this
    }

    pub(super) fn socket(&self) -> String {
        self.folder.path().join("docker.sock").display().to_string()
    }

    /// Kills the engine and its containerd, which the kernel kills with it. Containers run on; the next engine stops them.
    pub(super) fn kill(&mut self) {
        self.engine.kill().unwrap();
        self.engine.wait().unwrap();
        let folder = self.folder.path().display().to_string();
        kill_all(|command, _| command.starts_with("containerd\0") && command.contains(&folder));
        // A zombie with this number would pass for a running containerd.
        let _ = fs::remove_file(self.folder.path().join("exec/containerd/containerd.pid"));
    }

    /// Kills the engine, its helpers and all containers, like a power failure.
    pub(super) fn lose_power(&mut self) {
        let containers = self.container_processes();
        self.kill();
        let folder = self.folder.path().display().to_string();
        kill_all(|command, _| command.contains(&folder));
        for pid in containers.into_iter().filter_map(Pid::from_raw) {
            // A container ends with its first process.
            let _ = kill_process(pid, Signal::KILL);
        }
        // A machine that starts again has no mounts, and an empty folder for run-time state.
        unmount_below(&folder);
        let _ = fs::remove_dir_all(self.folder.path().join("exec"));
    }

    pub(super) fn start_again(&mut self) {
        self.engine = spawn(&self.folder, &self.network);
        self.wait_until_ready();
    }

    /// Names of containers and of networks of jobs.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let containers = self.get("/containers/json?all=1");
        let networks = self.get("/networks");
        let containers =
            containers.as_array().unwrap().iter().map(|found| found["Names"].to_string());
        let own = |name: &&str| !["bridge", "host", "none"].contains(name);
        let names = networks.as_array().unwrap().iter().filter_map(|found| found["Name"].as_str());
        containers.chain(names.filter(own).map(String::from)).collect()
    }

    fn container_processes(&self) -> Vec<i32> {
        let containers = self.get("/containers/json");
        let ids = containers.as_array().unwrap().iter().filter_map(|found| found["Id"].as_str());
        let pid = |id: &str| self.get(&format!("/containers/{id}/json"))["State"]["Pid"].as_i64();
        ids.filter_map(pid)
            .filter_map(|pid| i32::try_from(pid).ok())
            .filter(|pid| *pid > 0)
            .collect()
    }

    fn get(&self, path: &str) -> Value {
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "--max-time",
            "10",
            "--unix-socket",
            &self.socket(),
            &format!("http://docker{path}"),
        ]);
        serde_json::from_slice(&curl.output().unwrap().stdout).unwrap_or_default()
    }

    fn wait_until_ready(&mut self) {
        let since = Instant::now();
        while self.get("/info")["ID"].is_null() {
            if self.engine.try_wait().unwrap().is_some() {
                // Docker 20.10 panics at its start after a kill during the creation of a network. Its operator removes the
                // database of networks.
                let _ = fs::remove_file(self.folder.path().join("data/network/files/local-kv.db"));
                self.engine = spawn(&self.folder, &self.network);
            }
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(since.elapsed() < SOON, "the Docker engine does not answer:\n{}", log());
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for DockerHost {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = kill_process(Pid::from_child(&self.engine), Signal::TERM);
        let folder = self.folder.path().display().to_string();
        let gone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the engine stops", SOON, || self.engine.try_wait().unwrap())
        }));
        if gone.is_err() {
            let _ = self.engine.kill();
            let _ = self.engine.wait();
        }
        while !processes(|command, _| command.contains(&folder)).is_empty() {
            kill_all(|command, _| command.contains(&folder));
        }
        unmount_below(&folder);
    }
}

/// Killed engines leave mounts of containers and network namespaces.
fn unmount_below(folder: &str) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for path in paths.filter(|path| path.starts_with(folder)) {
        // The end of a process may have unmounted it.
        let _ = Command::new("umount").args(["-l", path]).stderr(Stdio::null()).status();
    }
}

/// Network namespace of the engine: two engines in one network delete the bridges and firewall rules of each other.
struct OwnNetwork(String);

impl OwnNetwork {
    fn new() -> Self {
        let this = Self(format!("agentaflow-{}", std::process::id()));
        let done = Command::new("ip").args(["netns", "add", &this.0]).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        this
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn spawn(folder: &TempDir, network: &OwnNetwork) -> Child {
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", network.0)).arg("dockerd");
    command.arg("--host").arg(format!("unix://{}", path("docker.sock").display()));
    command.arg("--data-root").arg(path("data")).arg("--exec-root").arg(path("exec"));
    // A killed engine leaves the file, and its number may belong to another process by then.
    let _ = fs::remove_file(path("docker.pid"));
    command.arg("--pidfile").arg(path("docker.pid"));
    command.args(["--exec-opt", "native.cgroupdriver=cgroupfs", "--oom-score-adjust=0"]);
    let log = fs::File::options().create(true).append(true).open(path("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}
