//! Pod plans and waits for pod states.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};

use super::share::Share;
use super::wait::wait_for;

/// A pod with one container; runs until it is deleted by default.
#[derive(Debug, Clone)]
pub(crate) struct PodPlan(Value);

impl PodPlan {
    pub(crate) fn new(name: &str) -> Self {
        Self(json!({
            "metadata": {"name": name, "labels": {}, "annotations": {}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "main",
                    "image": "registry.example/main:1",
                    "resources": {"requests": {}, "limits": {}},
                }],
            },
        }))
    }

    pub(crate) fn gpus(self, count: u32) -> Self {
        self.asks("nvidia.com/gpu", &count.to_string())
    }

    /// Request and limit of the container.
    pub(crate) fn asks(mut self, resource: &str, quantity: &str) -> Self {
        for part in ["requests", "limits"] {
            self.0["spec"]["containers"][0]["resources"][part][resource] = json!(quantity);
        }
        self
    }

    /// `schedulerName`; kube-scheduler by default.
    pub(crate) fn scheduler(self, name: &str) -> Self {
        self.spec("schedulerName", json!(name))
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Any field of the pod's spec.
    pub(crate) fn spec(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// Any field of the container.
    pub(crate) fn container(mut self, field: &str, value: Value) -> Self {
        self.0["spec"]["containers"][0][field] = value;
        self
    }

    /// Start delay, such as `2s`.
    pub(crate) fn start_after(self, time: &str) -> Self {
        self.annotation("kwok.agentaflow.io/start-after", time)
    }

    /// Time from start to success.
    pub(crate) fn complete_after(self, time: &str) -> Self {
        self.annotation("kwok.agentaflow.io/complete-after", time)
    }

    /// Time from start to failure, and the exit code.
    pub(crate) fn fail_after(self, time: &str, code: u8) -> Self {
        self.annotation("kwok.agentaflow.io/fail-after", time)
            .annotation("kwok.agentaflow.io/exit-code", &code.to_string())
    }

    /// Duration of its termination.
    pub(crate) fn stop_after(self, time: &str) -> Self {
        self.annotation("kwok.agentaflow.io/stop-after", time)
    }

    pub(crate) fn pod(&self) -> Pod {
        serde_json::from_value(self.0.clone()).expect("a pod")
    }

    /// The pod as JSON, with fields that the client's types may lack.
    pub(crate) fn object(&self) -> Value {
        let mut object = self.0.clone();
        (object["apiVersion"], object["kind"]) = (json!("v1"), json!("Pod"));
        object
    }

    /// `metadata` (without a name) and `spec`, for jobs and deployments.
    pub(crate) fn template(&self) -> Value {
        let mut template = self.0.clone();
        if let Some(metadata) = template["metadata"].as_object_mut() {
            metadata.remove("name");
        }
        template
    }
}

/// Traces of the scheduler that bound a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Binder {
    /// Reporter of the Event `Scheduled`.
    pub(crate) reporter: Option<String>,
    /// Annotation written with the binding.
    pub(crate) assigned_node: Option<String>,
}

impl Share {
    pub(crate) async fn create_pod(&self, plan: &PodPlan) -> Pod {
        let pods = self.api::<Pod>();
        pods.create(&PostParams::default(), &plan.pod()).await.expect("a new pod")
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        self.api::<Pod>().get_opt(name).await.expect("an answer about a pod")
    }

    /// Pods of the share's namespace by label selector; all with `""`.
    pub(crate) async fn pods(&self, selector: &str) -> Vec<Pod> {
        let wish = ListParams::default().labels(selector);
        self.api::<Pod>().list(&wish).await.expect("a list of pods").items
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        let deleted = self.api::<Pod>().delete(name, &DeleteParams::default()).await;
        deleted.expect("the pod is deleted");
    }

    /// Log of a pod, or the error of reading it.
    pub(crate) async fn log(&self, name: &str) -> String {
        let log = self.api::<Pod>().logs(name, &LogParams::default()).await;
        log.unwrap_or_else(|error| error.to_string())
    }

    /// Waits until the pod has a node; returns its name.
    pub(crate) async fn bound(&self, name: &str) -> String {
        self.wait_pod(name, "bound", |pod| pod.spec.as_ref()?.node_name.clone()).await
    }

    /// Waits until the pod is `Running`, `Succeeded` or `Failed`.
    pub(crate) async fn in_phase(&self, name: &str, phase: &str) -> Pod {
        self.wait_pod(name, phase, |pod| {
            (pod.status.as_ref()?.phase.as_deref() == Some(phase)).then(|| pod.clone())
        })
        .await
    }

    /// Waits until the pod is gone.
    pub(crate) async fn wait_deleted(&self, name: &str) {
        wait_for(&format!("pod {name} gone"), async || match self.pod(name).await {
            None => Ok(()),
            Some(pod) => Err(state(&pod)),
        })
        .await;
    }

    /// Waits until `find` returns a value for the pod.
    pub(crate) async fn wait_pod<T>(
        &self,
        name: &str,
        what: &str,
        find: impl Fn(&Pod) -> Option<T>,
    ) -> T {
        wait_for(&format!("pod {name} {what}"), async || {
            let pod = self.pod(name).await.ok_or("there is no such pod")?;
            find(&pod).ok_or_else(|| state(&pod))
        })
        .await
    }

    /// Waits for the Event `Scheduled`, which follows the binding.
    pub(crate) async fn bound_by(&self, name: &str) -> Binder {
        let assigned_node = self.wait_pod(name, "bound", |pod| {
            pod.spec.as_ref()?.node_name.as_ref()?;
            let annotations = pod.metadata.annotations.as_ref();
            Some(annotations.and_then(|all| all.get("agentaflow.gpu/assigned-node").cloned()))
        });
        let assigned_node = assigned_node.await;
        let reporter = wait_for(&format!("the event Scheduled of pod {name}"), async || {
            let events = self.events(name).await;
            let scheduled =
                events.iter().find(|event| event.reason.as_deref() == Some("Scheduled"));
            scheduled.map(reporter).ok_or_else(|| format!("{} other events", events.len()))
        })
        .await;
        Binder { reporter, assigned_node }
    }

    /// The events about an object of the share's namespace.
    pub(crate) async fn events(&self, about: &str) -> Vec<Event> {
        let wish = ListParams::default().fields(&format!("involvedObject.name={about}"));
        self.api::<Event>().list(&wish).await.expect("a list of events").items
    }
}

fn reporter(event: &Event) -> Option<String> {
    let named = |name: Option<&String>| name.filter(|name| !name.is_empty()).cloned();
    let source = event.source.as_ref().and_then(|source| source.component.as_ref());
    named(event.reporting_component.as_ref()).or_else(|| named(source))
}

/// One line about a pod, for messages.
pub(crate) fn state(pod: &Pod) -> String {
    let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
    let node = spec.and_then(|spec| spec.node_name.as_deref()).unwrap_or("no node");
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("no phase");
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let troubles = conditions.iter().filter(|condition| condition.status != "True");
    let troubles: Vec<String> = troubles
        .map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!(
                "{}: {reason} {}",
                condition.type_,
                condition.message.as_deref().unwrap_or_default()
            )
        })
        .collect();
    let deleted = if pod.metadata.deletion_timestamp.is_some() { ", being deleted" } else { "" };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{name}: {phase} on {node}{deleted} [{}]", troubles.join("; "))
}
