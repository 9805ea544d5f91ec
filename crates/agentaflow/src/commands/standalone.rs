//! Shared by the daemons: simulated GPUs, strategies, signals and the async runtime.

use std::path::PathBuf;
use std::process::exit;
use std::time::Duration;

use agentaflow_agent::runtime::docker::{DockerSettings, MountRoot, NetworkMode, Subnets};
use agentaflow_agent::runtime::user::JobUser;
use agentaflow_engine::Strategy;
use agentaflow_gpu::{GpuError, GpuSource, NoGpus, Simulated, SimulatedSpec};
use agentaflow_units::hash64;
use anyhow::{Context as _, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::amount;
use crate::context::default_data_dir;
use crate::failure::usage;

#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the names are the options")]
pub(crate) struct SimArgs {
    /// Simulate N GPUs instead of using real ones; 0 means no GPUs
    #[arg(long, value_name = "N", value_parser = amount::whole::<u32>, help_heading = "Simulated GPUs")]
    sim_gpus: Option<u32>,
    /// Model of the simulated GPUs [default: NVIDIA A100]
    #[arg(long, value_name = "NAME", requires = "sim_gpus", help_heading = "Simulated GPUs")]
    sim_model: Option<String>,
    /// Memory per simulated GPU, in MiB or with a unit, such as 40G [default: that of the model]
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, requires = "sim_gpus", help_heading = "Simulated GPUs")]
    sim_memory: Option<u64>,
}

const DEFAULT_MODEL: &str = "NVIDIA A100";

impl SimArgs {
    /// Simulated GPUs of the options. The node name is part of their ids, so that GPUs of two nodes differ.
    pub(crate) fn source(&self, node: &str) -> Result<Option<Box<dyn GpuSource>>> {
        let Some(count) = self.sim_gpus else { return Ok(None) };
        if count == 0 {
            return Ok(Some(Box::new(NoGpus)));
        }
        let model = self.sim_model.clone().unwrap_or_else(|| DEFAULT_MODEL.to_owned());
        let spec =
            SimulatedSpec { count, model, memory: self.sim_memory, seed: hash64(node.as_bytes()) };
        simulated(&spec).map(Some)
    }
}

/// Simulated GPUs for a machine without GPUs.
pub(crate) fn simulated_gpus(count: u32, node: &str) -> Result<Box<dyn GpuSource>> {
    let spec = SimulatedSpec {
        count,
        model: DEFAULT_MODEL.to_owned(),
        memory: None,
        seed: hash64(node.as_bytes()),
    };
    simulated(&spec)
}

fn simulated(spec: &SimulatedSpec) -> Result<Box<dyn GpuSource>> {
    match Simulated::new(spec) {
        Ok(gpus) => Ok(Box::new(gpus)),
        Err(GpuError::Simulation(problem)) => Err(usage(problem)),
        Err(error) => Err(error.into()),
    }
}

/// Option of a server about its agents.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// Time for which agents keep jobs running without contact to the server; the server moves jobs of a silent node after it
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = amount::positive_duration)]
    pub(crate) lease: Duration,
}

/// Parser of strategy names; clap suggests near misses.
pub(crate) fn strategies() -> impl clap::builder::TypedValueParser<Value = Strategy> {
    PossibleValuesParser::new(Strategy::names())
        .map(|name| name.parse().unwrap_or(Strategy::LeastUtilized))
}

/// The data directory as an absolute path.
pub(crate) fn data_dir(option: Option<&PathBuf>) -> Result<PathBuf> {
    let path = option.map_or_else(default_data_dir, |path| Ok(path.clone()))?;
    std::path::absolute(&path).with_context(|| format!("cannot resolve `{}`", path.display()))
}

/// Isolation of containers.
#[derive(Debug, clap::Args)]
pub(crate) struct ContainerArgs {
    /// Host directory that containers may mount, read-only unless :rw follows; {user} in the path is the owner of the job; repeatable
    #[arg(long, value_name = "DIR[:rw]", help_heading = "Jobs")]
    allow_mount: Vec<MountRoot>,
    /// Network of containers: one per job, or that of the host
    #[arg(long, value_name = "job|host", default_value = "job", value_parser = network_mode, help_heading = "Jobs")]
    container_network: NetworkMode,
    /// IPv4 addresses of the networks of jobs
    #[arg(long, value_name = "SUBNET", default_value_t, help_heading = "Jobs")]
    container_subnets: Subnets,
    /// Let containers reach services of this machine and the metadata address of a cloud
    #[arg(long, help_heading = "Jobs")]
    allow_host_access: bool,
    /// Let images come from registries on this machine, such as localhost:5000
    #[arg(long, help_heading = "Jobs")]
    allow_local_registry: bool,
}

impl ContainerArgs {
    pub(crate) fn apply(&self, docker: &mut DockerSettings) {
        docker.allowed_mounts.clone_from(&self.allow_mount);
        docker.network = self.container_network;
        docker.subnets.clone_from(&self.container_subnets);
        docker.allow_host_access = self.allow_host_access;
        docker.allow_local_registry = self.allow_local_registry;
    }
}

fn network_mode(text: &str) -> Result<NetworkMode, String> {
    match text {
        "job" => Ok(NetworkMode::Job),
        "host" => Ok(NetworkMode::Host),
        _ => Err("use job or host".to_owned()),
    }
}

/// Rejects an invalid `--process-user` at start.
pub(crate) fn check_process_user(allowed: bool, user: Option<&str>) -> Result<()> {
    if let Some(user) = user.filter(|_| allowed) {
        JobUser::choose(user).map_err(|problem| usage(format!("--process-user: {problem}")))?;
    }
    Ok(())
}

/// Waits for SIGINT or SIGTERM. A second signal exits at once.
pub(crate) async fn termination_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    tokio::spawn(async move {
        let code = tokio::select! {
            _ = interrupt.recv() => 128 + 2,
            _ = terminate.recv() => 128 + 15,
        };
        exit(code);
    });
    Ok(())
}

/// An async runtime. With one thread all tasks run on the caller's thread, which saves memory.
pub(crate) fn runtime(threads: usize) -> Result<tokio::runtime::Runtime> {
    raise_file_limit();
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads)
        .max_blocking_threads(16)
        .thread_stack_size(1 << 20)
        .enable_all()
        .build()
        .context("cannot start the async runtime")
}

/// Each connection, task and log follower needs a file descriptor; the usual soft limit is 1024.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, the soft limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_raises_the_file_limit() {
        runtime(1).unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn an_invalid_process_user_is_rejected() {
        assert!(check_process_user(true, None).is_ok());
        assert!(check_process_user(false, Some("no such user")).is_ok());
        let problem = check_process_user(true, Some("no such user")).unwrap_err().to_string();
        assert!(problem.contains("--process-user"), "{problem}");
    }
}
