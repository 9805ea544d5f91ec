//! `deploy/worker/15-network-policy.yaml`, enforced by the network policy controller of kube-router.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;

use k8s_openapi::api::core::v1::Node;

use super::jobs;
use super::real::{NAME, lent, script};
use crate::skip::skip;
use crate::support::{Program, Share, wait_for};

/// Packets between pods cross the bridge of the node; without this setting they pass no firewall.
const BRIDGE_FIREWALL: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

const PORT: u16 = 8000;

const LISTEN: &str = "while true; do echo hello | nc -l -p 8000; done";

/// Greets every caller at an address of the node, until the end of the test program.
fn service_of_node(address: IpAddr) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            // The caller may have closed the connection.
            let _ = (&caller).write_all(b"hello\n");
        }
    });
    port
}

/// Script that prints again and again whether each target, with a name, answers.
fn probe(targets: &[(&str, IpAddr, u16)]) -> String {
    let tries = targets.iter().map(|(name, address, port)| {
        format!(
            "if nc -w 2 {address} {port} < /dev/null 2> /dev/null | grep -q hello; \
             then echo {name} open; else echo {name} closed; fi; "
        )
    });
    format!("while true; do {}sleep 0.3; done", tries.collect::<String>())
}

/// Waits until the last result of each target is this one.
async fn until(what: &str, expected: &[&str], log: impl AsyncFn() -> String) {
    wait_for(what, async || {
        let log = log().await;
        let is_last = |result: &&str| {
            let name = result.split(' ').next().unwrap();
            log.lines().rfind(|line| line.starts_with(name)) == Some(result)
        };
        if expected.iter().all(is_last) { Ok(()) } else { Err(log) }
    })
    .await;
}

async fn address_of_node(share: &Share) -> IpAddr {
    let node = share.cluster_api::<Node>().get(NAME).await.unwrap();
    let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP");
    internal.expect("the node has an address").address.parse().unwrap()
}

async fn address_of_pod(share: &Share, pod: &str) -> IpAddr {
    let pod = share.in_phase(pod, "Running").await;
    pod.status.and_then(|status| status.pod_ip).expect("an address").parse().unwrap()
}

/// The running controller. Its end removes the rules.
struct Enforcement {
    controller: Program,
    bridge_firewall: String,
}

impl Enforcement {
    fn start(share: &Share) -> Self {
        let bridge_firewall = fs::read_to_string(BRIDGE_FIREWALL).unwrap();
        fs::write(BRIDGE_FIREWALL, "1").unwrap();
        let programs = share.cluster.programs.as_deref();
        let programs = programs.expect("AGENTAFLOW_TEST_KUBE_BIN names the folder of the programs");
        let mut command = Command::new(programs.join("network-policies"));
        command.arg("--kubeconfig").arg(&share.cluster.kubeconfig).args(["--node", NAME]);
        let controller = Program::start(command, &share.file("network-policies.log"));
        Self { controller, bridge_firewall }
    }
}

impl Drop for Enforcement {
    fn drop(&mut self) {
        let ended = self.controller.terminate();
        let _ = fs::write(BRIDGE_FIREWALL, self.bridge_firewall.trim());
        if thread::panicking() {
            eprintln!("the controller said:\n{}", self.controller.log());
        } else {
            assert!(ended.success(), "{}", self.controller.log());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn jobs_reach_neither_each_other_nor_the_node_if_the_cluster_enforces_policies() {
    let sets = Command::new("ipset").args(["list", "-name"]).output();
    if !sets.is_ok_and(|sets| sets.status.success()) || !Path::new(BRIDGE_FIREWALL).exists() {
        skip!("needs ipset, and a kernel with IP sets and a firewall of bridges");
    }
    let _lent = lent().await;
    let (fleet, _node) = jobs::fleet(2).await;
    let share = &fleet.share;
    let node = address_of_node(share).await;
    let service = service_of_node(node);
    let victim = fleet.post(&jobs::script(LISTEN));
    let victim = address_of_pod(share, &fleet.pod_of(victim).await).await;
    // The policy does not select these pods.
    share.create_pod(&script("open", LISTEN)).await;
    let open = address_of_pod(share, "open").await;
    let targets = [("job", victim, PORT), ("pod", open, PORT), ("node", node, service)];
    share.create_pod(&script("stranger", &probe(&targets))).await;
    let job = fleet.post(&jobs::script(&probe(&targets)));
    let job_log = async || fleet.output(job);
    let stranger_log = async || share.log("stranger").await;

    let all_open = ["job open", "pod open", "node open"];
    until("the job reaches all without enforcement", &all_open, job_log).await;
    address_of_pod(share, "stranger").await;
    until("the stranger reaches all without enforcement", &all_open, stranger_log).await;
    let _enforcement = Enforcement::start(share);
    let all_closed = ["job closed", "pod closed", "node closed"];
    until("the job reaches no private address", &all_closed, job_log).await;
    let only_job_closed = ["job closed", "pod open", "node open"];
    until("the stranger reaches no job", &only_job_closed, stranger_log).await;
}
