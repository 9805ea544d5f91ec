//! What `up`, `server` and `agent` have in common: how GPUs are found, how strategies are named, when to stop.

use std::path::PathBuf;
use std::process::exit;

use agentaflow_agent::runtime::user::JobUser;
use agentaflow_engine::Strategy;
use agentaflow_gpu::{GpuError, GpuSource, NoGpus, Simulated, SimulatedSpec};
use anyhow::{Context as _, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::amount;
use crate::context::default_data_dir;
use crate::failure::usage;

/// GPUs that do not exist.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "the names are the options")]
pub(crate) struct SimArgs {
    /// Simulate so many GPUs instead of using real ones; 0 is a machine without GPUs
    #[arg(long, value_name = "NUMBER", value_parser = amount::whole::<u32>, help_heading = "Simulated GPUs")]
    sim_gpus: Option<u32>,
    /// Model of the simulated GPUs [default: NVIDIA A100]
    #[arg(long, value_name = "NAME", requires = "sim_gpus", help_heading = "Simulated GPUs")]
    sim_model: Option<String>,
    /// Memory of each, in MiB or like 40G [default: the model's]
    #[arg(long, value_name = "MEMORY", value_parser = amount::mib, requires = "sim_gpus", help_heading = "Simulated GPUs")]
    sim_memory: Option<u64>,
}

/// What is simulated when nobody names a model.
const MODEL: &str = "NVIDIA A100";

impl SimArgs {
    /// The GPUs that were asked for, if simulated ones were. The name makes those of two nodes differ.
    pub(crate) fn asked(&self, node: &str) -> Result<Option<Box<dyn GpuSource>>> {
        let Some(count) = self.sim_gpus else { return Ok(None) };
        if count == 0 {
            return Ok(Some(Box::new(NoGpus)));
        }
        let model = self.sim_model.clone().unwrap_or_else(|| MODEL.to_owned());
        let spec = SimulatedSpec { count, model, memory: self.sim_memory, seed: seed(node) };
        simulated(&spec).map(Some)
    }
}

/// Simulated GPUs for a machine that has none.
pub(crate) fn stand_ins(count: u32, node: &str) -> Result<Box<dyn GpuSource>> {
    let spec = SimulatedSpec { count, model: MODEL.to_owned(), memory: None, seed: seed(node) };
    simulated(&spec)
}

fn simulated(spec: &SimulatedSpec) -> Result<Box<dyn GpuSource>> {
    match Simulated::new(spec) {
        Ok(gpus) => Ok(Box::new(gpus)),
        Err(GpuError::Simulation(problem)) => Err(usage(problem)),
        Err(error) => Err(error.into()),
    }
}

/// The same number for the same name (FNV-1a).
pub(crate) fn seed(name: &str) -> u64 {
    use std::hash::Hasher as _;

    let mut hasher = fnv::FnvHasher::default();
    hasher.write(name.as_bytes());
    hasher.finish()
}

/// Accepts the names of strategies; close misses get a hint.
pub(crate) fn strategies() -> impl clap::builder::TypedValueParser<Value = Strategy> {
    let names = Strategy::ALL.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).map(|name| name.parse().unwrap_or(Strategy::LeastUtilized))
}

/// The folder that was named, or the usual one, as an absolute path.
pub(crate) fn data_dir(named: Option<&PathBuf>) -> Result<PathBuf> {
    let path = named.map_or_else(default_data_dir, |path| Ok(path.clone()))?;
    std::path::absolute(&path).with_context(|| format!("cannot find `{}`", path.display()))
}

/// Refuses early a user whom processes cannot run as.
pub(crate) fn check_process_user(allowed: bool, user: Option<&str>) -> Result<()> {
    if allowed && user.is_some() {
        JobUser::choose(user).map_err(|problem| usage(format!("--process-user: {problem}")))?;
    }
    Ok(())
}

/// Waits for SIGINT or SIGTERM. A second one ends the program at once.
pub(crate) async fn asked_to_stop() -> Result<()> {
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

/// A runtime with so many threads; with one, everything is done by the thread that waits for it, which saves memory.
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
        .context("cannot start threads")
}

/// Every caller, task and follower of a log needs an open file, and the usual limit is a thousand.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, the usual limit has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_may_open_as_many_files_as_the_machine_allows() {
        runtime(1).unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn a_user_whom_processes_cannot_run_as_is_refused_early() {
        assert!(check_process_user(true, None).is_ok());
        assert!(check_process_user(false, Some("no such user")).is_ok());
        let problem = check_process_user(true, Some("no such user")).unwrap_err().to_string();
        assert!(problem.contains("--process-user"), "{problem}");
    }
}
