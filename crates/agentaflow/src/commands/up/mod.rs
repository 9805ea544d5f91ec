//! `agentaflow up`: server, scheduler and one agent in one process.

mod gpus;
mod screen;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agentaflow_agent::runtime::docker::DockerSettings;
use agentaflow_agent::runtime::uids::UidRange;
use agentaflow_agent::{AgentMetrics, AgentSettings};
use agentaflow_dashboard::Dashboard;
use agentaflow_engine::Strategy;
use agentaflow_metrics::MetricSource;
use agentaflow_server::core::NodeRef;
use agentaflow_server::serve::{self, Running};
use agentaflow_server::settings::Settings;
use anyhow::{Result, anyhow};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::alert_args::AlertArgs;
use super::metrics_access::{DcgmNames, MetricsListener};
use super::otlp_args::OtlpArgs;
use super::server::{TAKEN_OVER, database};
use super::standalone::{self, ContainerArgs, LeaseArgs, SimArgs, termination_signal};
use crate::amount;
use crate::context::{self, Contexts, LOCAL, Target, variable};
use crate::failure::usage;
use crate::logging::{self, LogFormatArg};
use gpus::Gpus;

/// A clean stop takes at most five seconds: this long for the jobs, the rest for agent and server.
const EVACUATION_TIMEOUT: Duration = Duration::from_millis(3500);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(600);

/// Time between SIGTERM and SIGKILL, short enough for a clean stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  agentaflow up
      Use the GPUs of this machine, or simulated GPUs without a driver
  agentaflow up --sim-gpus 8 --sim-model 'NVIDIA H100' --data-dir /tmp/lab
      Simulate a machine with eight GPUs
  agentaflow up --listen 127.0.0.1:9000 --database postgres://localhost/agentaflow
      Use another port and PostgreSQL

Ctrl-C stops all parts within five seconds; jobs become pending and restart with the next `up`.";

/// Start server, scheduler and agent on this machine
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Listen address, on loopback
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Directory of the database, tokens and logs [default: ~/.local/share/agentaflow]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// `postgres://…`, or `none` for SQLite in the data directory [default: AGENTAFLOW_DATABASE, else none]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// Default strategy
    #[arg(long, value_name = "NAME", value_parser = standalone::strategies())]
    strategy: Option<Strategy>,
    /// Heartbeat interval of the agent
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = amount::positive_duration)]
    heartbeat: Duration,
    #[command(flatten)]
    alerts: AlertArgs,
    #[command(flatten)]
    metrics: MetricsListener,
    #[command(flatten)]
    dcgm: DcgmNames,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    log_format: LogFormatArg,
    #[command(flatten)]
    otlp: OtlpArgs,
    /// Open the dashboard in a browser
    #[arg(long)]
    open: bool,

    /// User of all processes if started by root: a name, or uid:gid [default: a uid of --process-uids per owner]
    #[arg(long, value_name = "USER", help_heading = "Jobs")]
    process_user: Option<String>,
    /// uids of processes if started by root: one per owner of jobs
    #[arg(
        long,
        value_name = "FIRST-LAST",
        default_value_t,
        conflicts_with = "process_user",
        help_heading = "Jobs"
    )]
    process_uids: UidRange,
    #[command(flatten)]
    containers: ContainerArgs,
    /// Disallow jobs without a container
    #[arg(long, help_heading = "Jobs")]
    no_process: bool,
    /// Docker socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/var/run/docker.sock",
        help_heading = "Jobs"
    )]
    docker_socket: PathBuf,

    #[command(flatten)]
    sim: SimArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    logging::warnings_only(args.log_format)?;
    if !args.listen.ip().is_loopback() {
        return Err(usage(format!(
            "`up` serves this machine only, and {} is not a loopback address; for other machines run `agentaflow server \
             --listen {} --tls-self-signed` and `agentaflow agent`",
            args.listen.ip(),
            args.listen
        )));
    }
    standalone::check_process_user(!args.no_process, args.process_user.as_deref())?;
    let gpus = Gpus::find(&args.sim)?;
    standalone::runtime(2)?.block_on(serve(args, gpus))
}

async fn serve(args: &Args, gpus: Gpus) -> Result<()> {
    let settings = settings(args, &gpus)?;
    let data_dir = settings.data_dir.clone();
    let server = serve::start(settings).await?;
    let agent_metrics = AgentMetrics::new(args.dcgm.dcgm_names);
    let mut agent = LocalAgent::start(args, &server, &data_dir, &gpus, agent_metrics.clone());
    args.otlp.push_gpu_metrics("agentaflow-agent", agent_metrics.clone(), agent.stop.clone())?;
    let sources: Vec<Arc<dyn MetricSource>> = vec![
        Arc::new(server.core.clone()),
        Arc::new(server.alerts.clone()),
        Arc::new(agent_metrics),
    ];
    let metrics = args.metrics.serve(sources, agent.stop.clone()).await?;
    let current = write_context(&server, &data_dir)?;
    screen::show(&screen::Summary {
        args,
        server: &server,
        data_dir: &data_dir,
        gpus: &gpus,
        docker: args.docker_socket.exists(),
        metrics,
        current,
    })?;
    if variable("KUBECONFIG").is_some() {
        eprintln!(
            "note: KUBECONFIG is set; commands use this server with --context local or AGENTAFLOW_CONTEXT=local"
        );
    }
    let ended = tokio::select! {
        received = termination_signal() => received,
        () = server.fatal() => Err(anyhow!(TAKEN_OVER)),
        ended = &mut agent.task => Err(agent_error(ended)),
    };
    screen::stopping();
    stop(server, agent).await;
    ended
}

fn settings(args: &Args, gpus: &Gpus) -> Result<Settings> {
    let mut settings = Settings::new(args.listen, standalone::data_dir(args.data_dir.as_ref())?);
    settings.alerts = args.alerts.config()?;
    settings.database = database(args.database.as_deref())?;
    settings.policy.strategy = args.strategy.unwrap_or(settings.policy.strategy);
    settings.traces = args.otlp.collector()?;
    settings.lease = args.lease.lease;
    settings.notice = gpus.notice();
    settings.dashboard = Dashboard::embedded();
    // One machine has one user: no need to protect users from each other.
    settings.rate = (10_000, 40_000);
    Ok(settings)
}

/// The agent in this process; it uses HTTP like any other agent.
struct LocalAgent {
    name: String,
    stop: CancellationToken,
    task: JoinHandle<Result<(), agentaflow_agent::AgentError>>,
}

impl LocalAgent {
    fn start(
        args: &Args,
        server: &Running,
        data_dir: &Path,
        gpus: &Gpus,
        metrics: AgentMetrics,
    ) -> Self {
        let name = gpus::node_name();
        let state = data_dir.join("agent");
        let mut docker = DockerSettings::new(state.clone());
        docker.socket.clone_from(&args.docker_socket);
        args.containers.apply(&mut docker);
        // The user of this machine built or pulled its images.
        docker.trust_local_images = true;
        let settings = AgentSettings {
            registration_token: Some(server.registration_token.clone()),
            node_name: Some(name.clone()),
            // The agent retries an unavailable Docker engine.
            docker: Some(docker),
            allow_process: !args.no_process,
            job_user: args.process_user.clone(),
            job_uids: args.process_uids,
            heartbeat_interval: args.heartbeat,
            stop_grace: STOP_GRACE,
            metrics,
            ..AgentSettings::new(server.url(), state, gpus.source())
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(agentaflow_agent::run(settings, stop.clone()));
        Self { name, stop, task }
    }
}

/// Writes the local context; returns true if the context is current.
fn write_context(server: &Running, data_dir: &Path) -> Result<bool> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let mut target = Target::new(server.url(), Some(server.admin_token.clone()));
    // A rotated token takes effect without a restart.
    target.token_file = std::path::absolute(data_dir.join("admin-token")).ok();
    contexts.known.insert(LOCAL.to_owned(), target);
    let current = contexts.current.get_or_insert_with(|| LOCAL.to_owned()) == LOCAL;
    contexts.write(&path)?;
    Ok(current)
}

/// Stops jobs, then the agent, then the server, so that the end of every job is recorded.
async fn stop(server: Running, agent: LocalAgent) {
    let node = server.core.nodes().into_iter().find(|node| node.spec.node_name == agent.name);
    if let Some(node) = node {
        server.core.evacuate(&NodeRef::Number(node.id), EVACUATION_TIMEOUT).await;
    }
    agent.stop.cancel();
    if timeout(SHUTDOWN_TIMEOUT, agent.task).await.is_err() {
        tracing::warn!("the agent did not stop in time");
    }
    if timeout(SHUTDOWN_TIMEOUT, server.stop()).await.is_err() {
        tracing::warn!("the server did not stop in time");
    }
}

/// Error for an agent that stopped before a termination signal.
fn agent_error(
    ended: Result<Result<(), agentaflow_agent::AgentError>, tokio::task::JoinError>,
) -> anyhow::Error {
    let problem = match ended {
        Ok(Ok(())) => anyhow!("stopped unexpectedly"),
        Ok(Err(error)) => error.into(),
        Err(error) => error.into(),
    };
    problem.context("the local agent failed")
}
