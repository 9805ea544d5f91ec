//! Node loss and unresponsive nodes.

use serde_json::json;

use crate::PROGRAM;
use crate::bursts::workload;
use crate::ledger::Ledger;
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_workload_restarts_on_another_node_after_node_loss() {
    let share = Share::new().await;
    let lost = share.node("lost", &NodePlan::gpus(4)).await;
    let ledger = Ledger::open(&share).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_workload(workload(&share, "single", 1, 2, &PodPlan::new("x"))).await;
    share.create_workload(workload(&share, "gang", 2, 1, &PodPlan::new("x"))).await;
    for name in ["single", "gang"] {
        share.workload_is(name, "Running").await;
    }
    let kept = share.node("kept", &NodePlan::gpus(4)).await;
    ledger.survey(&share).await;
    share.delete_node(&lost).await;
    for (name, size) in [("single", 1), ("gang", 2)] {
        all_on(&share, name, size, &kept).await;
        let status = share.workload_is(name, "Running").await;
        assert_eq!(status.retries, 0, "{name} did not fail: {status:?}");
        assert_eq!(status.assigned_node.as_deref().map(|nodes| nodes.contains(&lost)), Some(false));
    }
    ledger.check();
    scheduler.counts("agentaflow_gpu_total", 4.0).await;
    scheduler.counts("agentaflow_gpu_available", 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn an_unresponsive_node_gets_no_pods_and_its_workloads_move() {
    let share = Share::new().await;
    let dark = share.node("dark", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // The default toleration is five minutes.
    let hasty = PodPlan::new("x").spec("terminationGracePeriodSeconds", json!(1)).spec(
        "tolerations",
        json!([{
            "key": "node.kubernetes.io/unreachable",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 2,
        }]),
    );
    share.create_workload(workload(&share, "moves", 1, 1, &hasty)).await;
    share.workload_is("moves", "Running").await;
    let lit = share.node("lit", &NodePlan::gpus(2)).await;
    share.darken_node(&dark).await;
    share.create_pod(&share.one_gpu("later")).await;
    assert_eq!(share.bound("later").await, lit, "nothing is placed on a silent node");
    // The end of the old pod is unknown: the scheduler gives up 30 s after its grace period.
    all_on(&share, "moves", 1, &lit).await;
    let status = share.workload_is("moves", "Running").await;
    assert_eq!(status.retries, 0, "{status:?}");
    // A recovered node is used again, and old pods are distinguished from new ones.
    share.lighten_node(&dark).await;
    share.burst("more", 2, |name| share.one_gpu(name)).await;
    for name in ["more-0", "more-1"] {
        assert_eq!(share.bound(name).await, dark);
    }
}

/// Waits until a workload has this many pods, all on one node.
async fn all_on(share: &Share, workload: &str, size: usize, node: &str) {
    wait_for(&format!("{workload} on {node}"), async || {
        let pods = share.pods_of(workload).await;
        let there = pods.iter().filter(|(_, at)| at.as_deref() == Some(node)).count();
        let whole = there == size && pods.len() == size;
        whole.then_some(()).ok_or_else(|| format!("{pods:?}"))
    })
    .await;
}
