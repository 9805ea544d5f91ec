//! Rules of the host's firewall that keep containers from services of the host and from cloud metadata.
//!
//! Docker separates the networks of jobs from each other, but routes their packets to the host. A Docker daemon that leaves
//! iptables alone separates nothing; then the rules do. They match the names of bridges (`network.rs`), so they are the
//! same for all jobs. Only root can set them.

use std::process::Stdio;

use rustix::process::geteuid;
use tokio::process::Command;

use super::network::CLOSED;

/// Addresses at which clouds serve metadata and credentials: link-local ones, and addresses of Alibaba Cloud and Azure.
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
    // Docker evaluates its chain before its own rules. A chain without a caller is left of an earlier daemon.
    let by_docker = run(IPTABLES, &["-C", "FORWARD", "-j", "DOCKER-USER"]).await == Some(true);
    let forward = if by_docker { "DOCKER-USER" } else { "FORWARD" };
    if !by_docker && !separate_jobs(&bridges).await {
        return Firewall::Failed;
    }
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

/// Drops packets from the network of a job to the network of another one.
async fn separate_jobs(bridges: &str) -> bool {
    let between = ["-i", bridges, "-o", bridges];
    // With `br_netfilter` packets inside of one bridge pass the chain too.
    let inside = ["-m", "physdev", "--physdev-is-bridged"];
    let accept = [&between[..], &inside, &["-j", "ACCEPT"]].concat();
    let drop = [&between[..], &["-j", "DROP"]].concat();
    insert(IPTABLES, "FORWARD", &drop).await && insert(IPTABLES, "FORWARD", &accept).await
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
    use crate::skip::skip;

    #[test]
    fn containers_start_only_behind_rules() {
        assert_eq!(Firewall::Enforced.problem(), None);
        for open in [Firewall::OtherNetwork, Firewall::Missing, Firewall::Failed] {
            assert!(open.problem().is_some(), "{open:?}");
        }
    }

    const SWITCH: &str = "AGENTAFLOW_TEST_FIREWALL";

    /// Entry point, not a test: sets the rules of the network namespace in which it runs.
    #[tokio::test]
    async fn the_rules_of_another_test_are_set_in_this_program() {
        if std::env::var_os(SWITCH).is_some() {
            // The second call finds all rules.
            assert_eq!(
                (enforce().await, enforce().await),
                (Firewall::Enforced, Firewall::Enforced)
            );
        }
    }

    /// Two bridges of jobs and one of another program, each with a host, in network namespaces of their own. Prints the
    /// names of the reachable pairs before and after the rules.
    const NETWORKS: &str = r#"
        set -e
        ip link set lo up
        echo 1 > /proc/sys/net/ipv4/ip_forward
        add() {
            unshare --net sleep 60 > /dev/null & pid=$!
            until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
            ip link add "v$1" type veth peer name eth0 netns $pid
            ip link set "v$1" master "$2" up
            nsenter -t $pid -n sh -c "ip addr add 10.9.$3/24 dev eth0; ip link set eth0 up
                ip route add default via 10.9.${3%.*}.1"
            eval "$1=$pid"
        }
        n=0
        for bridge in aafc1 aafc2 other; do
            n=$((n + 1))
            ip link add $bridge type bridge
            ip addr add 10.9.$n.1/24 dev $bridge
            ip link set $bridge up
        done
        # An earlier engine left its chain.
        iptables -N DOCKER-USER
        add one aafc1 1.2; add mate aafc1 1.3; add two aafc2 2.2; add third other 3.2
        trap 'kill $one $mate $two $third' EXIT
        reach() {
            if nsenter -t $2 -n timeout 2 busybox ping -c 1 -W 1 10.9.$3 > /dev/null 2>&1; then printf "$1 "; fi
        }
        all() { reach mate $one 1.3; reach stranger $one 2.2; reach back $two 1.2; reach out $one 3.2; echo; }
        all
        "$PROGRAM" --exact "$TEST" > /dev/null
        all
    "#;

    #[tokio::test]
    async fn without_rules_of_docker_jobs_cannot_reach_each_other() {
        let is_there =
            |program: &str| std::process::Command::new(program).arg("-V").output().is_ok();
        if !geteuid().is_root()
            || !["unshare", "nsenter", "ip", "busybox", IPTABLES].map(is_there).iter().all(|is| *is)
        {
            skip!("needs root, iptables, iproute2, busybox and util-linux");
        }
        let name =
            "runtime::docker::firewall::tests::the_rules_of_another_test_are_set_in_this_program";
        let mut command = std::process::Command::new("unshare");
        command.args(["--net", "sh", "-c", NETWORKS]).env(SWITCH, "1").env("TEST", name);
        let output = command.env("PROGRAM", std::env::current_exe().unwrap()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines, ["mate stranger back out", "mate out"], "{errors}");
    }
}
