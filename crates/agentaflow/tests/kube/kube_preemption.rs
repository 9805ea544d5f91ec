//! Nominations, evictions and disruption budgets.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, placed_by_us, pod_waits, waits_because};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// A restarted container keeps its pod name, and thus its lease.
const SAME_LEADER: [&str; 2] = ["--identity", "one"];

/// Creates a low-priority pod with two GPUs on this node and waits until it runs.
async fn victim(share: &Share, name: &str, node: &str) {
    let plan = PodPlan::new(name)
        .gpus(2)
        .scheduler(&share.scheduler_name())
        .annotation("agentaflow.gpu/priority", "1")
        .label("app", name)
        .spec("nodeSelector", json!({"kubernetes.io/hostname": node}))
        .stop_after("8s");
    share.create_pod(&plan).await;
    placed_by_us(share, name).await;
    share.in_phase(name, "Running").await;
}

/// A preemptor with two GPUs per pod.
fn urgent(share: &Share) -> WorkloadPlan {
    WorkloadPlan::new(share, "urgent", &PodPlan::new("")).gpus(2).spec("priority", 9)
}

fn nominated(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.nominated_node_name.clone()
}

/// The eviction API sets `DisruptionTarget`; a deletion does not.
fn is_evicted(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let mut marks = conditions.filter(|condition| condition.type_ == "DisruptionTarget");
    pod.metadata.deletion_timestamp.is_some()
        && marks.any(|mark| mark.reason.as_deref() == Some("EvictionByEvictionAPI"))
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_scheduler_killed_during_a_preemption_keeps_nominations_and_evicts_no_more() {
    let share = Share::new().await;
    let nodes = share.nodes(3, &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &SAME_LEADER).await;
    for (index, node) in nodes.iter().enumerate() {
        victim(&share, &format!("low-{index}"), node).await;
    }
    urgent(&share).spec("gangSize", 2).create(&share).await;
    let mut reserved = Vec::new();
    for pod in ["urgent-0", "urgent-1"] {
        reserved.push(share.wait_pod(pod, "nominated", nominated).await);
    }
    reserved.sort();
    wait_for("two evictions", async || {
        let evicted = share.pods("").await.iter().filter(|pod| is_evicted(pod)).count();
        if evicted == 2 { Ok(()) } else { Err(evicted) }
    })
    .await;
    scheduler.crash_and_restart().await;
    waits_because(&share, "urgent", "Preempting").await;
    let mut placed =
        [placed_by_us(&share, "urgent-0").await, placed_by_us(&share, "urgent-1").await];
    placed.sort();
    assert_eq!(placed[..], reserved[..]);
    let index = nodes.iter().position(|node| !reserved.contains(node)).expect("a third node");
    let kept = share.pod(&format!("low-{index}")).await.expect("the third pod");
    assert_eq!(kept.metadata.deletion_timestamp, None);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn budgets_protect_victims_and_a_stale_nomination_is_removed() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &SAME_LEADER).await;
    share.apply_object(budget("guard", "guarded")).await;
    victim(&share, "guarded", &node).await;
    let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/guard", share.namespace);
    wait_for("the disruption controller counts the pod", async || {
        let status = share.request("GET", &path, None).await.json()["status"].clone();
        (status["currentHealthy"] == 1).then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
    urgent(&share).create(&share).await;
    waits_because(&share, "urgent", "NoRoom").await;
    scheduler.program.kill();
    let status = format!("/api/v1/namespaces/{}/pods/urgent-0/status", share.namespace);
    let stale = json!({"status": {"nominatedNodeName": node}});
    let answer = share.request("PATCH", &status, Some(&stale)).await;
    assert_eq!(answer.json()["status"]["nominatedNodeName"], node);
    scheduler.crash_and_restart().await;
    let is_removed = |pod: &Pod| nominated(pod).is_none().then_some(());
    share.wait_pod("urgent-0", "without a nomination", is_removed).await;
    assert_eq!(share.pod("guarded").await.unwrap().metadata.deletion_timestamp, None);
    share.request("DELETE", &path, None).await;
    assert_eq!(placed_by_us(&share, "urgent-0").await, node);
}

fn budget(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    })
}

/// A class of an administrator ranks above pods without a class, whatever its value.
#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_pod_without_a_class_evicts_no_pod_of_an_administrators_class() {
    let share = Share::new().await;
    share.node("only", &NodePlan::gpus(4)).await;
    let class = format!("production-{}", share.id);
    share
        .apply_object(json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": class},
            "value": 100_000,
        }))
        .await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let names: Vec<String> = (0..4).map(|index| format!("serves-{index}")).collect();
    for name in &names {
        share.create_pod(&share.one_gpu(name).spec("priorityClassName", json!(class))).await;
    }
    for name in &names {
        share.in_phase(name, "Running").await;
    }
    let large = PodPlan::new("large").gpus(4).scheduler(&share.scheduler_name());
    share.create_pod(&large).await;
    pod_waits(&share, "large", "Unschedulable").await;
    for name in &names {
        let pod = share.pod(name).await.expect("the pod stays");
        assert_eq!(pod.metadata.deletion_timestamp, None, "{name}");
    }
    let preempted = "agentaflow_preemptions_total{reason=\"priority\"}";
    assert_eq!(scheduler.metric(preempted), Some(0.0));
    // The class, in turn, preempts the pod without one.
    for name in &names {
        share.delete_pod(name).await;
    }
    share.in_phase("large", "Running").await;
    share.create_pod(&share.one_gpu("again").spec("priorityClassName", json!(class))).await;
    placed_by_us(&share, "again").await;
    scheduler.counts(preempted, 1.0).await;
    scheduler.counts("agentaflow_evictions_total{result=\"evicted\"}", 1.0).await;
}
