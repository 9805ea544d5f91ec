//! Rules of the host's firewall that keep containers from services of the host and from cloud metadata.
//!
//! Docker separates the networks of jobs from each other, but routes their packets to the host. The rules match the names
//! of bridges (`network.rs`), so they are the same for all jobs. Only root can set them.

use std::process::Stdio;

use rustix::process::geteuid;
use tokio::process::Command;

use super::network::CLOSED;

/// Link-local addresses, at which clouds serve metadata and credentials.
const METADATA: &str = "169.254.0.0/16";

/// Program that changes the rules.
const IPTABLES: &str = "iptables";

/// Restriction of containers by the firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Firewall {
    Enforced,
    /// The agent is not root, or not in the network of the daemon.
    OtherNetwork,
    /// The host has no `iptables`.
    Missing,
    /// `iptables` failed.
    Failed,
}

/// Adds missing rules. Called before each start: a restart of a firewall service removes rules.
pub(super) async fn enforce() -> Firewall {
    if !geteuid().is_root() {
        return Firewall::OtherNetwork;
    }
    if run(&["--version"]).await.is_none() {
        return Firewall::Missing;
    }
    let bridges = format!("{CLOSED}+");
    let answers = ["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED"];
    let metadata = ["-i", &bridges, "-d", METADATA, "-j", "REJECT"];
    let replies = [&["-i", &bridges][..], &answers, &["-j", "ACCEPT"]].concat();
    let host = ["-i", &bridges, "-j", "REJECT"];
    // Docker evaluates its chain before its own rules; without that chain Docker does not forward packets either.
    let forward =
        if run(&["-S", "DOCKER-USER"]).await == Some(true) { "DOCKER-USER" } else { "FORWARD" };
    let forward = insert(forward, &metadata).await;
    // Inserted in reverse order: replies come first.
    let input = insert("INPUT", &host).await && insert("INPUT", &replies).await;
    if forward && input { Firewall::Enforced } else { Firewall::Failed }
}

/// Inserts a rule at the top of a chain unless the chain has it.
async fn insert(chain: &str, rule: &[&str]) -> bool {
    if run(&[&["-C", chain][..], rule].concat()).await == Some(true) {
        return true;
    }
    run(&[&["-I", chain][..], rule].concat()).await == Some(true)
}

/// Success of `iptables`; `None` if the program does not exist.
async fn run(args: &[&str]) -> Option<bool> {
    let mut command = Command::new(IPTABLES);
    // Waits for other programs that change rules.
    command.arg("-w").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.ok().map(|status| status.success())
}
