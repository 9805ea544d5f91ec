//! Docker engines with their own sockets and data, beside the engine of the machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::daemon::Daemon;
use super::{RunningService, folder};
use crate::{process, tools};

pub(super) fn start() -> Result<RunningService> {
    run("docker", "AGENTAFLOW_TEST_DOCKER", false, &[])
}

/// An engine whose containers have users of their own. The engine creates the user `dockremap` with its range of ids.
pub(super) fn start_remapped() -> Result<RunningService> {
    run("userns", "AGENTAFLOW_TEST_USERNS", true, &["--userns-remap=default"])
}

/// The first engine has the network of this machine, other engines have one of their own: two engines in one network
/// delete the bridges and firewall rules of each other.
fn run(name: &str, variable: &str, own_network: bool, options: &[&str]) -> Result<RunningService> {
    if !tools::is_root() {
        bail!(
            "a Docker engine needs root; set {variable} to the socket of an engine to use it instead"
        );
    }
    tools::ensure_program("dockerd")?;
    tools::ensure_static_busybox()?;
    tools::ensure_program("curl")?;
    tools::ensure_program("ip")?;
    let folder = folder(name)?;
    // Users of a remapped engine pass through this folder to their files.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711))?;
    let socket = folder.join("docker.sock");
    let mut dockerd = Command::new(if own_network { "unshare" } else { "dockerd" });
    if own_network {
        dockerd.args(["--net", "dockerd"]);
    }
    dockerd.arg("--host").arg(format!("unix://{}", socket.display()));
    dockerd.arg("--data-root").arg(folder.join("data"));
    dockerd.arg("--exec-root").arg(folder.join("exec"));
    dockerd.arg("--pidfile").arg(folder.join("docker.pid"));
    // Works without systemd and without the right to change OOM scores.
    dockerd.args(["--exec-opt", "native.cgroupdriver=cgroupfs", "--oom-score-adjust=0"]);
    dockerd.args(options);
    let address = socket.display().to_string();
    let answers = || {
        let mut ping = Command::new("curl");
        ping.args(["--fail", "--unix-socket", &address, "http://localhost/_ping"]);
        process::succeeds_within(&mut ping, Duration::from_secs(2))
    };
    let daemon = Daemon::start(&dockerd, "TERM", folder)?.until(answers)?;
    Ok(RunningService { address, more_variables: Vec::new(), daemon: Some(daemon) })
}
