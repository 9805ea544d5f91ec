//! Writes reports to the API server. Writes are idempotent: an unconfirmed write is repeated.

use agentaflow_kube_core::crd::GpuNode;
use agentaflow_kube_core::{names, slim};
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::diff::{LastWrites, diff};
use super::observation::{PodDevices, PodName};
use super::observe::{NodeEvent, Report};
use super::run::Settings;
use super::serve::Liveness;
use super::{FIELD_MANAGER, MonitorError, watch};

/// Most events queued while the API server is unreachable; the oldest are dropped.
const MOST_EVENTS: usize = 100;

pub(super) struct Publisher {
    client: Client,
    namespace: String,
    again_after: Duration,
    patience: Duration,
    liveness: Arc<Liveness>,
    written: LastWrites,
    generation: Option<i64>,
    events: VecDeque<(NodeEvent, Timestamp, u64)>,
    told: u64,
    /// Pods whose patch was rejected; each is logged once.
    refused: BTreeSet<PodName>,
}

impl Publisher {
    pub(super) fn new(client: Client, settings: &Settings, liveness: Arc<Liveness>) -> Self {
        let Settings { interval, refresh, namespace, .. } = settings.clone();
        // The next write is one interval later.
        let again_after = refresh.saturating_sub(interval);
        // A hanging call must not fail the liveness probe.
        let patience = (interval * 2).clamp(Duration::from_secs(1), Duration::from_secs(10));
        Self {
            client,
            namespace,
            again_after,
            patience,
            liveness,
            written: LastWrites::default(),
            generation: None,
            events: VecDeque::new(),
            told: 0,
            refused: BTreeSet::new(),
        }
    }

    /// `GPUNode` of an earlier monitor.
    pub(super) async fn read(&self, node: &str) -> Result<Option<GpuNode>, MonitorError> {
        let api = self.gpu_nodes();
        self.call("read the GPUNode", api.get_opt(node)).await
    }

    /// Queues events for the next write.
    pub(super) fn tell(&mut self, events: Vec<NodeEvent>, now: Timestamp) {
        for event in events {
            tracing::info!(reason = event.reason, "{}", event.note);
            self.events.push_back((event, now, self.told));
            self.told += 1;
        }
        while self.events.len() > MOST_EVENTS {
            self.events.pop_front();
        }
    }

    /// Writes the differences.
    pub(super) async fn publish(
        &mut self,
        node: &slim::Node,
        report: &Report,
        now: Timestamp,
    ) -> Result<(), MonitorError> {
        let writes = diff(&self.written, node, report, now, self.again_after);
        if writes.spec {
            self.write_spec(node, report).await?;
        }
        if writes.status {
            self.write_status(report, now).await?;
        }
        if let Some(patch) = &writes.node {
            let api: Api<slim::Node> = Api::all(self.client.clone());
            self.patch(&api, &report.spec.node_name, patch, "label the node").await?;
        }
        if writes.line {
            self.written.line = Some((report.line.clone(), now));
        }
        self.write_events(node).await
    }

    /// Annotates pods with their devices. A rejected pod does not block the rest.
    pub(super) async fn annotate(
        &mut self,
        pods: &[Arc<slim::Pod>],
        holders: &PodDevices,
    ) -> Result<(), MonitorError> {
        for pod in pods {
            let Some(patch) = pod_patch(pod, holders) else { continue };
            let name = watch::name(pod);
            let api: Api<slim::Pod> = Api::namespaced(self.client.clone(), &name.namespace);
            let what = format!("annotate pod `{name}`");
            match self.patch(&api, &name.name, &patch, &what).await {
                // The pod was deleted or replaced: the API server rejects a patch with another UID.
                Err(MonitorError::Api { source, .. }) if is_code(&source, &[404, 409, 422]) => {}
                Err(MonitorError::Api { source, .. }) if is_refusal(&source) => {
                    if self.refused.insert(name) {
                        tracing::warn!("cannot {what}: {source}");
                    }
                }
                other => other?,
            }
        }
        self.refused.retain(|name| holders.pods.contains_key(name));
        Ok(())
    }

    fn gpu_nodes(&self) -> Api<GpuNode> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn write_spec(&mut self, node: &slim::Node, report: &Report) -> Result<(), MonitorError> {
        let name = &report.spec.node_name;
        let object = json!({
            "apiVersion": "agentaflow.io/v1",
            "kind": "GPUNode",
            "metadata": {
                "name": name,
                "labels": { names::MANAGED_BY: names::FIELD_MANAGER },
                // Deleted with its node.
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": name,
                    "uid": node.metadata.uid,
                }],
            },
            "spec": report.spec,
        });
        let (api, patch) = (self.gpu_nodes(), Patch::Apply(object));
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written = self.call("write the GPUNode", api.patch(name, &params, &patch)).await?;
        self.generation = written.metadata.generation;
        self.written.spec = Some(report.spec.clone());
        Ok(())
    }

    async fn write_status(&mut self, report: &Report, now: Timestamp) -> Result<(), MonitorError> {
        let name = &report.spec.node_name;
        let mut status = report.status.clone();
        for condition in &mut status.conditions {
            condition.observed_generation = self.generation;
        }
        let object = json!({
            "apiVersion": "agentaflow.io/v1",
            "kind": "GPUNode",
            "metadata": { "name": name },
            "status": status,
        });
        let (api, patch) = (self.gpu_nodes(), Patch::Apply(object));
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let written =
            self.call("write the GPUNode's status", api.patch_status(name, &params, &patch)).await;
        if let Err(MonitorError::Api { source, .. }) = &written
            && is_code(source, &[404])
        {
            // Deleted: create it again.
            self.written.spec = None;
        }
        written?;
        self.written.status = Some((report.status.clone(), now));
        Ok(())
    }

    async fn write_events(&mut self, node: &slim::Node) -> Result<(), MonitorError> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), "default");
        while let Some((happening, at, number)) = self.events.front() {
            let event = event(node, happening, *at, *number);
            match self.call("write an event", api.create(&PostParams::default(), &event)).await {
                Err(MonitorError::Api { source, .. }) if is_code(&source, &[409]) => {}
                Err(MonitorError::Api { source, .. }) if is_refusal(&source) => {
                    tracing::warn!("event dropped: {source}");
                }
                other => {
                    other?;
                }
            }
            self.events.pop_front();
        }
        Ok(())
    }

    async fn patch<K>(
        &self,
        api: &Api<K>,
        name: &str,
        patch: &Value,
        what: &str,
    ) -> Result<(), MonitorError>
    where
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
        self.call(what, api.patch(name, &params, &Patch::Merge(patch))).await.map(|_| ())
    }

    async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, MonitorError> {
        let answer = tokio::time::timeout(self.patience, call).await;
        self.liveness.record();
        match answer {
            Ok(answer) => answer.map_err(|source| MonitorError::Api {
                what: what.into(),
                source: Box::new(source),
            }),
            Err(_) => Err(MonitorError::Slow(what.into())),
        }
    }
}

/// Patch with a pod's devices, if they are known and not annotated yet. The UID protects a pod with the same name.
fn pod_patch(pod: &slim::Pod, holders: &PodDevices) -> Option<Value> {
    let devices = holders.pods.get(&watch::name(pod))?;
    let devices = devices.keys().map(String::as_str).collect::<Vec<_>>().join(",");
    let told = pod.metadata.annotations.as_ref().and_then(|all| all.get(names::POD_DEVICES));
    if told == Some(&devices) {
        return None;
    }
    Some(
        json!({"metadata": {"uid": pod.metadata.uid, "annotations": {names::POD_DEVICES: devices}}}),
    )
}

/// Event about the node, named after its time: a repeated write is the same event.
fn event(node: &slim::Node, happening: &NodeEvent, at: Timestamp, number: u64) -> Event {
    let name = node.metadata.name.clone().unwrap_or_default();
    let unique = format!("{:x}.{number:x}", at.as_second());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{}.{unique}", happening.reason.to_lowercase())),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            uid: node.metadata.uid.clone(),
            name: Some(name.clone()),
            ..ObjectReference::default()
        },
        type_: Some(if happening.warning { "Warning" } else { "Normal" }.into()),
        reason: Some(happening.reason.into()),
        message: Some(happening.note.clone()),
        count: Some(1),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        source: Some(EventSource {
            component: Some(FIELD_MANAGER.into()),
            host: Some(name.clone()),
        }),
        reporting_component: Some(FIELD_MANAGER.into()),
        reporting_instance: Some(name),
        ..Event::default()
    }
}

/// True if a retry would be rejected, too, for example by an admission policy.
fn is_refusal(error: &kube::Error) -> bool {
    let passing = [401, 408, 429];
    let code = |status: &kube::core::Status| status.code;
    matches!(error, kube::Error::Api(status)
        if (400..500).contains(&code(status)) && !passing.contains(&code(status)))
}

fn is_code(error: &kube::Error, codes: &[u16]) -> bool {
    matches!(error, kube::Error::Api(status) if codes.contains(&status.code))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Publisher with an API server that rejects writes to pod `guarded`, and the accepted paths.
    fn publisher() -> (Publisher, Arc<Mutex<Vec<String>>>) {
        let passed = Arc::new(Mutex::new(Vec::new()));
        let paths = passed.clone();
        let answer = move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let refused = path.ends_with("/guarded") || path.ends_with("/events");
            let code = if refused { 403 } else { 200 };
            let mut body = json!({});
            if refused {
                body = json!({"kind": "Status", "status": "Failure", "code": code});
            } else {
                paths.lock().unwrap().push(path);
            }
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body);
            std::future::ready(answer.map_err(std::io::Error::other))
        };
        let publisher = Publisher {
            client: Client::new(tower::service_fn(answer), "default"),
            namespace: "agentaflow".into(),
            again_after: Duration::ZERO,
            patience: Duration::from_secs(10),
            liveness: Arc::new(Liveness::new(Duration::from_secs(10))),
            written: LastWrites::default(),
            generation: None,
            events: VecDeque::new(),
            told: 0,
            refused: BTreeSet::new(),
        };
        (publisher, passed)
    }

    #[tokio::test]
    async fn a_write_that_a_policy_rejects_does_not_block_other_writes() {
        let (mut publisher, passed) = publisher();
        let mut holders = PodDevices::default();
        let pods = ["guarded", "train"].map(|name| {
            let name = PodName { namespace: "ml".into(), name: name.into() };
            holders.pods.insert(name.clone(), [("GPU-a".to_owned(), 1_000)].into());
            let metadata = json!({"name": name.name, "namespace": name.namespace, "uid": "1"});
            Arc::new(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        });
        publisher.annotate(&pods, &holders).await.unwrap();
        assert_eq!(*passed.lock().unwrap(), ["/api/v1/namespaces/ml/pods/train"]);
        let happening = NodeEvent { warning: true, reason: "GPULost", note: "it is lost".into() };
        publisher.tell(vec![happening], Timestamp::UNIX_EPOCH);
        publisher.write_events(&slim::Node::default()).await.unwrap();
        assert!(publisher.events.is_empty());
    }

    fn pod(told: Option<&str>) -> slim::Pod {
        let annotations = told.map(|told| json!({names::POD_DEVICES: told}));
        let metadata =
            json!({"name": "train", "namespace": "ml", "uid": "1", "annotations": annotations});
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn the_devices_of_a_pod_are_written_once() {
        let mut holders = PodDevices::default();
        assert_eq!(pod_patch(&pod(None), &holders), None);
        let name = PodName { namespace: "ml".into(), name: "train".into() };
        let devices = ["GPU-b", "GPU-a"].map(|id| (id.to_owned(), 1_000));
        holders.pods.insert(name, devices.into());
        let patch = pod_patch(&pod(Some("GPU-a")), &holders).unwrap();
        assert_eq!(patch["metadata"]["annotations"][names::POD_DEVICES], "GPU-a,GPU-b");
        assert_eq!(patch["metadata"]["uid"], "1");
        assert_eq!(pod_patch(&pod(Some("GPU-a,GPU-b")), &holders), None);
    }
}
