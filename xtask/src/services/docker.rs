//! A Docker engine with its own socket and data, beside the engine of the machine.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::daemon::Daemon;
use super::{RunningService, folder};
use crate::{process, tools};

pub(super) fn start() -> Result<RunningService> {
    if !tools::is_root() {
        bail!(
            "a Docker engine needs root; set AGENTAFLOW_TEST_DOCKER to the socket of an engine to use it instead"
        );
    }
    tools::ensure_program("dockerd")?;
    tools::ensure_static_busybox()?;
    tools::ensure_program("curl")?;
    let folder = folder("docker")?;
    let socket = folder.join("docker.sock");
    let mut dockerd = Command::new("dockerd");
    dockerd.arg("--host").arg(format!("unix://{}", socket.display()));
    dockerd.arg("--data-root").arg(folder.join("data"));
    dockerd.arg("--exec-root").arg(folder.join("exec"));
    dockerd.arg("--pidfile").arg(folder.join("docker.pid"));
    // Works without systemd and without the right to change OOM scores.
    dockerd.args(["--exec-opt", "native.cgroupdriver=cgroupfs", "--oom-score-adjust=0"]);
    let address = socket.display().to_string();
    let answers = || {
        let mut ping = Command::new("curl");
        ping.args(["--fail", "--unix-socket", &address, "http://localhost/_ping"]);
        process::succeeds_within(&mut ping, Duration::from_secs(2))
    };
    let daemon = Daemon::start(&dockerd, "TERM", folder)?.until(answers)?;
    Ok(RunningService { address, more_variables: Vec::new(), daemon: Some(daemon) })
}
