//! Nodes, their GPUs, and what others use of them.

use agentaflow_engine::labels::Labels;
use agentaflow_engine::{Event, ForeignId, GpuHealth, GpuId, MicroDollars, NodeId};
use agentaflow_kube_core::crd::GpuNode;
use agentaflow_kube_core::slim::{self, CsiNode, Node};
use agentaflow_kube_core::translate::{self, Left, NodeView};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{ClusterState, Key, names_of};

/// What is recorded about a node.
#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    node: Option<Node>,
    devices: Option<GpuNode>,
    csi: Option<CsiNode>,
    /// What the engine was told last.
    told: Option<NodeView>,
    /// Volumes that people made and that are left there for those who wait.
    pub(super) left: Left,
    /// Pods of others that use it.
    pub(super) foreign: BTreeSet<Key>,
    /// Pods of ours that the engine has there.
    pub(super) ours: BTreeSet<Key>,
}

impl NodeEntry {
    /// Whether the engine knows the node.
    pub(super) fn is_known(&self) -> bool {
        self.told.is_some()
    }

    /// What a pod costs an hour there.
    pub(super) fn hourly(&self, pod: &slim::Pod) -> MicroDollars {
        self.told.as_ref().map(|view| translate::hourly(view, pod)).unwrap_or_default()
    }

    /// The model of its GPUs.
    pub(super) fn model(&self) -> Option<&str> {
        Some(self.told.as_ref()?.node.gpus.first()?.model.as_str())
    }

    /// What one unit of its device plugin is of a device.
    pub(super) fn unit(&self) -> f64 {
        1.0 / f64::from(self.told.as_ref().map_or(1, |view| view.shared_units.max(1)))
    }

    /// Whether a monitor reads its GPUs.
    pub(super) fn is_measured(&self) -> bool {
        self.devices.is_some()
    }

    /// Whether the node exists in the cluster.
    pub(super) fn exists(&self) -> bool {
        self.node.is_some()
    }

    /// Whether the engine knows a GPU of the node by this name.
    pub(super) fn has_gpu(&self, id: &str) -> bool {
        let told = self.told.as_ref();
        told.is_some_and(|told| told.node.gpus.iter().any(|gpu| gpu.id.as_str() == id))
    }

    /// The labels that the engine knows.
    pub(super) fn labels(&self) -> Option<&Labels> {
        self.told.as_ref().map(|told| &told.node.labels)
    }

    fn is_empty(&self) -> bool {
        self.node.is_none()
            && self.devices.is_none()
            && self.csi.is_none()
            && self.foreign.is_empty()
            && self.ours.is_empty()
    }
}

impl ClusterState {
    pub(super) fn see_node(&mut self, node: Node) {
        let name: Arc<str> = names_of(&node.metadata).1.into();
        let entry = self.nodes.entry(name.clone()).or_default();
        let is_new = entry.node.is_none();
        entry.node = Some(node);
        if self.begun {
            self.tell_node(&name);
            if is_new {
                self.stuck.extend(self.bound_to(&name));
            }
        }
    }

    /// Pods of ours that are on a node, whether or not the engine has them there.
    fn bound_to(&self, node: &str) -> Vec<Key> {
        let bound = self.pods.iter().filter(|(_, entry)| {
            let told = entry.pod.as_ref().and_then(|pod| pod.spec.node_name.as_deref());
            let heading = entry.heading.as_ref().map(|heading| &*heading.node);
            told.or(heading).is_some_and(|at| at == node)
        });
        bound.map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn see_devices(&mut self, devices: slim::GpuNode) {
        let name: Arc<str> = names_of(&devices.metadata).1.into();
        // One that cannot be read says nothing: the labels of the node are all we have then.
        self.nodes.entry(name.clone()).or_default().devices = devices.readable();
        if self.begun {
            self.tell_node(&name);
        }
    }

    pub(super) fn lose_devices(&mut self, devices: &slim::GpuNode) {
        let name: Arc<str> = names_of(&devices.metadata).1.into();
        if let Some(entry) = self.nodes.get_mut(&name) {
            entry.devices = None;
        }
        if self.begun {
            self.tell_node(&name);
        }
        self.forget_node(&name);
    }

    pub(super) fn see_csi_node(&mut self, csi: CsiNode) {
        let name: Arc<str> = names_of(&csi.metadata).1.into();
        let changed = self.volumes.set_csi_node(&csi);
        self.nodes.entry(name.clone()).or_default().csi = Some(csi);
        self.tell_nodes(&name, changed);
        self.look_again(|_| changed);
    }

    pub(super) fn lose_csi_node(&mut self, csi: &CsiNode) {
        let name: Arc<str> = names_of(&csi.metadata).1.into();
        let changed = self.volumes.remove_csi_node(&name);
        if let Some(entry) = self.nodes.get_mut(&name) {
            entry.csi = None;
        }
        self.tell_nodes(&name, changed);
        self.look_again(|_| changed);
        self.forget_node(&name);
    }

    /// Which drivers are limited somewhere changes what every node is told, else only this one.
    fn tell_nodes(&mut self, name: &Arc<str>, all: bool) {
        if !self.begun {
            return;
        }
        let names = if all { self.nodes.keys().cloned().collect() } else { vec![name.clone()] };
        for name in names {
            self.tell_node(&name);
        }
    }

    /// A node is gone from the cluster: so is everything that was on it.
    pub(super) fn lose_node(&mut self, node: &Node) {
        let name: Arc<str> = names_of(&node.metadata).1.into();
        let Some(entry) = self.nodes.get_mut(&name) else { return };
        entry.node = None;
        if self.begun {
            self.drop_node(&name);
        }
        self.forget_node(&name);
    }

    fn forget_node(&mut self, name: &Arc<str>) {
        if self.nodes.get(name).is_some_and(NodeEntry::is_empty) {
            self.nodes.remove(name);
        }
    }

    /// Tells the engine how a node is now.
    pub(super) fn tell_node(&mut self, name: &Arc<str>) {
        let Some(entry) = self.nodes.get(name) else { return };
        let view = entry
            .node
            .as_ref()
            .filter(|node| self.is_looked_after(node))
            .map(|node| translate::node(node, entry.devices.as_ref(), entry.csi.as_ref()));
        let view = view.map(|mut view| {
            self.volumes.lift_limits(&mut view.node);
            view.node.resources.extend(entry.left.clone());
            view
        });
        let Some(view) = view else {
            self.drop_node(name);
            return;
        };
        let told = entry.told.as_ref();
        let is_new = told.is_none();
        if told.is_none_or(|told| told.node != view.node)
            && !self.tell(Event::NodeUpdated(Box::new(view.node.clone())))
        {
            return;
        }
        self.tell_health(name, &view);
        let Some(entry) = self.nodes.get(name) else { return };
        let found: Vec<Key> = entry.foreign.iter().filter(|_| is_new).cloned().collect();
        let ours = |pod: &Key| self.pods.get(pod).is_some_and(|entry| entry.pod.is_some());
        let (ours, theirs): (Vec<Key>, Vec<Key>) = found.into_iter().partition(ours);
        for pod in ours {
            // The engine may know it again; it was not told of what it uses here.
            self.leave(&pod);
            self.stuck.insert(pod);
        }
        self.nodes.entry(name.clone()).or_default().told = Some(view);
        for pod in theirs {
            self.tell_foreign(&pod, name);
        }
    }

    /// A GPU that cannot be used takes nothing new; what runs there is left to its own fate, as the kubelet does.
    fn tell_health(&mut self, name: &Arc<str>, view: &NodeView) {
        let node = NodeId::from(name.as_ref());
        let now = unhealthy(view);
        let told = self.nodes.get(name).and_then(|entry| entry.told.as_ref());
        let before = told.map(unhealthy).unwrap_or_default();
        let readings = told.is_none_or(|told| told.readings != view.readings);
        for gpu in view.node.gpus.iter().map(|gpu| &gpu.id) {
            if now.get(gpu) != before.get(gpu) {
                let health = now.get(gpu).copied().unwrap_or_default();
                self.tell(Event::GpuHealth { node: node.clone(), gpu: gpu.clone(), health });
            }
        }
        if readings && !view.readings.is_empty() {
            self.tell(Event::Utilization { node, readings: view.readings.clone() });
        }
    }

    /// The engine is not to know this node any more. Pods of ours on it end; the engine must not place them anew,
    /// because a pod is bound once in its life.
    fn drop_node(&mut self, name: &Arc<str>) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        if entry.told.take().is_none() {
            return;
        }
        let vanished = entry.node.is_none();
        let ours: Vec<Key> = entry.ours.iter().cloned().collect();
        for key in ours {
            self.lose_ground(&key, name, vanished);
        }
        self.tell(Event::NodeRemoved(NodeId::from(name.as_ref())));
    }

    /// Whether this node is one that we look after.
    fn is_looked_after(&self, node: &Node) -> bool {
        let Some(selector) = &self.settings.node_selector else { return true };
        let labels = translate::labels(node.metadata.labels.as_ref());
        selector.matches(names_of(&node.metadata).1, &labels)
    }

    /// Tells the engine what a pod takes that it does not decide about.
    pub(super) fn tell_foreign(&mut self, key: &Key, node: &Arc<str>) {
        let entry = self.nodes.entry(node.clone()).or_default();
        entry.foreign.insert(key.clone());
        if !entry.is_known() {
            return;
        }
        let Some(uses) = self.pods.get(key).and_then(|pod| pod.uses.clone()) else { return };
        self.tell(Event::ForeignUseUpdated {
            node: NodeId::from(node.as_ref()),
            id: ForeignId::from(key.to_string()),
            usage: uses,
        });
    }

    /// A pod of others is gone from a node.
    pub(super) fn end_foreign(&mut self, key: &Key, node: &Arc<str>) {
        let Some(entry) = self.nodes.get_mut(node) else { return };
        if entry.foreign.remove(key) && entry.is_known() {
            self.tell(Event::ForeignUseRemoved {
                node: NodeId::from(node.as_ref()),
                id: ForeignId::from(key.to_string()),
            });
        }
        self.forget_node(node);
    }
}

/// The GPUs of a node that cannot be used, as the engine is told of them.
fn unhealthy(view: &NodeView) -> BTreeMap<GpuId, GpuHealth> {
    let told = view.health.iter().filter_map(|(gpu, health)| match health {
        GpuHealth::Healthy => None,
        GpuHealth::Cordoned | GpuHealth::Draining => Some((gpu.clone(), GpuHealth::Cordoned)),
        GpuHealth::Failed | GpuHealth::Degraded => Some((gpu.clone(), GpuHealth::Degraded)),
    });
    told.collect()
}
