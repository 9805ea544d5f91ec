//! A Kubernetes control plane of `cargo xtask kube up` with its own ports and data.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::daemon::Daemon;
use super::{RunningService, folder, variable};
use crate::kube;
use crate::output::out;

/// Starts the control plane in the folder `$2` with the program `$1`, and stops it on TERM.
const HOLDER: &str = r#"
xtask=$1 plane=$2
trap 'kill "$sleeper"; exec "$xtask" kube down --dir "$plane"' TERM
"$xtask" kube up --dir "$plane" || exit
touch "$plane/ready"
while :; do
    sleep 3600 &
    sleeper=$!
    wait "$sleeper"
done
"#;

pub(super) fn start() -> Result<RunningService> {
    let binaries = match kube::ensure_binaries() {
        Ok(binaries) => binaries,
        Err(error) => return external(&error),
    };
    let folder = folder("kube")?;
    let dir = folder.join("plane");
    let xtask = env::current_exe().context("cannot find the path of xtask")?;
    let mut holder = Command::new("sh");
    holder.args(["-c", HOLDER, "holder"]).arg(xtask).arg(&dir);
    let daemon = Daemon::start(&holder, "TERM", folder)?.until(|| dir.join("ready").exists())?;
    let address = kube::kubeconfig_in(&dir).display().to_string();
    let programs = ("AGENTAFLOW_TEST_KUBE_BIN", binaries.folder.display().to_string());
    Ok(RunningService { address, more_variables: vec![programs], daemon: Some(daemon) })
}

/// Without Go: the cluster of KUBECONFIG, if it is on this machine. The tests install kinds and webhooks, so a remote
/// cluster must be named explicitly with `AGENTAFLOW_TEST_KUBE`.
fn external(error: &anyhow::Error) -> Result<RunningService> {
    let kubeconfig = variable("KUBECONFIG")
        .filter(|file| fs::read_to_string(file).is_ok_and(|text| is_on_this_machine(&text)));
    let advice = "set AGENTAFLOW_TEST_KUBE to the kubeconfig of a cluster to test on";
    let Some(kubeconfig) = kubeconfig else { bail!("{error:#}; {advice}") };
    out!("   Kubernetes tests use the cluster of {kubeconfig}");
    Ok(RunningService::external(kubeconfig))
}

/// True if a kubeconfig, YAML or JSON, names only servers on the loopback.
fn is_on_this_machine(kubeconfig: &str) -> bool {
    let words = kubeconfig.split(|c: char| c.is_whitespace() || c == '"' || c == '\'');
    let mut servers = words.filter_map(|word| word.split_once("://")).peekable();
    let is_local = |(_, rest): (&str, &str)| {
        let host = rest.split(['/', ':']).next().unwrap_or_default();
        host == "127.0.0.1" || host == "localhost"
    };
    servers.peek().is_some() && servers.all(is_local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_cluster_on_the_loopback_is_used_without_the_test_variable() {
        let yaml = |server: &str| format!("clusters:\n- cluster:\n    server: {server}\n");
        assert!(is_on_this_machine(&yaml("https://127.0.0.1:6443")));
        assert!(is_on_this_machine(r#"{"cluster":{"server":"https://localhost:6443/"}}"#));
        assert!(!is_on_this_machine(&yaml("https://prod.example.com")));
        assert!(!is_on_this_machine(&yaml("https://127.0.0.1.example.com:6443")));
        let both = [yaml("https://127.0.0.1:6443"), yaml("https://10.0.0.1")].concat();
        assert!(!is_on_this_machine(&both));
        assert!(!is_on_this_machine(""));
    }
}
