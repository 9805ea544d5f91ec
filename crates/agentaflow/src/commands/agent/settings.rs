//! From arguments and environment to the settings of an agent.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_agent::runtime::docker::DockerSettings;
use agentaflow_agent::{AgentSettings, Prices};
use agentaflow_api::Secret;
use agentaflow_gpu::{GpuError, GpuSource};
use anyhow::{Context as _, Result, anyhow};

use super::Args;
use super::args::Way;
use crate::amount;
use crate::commands::standalone::check_process_user;
use crate::context::{default_data_dir, variable};
use crate::failure::usage;

pub(super) fn settings(args: &Args) -> Result<AgentSettings> {
    let server = args.server.clone().or_else(|| variable("API_ENDPOINT"));
    let server =
        server.ok_or_else(|| usage("no server is named: add --server URL, or set API_ENDPOINT"))?;
    let name = args.name.clone().or_else(|| args.node.clone());
    let name = name.or_else(|| variable("NODE_NAME"));
    let (docker, allow_process) = runtimes(args)?;
    check_process_user(allow_process, args.process_user.as_deref())?;
    if allow_process && !rustix::process::geteuid().is_root() {
        tracing::warn!(
            "jobs that are processes run as the same user as the agent and can read its keys; allow this only to \
             people who may"
        );
    }
    let state_dir = state_dir(args)?;
    Ok(AgentSettings {
        registration_token: token(args)?,
        docker: docker.then(|| docker_settings(args, state_dir.clone())),
        allow_process,
        job_user: args.process_user.clone(),
        heartbeat_interval: interval(args)?,
        stop_grace: args.stop_grace,
        max_concurrent_jobs: max_jobs(args)?,
        prices: Prices {
            gpu: args.price_gpu_hour,
            cpu: args.price_cpu_hour,
            memory: args.price_memory_gb_hour,
        },
        labels: args.label.iter().cloned().collect(),
        listen: args.health_listen.0,
        pod_name: variable("POD_NAME"),
        node_name: name.clone(),
        ..AgentSettings::new(server, state_dir, gpus(args, &name.unwrap_or_default())?)
    })
}

/// The token from the file that was named, else from the environment. Without one the key of an earlier
/// registration must still do.
fn token(args: &Args) -> Result<Option<Secret>> {
    let Some(path) = &args.token_file else {
        return Ok(variable("REGISTRATION_TOKEN").map(|token| Secret(token.trim().to_owned())));
    };
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the registration token in `{}`", path.display()))?;
    if text.trim().is_empty() {
        return Err(anyhow!(
            "`{}` is empty; the server's data folder has the token",
            path.display()
        ));
    }
    Ok(Some(Secret(text.trim().to_owned())))
}

/// Whether Docker and processes are used.
fn runtimes(args: &Args) -> Result<(bool, bool)> {
    if args.runtime.is_empty() {
        let docker = args.docker_socket.exists();
        if !docker && !args.allow_process {
            return Err(usage(format!(
                "there is no way to run jobs: no Docker engine at `{}`, and processes are not allowed; start \
                 Docker, name its socket with --docker-socket, or add --allow-process",
                args.docker_socket.display()
            )));
        }
        // One that is not there yet is looked for again.
        return Ok((true, args.allow_process));
    }
    if args.runtime.contains(&Way::Kubernetes) {
        return match args.runtime.len() {
            1 if args.sim.asked("")?.is_none() => Ok((false, false)),
            1 => Err(usage("--runtime kubernetes offers the cluster's GPUs: leave out --sim-gpus")),
            _ => {
                Err(usage("--runtime kubernetes goes with no other: the node is not this machine"))
            }
        };
    }
    let process = args.runtime.contains(&Way::Process);
    if process && !args.allow_process {
        return Err(usage(
            "--runtime process lets users run commands on this machine: add --allow-process if that is meant",
        ));
    }
    Ok((args.runtime.contains(&Way::Docker), process))
}

fn docker_settings(args: &Args, state_dir: PathBuf) -> DockerSettings {
    let mut docker = DockerSettings::new(state_dir);
    docker.socket.clone_from(&args.docker_socket);
    docker.allowed_mounts.clone_from(&args.allow_mount);
    docker
}

fn interval(args: &Args) -> Result<Duration> {
    match (args.heartbeat, variable("HEARTBEAT_INTERVAL")) {
        (Some(interval), _) => Ok(interval),
        (None, Some(text)) => amount::some_duration(text.trim())
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
        (asked, _) => Ok(asked),
    }
}

fn state_dir(args: &Args) -> Result<PathBuf> {
    let path = match &args.state_dir {
        Some(path) => path.clone(),
        None => default_data_dir()?.join("agent"),
    };
    std::path::absolute(&path).with_context(|| format!("cannot find `{}`", path.display()))
}

/// The machine's GPUs. An agent never simulates unasked: jobs would be sent to GPUs that are not there.
fn gpus(args: &Args, node: &str) -> Result<Arc<dyn GpuSource>> {
    if args.runtime.contains(&Way::Kubernetes) {
        // The cluster tells of them, when it is connected to.
        return Ok(Arc::new(agentaflow_gpu::NoGpus));
    }
    if let Some(asked) = args.sim.asked(node)? {
        return Ok(asked.into());
    }
    match agentaflow_gpu::detect() {
        Ok(found) => Ok(found.into()),
        Err(GpuError::NoDriver) => {
            tracing::warn!("this machine has no NVIDIA driver: it joins as a node without GPUs");
            Ok(Arc::new(agentaflow_gpu::NoGpus))
        }
        Err(error) => Err(anyhow!(error)
            .context("cannot use this machine's GPUs (--sim-gpus 0 joins without them)")),
    }
}
