//! A Kubernetes control plane of our own, as `cargo xtask kube up` makes it, with ports and data of its own.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::daemon::Daemon;
use super::{Started, folder, given};
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
    let binaries = match kube::ensure_binaries() {
        Ok(binaries) => binaries,
        Err(error) => return of_somebody_else(&error),
    };
    let folder = folder("kube")?;
    let dir = folder.join("plane");
    let ourselves = env::current_exe().context("cannot find ourselves")?;
    let mut holder = Command::new("sh");
    holder.args(["-c", HOLDER, "holder"]).arg(ourselves).arg(&dir);
    let daemon = Daemon::start(&holder, "TERM", folder)?.until(|| dir.join("whole").exists())?;
    let place = kube::kubeconfig_in(&dir).display().to_string();
    let programs = ("AGENTAFLOW_TEST_KUBE_BIN", binaries.folder.display().to_string());
    Ok(Started { place, others: vec![programs], daemon: Some(daemon) })
}

/// Without Go: the cluster of KUBECONFIG, if it is on this machine. Our tests make kinds and webhooks, which is nothing
/// to do to a cluster that others rely on; whoever wants that says so with our own variable.
fn of_somebody_else(error: &anyhow::Error) -> Result<Started> {
    let kubeconfig = given("KUBECONFIG")
        .filter(|file| fs::read_to_string(file).is_ok_and(|text| is_on_this_machine(&text)));
    let advice = "AGENTAFLOW_TEST_KUBE may name the kubeconfig of a cluster to test on";
    let Some(kubeconfig) = kubeconfig else { bail!("{error:#}; {advice}") };
    println!("   the tests of Kubernetes use the cluster of {kubeconfig}");
    Ok(Started::elsewhere(kubeconfig))
}

/// True when a kubeconfig, YAML or JSON, names servers on the loopback and no others.
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
    fn only_a_cluster_on_this_machine_is_taken_without_being_asked() {
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
