//! The record of one pod, and facts read from a pod.

use agentaflow_engine::{ForeignUse, Request, Time, WorkloadId};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, PodCondition};
use agentaflow_kube_core::translate::{self, ClaimToBind, Dependencies};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{Action, EventRecord, Key, ObjectRef, PendingCondition, PodRef};
use super::parked::Parked;
use crate::controller::EventType;

/// The record of one pod.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) uid: Arc<str>,
    pub(super) created: Time,
    /// The object; only of pods of this scheduler.
    pub(super) pod: Option<Arc<Pod>>,
    /// Object of a foreign pod whose usage depends on other objects; `None` for most foreign pods.
    pub(super) foreign_pod: Option<Box<Pod>>,
    /// Usage of the node; only of pods that the engine does not decide about.
    pub(super) foreign_use: Option<Box<ForeignUse>>,
    /// Time at which the usage of the node was first or last seen to change.
    pub(super) foreign_since: Time,
    /// Changed by [`super::pod_index::PodIndex::set_state`], which keeps its index of parked pods.
    pub(super) state: PodState,
    /// The request as the engine knows it; only of members.
    pub(super) request: Option<Arc<Request>>,
    /// The gang that the pod belongs to and is placed apart from.
    pub(super) detached_from: Option<WorkloadId>,
    /// Claims to bind before the pod.
    pub(super) claims: Vec<ClaimToBind>,
    /// Other objects that the request was made from.
    pub(super) depends: Dependencies,
    /// Nominated node as the API server has it.
    pub(super) nominated: Option<Arc<str>>,
    /// Node that this scheduler nominated last; the write may still be in flight.
    pub(super) nominated_by_us: Option<Arc<str>>,
    /// A binding in flight, or carried out and not yet reported by the watch.
    pub(super) pending_binding: Option<PendingBinding>,
    /// This scheduler wrote the condition `PodScheduled`, or found it written.
    condition_written: bool,
}

/// Target of a binding in flight; stays until the API server responds, independent of later decisions of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingBinding {
    pub(super) node: Arc<str>,
    pub(super) plan: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum PodState {
    /// Finished, or a foreign pod without a node.
    #[default]
    Untracked,
    /// The engine knows its usage of this node.
    Foreign(Arc<str>),
    /// Part of a workload that the engine knows.
    Member { workload: WorkloadId, task: u32, binding: BindingState },
    /// A pod of this scheduler that cannot be handed to the engine now.
    Parked(Parked),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BindingState {
    Pending,
    Binding { node: Arc<str>, plan: u64 },
    Bound(Arc<str>),
}

impl BindingState {
    /// The node on which the engine accounts for the pod.
    pub(super) fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Pending => None,
            Self::Binding { node, .. } | Self::Bound(node) => Some(node),
        }
    }
}

impl PodState {
    pub(super) fn binding(&self) -> Option<&BindingState> {
        match self {
            Self::Member { binding, .. } => Some(binding),
            _ => None,
        }
    }
}

impl PodEntry {
    pub(super) fn new(pod: &Pod, uid: Arc<str>) -> Self {
        let created = pod.metadata.creation_timestamp.as_ref();
        Self {
            uid,
            created: created.map_or(Time(0), |time| engine_time(time.0)),
            pod: None,
            foreign_pod: None,
            foreign_use: None,
            foreign_since: Time(0),
            state: PodState::Untracked,
            request: None,
            detached_from: None,
            claims: Vec::new(),
            depends: Dependencies::default(),
            nominated: None,
            nominated_by_us: None,
            pending_binding: None,
            condition_written: false,
        }
    }

    /// Foreign pods are recorded only when they have a node.
    pub(super) fn is_on_node(&self) -> bool {
        self.pod.as_ref().is_none_or(|pod| pod.spec.node_name.is_some())
    }

    /// A pod of this scheduler that has or had a node.
    pub(super) fn has_run(&self) -> bool {
        let pod = self.pod.as_deref();
        pod.is_some_and(|pod| pod.spec.node_name.is_some() || is_finished(pod))
    }

    pub(super) fn reference(&self, key: &Key) -> PodRef {
        PodRef { key: key.clone(), uid: self.uid.clone() }
    }

    pub(super) fn event(
        &self,
        key: &Key,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) -> Action {
        let object = ObjectRef { kind: "Pod", key: key.clone(), uid: self.uid.clone() };
        Action::RecordEvent(EventRecord { object, event_type, reason, message })
    }

    /// The write of the condition `PodScheduled=False`; none if the last leader wrote the same.
    pub(super) fn write_condition(
        &mut self,
        key: &Key,
        reason: &'static str,
        message: Arc<str>,
    ) -> Option<Action> {
        let conditions = self.pod.as_ref().and_then(|pod| pod.status.conditions.as_ref());
        let is_false = |one: &&PodCondition| one.kind == "PodScheduled" && one.status == "False";
        let written = conditions.and_then(|all| all.iter().find(is_false));
        let is_same = |condition: &PodCondition| {
            condition.reason.as_deref() == Some(reason)
                && condition.message.as_deref() == Some(&*message)
        };
        let (already_false, same) = (written.is_some(), written.is_some_and(is_same));
        let first = !std::mem::replace(&mut self.condition_written, true);
        let priority = self.pod.as_ref().and_then(|pod| pod.spec.priority).unwrap_or(0);
        let condition = PendingCondition { reason, message, already_false, priority };
        (!(first && same)).then(|| Action::WriteCondition { pod: self.reference(key), condition })
    }

    /// The write that withdraws the nomination, if there is one.
    pub(super) fn withdraw_nomination(&mut self, key: &Key) -> Option<Action> {
        self.nominated.take()?;
        Some(Action::Nominate { pod: self.reference(key), node: None })
    }
}

/// A Kubernetes timestamp as engine time.
pub(super) fn engine_time(time: jiff::Timestamp) -> Time {
    Time(time.as_millisecond().max(0) as u64)
}

/// The `GPUWorkload` that controls a pod.
pub(super) fn workload_owner(pod: &Pod) -> Option<Key> {
    let owner = pod.metadata.owner_references.iter().flatten().find(|owner| {
        owner.kind == "GPUWorkload"
            && owner.api_version.split('/').next() == Some(names::GROUP)
            && owner.controller == Some(true)
    })?;
    Some(Key::new(pod.metadata.namespace.as_deref().unwrap_or_default(), &owner.name))
}

pub(super) fn is_finished(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The node that a pod is bound to or nominated for.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    let nominated = pod.status.nominated_node_name.as_deref().filter(|name| !name.is_empty());
    pod.spec.node_name.as_deref().or(nominated)
}

/// Returns true if an update changed nothing that this scheduler reads: most updates of a pending pod are its own
/// conditions.
pub(super) fn is_irrelevant_update(old: &Pod, new: &Pod) -> bool {
    let facts = |pod: &Pod| -> (bool, bool, Option<String>, Option<BTreeMap<String, String>>) {
        let labels = pod.metadata.labels.clone();
        (is_finished(pod), is_terminating(pod), pod.spec.node_name.clone(), labels)
    };
    is_unbound(old)
        && is_unbound(new)
        && facts(old) == facts(new)
        && old.metadata.annotations == new.metadata.annotations
        && old.metadata.generation == new.metadata.generation
        && new.metadata.generation.is_some()
        && old.spec.scheduling_gates == new.spec.scheduling_gates
}

/// Returns true if a running pod uses other resources than before, as after a resize, or has other labels, which affinity
/// terms of other pods select. Changes made by its binding do not count.
pub(super) fn is_resized(old: &Pod, new: &Pod) -> bool {
    old.spec.node_name.is_some()
        && !is_terminating(new)
        && (old.metadata.labels != new.metadata.labels || !translate::has_equal_requests(old, new))
}

/// Only this scheduler writes the status of an unbound pod; every update of a running pod is relevant.
fn is_unbound(pod: &Pod) -> bool {
    pod.spec.node_name.is_none() && !is_finished(pod)
}

/// The GPUs that the kubelet allocated to a pod, from its status or the node monitor's annotation; empty when unknown.
pub(super) fn allocated_devices(pod: &Pod) -> Vec<String> {
    let statuses = pod.status.container_statuses.iter().flatten();
    let resources = statuses.flat_map(|status| status.allocated_resources_status.iter().flatten());
    let ids = resources
        .filter(|resource| resource.name == names::GPU_RESOURCE)
        .flat_map(|resource| resource.resources.iter().flatten())
        .map(|health| health.resource_id.as_str());
    let mut ids: Vec<&str> = ids.collect();
    if ids.is_empty() {
        let noted = pod.metadata.annotations.as_ref().and_then(|all| all.get(names::POD_DEVICES));
        ids = noted.map(|noted| noted.split(',').map(str::trim).collect()).unwrap_or_default();
    }
    ids.into_iter().filter(|id| !id.is_empty()).map(str::to_owned).collect()
}
