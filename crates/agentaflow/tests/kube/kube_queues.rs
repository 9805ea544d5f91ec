//! Queues for namespaces.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{
    WorkloadPlan, delete_workload, event, in_phase, placed_by_us, pod_waits, waits_because,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, wait_for};

/// A queue with a unique name.
fn queue(share: &Share, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUQueue",
        "metadata": {"name": format!("{name}-{}", share.id)},
        "spec": spec,
    })
}

fn pod(share: &Share, name: &str) -> PodPlan {
    PodPlan::new(name).gpus(1).scheduler(&share.scheduler_name())
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_namespace_at_its_queue_limit_is_pending_with_free_gpus() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    share.apply_file("deploy/crds").await;
    let limits = json!({"namespaces": [share.namespace], "limit": {"gpus": 4}});
    share.apply_object(queue(&share, "team", &limits)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    for i in 0..4 {
        share.create_pod(&pod(&share, &format!("first-{i}"))).await;
        placed_by_us(&share, &format!("first-{i}")).await;
    }
    share.create_pod(&pod(&share, "fifth")).await;
    // Not `Unschedulable`, since more nodes would not help.
    let words = pod_waits(&share, "fifth", "QuotaExceeded").await;
    assert!(words.contains("limit 4 GPUs, 4 GPUs in use, 1 GPU requested"), "{words}");
    share.delete_pod("first-0").await;
    placed_by_us(&share, "fifth").await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_forbidden_or_missing_queue_is_reported() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    share.apply_file("deploy/crds").await;
    share.apply_object(queue(&share, "others", &json!({"namespaces": ["elsewhere"]}))).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let others = format!("others-{}", share.id);
    share.create_pod(&pod(&share, "a").annotation("agentaflow.gpu/queue", &others)).await;
    share.create_pod(&pod(&share, "b").annotation("agentaflow.gpu/queue", "nowhere")).await;
    // Without Kueue its label names an agentaflow queue.
    share.create_pod(&pod(&share, "d").label("kueue.x-k8s.io/queue-name", &others)).await;
    let plan = WorkloadPlan::new(&share, "c", &PodPlan::new(""));
    plan.spec("queue", others.as_str()).create(&share).await;
    let words = pod_waits(&share, "a", "QueueForbidden").await;
    assert!(words.contains("add the namespace to spec.namespaces"), "{words}");
    let words = pod_waits(&share, "b", "QueueMissing").await;
    assert!(words.contains("`nowhere`"), "{words}");
    pod_waits(&share, "d", "QueueForbidden").await;
    waits_because(&share, "c", "QueueForbidden").await;
    // A correction of the label resolves the reason.
    let spec = json!({"namespaces": ["elsewhere", share.namespace]});
    share.apply_object(queue(&share, "others", &spec)).await;
    placed_by_us(&share, "a").await;
    placed_by_us(&share, "c-0").await;
    placed_by_us(&share, "d").await;
}

/// Time since when the pod is unscheduled.
async fn waits_since(share: &Share, name: &str) -> jiff::Timestamp {
    let since = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let told = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        Some(told.last_transition_time.as_ref()?.0)
    };
    share.wait_pod(name, "a time of transition", since).await
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn another_reason_keeps_the_transition_time() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(1)).await;
    share.apply_file("deploy/crds").await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let team = format!("team-{}", share.id);
    share.create_pod(&pod(&share, "a").annotation("agentaflow.gpu/queue", &team)).await;
    pod_waits(&share, "a", "QueueMissing").await;
    let since = waits_since(&share, "a").await;
    // Timestamps have whole seconds.
    let next = since + Duration::from_secs(1);
    let left = next.duration_since(jiff::Timestamp::now()).unsigned_abs();
    tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    share.apply_object(queue(&share, "team", &json!({"namespaces": ["elsewhere"]}))).await;
    pod_waits(&share, "a", "QueueForbidden").await;
    assert_eq!(waits_since(&share, "a").await, since);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_queue_caps_the_priority_of_its_workloads() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(1)).await;
    share.apply_file("deploy/crds").await;
    let spec = json!({"namespaces": [share.namespace], "maxPriority": 3});
    share.apply_object(queue(&share, "humble", &spec)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&pod(&share, "runs").annotation("agentaflow.gpu/priority", "3")).await;
    placed_by_us(&share, "runs").await;
    share.create_pod(&pod(&share, "boasts").annotation("agentaflow.gpu/priority", "10")).await;
    pod_waits(&share, "boasts", "Unschedulable").await;
    assert!(share.pod("runs").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn guaranteed_quota_is_reclaimed_from_borrowers() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(4)).await;
    share.apply_file("deploy/crds").await;
    for name in ["owner", "borrower"] {
        let spec = json!({"namespaces": [share.namespace], "guaranteed": {"gpus": 2}});
        share.apply_object(queue(&share, name, &spec)).await;
    }
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let plan = |name: &str, queue: &str| {
        let plan = WorkloadPlan::new(&share, name, &PodPlan::new(""));
        plan.spec("queue", format!("{queue}-{}", share.id))
    };
    for i in 0..4 {
        plan(&format!("borrows-{i}"), "borrower").create(&share).await;
        in_phase(&share, &format!("borrows-{i}"), "Running").await;
    }
    // At equal priority the guarantee is reclaimed, and no more.
    plan("own-0", "owner").create(&share).await;
    plan("own-1", "owner").create(&share).await;
    in_phase(&share, "own-0", "Running").await;
    in_phase(&share, "own-1", "Running").await;
    // The youngest pods are preempted first, with the reason.
    let why = "its queue reclaims guaranteed quota";
    let told = event(&share, "GPUWorkload", "borrows-3", "Preempted", why).await;
    assert!(told.starts_with(&format!("Preempted by `{}/own-", share.namespace)), "{told}");
    event(&share, "GPUWorkload", "own-0", "Preempting", "/borrows-").await;
    plan("own-2", "owner").create(&share).await;
    waits_because(&share, "own-2", "NoRoom").await;
    wait_for("the queues to tell what they use", async || {
        let path = format!("/apis/agentaflow.io/v1/gpuqueues/owner-{}", share.id);
        let status = share.request("GET", &path, None).await.json()["status"].clone();
        let is_so =
            status["usedMilliGpus"] == 2000 && status["running"] == 2 && status["pending"] == 1;
        is_so.then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
    delete_workload(&share, "own-2").await;
}
