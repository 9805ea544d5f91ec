//! Start-up time of commands.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{free_port, program};

/// Time limit of a command, without optimisation.
const LIMIT: Duration =
    if cfg!(debug_assertions) { Duration::from_millis(60) } else { Duration::from_millis(30) };

/// Runs per command; the fastest counts, since the machine may be busy.
const STARTS: usize = 9;

/// Commands with their exit codes; no server listens.
const COMMANDS: [(&str, i32); 35] = [
    ("--help", 0),
    ("version --client", 0),
    ("completion bash", 0),
    ("man", 0),
    ("context list", 0),
    ("generate --help", 0),
    ("get nodes", 5),
    ("get workloads", 5),
    ("get queues", 5),
    ("get users", 5),
    ("describe node a", 5),
    ("status", 5),
    ("submit -- true", 5),
    ("run -- true", 125),
    ("logs 1", 5),
    ("events 1", 5),
    ("cancel 1", 5),
    ("complete 1", 5),
    ("explain 1", 5),
    ("what-if -- true", 5),
    ("top", 5),
    ("watch --count 1", 5),
    ("strategy", 5),
    ("health", 5),
    ("metrics", 5),
    ("cost", 5),
    ("waste", 5),
    ("queue list", 5),
    ("cordon a", 5),
    ("drain a", 5),
    ("user list", 5),
    ("token list", 5),
    ("get nodes --kubeconfig HOME/cluster.yaml", 5),
    ("submit --kubeconfig HOME/cluster.yaml HOME/workload.yaml", 5),
    ("submit HOME/workload.yaml", 5),
];

#[test]
fn local_commands_start_fast() {
    let home = tempfile::tempdir().unwrap();
    let no_server = format!("http://127.0.0.1:{}", free_port());
    write_files(home.path());
    let mut slow = Vec::new();
    for (line, code) in COMMANDS {
        let start = |_| once(&mut command(home.path(), &no_server, line), line, code);
        let times: Vec<Duration> = (0..STARTS).map(start).collect();
        if times.iter().all(|taken| *taken > LIMIT) {
            slow.push(format!("`{line}` takes {times:?}"));
        }
    }
    assert!(slow.is_empty(), "{}", slow.join("\n"));
}

/// An unreachable cluster and a job for it.
fn write_files(home: &Path) {
    let port = free_port();
    let cluster = format!(
        "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         users: [{{name: u, user: {{token: none}}}}]\ncurrent-context: c\n"
    );
    fs::write(home.join("cluster.yaml"), cluster).unwrap();
    let work = "apiVersion: agentaflow.io/v1\nkind: GPUWorkload\nmetadata: {name: w}\n\
                spec:\n  gpuMemoryRequired: 0\n  podTemplate:\n    spec:\n      \
                containers: [{name: c, image: a}]\n";
    fs::write(home.join("workload.yaml"), work).unwrap();
}

fn command(home: &Path, no_server: &str, line: &str) -> Command {
    let mut command = program(home);
    let line = line.replace("HOME", &home.display().to_string());
    command
        .args(line.split(' '))
        .env("AGENTAFLOW_SERVER", no_server)
        .env("AGENTAFLOW_TOKEN", "none");
    command
}

fn once(command: &mut Command, line: &str, code: i32) -> Duration {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let since = Instant::now();
    let status = command.status().unwrap();
    let taken = since.elapsed();
    assert_eq!(status.code(), Some(code), "{line}");
    taken
}
