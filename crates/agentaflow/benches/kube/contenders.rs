//! The schedulers that are compared, as processes.

use std::fmt;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::ports::free_port;

/// Scheduler under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The program of this repository.
    Ours,
    /// kube-scheduler that may make as many calls as it likes.
    KubeScheduler,
    /// kube-scheduler as it is configured by default.
    KubeSchedulerAsIs,
}

impl Contender {
    pub(crate) fn scheduler_name(self) -> &'static str {
        match self {
            Self::Ours => "bench-ours",
            Self::KubeScheduler => "bench-kube-scheduler",
            Self::KubeSchedulerAsIs => "bench-kube-scheduler-default",
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "agentaflow",
            Self::KubeScheduler => "kube-scheduler, unthrottled",
            Self::KubeSchedulerAsIs => "kube-scheduler, as configured by default",
        })
    }
}

/// A scheduler that runs.
pub(crate) struct Scheduler {
    child: Child,
    http: u16,
    metrics: u16,
}

impl Scheduler {
    pub(crate) fn start(contender: Contender, cluster: &Cluster) -> Self {
        let (http, metrics) = (free_port(), free_port());
        let mut command = match contender {
            Contender::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_agentaflow"));
                command.arg("scheduler").arg("--kubeconfig").arg(&cluster.as_scheduler);
                command.args([
                    "--namespace",
                    "agentaflow",
                    "--webhook",
                    "off",
                    "--log-level",
                    "warn",
                ]);
                command.args(["--scheduler-name", contender.scheduler_name()]);
                command.args(["--http", &format!("127.0.0.1:{http}")]);
                command.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
                command
            }
            Contender::KubeScheduler => kube_scheduler(contender, cluster, 5000),
            Contender::KubeSchedulerAsIs => kube_scheduler(contender, cluster, 50),
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.spawn().expect("the scheduler can be started");
        Self { child, http, metrics }
    }

    /// The most memory that it had, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib =
            line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        kib.unwrap_or(0) / 1024
    }

    /// Waits until so many pods have a reason in the metrics.
    pub(crate) async fn wait_for_reasons(&self, count: usize, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit {
            let text = get(self.metrics, "/metrics").await;
            let lines = text
                .lines()
                .filter(|line| line.starts_with("agentaflow_workloads_pending_by_reason{"));
            let known = lines.filter(|line| !line.contains("\"New\""));
            let known: f64 =
                known.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
            if known as usize >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not every pod had a reason within {limit:?}");
    }

    pub(crate) async fn wait_for_explanation(&self, pod: &str) {
        loop {
            if get(self.http, &format!("/explain/default/{pod}")).await.contains("\"reason\"") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops it politely, so that the next one need not wait for its lease.
    pub(crate) fn end(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.end();
    }
}

fn kube_scheduler(contender: Contender, cluster: &Cluster, calls: u32) -> Command {
    let folder = std::env::var("AGENTAFLOW_TEST_KUBE_BIN").expect("the folder of kube-scheduler");
    let name = contender.scheduler_name();
    let config = serde_json::json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": cluster.kubeconfig,
            "qps": calls,
            "burst": calls * 2,
        },
        "leaderElection": { "leaderElect": false },
        "profiles": [{ "schedulerName": name }],
    });
    let file = std::env::temp_dir().join(format!("{name}-{}.json", std::process::id()));
    fs::write(&file, config.to_string()).expect("the configuration can be written");
    let mut command = Command::new(format!("{folder}/kube-scheduler"));
    command.arg("--config").arg(file).args(["--secure-port", &free_port().to_string(), "--v", "0"]);
    command
}

async fn get(port: u16, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    ask.await.unwrap_or_default()
}
