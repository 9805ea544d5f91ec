//! Pending reasons as stored: conditions and events of pods, statuses of queues, and the explain endpoint.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::plans::{event, placed_by_us, pod_waits};
use crate::support::{NodePlan, Scheduler, Share, get, wait_for};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn pending_pods_have_a_condition_an_event_and_an_explanation() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(8)).await;
    let scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let pod = |name: &str| share.one_gpu(name);
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]);
    let gates = json!([{"name": "example.com/wait"}]);
    let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]);
    let table = [
        (pod("claims").spec("resourceClaims", claims), "Unsupported", "Parked", "Unsupported"),
        (
            pod("odd").annotation("agentaflow.gpu/scheduling-strategy", "magic"),
            "InvalidAnnotation",
            "Parked",
            "InvalidAnnotation",
        ),
        (pod("volume").spec("volumes", volume), "WaitingForVolume", "Parked", "WaitingForVolume"),
        (pod("vast").gpus(64), "Unschedulable", "Pending", "NeverFits"),
    ];
    share.create_pod(&pod("gated").spec("schedulingGates", gates)).await;
    for (plan, ..) in &table {
        share.create_pod(plan).await;
    }
    // Kueue is not installed, and no queue has this name.
    share.create_pod(&pod("kueue").label("kueue.x-k8s.io/queue-name", "research")).await;
    assert_eq!(placed_by_us(&share, "kueue").await, node);
    for (plan, condition, state, reason) in &table {
        let name = plan.pod().metadata.name.expect("a name");
        pod_waits(&share, &name, condition).await;
        // `kubectl describe` shows events, not messages of conditions.
        event(&share, "Pod", &name, "FailedScheduling").await;
        assert_eq!(share.pod(&name).await.unwrap().spec.unwrap().node_name, None);
        let path = format!("/explain/{}/{name}", share.namespace);
        let explanation = get(scheduler.http, &path).expect("a response").json();
        assert_eq!(
            (explanation["state"].as_str(), explanation["reason"].as_str()),
            (Some(*state), Some(*reason)),
            "{explanation}"
        );
    }
    let path = format!("/explain/{}/missing", share.namespace);
    let missing = get(scheduler.http, &path).expect("a response");
    assert_eq!((missing.status, missing.json()["code"].as_str()), (404, Some("not_found")));
    // The API server writes the condition of a gated pod; the scheduler keeps it.
    pod_waits(&share, "gated", "SchedulingGated").await;
    let path = format!("/api/v1/namespaces/{}/pods/gated", share.namespace);
    let answer =
        share.request("PATCH", &path, Some(&json!({"spec": {"schedulingGates": []}}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(placed_by_us(&share, "gated").await, node);
}

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn queue_changes_reach_pending_pods_and_queue_statuses() {
    let share = Share::new().await;
    share.node("a", &NodePlan::gpus(8)).await;
    share.apply_file("deploy/crds").await;
    let own = json!({"namespaces": [share.namespace], "limit": {"gpus": 1}});
    share.apply_object(queue(&share, "team", &own)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&share.one_gpu("first")).await;
    placed_by_us(&share, "first").await;
    share.create_pod(&share.one_gpu("second")).await;
    // Not `Unschedulable`, since more nodes would not help.
    pod_waits(&share, "second", "QuotaExceeded").await;
    let path = format!("/apis/agentaflow.io/v1/gpuqueues/team-{}", share.id);
    wait_for("the status of the queue", async || {
        let status = share.request("GET", &path, None).await.json()["status"].clone();
        let counts = (&status["usedMilliGpus"], &status["running"], &status["pending"]);
        let counted = counts == (&json!(1000), &json!(1), &json!(1));
        counted.then_some(()).ok_or_else(|| status.to_string())
    })
    .await;

    let late = format!("late-{}", share.id);
    share.create_pod(&share.one_gpu("third").annotation("agentaflow.gpu/queue", &late)).await;
    pod_waits(&share, "third", "QueueMissing").await;
    let since = pending_since(&share, "third").await;
    // Timestamps have whole seconds.
    let left = (since + Duration::from_secs(1)).duration_since(jiff::Timestamp::now());
    tokio::time::sleep(left.unsigned_abs().min(Duration::from_secs(1))).await;
    share.apply_object(queue(&share, "late", &json!({"namespaces": ["elsewhere"]}))).await;
    pod_waits(&share, "third", "QueueForbidden").await;
    assert_eq!(pending_since(&share, "third").await, since, "the pod was pending all the time");
    let both = json!({"namespaces": ["elsewhere", share.namespace]});
    share.apply_object(queue(&share, "late", &both)).await;
    placed_by_us(&share, "third").await;
}

/// A queue with a unique name.
fn queue(share: &Share, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "agentaflow.io/v1",
        "kind": "GPUQueue",
        "metadata": {"name": format!("{name}-{}", share.id)},
        "spec": spec,
    })
}

/// Transition time of `PodScheduled`.
async fn pending_since(share: &Share, name: &str) -> jiff::Timestamp {
    let since = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
        Some(scheduled.last_transition_time.as_ref()?.0)
    };
    share.wait_pod(name, "a transition time", since).await
}
