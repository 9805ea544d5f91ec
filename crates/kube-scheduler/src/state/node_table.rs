//! Nodes as the watches report them, and as the engine knows them.

use agentaflow_engine::labels::Labels;
use agentaflow_engine::{Event, ForeignId, GpuHealth, GpuId, MicroDollars, NodeId, Percent};
use agentaflow_kube_core::crd::{GpuNode, GpuNodePhase};
use agentaflow_kube_core::slim::{self, CsiNode, Node};
use agentaflow_kube_core::translate::{self, NodeView, Volumes, VolumesLeft};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::{Action, EventRecord, Key, ObjectRef};
use super::engine_link::EngineLink;
use super::foreign_report::ForeignPods;
use super::node_conditions::{self, MONITOR_LOST};
use super::pod_index::PodIndex;
use super::settings::Settings;
use crate::controller::EventType;

#[derive(Debug, Default)]
pub(super) struct NodeTable(BTreeMap<Arc<str>, NodeEntry>);

#[derive(Debug, Default)]
pub(super) struct NodeEntry {
    node: Option<Arc<Node>>,
    devices: Option<Arc<GpuNode>>,
    csi: Option<CsiNode>,
    /// The last report of the monitor is too old.
    monitor_lost: bool,
    /// Node description last sent to the engine.
    sent: Option<NodeView>,
    /// Pre-provisioned volumes for pods that wait.
    free_volumes: VolumesLeft,
    /// Pods whose usage is foreign to the engine.
    foreign: BTreeSet<Key>,
    /// Members that the engine has placed here.
    members: BTreeSet<Key>,
}

impl NodeEntry {
    /// Returns true if the node was sent to the engine.
    pub(super) fn is_known(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns true if the node exists in the cluster.
    pub(super) fn exists(&self) -> bool {
        self.node.is_some()
    }

    /// Price of a pod on this node.
    pub(super) fn price_per_hour(&self, pod: &slim::Pod) -> MicroDollars {
        self.sent.as_ref().map(|view| translate::hourly(view, pod)).unwrap_or_default()
    }

    pub(super) fn gpu_model(&self) -> Option<&str> {
        Some(self.sent.as_ref()?.node.gpus.first()?.model.as_str())
    }

    /// Fraction of a device that one unit of the device plugin represents.
    pub(super) fn device_fraction(&self) -> f64 {
        1.0 / f64::from(self.sent.as_ref().map_or(1, |view| view.shared_units.max(1)))
    }

    /// Returns true if a node monitor reports its GPUs.
    pub(super) fn is_monitored(&self) -> bool {
        self.devices.is_some()
    }

    /// Returns true if the engine knows a GPU of the node by this id.
    pub(super) fn has_gpu(&self, id: &str) -> bool {
        let sent = self.sent.as_ref();
        sent.is_some_and(|sent| sent.node.gpus.iter().any(|gpu| gpu.id.as_str() == id))
    }

    /// The object and the report of its monitor; none if the node does not exist.
    pub(super) fn objects(&self) -> Option<(Arc<Node>, Option<Arc<GpuNode>>)> {
        Some((self.node.clone()?, self.devices.clone()))
    }

    /// Labels as the engine knows them.
    pub(super) fn labels(&self) -> Option<&Labels> {
        self.sent.as_ref().map(|sent| &sent.node.labels)
    }

    pub(super) fn foreign(&self) -> impl Iterator<Item = &Key> {
        self.foreign.iter()
    }

    fn is_empty(&self) -> bool {
        self.node.is_none()
            && self.devices.is_none()
            && self.csi.is_none()
            && self.foreign.is_empty()
            && self.members.is_empty()
    }
}

impl NodeTable {
    pub(super) fn get(&self, name: &str) -> Option<&NodeEntry> {
        self.0.get(name)
    }

    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.0.keys().cloned().collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &NodeEntry> {
        self.0.values()
    }

    /// Reports of the monitors; true for a monitor that does not report any more.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&GpuNode, bool)> {
        self.0.values().filter_map(|entry| Some((entry.devices.as_deref()?, entry.monitor_lost)))
    }

    pub(super) fn is_known(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(NodeEntry::is_known)
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(NodeEntry::exists)
    }

    /// Labels of the nodes that the engine knows.
    pub(super) fn labels(&self) -> BTreeMap<&str, &Labels> {
        self.0.iter().filter_map(|(name, entry)| Some((&**name, entry.labels()?))).collect()
    }

    /// Returns true if the node is new.
    pub(super) fn set_node(&mut self, name: &Arc<str>, node: Option<Node>) -> bool {
        let entry = self.0.entry(name.clone()).or_default();
        let is_new = entry.node.is_none();
        entry.node = node.map(Arc::new);
        is_new
    }

    pub(super) fn set_devices(&mut self, name: &Arc<str>, devices: Option<GpuNode>) {
        self.0.entry(name.clone()).or_default().devices = devices.map(Arc::new);
    }

    pub(super) fn set_monitor_lost(&mut self, name: &Arc<str>, lost: bool) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.monitor_lost = lost;
        }
    }

    /// Status and Event of a `GPUNode` whose monitor is lost; none if the last leader has written them.
    pub(super) fn lost_monitor_actions(
        &self,
        name: &str,
        now: jiff::Timestamp,
    ) -> Option<[Action; 2]> {
        let devices = self.0.get(name)?.devices.as_ref()?;
        let (conditions, message) = node_conditions::lost(devices, now)?;
        let (node, version) = reference(devices);
        let uid = devices.metadata.uid.as_deref().unwrap_or_default().into();
        let object = ObjectRef { kind: "GPUNode", key: node.clone(), uid };
        let (event_type, reason) = (EventType::Warning, MONITOR_LOST);
        let known = devices.status.as_ref().and_then(|status| status.phase);
        // Maintenance lasts until an administrator ends it.
        let active = known == Some(GpuNodePhase::Active);
        let phase = active.then_some(GpuNodePhase::Unavailable);
        Some([
            Action::WriteNodeStatus { node, version, conditions, phase },
            Action::RecordEvent(EventRecord { object, event_type, reason, message }),
        ])
    }

    /// Writes the condition about pods of other schedulers; none if it is up to date.
    pub(super) fn foreign_pods_action(
        &self,
        name: &str,
        found: Option<&ForeignPods>,
        now: jiff::Timestamp,
    ) -> Option<Action> {
        let devices = self.0.get(name)?.devices.as_ref()?;
        let conditions = node_conditions::foreign_pods(devices, found, now)?;
        let (node, version) = reference(devices);
        Some(Action::WriteNodeStatus { node, version, conditions, phase: None })
    }

    /// Published races that this scheduler lost to pods of other schedulers, with their messages.
    pub(super) fn published_races(&self) -> Vec<(Arc<str>, String)> {
        let race = |(name, entry): (&Arc<str>, &NodeEntry)| {
            let message = node_conditions::published_race(entry.devices.as_ref()?)?;
            Some((name.clone(), message.to_owned()))
        };
        self.0.iter().filter_map(race).collect()
    }

    pub(super) fn set_csi(&mut self, name: &Arc<str>, csi: Option<CsiNode>) {
        self.0.entry(name.clone()).or_default().csi = csi;
    }

    /// Returns true if the number changed.
    pub(super) fn set_free_volumes(&mut self, name: &Arc<str>, free: VolumesLeft) -> bool {
        let Some(entry) = self.0.get_mut(name) else { return false };
        let changed = entry.free_volumes != free;
        entry.free_volumes = free;
        changed
    }

    pub(super) fn add_member(&mut self, name: &Arc<str>, pod: &Key) {
        self.0.entry(name.clone()).or_default().members.insert(pod.clone());
    }

    pub(super) fn remove_member(&mut self, name: &str, pod: &Key) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.members.remove(pod);
        }
    }

    pub(super) fn remove_if_empty(&mut self, name: &str) {
        if self.0.get(name).is_some_and(NodeEntry::is_empty) {
            self.0.remove(name);
        }
    }

    /// Sends the usage of a pod that the engine does not decide about.
    pub(super) fn publish_foreign_use(
        &mut self,
        key: &Key,
        name: &Arc<str>,
        pods: &PodIndex,
        engine: &mut EngineLink,
    ) {
        let entry = self.0.entry(name.clone()).or_default();
        entry.foreign.insert(key.clone());
        if !entry.is_known() {
            return;
        }
        let Some(uses) = pods.get(key).and_then(|pod| pod.foreign_use.clone()) else { return };
        let node = NodeId::from(name.as_ref());
        engine.send(Event::ForeignUseUpdated {
            node,
            id: ForeignId::from(key.to_string()),
            usage: uses,
        });
    }

    /// Records a foreign pod without sending its usage, which is incomplete until all kinds are listed.
    pub(super) fn add_foreign(&mut self, key: &Key, name: &Arc<str>) {
        self.0.entry(name.clone()).or_default().foreign.insert(key.clone());
    }

    /// Forgets a foreign pod whose usage was never sent.
    pub(super) fn drop_foreign(&mut self, key: &Key, name: &str) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.foreign.remove(key);
        }
    }

    pub(super) fn remove_foreign_use(&mut self, key: &Key, name: &str, engine: &mut EngineLink) {
        let Some(entry) = self.0.get_mut(name) else { return };
        if entry.foreign.remove(key) && entry.is_known() {
            let node = NodeId::from(name);
            engine.send(Event::ForeignUseRemoved { node, id: ForeignId::from(key.to_string()) });
        }
        self.remove_if_empty(name);
    }

    /// The description of a node for the engine; none if the node is gone or not selected by the settings.
    fn describe(&self, name: &str, settings: &Settings, volumes: &Volumes) -> Option<NodeView> {
        let entry = self.0.get(name)?;
        let node = entry.node.as_ref().filter(|node| settings.selects(node))?;
        let mut view = translate::node(node, entry.devices.as_deref(), entry.csi.as_ref());
        if entry.monitor_lost {
            view.readings.iter_mut().for_each(|(_, reading)| *reading = Percent::default());
        }
        volumes.lift_limits(&mut view.node);
        view.node.resources.extend(entry.free_volumes.clone());
        Some(view)
    }

    /// Sends a node to the engine.
    pub(super) fn publish(
        &mut self,
        name: &Arc<str>,
        settings: &Settings,
        volumes: &Volumes,
        engine: &mut EngineLink,
    ) -> Published {
        let Some(view) = self.describe(name, settings, volumes) else { return Published::Gone };
        let Some(entry) = self.0.get_mut(name) else { return Published::Gone };
        let is_new = entry.sent.is_none();
        if entry.sent.as_ref().is_none_or(|sent| sent.node != view.node)
            && !engine.send(Event::NodeUpdated(Box::new(view.node.clone())))
        {
            return Published::Unchanged;
        }
        send_health(name, entry.sent.as_ref(), &view, engine);
        entry.sent = Some(view);
        if is_new { Published::New } else { Published::Unchanged }
    }

    /// Marks a node as unknown to the engine; returns its members, or none if the engine did not know the node.
    pub(super) fn forget(&mut self, name: &str) -> Option<Vec<Key>> {
        let entry = self.0.get_mut(name)?;
        entry.sent.take()?;
        Some(entry.members.iter().cloned().collect())
    }
}

/// Name of a `GPUNode`, and the version that was read.
fn reference(devices: &GpuNode) -> (Key, String) {
    let metadata = &devices.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    (Key::new(namespace, name), metadata.resource_version.clone().unwrap_or_default())
}

/// Outcome of [`NodeTable::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// The engine did not know the node before.
    New,
    Unchanged,
    /// The engine must not know the node.
    Gone,
}

/// Sends GPU health and utilization. An unhealthy GPU gets no new pods; its pods are left to the kubelet.
fn send_health(name: &str, sent: Option<&NodeView>, view: &NodeView, engine: &mut EngineLink) {
    let node = NodeId::from(name);
    let (now, before) = (unhealthy(view), sent.map(unhealthy).unwrap_or_default());
    for gpu in view.node.gpus.iter().map(|gpu| &gpu.id) {
        if now.get(gpu) != before.get(gpu) {
            let health = now.get(gpu).copied().unwrap_or_default();
            engine.send(Event::GpuHealth { node: node.clone(), gpu: gpu.clone(), health });
        }
    }
    if sent.is_none_or(|sent| sent.readings != view.readings) && !view.readings.is_empty() {
        engine.send(Event::Utilization { node, readings: view.readings.clone() });
    }
}

/// Unhealthy GPUs with the health sent to the engine: cordoned or unfit, so that the engine never displaces their pods.
fn unhealthy(view: &NodeView) -> BTreeMap<GpuId, GpuHealth> {
    let unhealthy = view.health.iter().filter_map(|(gpu, health)| match health {
        GpuHealth::Healthy => None,
        GpuHealth::Cordoned | GpuHealth::Draining => Some((gpu.clone(), GpuHealth::Cordoned)),
        GpuHealth::Failed | GpuHealth::Degraded => Some((gpu.clone(), GpuHealth::Degraded)),
    });
    unhealthy.collect()
}
