//! Builds the settings of an agent from options and environment.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_agent::runtime::docker::DockerSettings;
use agentaflow_agent::{AgentMetrics, AgentSettings, Prices};
use agentaflow_api::Secret;
use agentaflow_gpu::{GpuError, GpuSource};
use anyhow::{Context as _, Result, anyhow};

use super::Args;
use super::args::RuntimeName;
use crate::amount;
use crate::commands::kubernetes;
use crate::commands::standalone::check_process_user;
use crate::context::{default_data_dir, variable};
use crate::failure::usage;

pub(super) fn settings(args: &Args) -> Result<AgentSettings> {
    let server = args.server.clone().or_else(|| variable("API_ENDPOINT"));
    let server =
        server.ok_or_else(|| usage("missing server: use --server URL or set API_ENDPOINT"))?;
    let name = args.name.clone().or_else(|| args.node.clone());
    let name = name.or_else(|| variable("NODE_NAME"));
    let (docker, allow_process) = runtimes(args)?;
    check_process_user(allow_process, args.process_user.as_deref())?;
    if allow_process && !rustix::process::geteuid().is_root() {
        tracing::warn!(
            "process jobs run as the user of the agent and can read its keys; grant `process` only to trusted users"
        );
    }
    let state_dir = state_dir(args)?;
    let listen = kubernetes::listen_at_free(args.health_listen, 8080);
    Ok(AgentSettings {
        registration_token: token(args)?,
        trust: args.trust.chosen()?.trust()?,
        docker: docker.then(|| docker_settings(args, state_dir.clone())),
        allow_process,
        job_user: args.process_user.clone(),
        job_uids: args.process_uids,
        open_files_limit: args.process_open_files,
        heartbeat_interval: interval(args)?,
        stop_grace: args.stop_grace,
        max_concurrent_jobs: max_jobs(args)?,
        prices: Prices {
            gpu: args.price_gpu_hour,
            cpu: args.price_cpu_hour,
            memory: args.price_memory_gb_hour,
        },
        labels: args.label.iter().cloned().collect(),
        listen,
        metrics_access: listen
            .map(|at| args.metrics_access.at(at))
            .transpose()?
            .unwrap_or_default(),
        metrics: AgentMetrics::new(args.dcgm.dcgm_names),
        pod_name: variable("POD_NAME"),
        node_name: name.clone(),
        ..AgentSettings::new(server, state_dir, gpus(args, &name.unwrap_or_default())?)
    })
}

/// The registration token of the file or the environment. Without one the agent needs the key of an earlier
/// registration.
fn token(args: &Args) -> Result<Option<Secret>> {
    let Some(path) = &args.token_file else {
        return Ok(variable("REGISTRATION_TOKEN").map(|token| Secret(token.trim().to_owned())));
    };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the registration token in `{}`", path.display()))?;
    if text.trim().is_empty() {
        return Err(anyhow!(
            "`{}` is empty; the token is in the data directory of the server",
            path.display()
        ));
    }
    Ok(Some(Secret(text.trim().to_owned())))
}

/// Enables Docker and processes.
fn runtimes(args: &Args) -> Result<(bool, bool)> {
    if args.runtime.is_empty() {
        let docker = args.docker_socket.exists();
        if !docker && !args.allow_process {
            return Err(usage(format!(
                "no runtime: Docker socket `{}` not found, and processes are not allowed; start Docker, or use \
                 --docker-socket or --allow-process",
                args.docker_socket.display()
            )));
        }
        // The agent retries an unavailable Docker engine.
        return Ok((true, args.allow_process));
    }
    if args.runtime.contains(&RuntimeName::Kubernetes) {
        return match args.runtime.len() {
            1 if args.sim.source("")?.is_none() => Ok((false, false)),
            1 => Err(usage("--runtime kubernetes cannot be combined with --sim-gpus")),
            _ => Err(usage("--runtime kubernetes cannot be combined with other runtimes")),
        };
    }
    let process = args.runtime.contains(&RuntimeName::Process);
    if process && !args.allow_process {
        return Err(usage(
            "--runtime process requires --allow-process, since users can then run commands on this machine",
        ));
    }
    Ok((args.runtime.contains(&RuntimeName::Docker), process))
}

fn docker_settings(args: &Args, state_dir: PathBuf) -> DockerSettings {
    let mut docker = DockerSettings::new(state_dir);
    docker.socket.clone_from(&args.docker_socket);
    args.containers.apply(&mut docker);
    docker.trust_local_images = args.trust_local_images;
    docker
}

fn interval(args: &Args) -> Result<Duration> {
    match (args.heartbeat, variable("HEARTBEAT_INTERVAL")) {
        (Some(interval), _) => Ok(interval),
        (None, Some(text)) => amount::positive_duration(text.trim())
            .map_err(|problem| usage(format!("HEARTBEAT_INTERVAL: {problem}"))),
        (None, None) => Ok(Duration::from_secs(30)),
    }
}

fn max_jobs(args: &Args) -> Result<Option<u32>> {
    match (args.max_jobs, variable("MAX_CONCURRENT_JOBS")) {
        (None, Some(text)) => {
            let wrong = || usage(format!("MAX_CONCURRENT_JOBS: `{text}` is not a number of jobs"));
            text.trim().parse().map(Some).map_err(|_| wrong())
        }
        (option, _) => Ok(option),
    }
}

fn state_dir(args: &Args) -> Result<PathBuf> {
    let path = match &args.state_dir {
        Some(path) => path.clone(),
        None => default_data_dir()?.join("agent"),
    };
    std::path::absolute(&path).with_context(|| format!("cannot resolve `{}`", path.display()))
}

/// The GPUs of the machine. GPUs are simulated only on request, since jobs would otherwise be sent to missing GPUs.
fn gpus(args: &Args, node: &str) -> Result<Arc<dyn GpuSource>> {
    if args.runtime.contains(&RuntimeName::Kubernetes) {
        // The cluster reports them after the connection.
        return Ok(Arc::new(agentaflow_gpu::NoGpus));
    }
    if let Some(simulated) = args.sim.source(node)? {
        return Ok(simulated.into());
    }
    match agentaflow_gpu::detect() {
        Ok(found) => Ok(found.into()),
        Err(GpuError::NoDriver) => {
            tracing::warn!("no NVIDIA driver found; joining as a node without GPUs");
            Ok(Arc::new(agentaflow_gpu::NoGpus))
        }
        Err(error) => Err(anyhow!(error).context(
            "cannot use the GPUs of this machine (use --sim-gpus 0 to join without GPUs)",
        )),
    }
}
