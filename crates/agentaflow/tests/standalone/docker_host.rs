//! A Docker engine of one test, in a network namespace of its own, as on another host. Other tests use the shared engine.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{SOON, eventually};
use crate::image::make_image;
use crate::procs::{kill_all, processes};

pub(crate) struct DockerHost {
    network: OwnNetwork,
    folder: TempDir,
    engine: Child,
}

impl DockerHost {
    /// Reason for which no engine can be started.
    pub(crate) fn missing() -> Option<&'static str> {
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

    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("agentaflow-docker-").tempdir().unwrap();
        let network = OwnNetwork::new();
        let engine = spawn(&folder, &network);
        let mut this = Self { network, folder, engine };
        this.wait_until_ready();
        make_image(&this.socket());
        this
    }

    /// Joins the networks of two engines by a cable: each reaches the address of the other host.
    pub(crate) fn connect(&self, other: &Self) {
        let cable = next_cable();
        let [left, right] = addresses(cable);
        let [here, there] = [self.address(), other.address()];
        let (mine, theirs, link) =
            (&self.network.name, &other.network.name, format!("aftest{cable}"));
        run(&format!(
            "ip -n {mine} link add {link} type veth peer name {link} netns {theirs}
             ip -n {mine} address add {left}/30 dev {link}
             ip -n {mine} link set {link} up
             ip -n {theirs} address add {right}/30 dev {link}
             ip -n {theirs} link set {link} up
             ip -n {mine} route add {there} via {right}
             ip -n {theirs} route add {here} via {left}"
        ));
    }

    /// Network namespace of the engine.
    pub(crate) fn network(&self) -> PathBuf {
        self.network.path()
    }

    /// Address of the host of the engine, as its agent reports it.
    pub(crate) fn address(&self) -> Ipv4Addr {
        addresses(self.network.cable)[1]
    }

    /// Address at which the network of the engine reaches the tests.
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        addresses(self.network.cable)[0]
    }

    pub(crate) fn socket(&self) -> String {
        self.folder.path().join("docker.sock").display().to_string()
    }

    /// Kills the engine and its containerd, which the kernel kills with it. Containers run on; the next engine stops them.
    pub(crate) fn kill(&mut self) {
        self.engine.kill().unwrap();
        self.engine.wait().unwrap();
        let folder = self.folder.path().display().to_string();
        kill_all(|command, _| command.starts_with("containerd\0") && command.contains(&folder));
        // A zombie with this number would pass for a running containerd.
        let _ = fs::remove_file(self.folder.path().join("exec/containerd/containerd.pid"));
    }

    /// Kills the engine, its helpers and all containers, like a power failure.
    pub(crate) fn lose_power(&mut self) {
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

    pub(crate) fn start_again(&mut self) {
        self.engine = spawn(&self.folder, &self.network);
        self.wait_until_ready();
    }

    /// Names of containers and of networks of jobs.
    pub(crate) fn leftovers(&self) -> Vec<String> {
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

/// Network namespace of the engine: two engines in one network delete the bridges and firewall rules of each other. A cable
/// joins it to the network of the tests.
struct OwnNetwork {
    name: String,
    /// Number of the cable, for names and addresses.
    cable: u32,
}

impl OwnNetwork {
    fn new() -> Self {
        let cable = next_cable();
        let this = Self { name: format!("agentaflow-{}-{cable}", std::process::id()), cable };
        let [outside, inside] = addresses(cable);
        let (name, link) = (&this.name, format!("aftest{cable}"));
        run(&format!(
            "ip netns add {name}
             ip -n {name} link set lo up
             ip link add {link} type veth peer name {link} netns {name}
             ip address add {outside}/30 dev {link}
             ip link set {link} up
             ip -n {name} address add {inside}/30 dev {link}
             ip -n {name} link set {link} up"
        ));
        this
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        // The cables end with it.
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// A number that no other cable of this machine has, most likely.
fn next_cable() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (std::process::id() * 16 + NEXT.fetch_add(1, Ordering::Relaxed)) % (1 << 14)
}

/// Addresses of both ends of a cable.
fn addresses(cable: u32) -> [Ipv4Addr; 2] {
    let first = u32::from(Ipv4Addr::new(10, 214, 0, 0)) + cable * 4;
    [first + 1, first + 2].map(Ipv4Addr::from)
}

fn run(script: &str) {
    let done = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
}

fn spawn(folder: &TempDir, network: &OwnNetwork) -> Child {
    let path = |name: &str| folder.path().join(name);
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", network.path().display())).arg("dockerd");
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
