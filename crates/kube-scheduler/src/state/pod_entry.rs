//! What is recorded about a pod, and what can be read from one.

use agentaflow_engine::{ForeignUse, Request, Time, WorkloadId};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::{Pod, PodCondition};
use agentaflow_kube_core::translate::{self, ClaimToBind, Depends};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{Action, Key, PendingCondition, PodRef};

/// What is recorded about a pod.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) uid: Arc<str>,
    pub(super) created: Time,
    /// The pod itself; only of ours.
    pub(super) pod: Option<Arc<Pod>>,
    /// A pod of others, where what it takes depends on other objects. Most depend on nothing, and are not kept.
    pub(super) theirs: Option<Box<Pod>>,
    /// What it takes of its node; only of pods that the engine does not decide about.
    pub(super) uses: Option<Box<ForeignUse>>,
    pub(super) place: PodState,
    /// What it asks for; only of members.
    pub(super) asked: Option<Arc<Request>>,
    /// The gang that it is part of and placed apart from.
    pub(super) gang: Option<WorkloadId>,
    /// Claims to bind with it.
    pub(super) claims: Vec<ClaimToBind>,
    /// What else its request was made from.
    pub(super) depends: Depends,
    /// The node that it is nominated for, as the API server has it.
    pub(super) nominated: Option<Arc<str>>,
    /// The node that we last nominated it for; that may still be on its way.
    pub(super) nominated_by_us: Option<Arc<str>>,
    /// Its binding is under way, or carried out and not told back yet.
    pub(super) heading: Option<PendingBinding>,
    /// We have said on it why it is not placed, or found it said.
    explained: bool,
}

/// Where a binding leads, whatever the engine thinks of it by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingBinding {
    pub(super) node: Arc<str>,
    pub(super) plan: u64,
}

/// Where a pod stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum PodState {
    /// It concerns nobody: over, or of others and not on a node.
    #[default]
    Untracked,
    /// The engine is told what it uses of this node.
    Foreign(Arc<str>),
    /// It is part of a workload that the engine knows.
    Member { workload: WorkloadId, task: u32, seat: BindingState },
    /// It is ours, and cannot be handed to the engine.
    Parked(Parked),
}

/// Where a member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BindingState {
    /// It waits.
    Pending,
    /// It is being bound to this node.
    Binding { node: Arc<str>, plan: u64 },
    /// It is bound to this node.
    Bound(Arc<str>),
}

/// PendingCondition a pod of ours cannot be handed to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parked {
    /// Its owner is being asked.
    LookingUp,
    /// Not now: one word and one sentence.
    Because(&'static str, Arc<str>),
}

impl PodEntry {
    pub(super) fn new(pod: &Pod, uid: Arc<str>) -> Self {
        let created = pod.metadata.creation_timestamp.as_ref();
        Self {
            uid,
            created: created.map_or(Time(0), |time| moment(time.0)),
            pod: None,
            theirs: None,
            uses: None,
            place: PodState::Untracked,
            asked: None,
            gang: None,
            claims: Vec::new(),
            depends: Depends::default(),
            nominated: None,
            nominated_by_us: None,
            heading: None,
            explained: false,
        }
    }

    pub(super) fn is_on_node(&self) -> bool {
        self.pod.as_ref().is_none_or(|pod| pod.spec.node_name.is_some())
    }

    pub(super) fn reference(&self, key: &Key) -> PodRef {
        PodRef { key: key.clone(), uid: self.uid.clone() }
    }

    /// Says on the pod why it is not placed, unless whoever led before us has said just that.
    pub(super) fn explain(
        &mut self,
        key: &Key,
        reason: &'static str,
        message: Arc<str>,
    ) -> Option<Action> {
        let said = self.pod.as_ref().and_then(|pod| pod.status.conditions.as_ref());
        let no = |one: &&PodCondition| one.kind == "PodScheduled" && one.status == "False";
        let said = said.and_then(|said| said.iter().find(no));
        let told = |said: &PodCondition| {
            said.reason.as_deref() == Some(reason) && said.message.as_deref() == Some(&*message)
        };
        let (again, told) = (said.is_some(), said.is_some_and(told));
        let first = !std::mem::replace(&mut self.explained, true);
        let why = PendingCondition { reason, message, again };
        (!(first && told)).then(|| Action::Explain { pod: self.reference(key), why })
    }
}

/// A time of Kubernetes as the engine counts it.
pub(super) fn moment(time: jiff::Timestamp) -> Time {
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

/// Whether a pod is over.
pub(super) fn is_finished(pod: &Pod) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Whether a pod is being deleted.
pub(super) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The node that a pod is on, or that others are being stopped on for it.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    let nominated = pod.status.nominated_node_name.as_deref().filter(|name| !name.is_empty());
    pod.spec.node_name.as_deref().or(nominated)
}

/// Whether nothing changed that we read: most updates of a pod are its own conditions.
pub(super) fn is_same_to_us(old: &Pod, new: &Pod) -> bool {
    let facts = |pod: &Pod| -> (bool, bool, Option<String>, Option<BTreeMap<String, String>>) {
        (is_finished(pod), is_leaving(pod), pod.spec.node_name.clone(), pod.metadata.labels.clone())
    };
    pending_unbound(old)
        && pending_unbound(new)
        && facts(old) == facts(new)
        && old.metadata.annotations == new.metadata.annotations
        && old.metadata.generation == new.metadata.generation
        && new.metadata.generation.is_some()
        && old.spec.scheduling_gates == new.spec.scheduling_gates
}

/// Whether a pod that runs takes something else of its node than before, as after a resize, or is called otherwise by
/// those who look for its labels. What its binding changes is no news.
pub(super) fn takes_otherwise(old: &Pod, new: &Pod) -> bool {
    old.spec.node_name.is_some()
        && !is_leaving(new)
        && (old.metadata.labels != new.metadata.labels || !translate::takes_the_same(old, new))
}

/// Only of pods that wait is the status ours alone; what runs is worth a look at every change.
fn pending_unbound(pod: &Pod) -> bool {
    pod.spec.node_name.is_none() && !is_finished(pod)
}

/// The GPUs that the kubelet gave a pod, as its own status or the monitor of its node tells; empty when unknown.
pub(super) fn devices(pod: &Pod) -> Vec<String> {
    let statuses = pod.status.container_statuses.iter().flatten();
    let resources = statuses.flat_map(|status| status.allocated_resources_status.iter().flatten());
    let ids = resources
        .filter(|resource| resource.name == names::GPU_RESOURCE)
        .flat_map(|resource| resource.resources.iter().flatten())
        .map(|health| health.resource_id.as_str());
    let mut ids: Vec<&str> = ids.collect();
    if ids.is_empty() {
        let told = pod.metadata.annotations.as_ref().and_then(|all| all.get(names::POD_DEVICES));
        ids = told.map(|told| told.split(',').map(str::trim).collect()).unwrap_or_default();
    }
    ids.into_iter().filter(|id| !id.is_empty()).map(str::to_owned).collect()
}
