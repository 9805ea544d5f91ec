//! Options of `agent`.

use std::path::PathBuf;
use std::time::Duration;

use agentaflow_agent::runtime::uids::UidRange;
use agentaflow_api::Dollars;

use crate::amount;
use crate::commands::kubernetes;
use crate::commands::metrics_access::{DcgmNames, MetricsAccess};
use crate::commands::standalone::{ContainerArgs, SimArgs};
use crate::logging::LogArgs;
use crate::trust::TrustArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow agent --server https://head:8000 --token-file /etc/agentaflow/registration-token
      Offer the GPUs of this machine; jobs run in containers. A server with a self-signed certificate proves that it
      knows the token, and the agent pins its public key
  agentaflow agent --server http://head:8000 --token-file token --runtime process --allow-process
      Without Docker; jobs run as processes
  agentaflow agent --server http://head:8000 --token-file token --runtime kubernetes --node gpu-7 --namespace imagepod
      Offer a node of a Kubernetes cluster; jobs run as batch/v1 Jobs. deploy/worker runs one agent per GPU node
  agentaflow agent --server http://head:8000 --token-file token --sim-gpus 8 --sim-model 'NVIDIA H100'
      Simulate a machine with eight GPUs

Environment variables, overridden by options: API_ENDPOINT, REGISTRATION_TOKEN, NODE_NAME, POD_NAME, LOG_LEVEL,
HEARTBEAT_INTERVAL, MAX_CONCURRENT_JOBS, AGENTAFLOW_SERVER_FINGERPRINT, AGENTAFLOW_CA_CERT. There is no option for the
token, since other users can read command lines.
SIGTERM stops the agent; its jobs keep running, and the next agent adopts them.";

/// Run an agent: offer this machine as a node of a server
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Server URL, such as http://head:8000 [default: API_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,
    /// File with the registration token [default: the value of REGISTRATION_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Node name [default: NODE_NAME, else the host name]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Directory of the agent identity and task state [default: ~/.local/share/agentaflow/agent]
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// Heartbeat interval [default: HEARTBEAT_INTERVAL, else 30s]
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration)]
    pub(super) heartbeat: Option<Duration>,
    /// Listen address for /health, /ready and /metrics; `none` disables it [default: port 8080 in a pod, else 127.0.0.1:8080, or
    /// a free port if it is in use]
    #[arg(long, value_name = "ADDR:PORT", value_parser = kubernetes::listen)]
    pub(super) health_listen: Option<kubernetes::Listen>,
    #[command(flatten)]
    pub(super) metrics_access: MetricsAccess,
    #[command(flatten)]
    pub(super) dcgm: DcgmNames,

    /// Runtimes: docker, process, or only kubernetes [default: docker if available, process if allowed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = runtime, help_heading = "Jobs")]
    pub(super) runtime: Vec<RuntimeName>,
    /// Allow jobs to run as processes without a container
    #[arg(long, help_heading = "Jobs")]
    pub(super) allow_process: bool,
    /// User of all processes if the agent runs as root: a name, or uid:gid [default: a uid of --process-uids per owner]
    #[arg(long, value_name = "USER", help_heading = "Jobs")]
    pub(super) process_user: Option<String>,
    /// uids of processes if the agent runs as root: one per owner of jobs
    #[arg(
        long,
        value_name = "FIRST-LAST",
        default_value_t,
        conflicts_with = "process_user",
        help_heading = "Jobs"
    )]
    pub(super) process_uids: UidRange,
    /// Maximum number of open files of each process of a process job
    #[arg(long, value_name = "NUMBER", default_value_t = 65_536, help_heading = "Jobs")]
    pub(super) process_open_files: u64,
    #[command(flatten)]
    pub(super) containers: ContainerArgs,
    /// Run images of this machine without asking their registry, except images pulled for a job with credentials
    #[arg(long, help_heading = "Jobs")]
    pub(super) trust_local_images: bool,
    /// Docker socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/run/docker.sock",
        help_heading = "Jobs"
    )]
    pub(super) docker_socket: PathBuf,
    /// Maximum number of concurrent jobs [default: MAX_CONCURRENT_JOBS, else 1000]
    #[arg(long, value_name = "NUMBER", help_heading = "Jobs")]
    pub(super) max_jobs: Option<u32>,
    /// Maximum grace period between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = amount::duration, help_heading = "Jobs")]
    pub(super) stop_grace: Duration,

    /// Cluster node to offer with --runtime kubernetes [default: NODE_NAME]
    #[arg(long, value_name = "NODE", help_heading = "Kubernetes")]
    pub(super) node: Option<String>,
    /// Namespace of Jobs [default: that of the context, or of the pod of the agent]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub(super) namespace: Option<String>,
    /// Kubeconfig [default: KUBECONFIG, else ~/.kube/config, else the cluster of the pod]
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub(super) kube_context: Option<String>,

    /// Price of a GPU hour in dollars [default: set by the server]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_gpu_hour: Option<Dollars>,
    /// Price of a CPU core hour in dollars [default: set by the server]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_cpu_hour: Option<Dollars>,
    /// Price of a GiB hour of memory in dollars [default: set by the server]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_memory_gb_hour: Option<Dollars>,
    /// Node label; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = amount::pair, help_heading = "Node")]
    pub(super) label: Vec<(String, String)>,

    #[command(flatten)]
    pub(super) trust: TrustArgs,
    #[command(flatten)]
    pub(super) sim: SimArgs,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuntimeName {
    Docker,
    Process,
    Kubernetes,
}

fn runtime(text: &str) -> Result<RuntimeName, String> {
    match text {
        "docker" => Ok(RuntimeName::Docker),
        "process" => Ok(RuntimeName::Process),
        "kubernetes" => Ok(RuntimeName::Kubernetes),
        _ => Err("use docker, process or kubernetes".to_owned()),
    }
}
