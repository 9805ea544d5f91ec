//! `cargo xtask kube`: a real Kubernetes control plane on this machine, with nodes that KWOK plays and a real one.

mod binaries;
mod certificates;
mod node;
mod nodes;
mod options;
mod parts;
mod plane;
mod running;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::{Failure, suggest};
use options::Options;
use plane::Plane;

pub(crate) use binaries::ensure as ensure_binaries;
pub(crate) use plane::kubeconfig_in;

pub(crate) const HELP: &str = "\
A real Kubernetes control plane on this machine, with nodes that KWOK plays.

Usage: cargo xtask kube up [OPTION]...    Start it, or add nodes to the one that runs
       cargo xtask kube env [--dir DIR]   Print the variables that kubectl needs
       cargo xtask kube status [--dir DIR]
       cargo xtask kube down [--dir DIR]  Stop it and remove its data

Options of `up`:
  --nodes N       How many nodes there shall be at least [0]
  --gpus G        GPUs of each node [8]
  --model NAME    Model of the GPUs [NVIDIA-A100-SXM4-80GB]
  --memory MIB    Memory of each GPU [81920]
  --pods N        Pods that a node may hold [110]
  --prefix NAME   What the nodes are called: NAME-0, NAME-1 … [gpu]
  --grace SECONDS Silence after which a node counts as lost [10; 40 for more than 200 nodes]
  --qps N         Requests a second that each controller may make [500]
  --real-node     One more node, `real`, with a kubelet and containers; needs root
  --no-scheduler  Leave out kube-scheduler: pods of `default-scheduler` stay pending
  --dir DIR       Folder of its data [target/kube]

The parts are built once with Go, which takes some minutes, and are kept in
~/.cache/agentaflow/kube (AGENTAFLOW_CACHE names another place). Then:
  eval \"$(cargo xtask kube env)\" && kubectl get nodes

Annotations tell KWOK what a pod does once it is bound:
  kwok.agentaflow.io/start-after: 3s      begin to run only then
  kwok.agentaflow.io/complete-after: 2s   succeed that long after it began
  kwok.agentaflow.io/fail-after: 2s       fail, with …/exit-code (1) and …/reason (Error)
  kwok.agentaflow.io/stop-after: 5s       take that long to end when it is deleted
Without them it runs until it is deleted. KWOK plays every node with the annotation
kwok.x-k8s.io/node: fake. While one has the label kwok.agentaflow.io/dark=true it is dark,
as if its cable were pulled.

The real node runs what a pod says, in containers. Its image is agentaflow-test/busybox:1; it
reaches no registry. GPUs it has once a device plugin registers in DIR/node/kubelet/device-plugins.";

const COMMANDS: [&str; 4] = ["up", "env", "status", "down"];

/// `cargo xtask kube …`.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Failure::Usage("say `up`, `env`, `status` or `down`; see `--help`".to_owned()));
    };
    let options = || options::parse(command, rest).map_err(Failure::Usage);
    match command.as_str() {
        "up" => Ok(up(&options()?)?),
        "env" => Ok(env(&options()?.dir)?),
        "status" => Ok(status(&options()?.dir)?),
        "down" => Ok(down(&options()?.dir)?),
        unknown => Err(Failure::Usage(format!(
            "unknown command `kube {unknown}`{}; see `cargo xtask kube --help`",
            suggest::did_you_mean(unknown, COMMANDS)
        ))),
    }
}

fn up(options: &Options) -> Result<ExitCode> {
    let plane = if let Some(plane) = Plane::open(&options.dir)?.filter(Plane::runs_whole) {
        println!("It runs already: {}", plane.server());
        plane
    } else {
        let binaries = binaries::ensure()?;
        // What a broken one left behind would only be in the way.
        plane::remove(&options.dir)?;
        let plane = plane::start(options, &binaries)?;
        println!("Kubernetes {} runs: {}", binaries.version, plane.server());
        plane
    };
    let added = nodes::ensure(&plane.kubectl(), options)?;
    if added > 0 {
        println!("{added} nodes added, {} GPUs each", options.gpus);
    }
    if options.real_node && node::ensure(&plane, options)? {
        println!("1 node with a kubelet added: {}", node::NAME);
    }
    let dir = if options.is_default_dir() {
        String::new()
    } else {
        format!(" --dir {}", shell_quoted(&options.dir))
    };
    println!("kubectl finds it after:  eval \"$(cargo xtask kube env{dir})\"");
    println!("It ends with:            cargo xtask kube down{dir}");
    Ok(ExitCode::SUCCESS)
}

fn env(dir: &Path) -> Result<ExitCode> {
    let Some(plane) = Plane::open(dir)? else { return Ok(nothing(dir)) };
    println!("export KUBECONFIG={}", shell_quoted(&plane.kubeconfig()));
    println!("export PATH={}:\"$PATH\"", shell_quoted(plane.programs()));
    Ok(ExitCode::SUCCESS)
}

fn status(dir: &Path) -> Result<ExitCode> {
    let Some(plane) = Plane::open(dir)? else { return Ok(nothing(dir)) };
    let mut is_well = true;
    println!("{:<24} {:>8} {:>6}  health", "part", "pid", "port");
    for part in plane.parts() {
        let health = part.health(&plane);
        is_well &= health == "ok";
        let port = if part.port == 0 { "-".to_owned() } else { part.port.to_string() };
        println!("{:<24} {:>8} {port:>6}  {health}", part.name, part.process.pid);
    }
    println!("kubeconfig  {}", plane.kubeconfig().display());
    println!("logs        {}", plane.logs().display());
    if is_well {
        println!("version     {}", plane.version()?);
        println!("nodes       {}", nodes::summary(&plane.kubectl())?);
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn down(dir: &Path) -> Result<ExitCode> {
    if Plane::open(dir)?.is_none() {
        println!("No control plane in `{}`: nothing to stop", dir.display());
        return Ok(ExitCode::SUCCESS);
    }
    let ended = plane::remove(dir)?;
    println!("{ended} parts stopped, `{}` removed", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// The kubeconfig of the control plane in this folder, and the folder of its programs.
pub(crate) fn places(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let plane = Plane::open(dir)?.context("the control plane does not run")?;
    Ok((plane.kubeconfig(), plane.programs().to_owned()))
}

/// Adds the real node to the control plane in this folder, if it is not there; gives the folder of the node.
pub(crate) fn add_real_node(dir: &Path) -> Result<PathBuf> {
    let plane = Plane::open(dir)?.context("the control plane does not run")?;
    node::ensure(&plane, &Options { dir: dir.to_owned(), ..Options::default() })?;
    Ok(node::folder(dir))
}

/// The folder of the real node of the control plane in this folder, if it has one.
pub(crate) fn real_node(dir: &Path) -> Result<Option<PathBuf>> {
    let parts = Plane::open(dir)?;
    let has = parts.is_some_and(|plane| plane.parts().iter().any(|part| part.name == "kubelet"));
    Ok(has.then(|| node::folder(dir)))
}

fn nothing(dir: &Path) -> ExitCode {
    eprintln!("No control plane in `{}`; `cargo xtask kube up` starts one", dir.display());
    ExitCode::FAILURE
}

fn shell_quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
