//! GPU nodes: list, cordon, drain.

use agentaflow_api::node::Node;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{self, Pod};
use agentaflow_kube_core::translate::{closed_gpus, gpu_resources};
use k8s_openapi::api::core::v1 as core;
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Resource as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::named::is_name;
use super::node_view::{Seen, whole_name};
use super::{Cluster, Failure, list, once};

impl Cluster {
    /// GPU nodes; all nodes if none has a GPU.
    pub async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        let api: Api<core::Node> = Api::all(self.client.clone());
        let nodes = list::all(&api, ListParams::default());
        let (nodes, devices, pods, now) =
            tokio::join!(nodes, self.devices(), self.pods_on_nodes(), self.server_time());
        let (mut devices, mut pods) = (devices?, pods?);
        // Without the time, the conditions count.
        let now = now.ok().flatten();
        let mut shown: Vec<(bool, Node)> = Vec::new();
        for node in nodes? {
            let name = node.metadata.name.clone().unwrap_or_default();
            let (devices, pods) = (devices.remove(&name), pods.remove(&name).unwrap_or_default());
            let seen = Seen::new(node, devices, pods).at(now);
            shown.push((seen.has_gpus(), seen.show()));
        }
        if shown.iter().any(|(gpus, _)| *gpus) {
            shown.retain(|(gpus, _)| *gpus);
        }
        shown.sort_by(|a, b| a.1.node_id.cmp(&b.1.node_id));
        Ok(shown.into_iter().map(|(_, node)| node).collect())
    }

    /// Cordons or uncordons a node or one of its GPUs (`node/gpu`). Only the agentaflow scheduler respects a cordoned GPU:
    /// it allocates one fewer on that node.
    pub async fn cordon(&self, target: &str, closed: bool) -> Result<(), Failure> {
        let (node, gpu) = parts(target);
        let found = self.node(node).await?;
        let patch = match gpu {
            None => json!({"spec": {"unschedulable": closed.then_some(true)}}),
            Some(gpu) => {
                let devices = self.devices().await?.remove(node);
                let seen = Seen::new(found, devices, Vec::new());
                let version = seen.version();
                let list = with_gpu(&seen, gpu, closed)?;
                // With the resource version: concurrent changes must not overwrite each other.
                json!({"metadata": {
                    "resourceVersion": version,
                    "annotations": {names::NODE_CLOSED_GPUS: list},
                }})
            }
        };
        self.patch_node(node, patch).await
    }

    /// Cordons a node or one of its GPUs (`node/gpu`) and evicts its GPU pods; returns their names. Pods protected by a
    /// disruption budget and pods with unknown GPUs stay; the error names them.
    pub async fn drain(&self, target: &str) -> Result<Vec<String>, Failure> {
        self.cordon(target, true).await?;
        let (node, gpu) = parts(target);
        let mut pods = self.pods_on_nodes_where(Some(node)).await?.remove(node).unwrap_or_default();
        pods.retain(is_evicted_by_drain);
        let (mut evicted, mut kept) = (Vec::new(), Vec::new());
        if let Some(gpu) = gpu {
            let devices = self.devices().await?.remove(node);
            let seen = Seen::new(self.node(node).await?, devices, Vec::new());
            let (_, gpu) = seen.find_gpu(gpu)?;
            let silent = |pod| format!("{}: its GPUs are unknown", whole_name(pod));
            kept.extend(pods.iter().filter(|pod| seen.gpus_of(pod).is_none()).map(silent));
            pods.retain(|pod| seen.gpus_of(pod).is_some_and(|gpus| gpus.contains(&gpu)));
        }
        for pod in &pods {
            let whole = whole_name(pod);
            let (space, name) = whole.split_once('/').unwrap_or_default();
            match self.evict(space, name).await {
                Ok(()) => evicted.push(whole),
                Err(gone) if gone.is_missing() => {}
                Err(
                    refused @ (Failure::Refused { .. } | Failure::Forbidden(_) | Failure::Other(_)),
                ) => {
                    kept.push(format!("{whole}: {refused}"));
                }
                Err(error) => return Err(error),
            }
        }
        if kept.is_empty() {
            return Ok(evicted);
        }
        let done = match evicted.len() {
            0 => "nothing was evicted".to_owned(),
            _ => format!("{} evicted", evicted.join(", ")),
        };
        Err(Failure::refused(format!(
            "`{target}` takes no new work, but these pods stay: {}; {done}; drain it again later",
            kept.join("; ")
        )))
    }

    /// Evicts a pod. A refusal by a disruption budget is final and not retried.
    async fn evict(&self, namespace: &str, name: &str) -> Result<(), Failure> {
        let path = core::Pod::url_path(&(), Some(namespace));
        let request = kube::core::Request::new(path).evict(name, &EvictParams::default());
        let request = request.map_err(|error| Failure::Other(error.to_string()))?;
        let (status, text) = once::send(&self.client, request).await?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(Failure::of_status(status, once::message(&text)))
    }

    async fn node(&self, name: &str) -> Result<core::Node, Failure> {
        let missing = || Failure::NotFound(format!("node `{name}` not found"));
        if !is_name(name) {
            return Err(missing());
        }
        let api: Api<core::Node> = Api::all(self.client.clone());
        api.get_opt(name).await?.ok_or_else(missing)
    }

    async fn patch_node(&self, name: &str, patch: Value) -> Result<(), Failure> {
        let api: Api<core::Node> = Api::all(self.client.clone());
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// `GPUNode`s by node name; nodes without one, or without the right to read it, use labels.
    async fn devices(&self) -> Result<BTreeMap<String, slim::GpuNode>, Failure> {
        let api: Api<slim::GpuNode> = self.namespaced(&self.system);
        let found = match list::all(&api, ListParams::default()).await {
            Err(Failure::NotFound(_) | Failure::Forbidden(_)) => Vec::new(),
            found => found?,
        };
        let named = |one: slim::GpuNode| Some((one.metadata.name.clone()?, one));
        Ok(found.into_iter().filter_map(named).collect())
    }

    /// Pods that use resources of nodes, by node.
    async fn pods_on_nodes(&self) -> Result<BTreeMap<String, Vec<Pod>>, Failure> {
        self.pods_on_nodes_where(None).await
    }

    async fn pods_on_nodes_where(
        &self,
        node: Option<&str>,
    ) -> Result<BTreeMap<String, Vec<Pod>>, Failure> {
        let mut fields = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!=".to_owned();
        if let Some(node) = node {
            fields = format!("status.phase!=Succeeded,status.phase!=Failed,spec.nodeName={node}");
        }
        let api: Api<Pod> = Api::all(self.client.clone());
        let found = list::all(&api, ListParams::default().fields(&fields)).await;
        let found = match found {
            // A user without permission to list pods of other namespaces can still list nodes.
            Err(Failure::Forbidden(_)) if node.is_none() => Vec::new(),
            found => found?,
        };
        let mut by_node: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in found {
            if let Some(node) = pod.spec.node_name.clone() {
                by_node.entry(node).or_default().push(pod);
            }
        }
        Ok(by_node)
    }
}

/// List of cordoned GPUs with this one added or removed; `None` if it is empty.
fn with_gpu(seen: &Seen, gpu: &str, closed: bool) -> Result<Option<String>, Failure> {
    let (number, id) = seen.find_gpu(gpu)?;
    let mut list = closed_gpus(seen.slim());
    let number = number.to_string();
    list.remove(number.as_str());
    list.remove(id.as_str());
    if closed {
        list.insert(&id);
    }
    let list: Vec<&str> = list.into_iter().collect();
    Ok((!list.is_empty()).then(|| list.join(",")))
}

/// Splits `node/gpu`.
fn parts(target: &str) -> (&str, Option<&str>) {
    target.split_once('/').map_or((target, None), |(node, gpu)| (node, Some(gpu)))
}

/// True if a drain evicts the pod: it has GPUs, and no `DaemonSet` would recreate it on the node.
fn is_evicted_by_drain(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let daemon =
        owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet");
    let annotations = pod.metadata.annotations.as_ref();
    let mirror = annotations.is_some_and(|all| all.contains_key("kubernetes.io/config.mirror"));
    !daemon
        && !mirror
        && pod.metadata.deletion_timestamp.is_none()
        && !gpu_resources(pod).is_empty()
}
