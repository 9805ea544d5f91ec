//! The arguments of `agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agentaflow_api::Dollars;

use crate::amount;
use crate::commands::standalone::SimArgs;
use crate::logging::LogArgs;

const EXAMPLES: &str = "\
Examples:
  agentaflow agent --server http://head:8000 --token-file /etc/agentaflow/registration-token
      The GPUs of this machine, jobs in containers
  agentaflow agent --server http://head:8000 --token-file token --runtime process --allow-process
      A machine without Docker; jobs are plain processes
  agentaflow agent --server http://head:8000 --token-file token --runtime kubernetes --node gpu-7 --namespace imagepod
      A node of a Kubernetes cluster; jobs are Jobs there. deploy/worker runs one for every GPU node
  agentaflow agent --server http://head:8000 --token-file token --sim-gpus 8 --sim-model 'NVIDIA H100'
      A pretended machine, to try things out

Environment, where the command line does not say: API_ENDPOINT, REGISTRATION_TOKEN, NODE_NAME, POD_NAME, LOG_LEVEL,
HEARTBEAT_INTERVAL, MAX_CONCURRENT_JOBS. The token is never an argument: everybody can read those.
SIGTERM ends the agent and leaves its jobs running; the next one adopts them.";

/// Make this machine a node: run the jobs that the server gives it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// The server, such as http://head:8000 [default: API_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,
    /// File with the registration token [default: the token in REGISTRATION_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(super) token_file: Option<PathBuf>,
    /// Name of the node [default: NODE_NAME, else the host's]
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Folder for the agent's identity and its tasks [default: ~/.local/share/agentaflow/agent]
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// How often to give a sign of life [default: HEARTBEAT_INTERVAL, else 30s]
    #[arg(long, value_name = "TIME", value_parser = amount::some_duration)]
    pub(super) heartbeat: Option<Duration>,
    /// Where to answer /health and /ready; `none` for nowhere
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8080", value_parser = listen)]
    pub(super) health_listen: Listen,

    /// How jobs may run: docker, process, or kubernetes alone [default: docker where there is one, process where allowed]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = way, help_heading = "Jobs")]
    pub(super) runtime: Vec<Way>,
    /// Let users run plain processes on this machine
    #[arg(long, help_heading = "Jobs")]
    pub(super) allow_process: bool,
    /// As whom processes run when the agent is root: a name, or uid:gid [default: nobody]
    #[arg(long, value_name = "USER", help_heading = "Jobs")]
    pub(super) process_user: Option<String>,
    /// Folder that containers may see, with all in it; may be given several times
    #[arg(long, value_name = "DIR", help_heading = "Jobs")]
    pub(super) allow_mount: Vec<PathBuf>,
    /// Socket of the Docker engine
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/run/docker.sock",
        help_heading = "Jobs"
    )]
    pub(super) docker_socket: PathBuf,
    /// The most jobs at a time [default: MAX_CONCURRENT_JOBS, else what fits]
    #[arg(long, value_name = "NUMBER", help_heading = "Jobs")]
    pub(super) max_jobs: Option<u32>,
    /// The longest time that jobs get between the polite and the hard way of stopping them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = amount::duration, help_heading = "Jobs")]
    pub(super) stop_grace: Duration,

    /// The node of the cluster whose GPUs are offered, with --runtime kubernetes [default: NODE_NAME]
    #[arg(long, value_name = "NODE", help_heading = "Kubernetes")]
    pub(super) node: Option<String>,
    /// Namespace for Jobs [default: the context's, or the agent's own where it runs in the cluster]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub(super) namespace: Option<String>,
    /// The kubeconfig of the cluster [default: KUBECONFIG, else ~/.kube/config, else the cluster it runs in]
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub(super) kube_context: Option<String>,

    /// Dollars an hour for a GPU [default: the server's]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_gpu_hour: Option<Dollars>,
    /// Dollars an hour for a CPU core [default: the server's]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_cpu_hour: Option<Dollars>,
    /// Dollars an hour for a GiB of memory [default: the server's]
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars, help_heading = "Node")]
    pub(super) price_memory_gb_hour: Option<Dollars>,
    /// Label of the node; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = amount::pair, help_heading = "Node")]
    pub(super) label: Vec<(String, String)>,

    #[command(flatten)]
    pub(super) sim: SimArgs,
    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// Where to listen, if anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listen(pub(super) Option<SocketAddr>);

fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "none" => Ok(Listen(None)),
        address => address
            .parse()
            .map(|address| Listen(Some(address)))
            .map_err(|_| "write it like 0.0.0.0:8080, or `none`".to_owned()),
    }
}

/// A way to run jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Docker,
    Process,
    Kubernetes,
}

fn way(text: &str) -> Result<Way, String> {
    match text {
        "docker" => Ok(Way::Docker),
        "process" => Ok(Way::Process),
        "kubernetes" => Ok(Way::Kubernetes),
        _ => Err("there is docker, process and kubernetes".to_owned()),
    }
}
