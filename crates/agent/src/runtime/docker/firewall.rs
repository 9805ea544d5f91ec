//! Rules of the host's firewall that keep containers from services of the host and from cloud metadata.
//!
//! Docker separates the networks of jobs from each other, but routes their packets to the host. The rules match the names
//! of bridges (`network.rs`), so they are the same for all jobs. Only root can set them.

use std::process::Stdio;

use rustix::process::geteuid;
use tokio::process::Command;

use super::network::CLOSED;

/// Addresses at which clouds serve metadata and credentials: link-local ones, and those of Alibaba Cloud and Azure.
const METADATA: [&str; 3] = ["169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32"];

/// Programs that change the rules.
const IPTABLES: &str = "iptables";
const IP6TABLES: &str = "ip6tables";

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

impl Firewall {
    /// Problem for the operator of the host.
    pub(super) fn problem(self) -> Option<&'static str> {
        match self {
            Self::Enforced => None,
            Self::OtherNetwork => {
                Some("the agent is not root, or not in the network of the Docker daemon")
            }
            Self::Missing => Some("the host has no iptables"),
            Self::Failed => Some("iptables failed"),
        }
    }
}

/// Adds missing rules. Called before each start: a restart of a firewall service removes rules.
pub(super) async fn enforce() -> Firewall {
    if !geteuid().is_root() {
        return Firewall::OtherNetwork;
    }
    if run(IPTABLES, &["--version"]).await.is_none() {
        return Firewall::Missing;
    }
    let bridges = format!("{CLOSED}+");
    let answers = ["-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED"];
    let replies = [&["-i", &bridges][..], &answers, &["-j", "ACCEPT"]].concat();
    let host = ["-i", &bridges, "-j", "REJECT"];
    // Docker evaluates its chain before its own rules; without that chain Docker does not forward packets either.
    let forward = if run(IPTABLES, &["-S", "DOCKER-USER"]).await == Some(true) {
        "DOCKER-USER"
    } else {
        "FORWARD"
    };
    for address in METADATA {
        if !insert(IPTABLES, forward, &["-i", &bridges, "-d", address, "-j", "REJECT"]).await {
            return Firewall::Failed;
        }
    }
    // The networks have no IPv6, and some hosts have none: a failure opens nothing.
    for chain in ["INPUT", "FORWARD"] {
        insert(IP6TABLES, chain, &host).await;
    }
    // Inserted in reverse order: replies come first.
    let input = insert(IPTABLES, "INPUT", &host).await && insert(IPTABLES, "INPUT", &replies).await;
    if input { Firewall::Enforced } else { Firewall::Failed }
}

/// Inserts a rule at the top of a chain unless the chain has it.
async fn insert(program: &str, chain: &str, rule: &[&str]) -> bool {
    if run(program, &[&["-C", chain][..], rule].concat()).await == Some(true) {
        return true;
    }
    run(program, &[&["-I", chain][..], rule].concat()).await == Some(true)
}

/// Success of the program; `None` if it does not exist.
async fn run(program: &str, args: &[&str]) -> Option<bool> {
    let mut command = Command::new(program);
    // Waits for other programs that change rules.
    command.arg("-w").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.ok().map(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_start_only_behind_rules() {
        assert_eq!(Firewall::Enforced.problem(), None);
        for open in [Firewall::OtherNetwork, Firewall::Missing, Firewall::Failed] {
            assert!(open.problem().is_some(), "{open:?}");
        }
    }
}
