//! Conditions and Events of pods.

use serde_json::json;

use crate::PROGRAM;
use crate::plans::{WorkloadPlan, event, in_phase, placed_by_us, pod_waits};
use crate::support::{NodePlan, PodPlan, Scheduler, Share, get, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pods_that_cannot_be_placed_as_they_are_say_why_and_stay_unbound() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(8)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pod = |name: &str| PodPlan::new(name).gpus(1).scheduler(&share.scheduler_name());
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]);
    let gates = json!([{"name": "example.com/wait"}]);
    share.create_pod(&pod("claims").spec("resourceClaims", claims)).await;
    share.create_pod(&pod("gated").spec("schedulingGates", gates)).await;
    share.create_pod(&pod("odd").annotation("agentaflow.gpu/scheduling-strategy", "magic")).await;
    share.create_pod(&pod("vast").gpus(64)).await;
    // Kueue is not installed, and no queue has this name.
    share.create_pod(&pod("kueue").label("kueue.x-k8s.io/queue-name", "research")).await;
    assert_eq!(placed_by_us(&share, "kueue").await, node);
    for (name, reason, words) in [
        ("claims", "Unsupported", "spec.resourceClaims"),
        ("gated", "SchedulingGated", "example.com/wait"),
        ("odd", "InvalidAnnotation", "`magic`"),
        ("vast", "Unschedulable", "even when empty"),
    ] {
        // The API server sets SchedulingGated; the condition stays.
        let said = pod_waits(&share, name, reason).await;
        let by_gates = name == "gated" && said.contains("gate");
        assert!(said.contains(words) || by_gates, "{name}: {said}");
        assert_eq!(share.pod(name).await.unwrap().spec.unwrap().node_name, None);
        if name != "gated" {
            // `kubectl describe` shows Events, not messages of conditions.
            event(&share, "Pod", name, "FailedScheduling", words).await;
        }
    }
    let path = format!("/api/v1/namespaces/{}/pods/gated", share.namespace);
    let answer =
        share.request("PATCH", &path, Some(&json!({"spec": {"schedulingGates": []}}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(placed_by_us(&share, "gated").await, node);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn explanations_are_answered_and_decisions_are_logged() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(2)).await;
    let mut scheduler = Scheduler::start(PROGRAM, &share, &["--log-level", "debug"]).await;
    WorkloadPlan::new(&share, "runs", &PodPlan::new("")).create(&share).await;
    in_phase(&share, "runs", "Running").await;
    WorkloadPlan::new(&share, "waits", &PodPlan::new("")).gpus(2).create(&share).await;
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]);
    let parked =
        PodPlan::new("parked").scheduler(&share.scheduler_name()).spec("resourceClaims", claims);
    share.create_pod(&parked).await;
    for (name, state, reason, words) in [
        ("runs", "Running", json!(null), ""),
        ("waits", "Pending", json!("NoRoom"), "lacks 2 free GPUs (most free 1)"),
        ("waits-0", "Pending", json!("NoRoom"), "Position 1 of 1 in the queue"),
        ("parked", "Parked", json!("Unsupported"), "dynamic resource allocation"),
    ] {
        let path = format!("/explain/{}/{name}", share.namespace);
        wait_for(&format!("{name} explained"), async || {
            let answer = get(scheduler.http, &path).ok_or("no answer")?;
            if answer.status != 200 {
                return Err(answer.body);
            }
            let told = answer.json();
            let lines = told["lines"].to_string();
            let is_so = told["state"] == state && told["reason"] == reason && lines.contains(words);
            is_so.then_some(()).ok_or(answer.body)
        })
        .await;
    }
    event(&share, "GPUWorkload", "waits", "FailedScheduling", "lacks 2 free GPUs").await;
    let missing = get(scheduler.http, &format!("/explain/{}/missing", share.namespace)).unwrap();
    assert_eq!(missing.status, 404);
    scheduler.program.says("decided").await;
    let log = scheduler.program.log();
    let bound = log.lines().find(|line| line.contains("decided") && line.contains("bind "));
    let bound = bound.unwrap_or_else(|| panic!("{log}"));
    assert!(bound.contains("runs-0") && bound.contains(&node), "{bound}");
    let scored = log.lines().find(|line| line.contains("scored") && line.contains("/runs "));
    let scored = scored.unwrap_or_else(|| panic!("{log}"));
    assert!(
        scored.contains("by least_utilized; nodes that fit: 1; ") && scored.contains(&node),
        "{scored}"
    );
}
