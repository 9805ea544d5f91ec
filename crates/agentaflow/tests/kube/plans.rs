//! Builders and observers of `GPUWorkload` objects and bindings.

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::support::{PodPlan, Share, wait_for};

/// A workload with one pod and one GPU for the scheduler of the share.
#[derive(Debug, Clone)]
pub(crate) struct WorkloadPlan(Value);

impl WorkloadPlan {
    /// Sets the pod template.
    pub(crate) fn new(share: &Share, name: &str, pods: &PodPlan) -> Self {
        let template = pods.clone().scheduler(&share.scheduler_name()).template();
        Self(json!({
            "apiVersion": "agentaflow.io/v1",
            "kind": "GPUWorkload",
            "metadata": {"name": name, "namespace": share.namespace},
            "spec": {
                "gpuMemoryRequired": 0,
                "gpuRequirements": {"gpuCount": 1},
                "podTemplate": template,
            },
        }))
    }

    pub(crate) fn gpus(mut self, count: u32) -> Self {
        self.0["spec"]["gpuRequirements"]["gpuCount"] = json!(count);
        self
    }

    pub(crate) fn namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = json!(namespace);
        self
    }

    /// Sets a field of the spec.
    pub(crate) fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    pub(crate) async fn create(&self, share: &Share) {
        share.apply_object(self.0.clone()).await;
    }
}

pub(crate) async fn workload(share: &Share, name: &str) -> Option<Value> {
    let answer = share.request("GET", &path(share, name), None).await;
    (answer.status == 200).then(|| answer.json())
}

/// Waits until `find` returns a value.
pub(crate) async fn wait_workload<T>(
    share: &Share,
    name: &str,
    what: &str,
    find: impl Fn(&Value) -> Option<T>,
) -> T {
    wait_for(&format!("workload {name} {what}"), async || {
        let object = workload(share, name).await.ok_or("there is no such workload")?;
        find(&object).ok_or_else(|| object["status"].to_string())
    })
    .await
}

/// Waits for a phase; returns the status.
pub(crate) async fn in_phase(share: &Share, name: &str, phase: &str) -> Value {
    wait_workload(share, name, phase, |object| {
        (object["status"]["phase"] == phase).then(|| object["status"].clone())
    })
    .await
}

/// Waits for a pending reason.
pub(crate) async fn waits_because(share: &Share, name: &str, reason: &str) {
    wait_workload(share, name, reason, |object| {
        let reported = condition(&object["status"], "Schedulable");
        (reported["status"] == "False" && reported["reason"] == reason).then_some(())
    })
    .await;
}

/// A condition of a status, or null.
pub(crate) fn condition(status: &Value, kind: &str) -> Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

pub(crate) async fn delete_workload(share: &Share, name: &str) {
    let answer = share.request("DELETE", &path(share, name), None).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Waits until the scheduler under test binds a pod; returns the node.
#[track_caller]
pub(crate) fn placed_by_us(share: &Share, pod: &str) -> impl Future<Output = String> {
    let place = std::panic::Location::caller();
    async move {
        let node = share.bound(pod).await;
        let binder = share.bound_by(pod).await;
        assert_eq!(binder.assigned_node, Some(node.clone()), "{place}: {pod}: {binder:?}");
        assert_eq!(binder.reporter.as_deref(), Some("agentaflow"), "{place}: {pod}");
        node
    }
}

/// Waits for the reason of PodScheduled=False.
pub(crate) async fn pod_waits(share: &Share, pod: &str, reason: &str) {
    share
        .wait_pod(pod, reason, |pod| {
            let conditions = pod.status.as_ref()?.conditions.as_ref()?;
            let reported = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
            (reported.status == "False" && reported.reason.as_deref() == Some(reason)).then_some(())
        })
        .await;
}

/// Waits for an event with this reason.
pub(crate) async fn event(share: &Share, kind: &str, name: &str, reason: &str) {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", share.namespace);
    wait_for(&format!("an event {reason} of {kind} {name}"), async || {
        let all = share.request("GET", &path, None).await.json();
        let is_about = |event: &&Value| {
            event["regarding"]["kind"] == kind && event["regarding"]["name"] == name
        };
        let own = all["items"].as_array().into_iter().flatten().filter(is_about);
        let reasons: Vec<&str> = own.filter_map(|event| event["reason"].as_str()).collect();
        reasons.contains(&reason).then_some(()).ok_or_else(|| format!("{reasons:?}"))
    })
    .await;
}

/// Serializes tests that use the default schedulerName or the webhook.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

fn path(share: &Share, name: &str) -> String {
    format!("/apis/agentaflow.io/v1/namespaces/{}/gpuworkloads/{name}", share.namespace)
}
