//! Programs under measurement: started with folders of their own, looked at through /proc, ended.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::http::{Answer, Connection};
use crate::ports::free_port;

/// `agentaflow up` or a server, with its data folder.
pub(crate) struct System {
    home: TempDir,
    pub(crate) port: u16,
    server: Child,
    others: Vec<Child>,
}

impl System {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(command: &str, extra: &[&str]) -> Self {
        let home = tempfile::Builder::new().prefix("agentaflow-bench-").tempdir().unwrap();
        let port = free_port();
        let data = home.path().join("data").display().to_string();
        let mut program = program(home.path(), command);
        program
            .args([command, "--listen", &format!("127.0.0.1:{port}"), "--data-dir", &data])
            .args(extra);
        let server = program.spawn().unwrap();
        let system = Self { home, port, server, others: Vec::new() };
        system.wait(Self::ready);
        system
    }

    /// `up` with a node that takes work.
    pub(crate) fn up(extra: &[&str]) -> Self {
        let system = Self::start("up", &[&["--sim-gpus", "2"], extra].concat());
        system.wait(|system| system.get("/gpu-workers/nodes/").json()[0]["reachable"] == true);
        system
    }

    /// Starts an agent; its process.
    pub(crate) fn agent(&mut self, extra: &[&str]) -> Pid {
        let path = |name: &str| self.home.path().join(name).display().to_string();
        let (token, state) = (path("data/registration-token"), path("agent"));
        let server = format!("http://127.0.0.1:{}", self.port);
        let mut agent = program(self.home.path(), "agent");
        agent.args(["agent", "--server", &server, "--token-file", &token, "--state-dir", &state]);
        agent
            .args(["--name", "bench", "--health-listen", "127.0.0.1:0", "--sim-gpus", "2"])
            .args(extra);
        self.others.push(agent.spawn().unwrap());
        self.wait(|system| system.get("/gpu-workers/nodes/").json()[0]["reachable"] == true);
        Pid::from_child(&self.others[self.others.len() - 1])
    }

    /// The guardian that an agent started, if it did.
    pub(crate) fn guardian(&self) -> Option<Pid> {
        let home = self.home.path().display().to_string();
        pids().into_iter().find(|pid| {
            let command =
                fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).into_owned();
            command.contains("\0guardian\0") && command.contains(&home)
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.server)
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.home.path().join(below)
    }

    pub(crate) fn token(&self, file: &str) -> String {
        fs::read_to_string(self.path("data").join(file)).unwrap_or_default().trim().to_owned()
    }

    /// A connection as the admin.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.port, Some(&self.token("admin-token"))).unwrap()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.connect().call("GET", path, None).unwrap()
    }

    fn ready(&self) -> bool {
        let answer = Connection::open(self.port, None)
            .and_then(|mut line| line.call("GET", "/readyz", None));
        answer.is_ok_and(|answer| answer.status == 200)
    }

    fn wait(&self, test: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !test(self) {
            let message = || fs::read_to_string(self.path("server.log")).unwrap_or_default();
            assert!(since.elapsed() < Duration::from_secs(30), "not ready: {}", message());
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let guardian = self.guardian();
        for child in self.others.iter_mut().chain([&mut self.server]) {
            // Politely first, so that jobs and guardians go, too.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
        }
        if let Some(guardian) = guardian {
            let _ = kill_process(guardian, Signal::KILL);
        }
    }
}

fn program(home: &Path, name: &str) -> Command {
    let log = fs::File::create(home.join(format!("{name}.log"))).unwrap();
    let built = || env!("CARGO_BIN_EXE_agentaflow").into();
    let mut command = Command::new(env::var_os("AGENTAFLOW_BENCH_PROGRAM").unwrap_or_else(built));
    command.env("HOME", home).env("XDG_CONFIG_HOME", home.join("config")).env("LOG_LEVEL", "warn");
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command
}

fn pids() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// CPU seconds that a process has used.
pub(crate) fn cpu_seconds(pid: Pid) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    let field = |index: usize| after_name.split(' ').nth(index).unwrap().parse::<f64>().unwrap();
    // The kernel counts in hundredths of a second for programs, whatever it does inside.
    (field(11) + field(12)) / 100.0
}

/// MiB of memory that a process has resident.
pub(crate) fn resident(pid: Pid) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

/// The value below which so many hundredths of all lie.
pub(crate) fn percentile(values: &mut [Duration], hundredths: usize) -> Duration {
    values.sort_unstable();
    values[(values.len() * hundredths / 100).min(values.len() - 1)]
}
