//! `cargo xtask kube`: a Kubernetes control plane on this machine with nodes simulated by KWOK, and optionally a real node.

mod binaries;
mod certificates;
mod command_lines;
mod control_plane;
mod detached;
mod node;
mod nodes;
mod options;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentaflow_units::{did_you_mean, nearest};
use anyhow::{Context as _, Result};

use crate::CommandError;
use crate::output::out;
use control_plane::{Component, ControlPlane};
use options::Options;

pub(crate) use binaries::ensure as ensure_binaries;
pub(crate) use control_plane::kubeconfig_in;

pub(crate) const HELP: &str = "\
Run a Kubernetes control plane on this machine, with nodes simulated by KWOK.

Usage: cargo xtask kube up [OPTION]...      Start the control plane, or add nodes to it
       cargo xtask kube env [--dir DIR]     Print the variables for kubectl
       cargo xtask kube status [--dir DIR]  Show components and nodes
       cargo xtask kube down [--dir DIR]    Stop the control plane and delete its data

Options of `up`:
  --nodes N       Minimum number of nodes [0]
  --gpus G        GPUs per node [8]
  --model NAME    GPU model [NVIDIA-A100-SXM4-80GB]
  --memory MIB    Memory per GPU [81920]
  --pods N        Maximum pods per node [110]
  --prefix NAME   Prefix of node names: NAME-0, NAME-1 … [gpu]
  --grace SECONDS Time without a heartbeat until a node is lost [10; 40 above 200 nodes]
  --qps N         Requests per second of each controller [500]
  --real-node     Add the node `real` with a kubelet and containers; needs root
  --no-scheduler  Omit kube-scheduler: pods of `default-scheduler` stay pending
  --dir DIR       Data folder [target/kube]

Go builds the components once, which takes several minutes, and keeps them in
~/.cache/agentaflow/kube (AGENTAFLOW_CACHE overrides the location). Then:
  eval \"$(cargo xtask kube env)\" && kubectl get nodes

Annotations of a pod set its behaviour after binding:
  kwok.agentaflow.io/start-after: 3s      start after this time
  kwok.agentaflow.io/complete-after: 2s   succeed this long after the start
  kwok.agentaflow.io/fail-after: 2s       fail, with …/exit-code (1) and …/reason (Error)
  kwok.agentaflow.io/stop-after: 5s       termination time after deletion
Without annotations a pod runs until it is deleted. KWOK simulates every node with the
annotation kwok.x-k8s.io/node: fake. The label kwok.agentaflow.io/dark=true stops the
heartbeats of a node, like a pulled network cable.

The real node runs containers. Its only image is agentaflow-test/busybox:1; it reaches no
registry. GPUs appear when a device plugin registers in DIR/node/kubelet/device-plugins.";

const COMMANDS: [&str; 4] = ["up", "env", "status", "down"];

/// `cargo xtask kube …`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, CommandError> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(CommandError::Usage(
            "expected `up`, `env`, `status` or `down`; see `--help`".to_owned(),
        ));
    };
    let options = || options::parse(command, rest).map_err(CommandError::Usage);
    match command.as_str() {
        "up" => Ok(up(&options()?)?),
        "env" => Ok(env(&options()?.dir)?),
        "status" => Ok(status(&options()?.dir)?),
        "down" => Ok(down(&options()?.dir)?),
        unknown => Err(CommandError::Usage(format!(
            "unknown command `kube {unknown}`{}; see `cargo xtask kube --help`",
            did_you_mean(nearest(unknown, COMMANDS))
        ))),
    }
}

fn up(options: &Options) -> Result<ExitCode> {
    let plane =
        if let Some(plane) = ControlPlane::open(&options.dir)?.filter(ControlPlane::is_complete) {
            out!("Already running: {}", plane.server());
            plane
        } else {
            let binaries = binaries::ensure()?;
            // Remove the data of a control plane that did not start completely.
            control_plane::remove(&options.dir)?;
            let plane = control_plane::start(options, &binaries)?;
            out!("Kubernetes {} is running: {}", binaries.version, plane.server());
            plane
        };
    let added = nodes::ensure(&plane.kubectl(), options)?;
    if added > 0 {
        out!("Added {added} nodes with {} GPUs each", options.gpus);
    }
    if options.real_node && node::ensure(&plane, options)? {
        out!("Added the node `{}` with a kubelet", node::NAME);
    }
    let dir = if options.is_default_dir() {
        String::new()
    } else {
        format!(" --dir {}", shell_quoted(&options.dir))
    };
    out!("To use kubectl:  eval \"$(cargo xtask kube env{dir})\"");
    out!("To stop:         cargo xtask kube down{dir}");
    Ok(ExitCode::SUCCESS)
}

fn env(dir: &Path) -> Result<ExitCode> {
    let Some(plane) = ControlPlane::open(dir)? else { return Ok(not_found(dir)) };
    out!("export KUBECONFIG={}", shell_quoted(&plane.kubeconfig()));
    out!("export PATH={}:\"$PATH\"", shell_quoted(plane.programs()));
    Ok(ExitCode::SUCCESS)
}

fn status(dir: &Path) -> Result<ExitCode> {
    let Some(plane) = ControlPlane::open(dir)? else { return Ok(not_found(dir)) };
    let mut is_healthy = true;
    out!("{:<24} {:>8} {:>6}  health", "component", "pid", "port");
    for component in plane.components() {
        let health = component.health(&plane);
        is_healthy &= health == "ok";
        let port = if component.port == 0 { "-".to_owned() } else { component.port.to_string() };
        out!("{:<24} {:>8} {port:>6}  {health}", component.name, component.process.pid);
    }
    out!("kubeconfig  {}", plane.kubeconfig().display());
    out!("logs        {}", plane.logs().display());
    if is_healthy {
        out!("version     {}", plane.version()?);
        out!("nodes       {}", nodes::summary(&plane.kubectl())?);
    }
    Ok(if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn down(dir: &Path) -> Result<ExitCode> {
    if ControlPlane::open(dir)?.is_none() {
        out!("No control plane in `{}`; nothing to stop", dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let stopped = control_plane::remove(dir)?;
    out!("Stopped {stopped} components and removed `{}`", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Kubeconfig of the control plane in this folder, and the folder of its programs.
pub(crate) fn kubeconfig_and_programs(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let plane = ControlPlane::open(dir)?.context("the control plane is not running")?;
    Ok((plane.kubeconfig(), plane.programs().to_owned()))
}

/// Adds the real node to the control plane in this folder if missing; returns the folder of the node.
pub(crate) fn add_real_node(dir: &Path) -> Result<PathBuf> {
    let plane = ControlPlane::open(dir)?.context("the control plane is not running")?;
    node::ensure(&plane, &Options { dir: dir.to_owned(), ..Options::default() })?;
    Ok(node::folder(dir))
}

/// Folder of the real node, if the control plane in this folder has one.
pub(crate) fn real_node(dir: &Path) -> Result<Option<PathBuf>> {
    let plane = ControlPlane::open(dir)?;
    let is_kubelet = |component: &Component| component.name == "kubelet";
    let has_node = plane.is_some_and(|plane| plane.components().iter().any(is_kubelet));
    Ok(has_node.then(|| node::folder(dir)))
}

fn not_found(dir: &Path) -> ExitCode {
    eprintln!("No control plane in `{}`; `cargo xtask kube up` starts one", dir.display());
    ExitCode::FAILURE
}

fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
