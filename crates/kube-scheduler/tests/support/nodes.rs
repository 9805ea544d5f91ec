//! Nodes simulated by KWOK, each for one test.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::share::{OWNER, Share};
use super::wait::wait_for;

#[derive(Debug, Clone)]
pub(crate) struct NodePlan {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    amounts: BTreeMap<String, String>,
    taints: Vec<Taint>,
}

impl NodePlan {
    /// 64 CPUs, 512 GiB of memory, 110 pods, no GPU.
    pub(crate) fn plain() -> Self {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Self {
            labels: text(&[("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")]),
            annotations: text(&[("kwok.x-k8s.io/node", "fake")]),
            amounts: text(&[
                ("cpu", "64"),
                ("memory", "512Gi"),
                ("ephemeral-storage", "1Ti"),
                ("pods", "110"),
            ]),
            taints: Vec::new(),
        }
    }

    /// A node with A100s of 80 GiB and the labels of NVIDIA's feature discovery.
    pub(crate) fn gpus(count: u32) -> Self {
        let count = count.to_string();
        Self::plain()
            .amount("nvidia.com/gpu", &count)
            .label("nvidia.com/gpu.count", &count)
            .model("NVIDIA-A100-SXM4-80GB", 81_920)
    }

    /// Another model, with MiB of memory.
    pub(crate) fn model(self, name: &str, memory: u32) -> Self {
        self.label("nvidia.com/gpu.product", name)
            .label("nvidia.com/gpu.memory", &memory.to_string())
    }

    pub(crate) fn zone(self, zone: &str) -> Self {
        self.label("topology.kubernetes.io/zone", zone)
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn without_label(mut self, key: &str) -> Self {
        self.labels.remove(key);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Capacity, all of it allocatable: `cpu`, `pods`, `nvidia.com/mig-1g.10gb`.
    pub(crate) fn amount(mut self, resource: &str, quantity: &str) -> Self {
        self.amounts.insert(resource.to_owned(), quantity.to_owned());
        self
    }

    /// `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub(crate) fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        let (key, effect) = (key.to_owned(), effect.to_owned());
        self.taints.push(Taint { key, effect, value: Some(value.to_owned()), time_added: None });
        self
    }
}

impl Share {
    /// The full name of a node that the test calls `short`.
    pub(crate) fn node_name(&self, short: &str) -> String {
        format!("{}-{short}", self.id)
    }

    /// Creates a node and waits until it is schedulable; returns its full name.
    pub(crate) async fn node(&self, short: &str, plan: &NodePlan) -> String {
        let name = self.node_name(short);
        let mut labels = plan.labels.clone();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        labels.insert(OWNER.to_owned(), self.id.clone());
        let node = json!({
            "metadata": {"name": name, "labels": labels, "annotations": plan.annotations},
            "spec": {"taints": plan.taints},
            "status": {"capacity": plan.amounts, "allocatable": plan.amounts},
        });
        let node: Node = serde_json::from_value(node).expect("a node");
        self.cluster_api().create(&PostParams::default(), &node).await.expect("a new node");
        self.wait_node(&name, "ready", is_usable).await;
        name
    }

    /// Creates `count` equal nodes `0`, `1` …; returns their full names.
    pub(crate) async fn nodes(&self, count: usize, plan: &NodePlan) -> Vec<String> {
        let mut names = Vec::new();
        for index in 0..count {
            names.push(self.node(&index.to_string(), plan).await);
        }
        names
    }

    /// Deletes the node.
    pub(crate) async fn delete_node(&self, name: &str) {
        let nodes = self.cluster_api::<Node>();
        nodes.delete(name, &DeleteParams::default()).await.expect("the node is deleted");
    }

    /// Stops the heartbeats and waits until the control plane has noticed. Transitions that KWOK has planned for the node's pods
    /// still happen.
    pub(crate) async fn darken_node(&self, name: &str) {
        self.set_dark(name, json!("true")).await;
        self.wait_node(name, "lost", |node| ready(node) == "Unknown").await;
    }

    /// Resumes the heartbeats and waits until the node is schedulable.
    pub(crate) async fn lighten_node(&self, name: &str) {
        self.set_dark(name, json!(null)).await;
        self.wait_node(name, "ready", is_usable).await;
    }

    /// Merges a patch into a node: labels, taints, `spec.unschedulable`.
    pub(crate) async fn patch_node(&self, name: &str, patch: &serde_json::Value) -> Node {
        let nodes = self.cluster_api::<Node>();
        nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("a patched node")
    }

    /// Merges a patch into a node's status: `allocatable`, conditions.
    pub(crate) async fn patch_node_status(&self, name: &str, patch: &serde_json::Value) -> Node {
        let nodes = self.cluster_api::<Node>();
        let patched = nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("a patched node")
    }

    async fn set_dark(&self, name: &str, value: serde_json::Value) {
        let patch = json!({"metadata": {"labels": {"kwok.agentaflow.io/dark": value}}});
        self.patch_node(name, &patch).await;
    }

    async fn wait_node(&self, name: &str, state: &str, is_so: impl Fn(&Node) -> bool) {
        let nodes = self.cluster_api::<Node>();
        wait_for(&format!("node {name} {state}"), async || {
            let node = nodes.get(name).await.map_err(|error| error.to_string())?;
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
            let now = format!("Ready is {}, taints are {taints:?}", ready(&node));
            is_so(&node).then_some(()).ok_or(now)
        })
        .await;
    }
}

fn ready(node: &Node) -> &str {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let found = conditions.unwrap_or_default().iter().find(|condition| condition.type_ == "Ready");
    found.map_or("not told", |condition| condition.status.as_str())
}

/// Ready and without taints of the control plane.
fn is_usable(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let by_state = |taint: &Taint| {
        ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
            .contains(&taint.key.as_str())
    };
    ready(node) == "True" && !taints.iter().any(by_state)
}
