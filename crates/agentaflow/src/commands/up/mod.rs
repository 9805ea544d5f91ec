//! `agentaflow up`: server, scheduler and one worker in one process, ready in a moment.

mod gpus;
mod screen;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agentaflow_agent::AgentSettings;
use agentaflow_agent::runtime::docker::DockerSettings;
use agentaflow_engine::Strategy;
use agentaflow_server::core::NodeRef;
use agentaflow_server::serve::{self, Running};
use agentaflow_server::settings::Settings;
use anyhow::{Result, anyhow};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::server::{TAKEN_OVER, database};
use super::standalone::{self, SimArgs, asked_to_stop};
use crate::amount;
use crate::context::{self, Contexts, LOCAL, Target};
use crate::logging;
use gpus::Gpus;

/// A clean stop takes five seconds at most: so long for the jobs, the rest for everything else.
const EVACUATION: Duration = Duration::from_millis(3500);
const LAST_STEPS: Duration = Duration::from_millis(600);

/// Jobs that do not end politely are killed after this, so that a clean stop is also a short one.
const STOP_GRACE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  agentaflow up
      Everything on this machine, with its real GPUs or, if it has none, simulated ones
  agentaflow up --sim-gpus 8 --sim-model 'NVIDIA H100' --data-dir /tmp/lab
      A pretended machine, to try things out
  agentaflow up --listen 127.0.0.1:9000 --database postgres://localhost/agentaflow
      Another port, another database

Ctrl-C stops it within five seconds; jobs go back to waiting and start again with the next `up`.";

/// Start everything on this machine: API, scheduler and one worker
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[expect(clippy::doc_markdown, reason = "these comments are the help text, which has no markup")]
pub(crate) struct Args {
    /// Where to listen
    #[arg(long, value_name = "ADDR:PORT", value_parser = amount::address, default_value = "127.0.0.1:8000")]
    listen: SocketAddr,
    /// Folder for the database, tokens and logs [default: ~/.local/share/agentaflow]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// `postgres://…`, or `none` for a file in the data folder [default: AGENTAFLOW_DATABASE, else none]
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// How GPUs are chosen for jobs that do not say
    #[arg(long, value_name = "NAME", value_parser = standalone::strategies())]
    strategy: Option<Strategy>,
    /// How often the worker gives a sign of life
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = amount::some_duration)]
    heartbeat: Duration,
    /// Open the browser
    #[arg(long)]
    open: bool,

    /// As whom processes run when this is started by root: a name, or uid:gid [default: nobody]
    #[arg(long, value_name = "USER", help_heading = "Jobs")]
    process_user: Option<String>,
    /// Folder that containers may see, with all in it; may be given several times
    #[arg(long, value_name = "DIR", help_heading = "Jobs")]
    allow_mount: Vec<PathBuf>,
    /// Run no plain processes, only containers
    #[arg(long, help_heading = "Jobs")]
    no_process: bool,
    /// Socket of the Docker engine
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
    logging::warnings_only()?;
    standalone::check_process_user(!args.no_process, args.process_user.as_deref())?;
    let gpus = Gpus::find(&args.sim)?;
    standalone::runtime(2)?.block_on(serve(args, gpus))
}

async fn serve(args: &Args, gpus: Gpus) -> Result<()> {
    let settings = settings(args, &gpus)?;
    let data_dir = settings.data_dir.clone();
    let server = serve::start(settings).await?;
    let mut worker = Worker::start(args, &server, &data_dir, &gpus);
    let current = write_context(&server, &data_dir)?;
    screen::show(&screen::Facts {
        args,
        server: &server,
        data_dir: &data_dir,
        gpus: &gpus,
        docker: args.docker_socket.exists(),
        current,
    })?;
    let ended = tokio::select! {
        asked = asked_to_stop() => asked,
        () = server.fatal() => Err(anyhow!(TAKEN_OVER)),
        ended = &mut worker.task => Err(early(ended)),
    };
    screen::stopping();
    stop(server, worker).await;
    ended
}

fn settings(args: &Args, gpus: &Gpus) -> Result<Settings> {
    let mut settings = Settings::new(args.listen, standalone::data_dir(args.data_dir.as_ref())?);
    settings.database = database(args.database.as_deref())?;
    settings.policy.strategy = args.strategy.unwrap_or(settings.policy.strategy);
    settings.notice = gpus.notice();
    // One machine, one person: nobody is kept from anything by somebody else's requests.
    settings.rate = (10_000, 40_000);
    Ok(settings)
}

/// The local agent, in this process, over HTTP like any other.
struct Worker {
    name: String,
    stop: CancellationToken,
    task: JoinHandle<Result<(), agentaflow_agent::AgentError>>,
}

impl Worker {
    fn start(args: &Args, server: &Running, data_dir: &Path, gpus: &Gpus) -> Self {
        let name = gpus::node_name();
        let state = data_dir.join("agent");
        let mut docker = DockerSettings::new(state.clone());
        docker.socket.clone_from(&args.docker_socket);
        docker.allowed_mounts.clone_from(&args.allow_mount);
        let settings = AgentSettings {
            registration_token: Some(server.registration_token.clone()),
            node_name: Some(name.clone()),
            // One that is not there yet is looked for again.
            docker: Some(docker),
            allow_process: !args.no_process,
            job_user: args.process_user.clone(),
            heartbeat_interval: args.heartbeat,
            stop_grace: STOP_GRACE,
            ..AgentSettings::new(server.url(), state, gpus.source())
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(agentaflow_agent::run(settings, stop.clone()));
        Self { name, stop, task }
    }
}

/// Makes the command line find this server; whether it does so without being told.
fn write_context(server: &Running, data_dir: &Path) -> Result<bool> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let mut target = Target::new(server.url(), Some(server.admin_token.clone()));
    // Whoever rotates the token need not start this anew.
    target.token_file = std::path::absolute(data_dir.join("admin-token")).ok();
    contexts.known.insert(LOCAL.to_owned(), target);
    let current = contexts.current.get_or_insert_with(|| LOCAL.to_owned()) == LOCAL;
    contexts.write(&path)?;
    Ok(current)
}

/// Jobs first, then the worker, then the server, so that every end is still reported and written down.
async fn stop(server: Running, worker: Worker) {
    let node = server.core.nodes().into_iter().find(|node| node.spec.node_name == worker.name);
    if let Some(node) = node {
        server.core.evacuate(&NodeRef::Number(node.id), EVACUATION).await;
    }
    worker.stop.cancel();
    if timeout(LAST_STEPS, worker.task).await.is_err() {
        tracing::warn!("the worker did not end in time");
    }
    if timeout(LAST_STEPS, server.stop()).await.is_err() {
        tracing::warn!("the server did not end in time");
    }
}

/// Why the worker ended although nobody asked it to.
fn early(
    ended: Result<Result<(), agentaflow_agent::AgentError>, tokio::task::JoinError>,
) -> anyhow::Error {
    let problem = match ended {
        Ok(Ok(())) => anyhow!("it ended by itself"),
        Ok(Err(error)) => error.into(),
        Err(error) => error.into(),
    };
    problem.context("the worker on this machine failed")
}
