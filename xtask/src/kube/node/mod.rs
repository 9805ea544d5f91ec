//! A real node beside the simulated ones: a kubelet and a containerd that run containers.
//!
//! The kubelet and containerd use fixed paths such as `/var/lib/kubelet`. Both run in a mount namespace that maps these
//! paths to the folder of the control plane, so that several nodes can share a machine with each other and with a
//! cluster. The mounts disappear with the last process of the namespace.

mod configuration;
mod host_resources;
mod images;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::binaries::{self, NodePrograms};
use super::control_plane::{self, ControlPlane};
use super::options::Options;
use super::{certificates, nodes};
use crate::ports::free_port;
use crate::{process, tools};
use host_resources::HostResources;

/// Name of the node.
pub(super) const NAME: &str = "real";

/// Environment variable of every process of the node; its value is the folder of the node.
const MARK: &str = "AGENTAFLOW_KUBE_NODE";

/// Folders of CNI plugins: of distributions and of the project itself.
const NETWORK_PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// Mounts the folders of the node over the fixed paths, then replaces itself with the program. `$1` is the folder of the
/// node.
const MOUNT_SCRIPT: &str = r#"
set -e
mkdir -p /var/lib/kubelet /var/lib/cni
mount -t tmpfs tmpfs /run
mount --bind "$1/kubelet" /var/lib/kubelet
mount --bind "$1/cni" /var/lib/cni
mount --bind "$1/log" /var/log
shift
exec "$@"
"#;

/// Paths that [`MOUNT_SCRIPT`] replaces; the folder of the node must not be inside them.
const REPLACED: [&str; 5] = ["/run", "/var/run", "/var/lib/kubelet", "/var/lib/cni", "/var/log"];

/// Longest time until the node is ready.
const READY_TIMEOUT: Duration = Duration::from_mins(2);

/// Folder of the node in the folder of a control plane.
pub(crate) fn folder(dir: &Path) -> PathBuf {
    dir.join("node")
}

/// Starts the node and waits until it accepts pods. Returns false if the node already exists.
pub(super) fn ensure(plane: &ControlPlane, options: &Options) -> Result<bool> {
    if plane.components().iter().any(|component| component.name == "kubelet") {
        return Ok(false);
    }
    let plugins = ensure_programs(&options.dir)?;
    let programs = binaries::ensure_node_programs()?;
    start(plane, options, &plugins, &programs).inspect_err(|_| {
        // The start error is the one to report; the logs stay.
        let names = ["kubelet", "coredns", "containerd"];
        let _ = control_plane::stop_components_named(&options.dir, &names);
        let _ = clear(&options.dir);
    })?;
    Ok(true)
}

/// Removes containers, control groups and the bridge after the kubelet and containerd have stopped.
pub(super) fn clear(dir: &Path) -> Result<()> {
    let folder = folder(dir);
    match HostResources::read(&folder)? {
        Some(host) => host.release(&folder, &format!("{MARK}={}", folder.display())),
        None => Ok(()),
    }
}

/// Installs missing programs; returns the folder of the CNI plugins.
fn ensure_programs(dir: &Path) -> Result<PathBuf> {
    if !tools::is_root() {
        bail!("a real node needs root");
    }
    if let Some(replaced) = REPLACED.iter().find(|replaced| dir.starts_with(replaced)) {
        bail!("the data folder cannot be inside `{replaced}`; choose a different one with `--dir`");
    }
    for program in ["containerd", "runc", "ip", "ipset", "iptables"] {
        tools::ensure_program(program)?;
    }
    tools::ensure_static_busybox()?;
    let found = || NETWORK_PLUGINS.iter().map(PathBuf::from).find(|at| at.join("bridge").is_file());
    if found().is_none() {
        tools::install_package("the CNI plugin `bridge`", "containernetworking-plugins")?;
    }
    found().context("`containernetworking-plugins` is installed, but its plugins are missing")
}

fn start(
    plane: &ControlPlane,
    options: &Options,
    plugins: &Path,
    programs: &NodePrograms,
) -> Result<()> {
    let dir = &options.dir;
    let folder = folder(dir);
    for name in ["kubelet", "cni", "log", "network", "volume-plugins"] {
        fs::create_dir_all(folder.join(name))?;
    }
    let host = HostResources::claim(&folder)?;
    let mark = (MARK, folder.display().to_string());
    fs::write(folder.join("containerd.toml"), configuration::containerd(&folder, plugins))?;
    fs::write(folder.join("network/10.conflist"), configuration::network(&folder, &host))?;
    let mut containerd = Command::new("unshare");
    containerd.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT_SCRIPT, "mount"]);
    containerd.arg(&folder).arg("containerd").arg("--config").arg(folder.join("containerd.toml"));
    containerd.env(mark.0, &mark.1);
    // The variable would point helper programs to a different containerd.
    containerd.env_remove("CONTAINERD_ADDRESS");
    control_plane::start_component(dir, "containerd", 0, &containerd)?;
    control_plane::wait_for(dir, "containerd")?;
    let process = control_plane::process_of(dir, "containerd")?;
    let inside = format!("--mount=/proc/{}/ns/mnt", process.pid);
    images::import(&folder, &inside)?;

    certificates::serving(&dir.join("certificates"), "kubelet", &host.address())?;
    let health = free_port();
    let settings = configuration::kubelet(dir, &host, health, options.grace());
    fs::write(folder.join("kubelet.json"), serde_json::to_vec_pretty(&settings)?)?;
    start_resolver(dir, &host, &programs.coredns)?;
    let mut command = Command::new("nsenter");
    command
        .arg(&inside)
        .arg(&programs.kubelet)
        .args(configuration::kubelet_options(dir, &host, options));
    command.env(mark.0, mark.1);
    control_plane::start_component(dir, "kubelet", health, &command)?;
    control_plane::wait_for(dir, "kubelet")?;
    wait_until_usable(plane, dir)
}

/// Starts the DNS server of the pods on the bridge.
fn start_resolver(dir: &Path, host: &HostResources, coredns: &Path) -> Result<()> {
    let health = free_port();
    let file = folder(dir).join("Corefile");
    fs::write(&file, configuration::resolver(dir, host, health))?;
    let mut command = Command::new(coredns);
    command.arg("-conf").arg(&file);
    control_plane::start_component(dir, "coredns", health, &command)?;
    control_plane::wait_for(dir, "coredns")
}

fn wait_until_usable(plane: &ControlPlane, dir: &Path) -> Result<()> {
    let started = Instant::now();
    while !nodes::is_usable_named(&plane.kubectl(), NAME)? {
        if started.elapsed() > READY_TIMEOUT || !control_plane::process_of(dir, "kubelet")?.runs() {
            bail!(
                "the node is not ready: {}",
                control_plane::log_tail(&control_plane::log(dir, "kubelet"))
            );
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs a program; the error contains its output.
fn run(command: &mut Command) -> Result<()> {
    let line = process::display(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Architecture in the naming of Go and OCI images.
fn architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
