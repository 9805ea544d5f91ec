//! Preemption.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{
    WorkloadPlan, delete_workload, in_phase, placed_by_us, pod_waits, wait_workload, waits_because,
};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, free_port, wait_for};

/// A low-priority pod for this node.
fn low(share: &Share, name: &str, node: &str, gpus: u32) -> PodPlan {
    PodPlan::new(name)
        .gpus(gpus)
        .scheduler(&share.scheduler_name())
        .annotation("agentaflow.gpu/priority", "1")
        .spec("nodeSelector", json!({"kubernetes.io/hostname": node}))
}

fn high(share: &Share, gpus: u32) -> WorkloadPlan {
    WorkloadPlan::new(share, "urgent", &PodPlan::new("")).gpus(gpus).spec("priority", 9)
}

async fn place(share: &Share, pods: &[PodPlan]) {
    for pod in pods {
        share.create_pod(pod).await;
    }
    for pod in pods {
        let name = pod.pod().metadata.name.expect("a name");
        placed_by_us(share, &name).await;
        share.in_phase(&name, "Running").await;
    }
}

async fn pods_and_whether_they_go(share: &Share) -> Vec<(String, bool)> {
    let pods = share.pods("").await;
    let facts = |pod: Pod| {
        (pod.metadata.name.unwrap_or_default(), pod.metadata.deletion_timestamp.is_some())
    };
    pods.into_iter().map(facts).collect()
}

/// Waits until exactly these pods exist and none is terminating.
async fn only(share: &Share, names: &[&str]) {
    wait_for("only some pods left", async || {
        let left = pods_and_whether_they_go(share).await;
        assert!(
            !left.iter().any(|(name, goes)| *goes && names.contains(&name.as_str())),
            "{left:?}"
        );
        let is_so = left.iter().map(|(name, _)| name.as_str()).eq(names.iter().copied());
        is_so.then_some(()).ok_or_else(|| format!("{left:?}"))
    })
    .await;
}

fn nominated(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.nominated_node_name.clone()
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn the_fewest_pods_are_evicted_for_a_higher_priority() {
    let share = Share::new().await;
    let a = share.node("a", &NodePlan::gpus(4)).await;
    let b = share.node("b", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let mut pods: Vec<PodPlan> =
        (0..4).map(|i| low(&share, &format!("small-{i}"), &a, 1)).collect();
    pods.push(low(&share, "large-0", &b, 2).stop_after("2s"));
    pods.push(low(&share, "large-1", &b, 2).stop_after("2s"));
    place(&share, &pods).await;
    high(&share, 4).create(&share).await;
    let words = waits_because(&share, "urgent", "Preempting").await;
    assert!(words.contains("large-0") && words.contains("large-1"), "{words}");
    share.wait_pod("urgent-0", "nominated", |pod| (nominated(pod)? == b).then_some(())).await;
    for victim in ["large-0", "large-1"] {
        // The eviction API sets DisruptionTarget; a deletion does not.
        let is_evicted = |pod: &Pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let mark = conditions.iter().find(|one| one.type_ == "DisruptionTarget")?;
            (mark.reason.as_deref() == Some("EvictionByEvictionAPI")).then_some(())
        };
        share.wait_pod(victim, "evicted", is_evicted).await;
    }
    assert_eq!(placed_by_us(&share, "urgent-0").await, b);
    in_phase(&share, "urgent", "Running").await;
    assert_eq!(nominated(&share.pod("urgent-0").await.unwrap()), None);
    only(&share, &["small-0", "small-1", "small-2", "small-3", "urgent-0"]).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_with_a_disruption_budget_are_not_preempted() {
    let share = Share::new().await;
    let a = share.node("a", &NodePlan::gpus(2)).await;
    let b = share.node("b", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // One victim on `a` would suffice, but the budget protects it.
    let guarded = low(&share, "guarded", &a, 2).label("app", "guarded");
    place(&share, &[guarded, low(&share, "x", &b, 1), low(&share, "y", &b, 1)]).await;
    // The budget is created after the pods run.
    share.apply_object(budget("guard", "guarded", 1)).await;
    wait_budget(&share, "guard").await;
    high(&share, 2).create(&share).await;
    assert_eq!(placed_by_us(&share, "urgent-0").await, b);
    only(&share, &["guarded", "urgent-0"]).await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_workload_is_pending_while_budgets_protect_all_victims() {
    let share = Share::new().await;
    let a = share.node("a", &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.apply_object(budget("guard", "guarded", 1)).await;
    place(&share, &[low(&share, "guarded", &a, 2).label("app", "guarded")]).await;
    wait_budget(&share, "guard").await;
    high(&share, 2).create(&share).await;
    waits_because(&share, "urgent", "NoRoom").await;
    // A restart respects the budget.
    scheduler.crash_and_restart().await;
    WorkloadPlan::new(&share, "later", &PodPlan::new(""))
        .gpus(2)
        .spec("priority", 8)
        .create(&share)
        .await;
    waits_because(&share, "later", "NoRoom").await;
    assert!(share.pod("guarded").await.unwrap().metadata.deletion_timestamp.is_none());
    let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/guard", share.namespace);
    share.request("DELETE", &path, None).await;
    assert_eq!(placed_by_us(&share, "urgent-0").await, a);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn only_pods_that_we_placed_and_that_may_be_stopped_are_stopped() {
    let share = Share::new().await;
    let a = share.node("a", &NodePlan::gpus(1)).await;
    let b = share.node("b", &NodePlan::gpus(1)).await;
    let c = share.node("c", &NodePlan::gpus(1)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let theirs = PodPlan::new("theirs").gpus(1).spec("nodeSelector", host(&a));
    share.create_pod(&theirs).await;
    assert_eq!(share.bound("theirs").await, a);
    assert_eq!(share.bound_by("theirs").await.assigned_node, None);
    let firm = low(&share, "firm", &b, 1).annotation("agentaflow.gpu/preemptible", "false");
    place(&share, &[firm]).await;
    let pods = PodPlan::new("").spec("nodeSelector", host(&c));
    let keep = WorkloadPlan::new(&share, "keep", &pods);
    keep.spec("priority", 0).spec("preemptible", false).create(&share).await;
    placed_by_us(&share, "keep-0").await;
    in_phase(&share, "keep", "Running").await;
    high(&share, 1).create(&share).await;
    waits_because(&share, "urgent", "NoRoom").await;
    // A second pass has the same result.
    WorkloadPlan::new(&share, "other", &PodPlan::new("")).spec("priority", 10).create(&share).await;
    waits_because(&share, "other", "NoRoom").await;
    only(&share, &["firm", "keep-0", "other-0", "theirs", "urgent-0"]).await;
    delete_workload(&share, "other").await;
    delete_workload(&share, "keep").await;
    assert_eq!(placed_by_us(&share, "urgent-0").await, c);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_scheduler_killed_during_a_preemption_evicts_no_further_pod() {
    let share = Share::new().await;
    let nodes = share.nodes(3, &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // Longer than the lease duration.
    let victim = |i: usize| low(&share, &format!("low-{i}"), &nodes[i], 2).stop_after("40s");
    place(&share, &[victim(0), victim(1), victim(2)]).await;
    high(&share, 2).create(&share).await;
    let node = share.wait_pod("urgent-0", "nominated", nominated).await;
    let stopped = wait_for("a victim", async || {
        let stopped: Vec<String> = pods_and_whether_they_go(&share)
            .await
            .into_iter()
            .filter(|(_, going)| *going)
            .map(|(name, _)| name)
            .collect();
        if stopped.is_empty() { Err("none") } else { Ok(stopped) }
    })
    .await;
    assert_eq!(stopped.len(), 1, "{stopped:?}");
    scheduler.crash_and_restart().await;
    waits_because(&share, "urgent", "Preempting").await;
    assert_eq!(placed_by_us(&share, "urgent-0").await, node);
    let left = pods_and_whether_they_go(&share).await;
    assert_eq!(
        left.iter().filter(|(name, going)| name.starts_with("low") && !going).count(),
        2,
        "{left:?}"
    );
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_stale_nomination_is_removed() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(1)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let firm = low(&share, "firm", &node, 1).annotation("agentaflow.gpu/preemptible", "false");
    place(&share, &[firm]).await;
    high(&share, 1).create(&share).await;
    waits_because(&share, "urgent", "NoRoom").await;
    scheduler.program.kill();
    let path = format!("/api/v1/namespaces/{}/pods/urgent-0/status", share.namespace);
    let stale = json!({"status": {"nominatedNodeName": node}});
    let answer = share.request("PATCH", &path, Some(&stale)).await;
    assert_eq!(answer.json()["status"]["nominatedNodeName"], node);
    scheduler.crash_and_restart().await;
    share
        .wait_pod("urgent-0", "nominated no more", |pod| nominated(pod).is_none().then_some(()))
        .await;
    wait_workload(&share, "urgent", "pending", |object| {
        (object["status"]["phase"] == "Pending").then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_stopped_workload_runs_again_when_there_is_room_and_has_spent_no_retry() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(2)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let plan = |name: &str| WorkloadPlan::new(&share, name, &PodPlan::new(""));
    plan("modest").spec("gangSize", 2).spec("priority", 4).create(&share).await;
    in_phase(&share, "modest", "Running").await;
    plan("grows").gpus(2).spec("priority", 3).create(&share).await;
    waits_because(&share, "grows", "NoRoom").await;
    // A pending workload can raise its priority.
    set_priority(&share, "grows", 8).await;
    placed_by_us(&share, "grows-0").await;
    let words = waits_because(&share, "modest", "GangIncomplete").await;
    assert!(words.contains("0/2 tasks of the gang fit now"), "{words}");
    delete_workload(&share, "grows").await;
    let status = in_phase(&share, "modest", "Running").await;
    assert_eq!(status["retries"], 0);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn a_gang_makes_room_for_all_of_its_pods_even_when_the_scheduler_dies_meanwhile() {
    let share = Share::new().await;
    let nodes = share.nodes(3, &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let victim = |i: usize| low(&share, &format!("low-{i}"), &nodes[i], 2).stop_after("8s");
    place(&share, &[victim(0), victim(1), victim(2)]).await;
    high(&share, 2).spec("gangSize", 2).create(&share).await;
    let mut kept = Vec::new();
    for pod in ["urgent-0", "urgent-1"] {
        kept.push(share.wait_pod(pod, "nominated", nominated).await);
    }
    assert_ne!(kept[0], kept[1]);
    wait_for("two victims", async || {
        let left = pods_and_whether_they_go(&share).await;
        let going = left.iter().filter(|(_, going)| *going).count();
        if going == 2 { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    scheduler.crash_and_restart().await;
    let mut found = Vec::new();
    for pod in ["urgent-0", "urgent-1"] {
        found.push(placed_by_us(&share, pod).await);
    }
    kept.sort();
    found.sort();
    assert_eq!(found, kept);
    let left = nodes.iter().position(|node| !kept.contains(node)).expect("a node that was left");
    only(&share, &[&format!("low-{left}"), "urgent-0", "urgent-1"]).await;
}

async fn set_priority(share: &Share, name: &str, priority: u8) {
    let path = format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads/{name}", share.namespace);
    let answer =
        share.request("PATCH", &path, Some(&json!({"spec": {"priority": priority}}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn host(node: &str) -> Value {
    json!({"kubernetes.io/hostname": node})
}

fn budget(name: &str, app: &str, least: u32) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
    })
}

/// Waits until the disruption controller has counted the pods.
async fn wait_budget(share: &Share, name: &str) {
    let path =
        format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{name}", share.namespace);
    wait_for("the budget counted", async || {
        let status = share.request("GET", &path, None).await.json()["status"].clone();
        (status["currentHealthy"] == 1).then_some(()).ok_or_else(|| status.to_string())
    })
    .await;
}

/// Quotas and policies saw a pod without a `PriorityClass`; a later annotation does not count.
#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn where_admission_is_on_an_annotation_that_comes_later_stops_nobody() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(1)).await;
    let address = format!("127.0.0.1:{}", free_port());
    // Without a certificate the API server never calls the webhook.
    let [certificate, key] =
        ["no.crt", "no.key"].map(|file| share.file(file).display().to_string());
    let admission = ["--webhook", &address, "--webhook-cert", &certificate, "--webhook-key", &key];
    let _scheduler = Scheduler::start(PROGRAM, &share, &admission).await;
    place(&share, &[share.one_gpu("runs")]).await;
    share.create_pod(&share.one_gpu("later")).await;
    pod_waits(&share, "later", "Unschedulable").await;
    let path = format!("/api/v1/namespaces/{}/pods/later", share.namespace);
    let annotation = json!({"metadata": {"annotations": {"agentaflow.gpu/priority": "10"}}});
    assert_eq!(share.request("PATCH", &path, Some(&annotation)).await.status, 200);
    // Later workloads of equal priority are scheduled after it.
    share.create_pod(&share.one_gpu("next")).await;
    pod_waits(&share, "next", "Unschedulable").await;
    only(&share, &["later", "next", "runs"]).await;
    let classed = share.one_gpu("urgent").spec("priorityClassName", json!("agentaflow-9"));
    share.create_pod(&classed).await;
    share.gone("runs").await;
    placed_by_us(&share, "urgent").await;
}
