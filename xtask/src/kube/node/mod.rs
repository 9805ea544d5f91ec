//! A real node beside those that KWOK plays: a kubelet and a containerd of its own, for the containers of real pods.
//!
//! Kubelets and containerd have places on a machine that they insist on. Both run in a mount namespace of their own in
//! which these places are folders of the control plane, so that several nodes can live beside each other and beside a
//! cluster of the machine; and all that they mounted is gone with their last process.

mod configuration;
mod ground;
mod images;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::options::Options;
use super::plane::{self, Plane};
use super::{binaries, certificates, nodes};
use crate::ports::free_port;
use crate::{process, tools};
use ground::Ground;

/// What the node is called.
pub(super) const NAME: &str = "real";

/// Says in the environment of a process which node it belongs to.
const MARK: &str = "AGENTAFLOW_KUBE_NODE";

/// Where the packages of distributions, and the project itself, put the plugins of networks.
const NETWORK_PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Hides what must be the node's own, and becomes the program behind it. `$1` is the folder of the node.
const HIDE: &str = r#"
set -e
mkdir -p /var/lib/kubelet /var/lib/cni
mount -t tmpfs tmpfs /run
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/cni" /var/lib/cni
mount --bind "$1/log" /var/log
shift
exec "$@"
"#;

/// What [`HIDE`] hides: nothing of ours may lie there.
const HIDDEN: [&str; 5] = ["/run", "/var/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log"];

/// How long the node may take to be ready.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where all of the node's own is, in the folder of a control plane.
pub(crate) fn folder(dir: &Path) -> PathBuf {
    dir.join("node")
}

/// Starts the node if it is not there, and waits until pods can be placed on it; false: it was there.
pub(super) fn ensure(plane: &Plane, options: &Options) -> Result<bool> {
    if plane.parts().iter().any(|part| part.name == "kubelet") {
        return Ok(false);
    }
    let plugins = ensure_programs(&options.dir)?;
    let kubelet = binaries::ensure_kubelet()?;
    start(plane, options, &plugins, &kubelet).inspect_err(|_| {
        // The error that matters is the first one; the logs stay for whoever looks for its reason.
        let _ = plane::stop_parts_named(&options.dir, &["kubelet", "containerd"]);
        let _ = clear(&options.dir);
    })?;
    Ok(true)
}

/// Ends what is left of the node once its kubelet and its containerd are stopped: containers, groups, the bridge.
pub(super) fn clear(dir: &Path) -> Result<()> {
    let folder = folder(dir);
    match Ground::read(&folder)? {
        Some(ground) => ground.clear(&folder, &format!("{MARK}={}", folder.display())),
        None => Ok(()),
    }
}

/// What the machine must have; gives the folder of the network plugins.
fn ensure_programs(dir: &Path) -> Result<PathBuf> {
    if !tools::is_root() {
        bail!("only root can start containers");
    }
    if let Some(hidden) = HIDDEN.iter().find(|hidden| dir.starts_with(hidden)) {
        bail!(
            "a node cannot live in `{hidden}`, which it hides from itself; `--dir` names another place"
        );
    }
    for program in ["containerd", "runc", "ip"] {
        tools::ensure_program(program)?;
    }
    tools::ensure_static_busybox()?;
    let found = || NETWORK_PLUGINS.iter().map(PathBuf::from).find(|at| at.join("bridge").is_file());
    if found().is_none() {
        tools::install_package("the network plugin `bridge`", "containernetworking-plugins")?;
    }
    found().context("`containernetworking-plugins` is installed, but its plugins are not there")
}

fn start(plane: &Plane, options: &Options, plugins: &Path, kubelet: &Path) -> Result<()> {
    let dir = &options.dir;
    let folder = folder(dir);
    for own in ["kubelet", "cni", "log", "network", "volume-plugins"] {
        fs::create_dir_all(folder.join(own))?;
    }
    let ground = Ground::claim(&folder)?;
    let mark = (MARK, folder.display().to_string());
    fs::write(folder.join("containerd.toml"), configuration::containerd(&folder, plugins))?;
    fs::write(folder.join("network/10.conflist"), configuration::network(&folder, &ground))?;
    let mut containerd = Command::new("unshare");
    containerd.args(["--mount", "--propagation", "private", "sh", "-c", HIDE, "hide"]);
    containerd.arg(&folder).arg("containerd").arg("--config").arg(folder.join("containerd.toml"));
    containerd.env(mark.0, &mark.1);
    // Its own address it finds in its settings; that of another one in the environment would confuse its helpers.
    containerd.env_remove("CONTAINERD_ADDRESS");
    plane::start_part(dir, "containerd", 0, &containerd)?;
    plane::wait_for(dir, "containerd")?;
    let runs = plane::process_of(dir, "containerd")?;
    let inside = format!("--mount=/proc/{}/ns/mnt", runs.pid);
    images::import(&folder, &inside)?;

    certificates::serving(&dir.join("certificates"), "kubelet", &ground.address())?;
    let health = free_port();
    let settings = configuration::kubelet(dir, &ground, health, options.grace());
    fs::write(folder.join("kubelet.json"), serde_json::to_vec_pretty(&settings)?)?;
    let mut command = Command::new("nsenter");
    command.arg(&inside).arg(kubelet).args(configuration::kubelet_options(dir, &ground, options));
    command.env(mark.0, mark.1);
    plane::start_part(dir, "kubelet", health, &command)?;
    plane::wait_for(dir, "kubelet")?;
    wait_until_usable(plane, dir)
}

fn wait_until_usable(plane: &Plane, dir: &Path) -> Result<()> {
    let started = Instant::now();
    while !nodes::is_usable_named(&plane.kubectl(), NAME)? {
        if started.elapsed() > PATIENCE || !plane::process_of(dir, "kubelet")?.runs() {
            bail!("its node is not ready: {}", plane::last_words(&plane::log(dir, "kubelet")));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs a helper of the node's; its words are the error.
fn run(command: &mut Command) -> Result<()> {
    let what = process::display(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{what}`"))?;
    if !output.status.success() {
        bail!("`{what}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// As Go and containers call the processor.
fn architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
