//! Which workload a pod belongs to, and what people said about it.

use agentaflow_engine::{
    Gate, MiB, OnFault, QueueId, Request, Span, Strategy, Time, Topology, Workload, WorkloadId,
};
use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::gpu_workload;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::owners::OwnerEntry;
use super::pod_entry::{Parked, moment, workload_owner};
use super::{ClusterState, Key, key_of};

/// The most pods of one gang.
const MAX_GANG: u32 = 10_000;

/// The time to end of pods that say none, as the API server has it, in seconds.
const DEFAULT_GRACE: i64 = 30;

/// The most bytes that are said about why a pod is set aside, as of an Event.
const LONGEST_REASON: usize = 1024;

/// What a pod belongs to.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) id: WorkloadId,
    pub(super) kind: MembershipKind,
    /// The gang that it is part of and placed apart from.
    pub(super) gang: Option<WorkloadId>,
    /// How many pods start together.
    pub(super) need: u32,
    pub(super) traits: Traits,
}

/// What makes pods one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MembershipKind {
    /// A pod by itself.
    Pod,
    /// A `GPUWorkload`.
    Workload(Key),
    /// A pod group.
    PodGroup,
}

/// What people said about a workload beside its pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Traits {
    pub(super) queue: QueueId,
    pub(super) priority: u8,
    pub(super) strategy: Option<Strategy>,
    pub(super) estimate: Option<Span>,
    /// How long it may take to end when it is asked to.
    pub(super) grace: Span,
    pub(super) preemptible: bool,
    pub(super) may_preempt: bool,
    pub(super) topology: Option<Topology>,
    pub(super) submitted: Time,
}

impl Membership {
    /// Its gang waits or runs without it: it is by itself now.
    pub(super) fn part(&mut self, key: &Key) {
        self.gang = Some(std::mem::replace(&mut self.id, alone(key)));
        (self.kind, self.need) = (MembershipKind::Pod, 1);
        self.traits.topology = None;
    }
}

impl Traits {
    /// The same for pods of which the first came then: a gang is as old as its oldest pod.
    pub(super) fn since(&self, first: Time) -> Self {
        Self { submitted: self.submitted.min(first), ..self.clone() }
    }

    /// The workload that the engine is told of.
    pub(super) fn workload(&self, id: WorkloadId, tasks: u32, request: Arc<Request>) -> Workload {
        Workload {
            queue: self.queue.clone(),
            tasks,
            topology: self.topology.clone(),
            priority: self.priority,
            submitted: Some(self.submitted),
            estimate: self.estimate,
            grace: self.grace,
            strategy: self.strategy,
            preemptible: self.preemptible,
            may_preempt: self.may_preempt,
            // A pod cannot be moved: what happens to it when its node or GPU fails is Kubernetes' business.
            on_fault: OnFault::Keep,
            ..Workload::new(id, request)
        }
    }
}

impl ClusterState {
    /// Which workload a pod belongs to; or why that cannot be told yet.
    pub(super) fn belonging(&self, key: &Key, pod: &Pod) -> Result<Membership, Parked> {
        if let Some(owner) = workload_owner(pod) {
            return self.of_workload(pod, &owner);
        }
        let annotations = self.annotations(pod);
        let traits = self.traits(pod, &annotations)?;
        if let Some(group) = group_of(pod) {
            let group = Key::new(&key.namespace, group);
            let need = *self.pod_groups.get(&group).ok_or_else(|| {
                because("PodGroupMissing", format!("there is no pod group `{group}`"))
            })?;
            if need > MAX_GANG {
                let message = format!("pod group `{group}` asks for more than {MAX_GANG} pods");
                return Err(because("GangTooLarge", message));
            }
            if need > 1 {
                let id = format!("{}/group/{}", group.namespace, group.name);
                let (id, kind) = (id.into(), MembershipKind::PodGroup);
                return Ok(Membership { id, kind, gang: None, need, traits });
            }
        }
        Ok(Membership { id: alone(key), kind: MembershipKind::Pod, gang: None, need: 1, traits })
    }

    fn of_workload(&self, pod: &Pod, owner: &Key) -> Result<Membership, Parked> {
        let entry = self.workloads.get(owner).ok_or_else(|| {
            because("WorkloadMissing", format!("its GPUWorkload `{owner}` is not known yet"))
        })?;
        let owners = pod.metadata.owner_references.iter().flatten();
        let uid = entry.object.metadata.uid.as_deref();
        if !owners.into_iter().any(|owner| Some(owner.uid.as_str()) == uid) {
            let message = format!("its GPUWorkload `{owner}` is gone; another has its name");
            return Err(because("WorkloadMissing", message));
        }
        let spec = entry.object.spec.0.as_ref().map_err(|why| {
            because("InvalidSpec", format!("its GPUWorkload cannot be read: {why}"))
        })?;
        let mut annotations = self.annotations(pod);
        annotations.extend(spec.queue.clone().map(|queue| (names::QUEUE.to_owned(), queue)));
        let mut traits = self.traits(pod, &annotations)?;
        self.add_spec(&mut traits, spec)?;
        traits.priority = traits.priority.min(self.highest_priority(pod));
        // Who may have which class is decided by quotas and policies: one that the template names wins, and one that
        // we asked for is the most until there are new pods.
        if let Some(class) = translate::admitted(pod) {
            let most =
                if gpu_workload::names_class(spec) { class } else { class.min(traits.priority) };
            traits.priority = most.min(self.queues.highest_priority(&traits.queue));
        }
        if let Some(created) = &entry.object.metadata.creation_timestamp {
            traits.submitted = moment(created.0);
        }
        let id = format!("{}/{}", owner.namespace, owner.name);
        let (kind, need) =
            (MembershipKind::Workload(owner.clone()), spec.gang_size.clamp(1, MAX_GANG));
        Ok(Membership { id: id.into(), kind, gang: None, need, traits })
    }

    /// What a `GPUWorkload` says beside its pods.
    pub(super) fn add_spec(
        &self,
        traits: &mut Traits,
        spec: &GpuWorkloadSpec,
    ) -> Result<(), Parked> {
        traits.priority = spec.priority.min(10);
        traits.preemptible = spec.preemptible;
        gpu_workload::check(spec).map_err(|error| because("InvalidSpec", error.to_string()))?;
        traits.strategy = gpu_workload::strategy(spec).ok().flatten().or(traits.strategy);
        traits.estimate = gpu_workload::estimate(spec).ok().flatten().or(traits.estimate);
        traits.topology = gpu_workload::topology(spec);
        traits.priority = traits.priority.min(self.queues.highest_priority(&traits.queue));
        Ok(())
    }

    /// What annotations say about a pod.
    pub(super) fn traits(&self, pod: &Pod, annotations: &Annotations) -> Result<Traits, Parked> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let label = |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let kueue = label(names::KUEUE_QUEUE).filter(|_| !self.settings.kueue);
        let named = annotations.get(names::QUEUE).or_else(|| label(names::QUEUE));
        let queue = match (named, kueue) {
            (Some(name), _) => self.queue(Some(name), namespace)?,
            // Kueue's local queues are not ours: the name counts only where we have a queue of that name.
            (None, Some(name)) if self.queues.contains(name) => {
                self.queue(Some(name), namespace)?
            }
            (None, _) => self.queue(None, namespace)?,
        };
        let strategy = annotations.get(names::STRATEGY).map(|name| {
            super::settings::strategy(name.trim()).map_err(|error| {
                because("InvalidAnnotation", format!("annotation {}: {error}", names::STRATEGY))
            })
        });
        if let Some(problem) = translate::misread(annotations) {
            return Err(because("InvalidAnnotation", problem));
        }
        let created = pod.metadata.creation_timestamp.as_ref();
        let priority = translate::priority(pod, annotations).min(self.highest_priority(pod));
        let grace = pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
        Ok(Traits {
            priority: priority.min(self.queues.highest_priority(&queue)),
            queue,
            strategy: strategy.transpose()?,
            estimate: translate::estimate(annotations),
            grace: Span::seconds(grace.try_into().unwrap_or(0)),
            preemptible: translate::preemptible(annotations),
            may_preempt: pod.spec.preemption_policy.as_deref() != Some("Never"),
            topology: None,
            submitted: created.map_or(self.now, |time| moment(time.0)),
        })
    }

    /// The most that may be asked for beside a pod's class. The pods that we make have a class, too: those that name
    /// our kind as their owner and have none were made by others.
    fn highest_priority(&self, pod: &Pod) -> u8 {
        let unclassed = self.settings.admission && translate::admitted(pod).is_none();
        if unclassed { translate::MIDDLE } else { u8::MAX }
    }

    /// A pod's own annotations of ours, then its owners'.
    fn annotations(&self, pod: &Pod) -> Annotations {
        let owner = self.owner_of(pod).and_then(|entry| entry.said.as_deref());
        let owner = owner.into_iter().flatten();
        let own = pod.metadata.annotations.iter().flatten();
        let own = own.filter(|(name, _)| name.starts_with(names::PREFIX));
        owner.chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// What owners say that the pod itself does not: written onto the pod with its binding.
    pub(super) fn inherited(&self, pod: &Pod) -> BTreeMap<String, String> {
        let own = pod.metadata.annotations.as_ref();
        let mut all = self.annotations(pod);
        all.retain(|name, _| !own.is_some_and(|own| own.contains_key(name)));
        all
    }

    /// The owner that must be asked before this pod can be judged, if any.
    pub(super) fn owner_to_ask(&self, pod: &Pod) -> Option<super::Owner> {
        let owner = controller(pod)?;
        let known = self.owner_of(pod).is_some_and(|entry| entry.said.is_some());
        (!known).then(|| super::Owner {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: pod.metadata.namespace.as_deref().unwrap_or_default().into(),
            name: owner.name.clone(),
            uid: owner.uid.as_str().into(),
        })
    }

    fn owner_of(&self, pod: &Pod) -> Option<&OwnerEntry> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        self.owners.get(&(Arc::from(namespace), Arc::from(controller(pod)?.uid.as_str())))
    }

    /// The least memory that each GPU must have, as an annotation says.
    pub(super) fn least_memory(&self, pod: &Pod) -> Option<MiB> {
        translate::min_gpu_memory(&self.annotations(pod))
    }

    /// The spec of the `GPUWorkload` that a pod belongs to.
    pub(super) fn spec_of(&self, owner: &Key) -> Option<&GpuWorkloadSpec> {
        self.workloads.get(owner)?.object.spec.0.as_deref().ok()
    }
}

/// Annotations of ours.
type Annotations = BTreeMap<String, String>;

/// The controller of a pod, other than a `GPUWorkload`, which we watch.
pub(super) fn controller(
    pod: &Pod,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind != "GPUWorkload")
}

/// The id of a pod that stands alone.
pub(super) fn alone(key: &Key) -> WorkloadId {
    format!("{}/pod/{}", key.namespace, key.name).into()
}

/// The group that a pod names.
fn group_of(pod: &Pod) -> Option<&str> {
    let native =
        pod.spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.as_deref());
    let label = || pod.metadata.labels.as_ref()?.get(names::POD_GROUP).map(String::as_str);
    native.or_else(label).filter(|name| !name.is_empty())
}

/// A reason to set a pod aside. What people wrote is part of many, and may be longer than anybody reads.
pub(super) fn because(word: &'static str, message: impl Into<Arc<str>>) -> Parked {
    let message: Arc<str> = message.into();
    let end = message.floor_char_boundary(LONGEST_REASON);
    Parked::Because(word, if end < message.len() { message[..end].into() } else { message })
}

/// A gang that is not complete.
pub(super) fn incomplete(have: usize, need: u32) -> Gate {
    Gate::GangIncomplete { have: have as u32, need }
}

/// The key of the group that a pod names, for pods that wait for their group to exist.
pub(super) fn names_group(pod: &Pod, group: &Key) -> bool {
    group_of(pod) == Some(&*group.name) && key_of(&pod.metadata).namespace == group.namespace
}
