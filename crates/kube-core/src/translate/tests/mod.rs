//! Tables of pods, clusters and eligible nodes, evaluated by a real engine.

#![allow(clippy::needless_pass_by_value, reason = "tables are made of JSON literals")]

mod between;
mod capacity;
mod gpus;
mod holding;
mod hostile;
mod nodes;
mod ports;
mod resources;
mod volumes;

use agentaflow_engine::{
    Decision, Event, FitSummary, NodeId, Request, Scheduler, Time, WaitReason, Workload,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::{Namespaces, Obstacle, PodDemand, TranslationContext, Volumes};
use crate::slim::{Node, Pod};

/// Cluster state from the API server.
#[derive(Default)]
pub(super) struct Cluster {
    nodes: Vec<Value>,
    pods: Vec<Pod>,
    csi: BTreeMap<String, Value>,
    pub(super) volumes: Volumes,
    pub(super) namespaces: Namespaces,
}

pub(super) fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the API")
}

/// A pod of the namespace `default` with this spec; containers are optional.
pub(super) fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "new", "namespace": "default", "uid": "u-new"}, "spec": spec})
}

/// Pod with one container and these resources.
pub(super) fn asking(requests: Value) -> Value {
    pod(json!({"containers": [{"name": "main", "resources": {"requests": requests}}]}))
}

/// Nodes with these names and labels.
pub(super) fn nodes<const N: usize>(nodes: [(&str, Value); N]) -> Cluster {
    let mut cluster = Cluster::default();
    for (name, labels) in nodes {
        cluster.nodes.push(json!({"metadata": {"name": name, "labels": labels}}));
    }
    cluster
}

impl Cluster {
    /// Adds a node; missing usual resources are filled in.
    pub(super) fn with_node(mut self, node: Value) -> Self {
        self.nodes.push(node);
        self
    }

    /// Adds a foreign pod on a node.
    pub(super) fn with_pod(mut self, node: &str, labels: Value, spec: Value) -> Self {
        self.pods.push(read(json!({
            "metadata": {"name": format!("p{}", self.pods.len()), "namespace": "default", "labels": labels},
            "spec": spec,
        })));
        self.pods.last_mut().unwrap().spec.node_name = Some(node.to_owned());
        self
    }

    /// Puts the last pod into another namespace.
    pub(super) fn in_namespace(mut self, namespace: &str) -> Self {
        self.pods.last_mut().unwrap().metadata.namespace = Some(namespace.to_owned());
        self
    }

    /// Marks the last pod as terminating.
    pub(super) fn leaving(mut self) -> Self {
        let pod = self.pods.last_mut().unwrap();
        pod.metadata.deletion_timestamp = Some(read(json!("2026-01-01T00:00:00Z")));
        self
    }

    pub(super) fn with_namespace(mut self, name: &str, labels: Value) -> Self {
        self.namespaces.set(&read(json!({"metadata": {"name": name, "labels": labels}})));
        self
    }

    pub(super) fn with_claim(mut self, name: &str, metadata: Value, spec: Value) -> Self {
        let mut claim = json!({"metadata": metadata, "spec": spec});
        claim["metadata"]["name"] = name.into();
        claim["metadata"]["namespace"] = "default".into();
        self.volumes.set_claim(read(claim));
        self
    }

    pub(super) fn with_volume(mut self, name: &str, labels: Value, spec: Value) -> Self {
        let mut volume =
            json!({"metadata": {"labels": labels}, "spec": spec, "status": {"phase": "Available"}});
        volume["metadata"]["name"] = name.into();
        self.volumes.set_volume(read(volume));
        self
    }

    pub(super) fn with_class(mut self, name: &str, mut class: Value) -> Self {
        class["metadata"] = json!({"name": name});
        self.volumes.set_class(read(class));
        self
    }

    /// Adds a driver with or without capacity reports.
    pub(super) fn with_driver(mut self, name: &str, tells: bool) -> Self {
        let driver = json!({"metadata": {"name": name}, "spec": {"storageCapacity": tells}});
        self.volumes.set_driver(&read(driver));
        self
    }

    pub(super) fn with_capacity(mut self, name: &str, mut output: Value) -> Self {
        output["metadata"] = json!({"name": name, "namespace": "csi"});
        self.volumes.set_capacity(read(output));
        self
    }

    pub(super) fn with_csi(mut self, node: &str, drivers: Value) -> Self {
        let csi = json!({"metadata": {"name": node}, "spec": {"drivers": drivers}});
        self.volumes.set_csi_node(&read(csi.clone()));
        self.csi.insert(node.to_owned(), csi);
        self
    }

    pub(super) fn around(&self) -> TranslationContext<'_> {
        TranslationContext { volumes: &self.volumes, namespaces: &self.namespaces }
    }

    pub(super) fn translate(&self, pod: Value) -> Result<PodDemand, Obstacle> {
        super::pod(&read(pod), &self.around())
    }

    /// An engine with the state of the cluster.
    fn engine(&self) -> Scheduler {
        let mut engine = Scheduler::default();
        let mut tell =
            |event| engine.apply(Time(0), event).expect("the engine accepts what is translated");
        for value in &self.nodes {
            let mut node: Node = read(value.clone());
            let allocatable = node.status.allocatable.get_or_insert_default();
            for (name, amount) in
                [("cpu", "4"), ("memory", "8Gi"), ("ephemeral-storage", "10Gi"), ("pods", "110")]
            {
                allocatable.entry(name.to_owned()).or_insert_with(|| read(json!(amount)));
            }
            let name = node.metadata.name.clone().unwrap();
            let csi = self.csi.get(&name).cloned().map(read);
            let mut view = super::node(&node, None, csi.as_ref());
            self.volumes.lift_limits(&mut view.node);
            tell(Event::NodeUpdated(Box::new(view.node)));
        }
        for pod in &self.pods {
            let node = NodeId::from(pod.spec.node_name.as_deref().unwrap());
            let id = pod.metadata.name.as_deref().unwrap().into();
            let uses = Box::new(super::foreign(pod, &self.around()));
            tell(Event::ForeignUseUpdated { node, id, usage: uses });
        }
        engine
    }
}

/// Asserts the eligible nodes of a pod: their names, their common shortfall, or its obstacle.
#[track_caller]
pub(super) fn check(cluster: &Cluster, pod: Value, expected: &str) {
    let shown = pod.clone();
    let got = match cluster.translate(pod) {
        Err(obstacle) => output(&obstacle),
        Ok(asked) => {
            let engine = cluster.engine();
            let names = cluster.nodes.iter().map(|node| node["metadata"]["name"].as_str().unwrap());
            let fits = |name: &&str| {
                let request = Request { node: Some((*name).into()), ..asked.request.clone() };
                place(engine.clone(), request).is_ok()
            };
            let fitting: Vec<_> = names.filter(fits).collect();
            if fitting.is_empty() {
                place(engine, asked.request).unwrap_err()
            } else {
                fitting.join(" ")
            }
        }
    };
    assert_eq!(got, expected, "{shown:#}");
}

/// Checks the node that the engine chooses for a pod, or the shortfalls of all nodes.
#[track_caller]
pub(super) fn check_lands(cluster: &Cluster, pod: Value, expected: &str) {
    let shown = pod.clone();
    let got = match cluster.translate(pod) {
        Err(obstacle) => output(&obstacle),
        Ok(asked) => place(cluster.engine(), asked.request).unwrap_or_else(|lacks| lacks),
    };
    assert_eq!(got, expected, "{shown:#}");
}

fn output(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Unsupported { field, .. } => format!("unsupported {field}"),
        Obstacle::NotYet { reason } | Obstacle::NoStorage { reason } => reason.clone(),
        Obstacle::Gated(_) => obstacle.to_string(),
    }
}

/// Node of a task, or the shortfall of all nodes.
fn place(mut engine: Scheduler, request: Request) -> Result<String, String> {
    let workload = Workload::new("new", request);
    engine
        .apply(Time(0), Event::Submitted(Box::new(workload)))
        .expect("the engine accepts what is translated");
    match engine.decide(Time(0)).decisions.into_iter().next() {
        Some(Decision::Place(placement)) => Ok(placement.node.to_string()),
        Some(Decision::Wait { reason, .. }) => Err(lacks(&reason)),
        other => panic!("{other:?}"),
    }
}

/// Kinds of shortfall, in alphabetical order.
fn lacks(reason: &WaitReason) -> String {
    let (WaitReason::NoRoom(FitSummary { shortfalls: lacks, .. })
    | WaitReason::NeverFits(FitSummary { shortfalls: lacks, .. })
    | WaitReason::Gang { summary: FitSummary { shortfalls: lacks, .. }, .. }) = reason
    else {
        return format!("{reason:?}");
    };
    let kind = |lack: &agentaflow_engine::Shortfall| {
        let text = format!("{lack:?}");
        text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
    };
    let kinds: std::collections::BTreeSet<_> = lacks.iter().map(|(lack, _)| kind(lack)).collect();
    format!("no: {}", kinds.into_iter().collect::<Vec<_>>().join(" "))
}
