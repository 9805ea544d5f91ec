//! Leader election of several replicas.

use std::time::{Duration, Instant};

use crate::PROGRAM;
use crate::ledger::Ledger;
use crate::support::{NodePlan, Proxy, Scheduler, Share, wait_for};

/// Pods of a burst, slightly fewer than the capacity.
const BURST: usize = 60;
/// Longest time from a fault of the leader to the next binding, with default settings.
const TAKEOVER: Duration = Duration::from_secs(9);
/// Bound pods before the fault.
const MIDST: usize = 10;

/// Two replicas; the first leads through its own proxy.
struct Pair {
    // Declared before the share, so that a failing test shows the logs.
    first: Scheduler,
    second: Scheduler,
    ledger: Ledger,
    cable: Proxy,
    share: Share,
}

impl Pair {
    async fn new() -> Self {
        let share = Share::new().await;
        share.nodes(2, &NodePlan::gpus(32)).await;
        share.apply_file("deploy/crds").await;
        let ledger = Ledger::open(&share).await;
        let cable = Proxy::start(&share.cluster.kubeconfig).await;
        let kubeconfig = cable.write_kubeconfig(share.file("cable.kubeconfig"));
        let first =
            Scheduler::launch(PROGRAM, &share, &kubeconfig, "first", &["--identity", "first"]);
        first.leads().await;
        let second = ["--identity", "second"];
        let second =
            Scheduler::launch(PROGRAM, &share, &share.cluster.kubeconfig, "second", &second);
        let mut pair = Self { first, second, ledger, cable, share };
        pair.second.ready().await;
        assert_eq!(pair.second.metric("agentaflow_leader"), Some(0.0), "one leads");
        pair
    }

    /// Creates a burst of pods and injects a fault into the leader.
    async fn burst(&mut self, happens: impl FnOnce(&mut Scheduler, &Proxy)) {
        let share = &self.share;
        let made = share.burst("p", BURST, |name| share.one_gpu(name));
        let midst = async {
            self.ledger.until_bound(MIDST).await;
            happens(&mut self.first, &self.cable);
        };
        tokio::join!(made, midst);
    }

    /// Waits for a binding of the second replica; returns the time since the fault.
    async fn takeover(&self, fault: Instant) -> Duration {
        self.second.leads().await;
        self.ledger.until_bound(BURST).await;
        let took = fault.elapsed();
        eprintln!("takeover after {took:?}");
        took
    }

    /// The second replica leads, and every pod is bound once.
    async fn check(&self) {
        self.second.leads().await;
        self.ledger.until_bound(BURST).await;
        self.ledger.check();
        for pod in self.share.pods("").await {
            let node = pod.spec.and_then(|spec| spec.node_name);
            let annotations = pod.metadata.annotations.unwrap_or_default();
            let assigned = annotations.get("agentaflow.gpu/assigned-node").cloned();
            assert_eq!(assigned, node, "one of ours placed {:?}", pod.metadata.name);
        }
        // The second replica counts the bindings of the first.
        self.second.counts("agentaflow_gpu_available", (64 - BURST) as f64).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_follower_takes_over_from_a_killed_leader() {
    let mut pair = Pair::new().await;
    let mut fault = Instant::now();
    pair.burst(|leader, _| {
        leader.program.kill();
        fault = Instant::now();
    })
    .await;
    let took = pair.takeover(fault).await;
    assert!(took < TAKEOVER, "it took {took:?}");
    pair.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_leader_without_connection_stops_before_its_lease_expires() {
    let mut pair = Pair::new().await;
    pair.burst(|_, cable| cable.unplug()).await;
    let cut = Instant::now();
    let ended = pair.first.program.ended().await;
    assert!(!ended.success(), "{ended}");
    assert!(cut.elapsed() < Duration::from_secs(6), "it took {:?}", cut.elapsed());
    assert_eq!(pair.second.metric("agentaflow_leader"), Some(0.0), "the lease is not over yet");
    pair.second.leads().await;
    pair.cable.plug();
    pair.first.program.restart();
    pair.first.ready().await;
    pair.check().await;
    assert_eq!(pair.first.metric("agentaflow_leader"), Some(0.0), "it follows when it is back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_leader_without_responses_stops_before_its_lease_expires() {
    let mut pair = Pair::new().await;
    pair.burst(|_, cable| cable.silence()).await;
    let cut = Instant::now();
    let ended = pair.first.program.ended().await;
    assert!(!ended.success(), "{ended}");
    assert!(cut.elapsed() < Duration::from_secs(6), "it took {:?}", cut.elapsed());
    pair.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_paused_leader_with_an_expired_lease_writes_nothing() {
    let mut pair = Pair::new().await;
    let mut fault = Instant::now();
    pair.burst(|leader, _| {
        leader.program.signal("STOP");
        fault = Instant::now();
    })
    .await;
    let took = pair.takeover(fault).await;
    assert!(took < TAKEOVER, "it took {took:?}");
    pair.first.program.signal("CONT");
    let ended = pair.first.program.ended().await;
    assert!(!ended.success(), "{ended}");
    pair.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_leader_releases_its_lease_on_sigterm() {
    let mut pair = Pair::new().await;
    let mut asked = Instant::now();
    pair.burst(|leader, _| {
        asked = Instant::now();
        let ended = leader.program.terminate();
        assert!(ended.success(), "{ended}");
    })
    .await;
    wait_for("the other leads", async || {
        let leads = pair.second.metric("agentaflow_leader") == Some(1.0);
        leads.then_some(()).ok_or("it does not")
    })
    .await;
    assert!(asked.elapsed() < Duration::from_secs(10), "it took {:?}", asked.elapsed());
    pair.check().await;
}
