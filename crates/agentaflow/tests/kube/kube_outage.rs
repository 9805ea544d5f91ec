//! API server outages and lost responses.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::PROGRAM;
use crate::bursts::workload;
use crate::ledger::Ledger;
use crate::skip::skip;
use crate::support::{
    Cluster, NodePlan, PodPlan, Program, Proxy, Scheduler, Share, free_port, get, wait_for,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn changes_during_a_short_outage_are_reconciled() {
    let share = Share::new().await;
    // On a busy machine the outage outlasts the default renew deadline.
    let long_lease = ["--lease-duration", "60s", "--renew-deadline", "50s"];
    let (mut scheduler, cable) = behind_cable_with(&share, &long_lease).await;
    let old = share.node("old", &NodePlan::gpus(2)).await;
    let ledger = Ledger::open(&share).await;
    share.burst("before", 2, |name| share.one_gpu(name)).await;
    ledger.until_bound(2).await;
    share.create_pod(&share.one_gpu("waits")).await;
    scheduler.counts("agentaflow_workloads_pending", 1.0).await;
    cable.unplug();
    // The cluster changes during the outage.
    share.delete_pod("before-0").await;
    share.wait_deleted("before-0").await;
    share.delete_pod("waits").await;
    let new = share.node("new", &NodePlan::gpus(2)).await;
    ledger.survey(&share).await;
    share.burst("during", 2, |name| share.one_gpu(name)).await;
    share.create_workload(workload(&share, "gang", 1, 1, &PodPlan::new("x"))).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    cable.plug();
    let mut nodes = vec![share.bound("during-0").await, share.bound("during-1").await];
    nodes.push(share.bound("gang-0").await);
    assert!(nodes.contains(&old) && nodes.contains(&new), "{nodes:?}");
    assert!(scheduler.program.runs(), "no restart:\n{}", scheduler.program.log());
    ledger.check();
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
    scheduler.counts("agentaflow_workloads_pending", 0.0).await;
    // Renewals of the lease failed during the outage.
    scheduler.counts_at_least("agentaflow_api_errors_total{kind=\"no_response\"}", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn an_outage_longer_than_the_lease_ends_leadership_and_a_restart_recovers() {
    let share = Share::new().await;
    let (mut scheduler, cable) = behind_cable(&share).await;
    share.node("only", &NodePlan::gpus(4)).await;
    let ledger = Ledger::open(&share).await;
    share.create_workload(workload(&share, "gang", 2, 1, &PodPlan::new("x"))).await;
    share.workload_is("gang", "Running").await;
    cable.unplug();
    let ended = scheduler.program.ended().await;
    assert!(!ended.success(), "{ended}");
    share.create_pod(&share.one_gpu("later")).await;
    // A scheduler that starts during the outage waits for the API server.
    scheduler.program.restart();
    wait_for("a health response", async || get(scheduler.http, "/livez").ok_or("none")).await;
    assert!(scheduler.program.runs(), "{}", scheduler.program.log());
    cable.plug();
    share.bound("later").await;
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    ledger.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_lost_bind_response_is_resolved_by_reading_the_pod() {
    let share = Share::new().await;
    let (scheduler, cable) = behind_cable(&share).await;
    let node = share.node("only", &NodePlan::gpus(5)).await;
    // Keeps several connections open: a request reaches the server only through an open connection, and the renewal of the
    // lease uses one as well.
    share.burst("before", 3, |name| share.one_gpu(name)).await;
    scheduler.counts("agentaflow_bindings_total{result=\"bound\"}", 3.0).await;
    scheduler.counts("agentaflow_gpu_available", 2.0).await;
    cable.lose_answers();
    share.create_pod(&share.one_gpu("unanswered")).await;
    assert_eq!(share.bound("unanswered").await, node);
    cable.plug();
    scheduler.counts("agentaflow_bindings_total{result=\"bound\"}", 4.0).await;
    assert_eq!(scheduler.metric("agentaflow_bindings_total{result=\"refused\"}"), Some(0.0));
    let reported = share.bound_by("unanswered").await;
    assert_eq!(reported.assigned_node, Some(node), "only the response was lost");
    // The usage is counted once.
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    share.create_pod(&share.one_gpu("next")).await;
    share.bound("next").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn objects_are_listed_again_after_an_api_server_restart() {
    let share = Share::new().await;
    let (mut scheduler, cable) = behind_cable(&share).await;
    share.node("only", &NodePlan::gpus(4)).await;
    share.burst("before", 2, |name| share.one_gpu(name)).await;
    scheduler.counts("agentaflow_gpu_available", 2.0).await;
    // The new process has no state of its predecessor.
    let Some(server) = Server::start(&share).await else {
        skip!("needs an API server that xtask started");
    };
    cable.unplug();
    share.create_pod(&share.one_gpu("during")).await;
    share.delete_pod("before-0").await;
    share.wait_deleted("before-0").await;
    cable.redirect(server.port);
    cable.plug();
    share.bound("during").await;
    share.create_pod(&share.one_gpu("after")).await;
    share.bound("after").await;
    scheduler.counts("agentaflow_gpu_available", 1.0).await;
    assert!(scheduler.program.runs(), "no restart:\n{}", scheduler.program.log());
}

/// A ready scheduler behind a proxy to the API server; a restarted one keeps its identity, and thus its lease.
pub(crate) async fn behind_cable(share: &Share) -> (Scheduler, Proxy) {
    behind_cable_with(share, &[]).await
}

async fn behind_cable_with(share: &Share, options: &[&str]) -> (Scheduler, Proxy) {
    share.apply_file("deploy/crds").await;
    let cable = Proxy::start(&share.cluster.kubeconfig).await;
    let kubeconfig = cable.write_kubeconfig(share.file("cable.kubeconfig"));
    let options = [&["--identity", "one"], options].concat();
    let scheduler = Scheduler::launch(PROGRAM, share, &kubeconfig, "scheduler", &options);
    scheduler.leads().await;
    (scheduler, cable)
}

/// A second API server of the same control plane.
struct Server {
    _program: Program,
    port: u16,
}

impl Server {
    /// `None` if `cargo xtask kube` did not start the control plane.
    async fn start(share: &Share) -> Option<Self> {
        let own = &share.cluster.kubeconfig;
        let folder = own.parent()?;
        // Port, process id and start time.
        let first = std::fs::read_to_string(folder.join("components/kube-apiserver")).ok()?;
        let process = first.split(' ').nth(1).expect("the process of the API server");
        let line = std::fs::read(Path::new("/proc").join(process).join("cmdline"));
        let line = String::from_utf8(line.expect("its command line")).expect("its command line");
        assert!(line.contains(&*folder.to_string_lossy()), "a foreign API server: {line}");
        let mut words = line.split('\0').filter(|word| !word.is_empty());
        let port = free_port();
        let mut command = Command::new(words.next()?);
        command.args(words.filter(|word| !word.starts_with("--secure-port")));
        command.arg(format!("--secure-port={port}"));
        let program = Program::start(command, &share.file("kube-apiserver.log"));
        let way = Proxy::start(own).await;
        way.redirect(port);
        let client =
            Cluster::client_of(&way.write_kubeconfig(share.file("second.kubeconfig"))).await;
        wait_for("the second API server", async || {
            let request = kube::core::Request::new("/readyz");
            let request = request.list(&kube::api::ListParams::default()).expect("a request");
            client.request_text(request).await
        })
        .await;
        Some(Self { _program: program, port })
    }
}
