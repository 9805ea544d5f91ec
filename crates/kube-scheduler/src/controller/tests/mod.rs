//! A small cluster around the controller: it executes the writes and simulates the kubelet.

mod assignment;
mod life;
mod loss;
mod property;

use agentaflow_kube_core::crd::WorkloadPhase;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, Workload};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{PendingReason, PlannedTask, Reconciled, SchedulerView, reconcile};

/// A workload, its pods and the time.
#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) workload: Workload,
    pub(super) pods: Vec<Pod>,
    pub(super) view: SchedulerView,
    pub(super) now: Timestamp,
    pub(super) made: u32,
    /// Reasons of all Events so far.
    pub(super) told: Vec<&'static str>,
}

fn spec_json(more: Value) -> Value {
    let mut spec = json!({
        "gpuMemoryRequired": 8192,
        "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } },
    });
    if let Value::Object(more) = more {
        more.into_iter().for_each(|(key, value)| spec[key] = value);
    }
    spec
}

impl Cluster {
    /// A new workload with these fields of its spec.
    pub(super) fn new(more: Value) -> Self {
        Self::raw(&spec_json(more))
    }

    /// A new workload with exactly this spec, valid or not.
    pub(super) fn raw(spec: &Value) -> Self {
        let workload = serde_json::from_value(json!({
            "metadata": { "name": "train", "namespace": "ml", "uid": "w-1", "generation": 1 },
            "spec": spec,
        }));
        Self {
            workload: workload.expect("a workload"),
            pods: Vec::new(),
            view: SchedulerView::default(),
            now: "2026-01-01T00:00:00.5Z".parse().expect("a time"),
            made: 0,
            told: Vec::new(),
        }
    }

    /// Reconciles without executing the result.
    pub(super) fn look(&self) -> Reconciled {
        let pods: Vec<&Pod> = self.pods.iter().collect();
        reconcile(&self.workload, &pods, &self.view, names::SCHEDULER_NAME, self.now)
    }

    /// Reconciles and executes the result.
    pub(super) fn step(&mut self) -> Reconciled {
        let said = self.look();
        for new in &said.create {
            self.make(&new.body);
        }
        for old in &said.delete {
            self.stop(&old.name);
        }
        if let Some(status) = &said.status {
            self.workload.status = status.clone();
        }
        let finalizers = self.workload.metadata.finalizers.get_or_insert_default();
        if said.remove_finalizer {
            finalizers.retain(|name| name != names::FINALIZER);
        }
        self.told.extend(said.events.iter().map(|note| note.reason));
        said
    }

    /// Reconciles until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..8 {
            let said = self.step();
            let quiet = said.create.is_empty() && said.delete.is_empty() && said.status.is_none();
            if quiet && !said.remove_finalizer {
                assert!(said.events.is_empty(), "Events without a change: {:?}", said.events);
                return;
            }
        }
        panic!("the controller does not come to rest: {:?}", self.look());
    }

    /// Advances to the next wake, and reconciles.
    pub(super) fn wait(&mut self) {
        self.now = self.look().wake.expect("a time to look again");
        self.settle();
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).expect("a time");
    }

    fn make(&mut self, body: &Value) {
        let mut pod: Pod = serde_json::from_value(body.clone()).expect("a pod");
        if self.pods.iter().any(|other| other.metadata.name == pod.metadata.name) {
            return;
        }
        self.made += 1;
        pod.metadata.uid = Some(format!("p-{}", self.made));
        pod.status.phase = Some("Pending".to_owned());
        self.pods.push(pod);
    }

    /// Deletes a pod: removed at once unless a kubelet has it.
    pub(super) fn stop(&mut self, name: &str) {
        let now = self.now;
        self.pods.retain_mut(|pod| {
            if pod.metadata.name.as_deref() != Some(name) {
                return true;
            }
            let kept = pod.spec.node_name.is_some() && !super::task_pod::finished(pod);
            let end = now.checked_add(SignedDuration::from_secs(30)).expect("a time");
            pod.metadata.deletion_timestamp.get_or_insert(Time(end));
            kept
        });
    }

    pub(super) fn vanish(&mut self, name: &str) {
        self.pods.retain(|pod| pod.metadata.name.as_deref() != Some(name));
    }

    pub(super) fn pod(&mut self, name: &str) -> &mut Pod {
        let names = self.names();
        let found = self.pods.iter_mut().find(|pod| pod.metadata.name.as_deref() == Some(name));
        found.unwrap_or_else(|| panic!("no pod {name} among {names:?}"))
    }

    /// The names of all pods in order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect();
        names.sort();
        names
    }

    pub(super) fn bind(&mut self, name: &str, node: &str) {
        self.pod(name).spec.node_name = Some(node.to_owned());
    }

    pub(super) fn run(&mut self, name: &str) {
        let now = self.now;
        let pod = self.pod(name);
        pod.spec.node_name.get_or_insert_with(|| "node-a".to_owned());
        pod.status.phase = Some("Running".to_owned());
        pod.status.start_time = Some(Time(now));
    }

    pub(super) fn succeed(&mut self, name: &str) {
        self.run(name);
        self.pod(name).status.phase = Some("Succeeded".to_owned());
    }

    /// The pod fails with this status beside its phase.
    pub(super) fn fail(&mut self, name: &str, status: Value) {
        let mut status = status;
        status["phase"] = "Failed".into();
        let pod = self.pod(name);
        pod.spec.node_name.get_or_insert_with(|| "node-a".to_owned());
        pod.status = serde_json::from_value(status).expect("a status");
    }

    /// The program of the pod fails.
    pub(super) fn crash(&mut self, name: &str) {
        self.fail(name, exit(1));
    }

    pub(super) fn waits(&mut self, code: &str, message: &str) {
        let (code, message) = (code.to_owned(), message.to_owned());
        self.view.reason = Some(PendingReason { code, message });
    }

    pub(super) fn plan(&mut self, task: u32, node: &str, gpus: &[&str]) {
        let gpus = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        self.view.planned.push(PlannedTask { task, node: node.to_owned(), gpus });
    }

    pub(super) fn phase(&self) -> Option<WorkloadPhase> {
        self.workload.status.phase
    }

    pub(super) fn condition(&self, kind: &str) -> &Condition {
        let conditions = &self.workload.status.conditions;
        conditions.iter().find(|one| one.type_ == kind).expect("the condition")
    }

    /// Status and reason of a condition: `False/NoRoom`.
    pub(super) fn status_of(&self, kind: &str) -> String {
        let condition = self.condition(kind);
        format!("{}/{}", condition.status, condition.reason)
    }

    pub(super) fn message(&self) -> &str {
        self.workload.status.message.as_deref().unwrap_or_default()
    }
}

/// The status of a pod whose container ended with this code.
pub(super) fn exit(code: i32) -> Value {
    json!({ "containerStatuses": [
        { "name": "main", "state": { "terminated": { "exitCode": code, "reason": "Error" } } }
    ] })
}
