//! A Kubernetes control plane of our own, as `cargo xtask kube up` makes it, with ports and data of its own.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use super::daemon::Daemon;
use super::{Started, folder};
use crate::kube;

/// Starts the control plane in the folder `$2` with the program `$1`, and stops it when it is told to end.
const HOLDER: &str = r#"
xtask=$1 plane=$2
trap 'kill "$sleeper"; exec "$xtask" kube down --dir "$plane"' TERM
"$xtask" kube up --dir "$plane" || exit
touch "$plane/whole"
while :; do
    sleep 3600 &
    sleeper=$!
    wait "$sleeper"
done
"#;

pub(super) fn start() -> Result<Started> {
    let binaries = kube::ensure_binaries()?;
    let folder = folder("kube")?;
    let dir = folder.join("plane");
    let ourselves = env::current_exe().context("cannot find ourselves")?;
    let mut holder = Command::new("sh");
    holder.args(["-c", HOLDER, "holder"]).arg(ourselves).arg(&dir);
    let daemon = Daemon::start(&holder, "TERM", folder)?.until(|| dir.join("whole").exists())?;
    let place = kube::kubeconfig_in(&dir).display().to_string();
    let programs = ("AGENTAFLOW_TEST_KUBE_BIN", binaries.folder.display().to_string());
    Ok(Started { place, others: vec![programs], _daemon: Some(daemon) })
}
