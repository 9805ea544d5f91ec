//! Changes of nodes, and of pods that the engine does not decide about.

use agentaflow_engine::{Event, ForeignId, NodeId};
use agentaflow_kube_core::slim::{self, CsiNode, Node, Pod};
use agentaflow_kube_core::translate::{self, TranslationContext};
use std::sync::Arc;

use super::action::{Action, Key};
use super::losses::Departure;
use super::node_table::Published;
use super::pod_entry::{PodState, is_finished, node_of};
use super::work_queue::WorkItem;
use super::{ClusterState, names_of};
use crate::controller::EventType;

impl ClusterState {
    pub(super) fn node_applied(&mut self, node: Node) {
        let name: Arc<str> = names_of(&node.metadata).1.into();
        let is_new = self.nodes.set_node(&name, Some(node));
        if self.started {
            self.update_node(&name);
            if is_new {
                self.work.push_pods(self.pods.on_node(&name));
            }
        }
    }

    /// A deleted node takes its pods with it.
    pub(super) fn node_deleted(&mut self, node: &Node) {
        let name: Arc<str> = names_of(&node.metadata).1.into();
        if self.nodes.get(&name).is_none() {
            return;
        }
        self.nodes.set_node(&name, None);
        if self.started {
            self.remove_node_from_engine(&name);
        }
        self.nodes.remove_if_empty(&name);
    }

    /// An unreadable `GPUNode` is ignored; the labels of the node remain.
    pub(super) fn gpu_node_applied(&mut self, devices: slim::GpuNode) {
        let name: Arc<str> = names_of(&devices.metadata).1.into();
        let devices = devices.readable();
        let timeout = self.settings.monitor_timeout.as_millis() as u64;
        match &devices {
            Some(devices) => {
                if self.monitors.observe(&name, devices, self.engine.now(), timeout) {
                    self.nodes.set_monitor_lost(&name, false);
                }
            }
            None => self.monitors.remove(&name),
        }
        self.nodes.set_devices(&name, devices);
        if self.started {
            self.update_node(&name);
        }
    }

    pub(super) fn gpu_node_deleted(&mut self, devices: &slim::GpuNode) {
        let name: Arc<str> = names_of(&devices.metadata).1.into();
        self.monitors.remove(&name);
        self.nodes.set_devices(&name, None);
        if self.started {
            self.update_node(&name);
        }
        self.nodes.remove_if_empty(&name);
    }

    /// Reports monitors that are lost since the last pass: the conditions of their `GPUNode`s become unknown, and their
    /// utilization readings are void. A GPU that was unhealthy stays so.
    pub(super) fn report_lost_monitors(&mut self) {
        for name in self.monitors.take_lost(self.engine.now()) {
            self.nodes.set_monitor_lost(&name, true);
            let now = super::workload_table::timestamp(self.engine.now());
            self.actions.extend(self.nodes.lost_monitor_actions(&name, now).into_iter().flatten());
            self.update_node(&name);
        }
    }

    pub(super) fn csi_node_applied(&mut self, csi: CsiNode) {
        let name: Arc<str> = names_of(&csi.metadata).1.into();
        let changed = self.volumes.objects_mut().set_csi_node(&csi);
        self.nodes.set_csi(&name, Some(csi));
        self.csi_changed(&name, changed);
    }

    pub(super) fn csi_node_deleted(&mut self, csi: &CsiNode) {
        let name: Arc<str> = names_of(&csi.metadata).1.into();
        let changed = self.volumes.objects_mut().remove_csi_node(&name);
        self.nodes.set_csi(&name, None);
        self.csi_changed(&name, changed);
        self.nodes.remove_if_empty(&name);
    }

    /// A change of the limited drivers changes the description of every node, any other change only of this one.
    fn csi_changed(&mut self, name: &Arc<str>, limits_changed: bool) {
        self.record_dependency(limits_changed);
        if !self.started {
            return;
        }
        let names = if limits_changed { self.nodes.names() } else { vec![name.clone()] };
        for name in names {
            self.update_node(&name);
        }
    }

    /// Sends a node to the engine, or removes it there.
    pub(super) fn update_node(&mut self, name: &Arc<str>) {
        let volumes = self.volumes.objects();
        match self.nodes.publish(name, &self.settings, volumes, &mut self.engine) {
            Published::Unchanged => {}
            Published::Gone => self.remove_node_from_engine(name),
            Published::New => self.publish_pods_of_new_node(name),
        }
    }

    /// Foreign usage that was recorded before the engine knew the node. Pods of this scheduler may become members again.
    fn publish_pods_of_new_node(&mut self, name: &Arc<str>) {
        let Some(entry) = self.nodes.get(name) else { return };
        let found: Vec<Key> = entry.foreign().cloned().collect();
        for key in found {
            if self.pods.get(&key).is_some_and(|entry| entry.pod.is_some()) {
                self.pods.set_state(&key, PodState::Untracked);
                self.nodes.drop_foreign(&key, name);
                self.work.push(WorkItem::ReconcilePod(key));
            } else {
                self.nodes.publish_foreign_use(&key, name, &self.pods, &mut self.engine);
            }
        }
    }

    /// Removes a node from the engine. Its members end first, so that the engine does not place them again: a pod is bound
    /// once in its life.
    fn remove_node_from_engine(&mut self, name: &Arc<str>) {
        let Some(members) = self.nodes.forget(name) else { return };
        let vanished = !self.nodes.exists(name);
        for key in members {
            self.release_pod_of_lost_node(&key, name, vanished);
        }
        self.engine.send(Event::NodeRemoved(NodeId::from(name.as_ref())));
    }

    /// Ends a pod whose node the engine does not know any more.
    pub(super) fn release_pod_of_lost_node(&mut self, key: &Key, node: &Arc<str>, vanished: bool) {
        let departure = if vanished { self.departure_of(key) } else { Departure::Changed };
        self.release_pod(key, departure);
        let Some(entry) = self.pods.get(key) else { return };
        let Some(pod) = entry.pod.clone().filter(|pod| !is_finished(pod)) else { return };
        if pod.spec.node_name.is_none() {
            // Its binding was in flight; the watch reports the outcome.
            self.work.push(WorkItem::ReconcilePod(key.clone()));
            return;
        }
        if vanished {
            let message = format!("Node {node} was deleted");
            self.actions
                .push(Action::DeleteOrphan { pod: entry.reference(key), node: node.clone() });
            self.actions.push(entry.event(key, EventType::Warning, "NodeVanished", message));
        }
        // Counted again after the node returns.
        self.record_foreign_use(key, &pod, node);
    }

    pub(super) fn foreign_pod_applied(&mut self, key: &Key, pod: Pod) {
        let around = self.translation_context();
        let uses = translate::foreign(&pod, &around);
        let depends = !translate::depends(&pod, &around).is_empty();
        let Some(entry) = self.pods.get_mut(key) else { return };
        let unchanged = entry.foreign_use.as_deref() == Some(&uses);
        entry.foreign_use = Some(Box::new(uses));
        entry.pod = None;
        let node = if is_finished(&pod) { None } else { node_of(&pod).map(Arc::from) };
        entry.foreign_pod = depends.then(|| Box::new(pod));
        let wanted = node.clone().map_or(PodState::Untracked, PodState::Foreign);
        let stays = entry.state == wanted;
        if stays && unchanged {
            return;
        }
        if let Some(node) = node {
            if !stays {
                self.detach_pod(key);
            }
            self.set_foreign(key, &node);
        } else {
            self.detach_pod(key);
            self.pods.remove(key);
        }
    }

    /// Accounts for a pod of this scheduler that the engine does not decide about.
    pub(super) fn record_foreign_use(&mut self, key: &Key, pod: &Pod, node: &Arc<str>) {
        let uses = translate::foreign(pod, &self.translation_context());
        if let Some(entry) = self.pods.get_mut(key) {
            entry.foreign_use = Some(Box::new(uses));
        }
        self.set_foreign(key, node);
    }

    fn set_foreign(&mut self, key: &Key, node: &Arc<str>) {
        self.pods.set_state(key, PodState::Foreign(node.clone()));
        if let Some(entry) = self.pods.get_mut(key) {
            entry.foreign_since = self.engine.now();
        }
        if self.started {
            self.nodes.publish_foreign_use(key, node, &self.pods, &mut self.engine);
        } else {
            self.nodes.add_foreign(key, node);
        }
    }

    /// Sends the demand of a pending pod of another scheduler, or its end.
    pub(super) fn send_foreign_demand(&mut self, key: &Key) {
        if self.started {
            let demand = self.foreign_demand.demand(key, &self.translation_context());
            let id = ForeignId::from(key.to_string());
            self.engine.send(Event::ForeignDemandUpdated { id, demand });
        }
    }

    /// Sends the demand of all pending pods of other schedulers: objects that it was made from may have changed.
    pub(super) fn publish_foreign_demand(&mut self) {
        if !self.started {
            return;
        }
        let context = self.translation_context();
        let events = self.foreign_demand.keys().map(|key| {
            let id = ForeignId::from(key.to_string());
            let demand = self.foreign_demand.demand(key, &context);
            Event::ForeignDemandUpdated { id, demand }
        });
        for event in events.collect::<Vec<_>>() {
            self.engine.send(event);
        }
    }

    /// Computes foreign usage again that depends on changed objects.
    pub(super) fn refresh_foreign_use(&mut self) {
        let depends = |entry: &super::pod_entry::PodEntry| {
            matches!(entry.state, PodState::Foreign(_))
                && (entry.foreign_pod.is_some() || entry.pod.is_some())
        };
        for key in self.pods.select(depends) {
            self.refresh_foreign_pod(&key, false);
        }
    }

    /// Computes the usage of a foreign pod again, and sends it if it changed or if `always`.
    pub(super) fn refresh_foreign_pod(&mut self, key: &Key, always: bool) {
        let around =
            TranslationContext { volumes: self.volumes.objects(), namespaces: &self.namespaces };
        let Some(entry) = self.pods.get_mut(key) else { return };
        let PodState::Foreign(node) = entry.state.clone() else { return };
        let pod = entry.foreign_pod.as_deref().or(entry.pod.as_deref());
        let uses = pod.map(|pod| Box::new(translate::foreign(pod, &around)));
        let changed = uses.is_some() && entry.foreign_use != uses;
        entry.foreign_use = uses.or_else(|| entry.foreign_use.take());
        if changed || always {
            self.nodes.publish_foreign_use(key, &node, &self.pods, &mut self.engine);
        }
    }

    /// Sends the free pre-provisioned volumes of every node to the engine.
    pub(super) fn publish_free_volumes(&mut self) {
        let labels = self.nodes.labels();
        let Some(mut free) = self.volumes.free_volumes(&labels, &self.pods) else { return };
        for name in self.nodes.names() {
            let changed =
                self.nodes.set_free_volumes(&name, free.remove(&name).unwrap_or_default());
            if changed && self.nodes.is_known(&name) {
                self.update_node(&name);
            }
        }
    }
}
