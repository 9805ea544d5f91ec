//! The workload that a pod belongs to, and its scheduling traits.

use agentaflow_engine::{
    OnFault, Priority, QueueId, Request, Span, Strategy, Time, Topology, Workload, WorkloadId,
};
use agentaflow_kube_core::crd::GpuWorkloadSpec;
use agentaflow_kube_core::gpu_workload;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use agentaflow_kube_core::translate::{self, PodDemand, TranslationContext};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::Key;
use super::gang_table::GangTable;
use super::key_of;
use super::owner_index::OwnerIndex;
use super::parked::Parked;
use super::pod_entry::{engine_time, workload_owner};
use super::priority_classes::PriorityClasses;
use super::queue_table::QueueTable;
use super::replacements::Replacements;
use super::settings::Settings;
use super::unit_table::UnitTable;
use super::workload_table::WorkloadTable;

/// The most pods of one gang.
pub(super) const MAX_GANG: u32 = 10_000;

/// The API server's default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Annotations of the product.
pub(super) type Annotations = BTreeMap<String, String>;

/// The workload that a pod belongs to.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) id: WorkloadId,
    /// The `GPUWorkload` whose spec adds to the request.
    pub(super) workload: Option<Key>,
    /// The gang that the pod belongs to and is placed apart from.
    pub(super) detached_from: Option<WorkloadId>,
    /// Number of pods that start together.
    pub(super) min_members: u32,
    pub(super) traits: Traits,
}

/// Everything about a workload except its requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Traits {
    pub(super) queue: QueueId,
    pub(super) priority: Priority,
    /// Order among equal priorities.
    pub(super) precedence: u8,
    pub(super) strategy: Option<Strategy>,
    pub(super) estimate: Option<Span>,
    /// Time that a victim has to stop.
    pub(super) grace: Span,
    /// Time during which the place of a lost pod stays reserved.
    pub(super) replacement_wait: Option<Span>,
    pub(super) preemptible: bool,
    pub(super) may_preempt: bool,
    pub(super) topology: Option<Topology>,
    pub(super) preferred_topology: Vec<String>,
    pub(super) submitted: Time,
}

impl Membership {
    /// A pod placed apart from its gang, which runs or waits without it.
    pub(super) fn detach(&mut self, key: &Key) {
        self.detached_from = Some(std::mem::replace(&mut self.id, single_pod_id(key)));
        self.workload = None;
        self.min_members = 1;
        self.traits.topology = None;
        self.traits.preferred_topology.clear();
    }
}

impl Traits {
    /// Adds the spec of a `GPUWorkload` to the traits of its pod. The priority stays the one that admission gave to the pod:
    /// quotas and policies restrict the use of classes.
    pub(super) fn add_spec(&mut self, spec: &GpuWorkloadSpec) -> Result<(), Parked> {
        gpu_workload::check(spec).map_err(|error| Parked::InvalidSpec(error.to_string()))?;
        self.preemptible = spec.preemptible;
        self.strategy = gpu_workload::strategy(spec).ok().flatten().or(self.strategy);
        self.estimate = gpu_workload::estimate(spec).ok().flatten().or(self.estimate);
        self.topology = gpu_workload::topology(spec);
        self.preferred_topology = gpu_workload::preferred_topology(spec);
        Ok(())
    }

    /// A gang is as old as its oldest pod.
    pub(super) fn since(&self, first: Time) -> Self {
        Self { submitted: self.submitted.min(first), ..self.clone() }
    }

    pub(super) fn workload(&self, id: WorkloadId, tasks: u32, request: Arc<Request>) -> Workload {
        Workload {
            queue: self.queue.clone(),
            tasks,
            topology: self.topology.clone(),
            preferred_topology: self.preferred_topology.clone(),
            priority: self.priority,
            precedence: self.precedence,
            submitted: Some(self.submitted),
            estimate: self.estimate,
            grace: self.grace,
            replacement_wait: self.replacement_wait,
            strategy: self.strategy,
            preemptible: self.preemptible,
            may_preempt: self.may_preempt,
            // A pod cannot be moved: Kubernetes handles a failure of its node or GPU.
            on_fault: OnFault::Keep,
            ..Workload::new(id, request)
        }
    }
}

/// Read access to every part that membership, traits and requests of a pod follow from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup<'a> {
    pub(super) settings: &'a Settings,
    pub(super) owners: &'a OwnerIndex,
    pub(super) replacements: &'a Replacements,
    pub(super) workloads: &'a WorkloadTable,
    pub(super) gangs: &'a GangTable,
    pub(super) queues: &'a QueueTable,
    pub(super) units: &'a UnitTable,
    pub(super) priorities: &'a PriorityClasses,
    pub(super) translation: TranslationContext<'a>,
    pub(super) now: Time,
}

impl Lookup<'_> {
    /// The workload that a pod belongs to, or the reason to park the pod.
    pub(super) fn membership(&self, key: &Key, pod: &Pod) -> Result<Membership, Parked> {
        if let Some(owner) = workload_owner(pod) {
            return self.workload_membership(pod, &owner);
        }
        if let Some(unit) = self.unit_membership(pod)? {
            return Ok(unit);
        }
        let traits = self.traits(pod, &self.annotations(pod))?;
        let single = |traits| Membership {
            id: single_pod_id(key),
            workload: None,
            detached_from: None,
            min_members: 1,
            traits,
        };
        let Some(group) = pod_group(pod) else { return Ok(single(traits)) };
        let group = Key::new(&key.namespace, group);
        let Some(min_members) = self.gangs.min_members(&group) else {
            return Err(Parked::PodGroupMissing(group));
        };
        match min_members {
            0 | 1 => Ok(single(traits)),
            2..=MAX_GANG => Ok(Membership {
                id: group_id(&group),
                workload: None,
                detached_from: None,
                min_members,
                traits,
            }),
            _ => Err(Parked::PodGroupTooLarge { group, limit: MAX_GANG }),
        }
    }

    fn workload_membership(&self, pod: &Pod, owner: &Key) -> Result<Membership, Parked> {
        let Some(object) = self.workloads.object(owner) else {
            return Err(Parked::WorkloadMissing(owner.clone()));
        };
        let owners = pod.metadata.owner_references.iter().flatten();
        let uid = object.metadata.uid.as_deref();
        if !owners.into_iter().any(|owner| Some(owner.uid.as_str()) == uid) {
            return Err(Parked::WorkloadReplaced(owner.clone()));
        }
        let spec = object.spec.0.as_ref().map_err(|why| {
            Parked::InvalidSpec(format!("Cannot read GPUWorkload `{owner}`: {why}"))
        })?;
        let mut annotations = self.annotations(pod);
        annotations.extend(spec.queue.clone().map(|queue| (names::QUEUE.to_owned(), queue)));
        let mut traits = self.traits(pod, &annotations)?;
        traits.add_spec(spec)?;
        if let Some(created) = &object.metadata.creation_timestamp {
            traits.submitted = engine_time(created.0);
        }
        Ok(Membership {
            id: workload_id(owner),
            workload: Some(owner.clone()),
            detached_from: None,
            min_members: spec.gang_size.clamp(1, MAX_GANG),
            traits,
        })
    }

    /// Traits of a pod with these annotations.
    pub(super) fn traits(&self, pod: &Pod, annotations: &Annotations) -> Result<Traits, Parked> {
        let queue = self.queue(pod, annotations)?;
        let strategy = annotations.get(names::STRATEGY).map(|name| {
            super::settings::strategy(name.trim()).map_err(|error| {
                Parked::InvalidAnnotation(format!("annotation {}: {error}", names::STRATEGY))
            })
        });
        if let Some(problem) = translate::annotation_problem(annotations) {
            return Err(Parked::InvalidAnnotation(problem));
        }
        let most = self.queues.max_priority(&queue);
        let grace = pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        Ok(Traits {
            priority: translate::priority(pod).min(self.priorities.limit(most)),
            precedence: self.precedence(annotations).min(most),
            queue,
            strategy: strategy.transpose()?,
            estimate: translate::estimate(annotations),
            replacement_wait: translate::replacement_timeout(annotations),
            grace: Span::seconds(grace.try_into().unwrap_or(0)),
            preemptible: translate::preemptible(annotations),
            may_preempt: pod.spec.preemption_policy.as_deref() != Some("Never"),
            topology: None,
            preferred_topology: Vec::new(),
            submitted: self.replacements.submitted(pod).unwrap_or(self.now),
        })
    }

    fn queue(&self, pod: &Pod, annotations: &Annotations) -> Result<QueueId, Parked> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let label = |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name));
        let named = annotations.get(names::QUEUE).or_else(|| label(names::QUEUE));
        // Local queues of Kueue are not queues of this scheduler: the label counts only where a GPUQueue has its name.
        let kueue = || {
            label(names::KUEUE_QUEUE)
                .filter(|name| !self.settings.kueue && self.queues.contains(name))
        };
        let named = named.or_else(kueue).map(String::as_str);
        self.queues.resolve(named, namespace)
    }

    /// Gives a pod that does not exist yet the priority that admission will give it.
    pub(super) fn admit(&self, pod: &mut Pod, annotations: &Annotations) {
        let asked = translate::asked(annotations).filter(|_| self.settings.admission);
        let named = pod.spec.priority_class_name.clone().filter(|name| !name.is_empty());
        let class = named.or_else(|| asked.and_then(names::priority_class));
        pod.spec.priority.get_or_insert_with(|| self.priorities.priority(class.as_deref()).0);
    }

    /// Order among pods of equal priority. The webhook converts the annotation of a new pod to a class; with it, an annotation
    /// that is added later has no effect.
    fn precedence(&self, annotations: &Annotations) -> u8 {
        let asked = translate::asked(annotations).filter(|_| !self.settings.admission);
        asked.unwrap_or(names::DEFAULT_PRIORITY)
    }

    /// Annotations of the pod, then annotations of its owners.
    pub(super) fn annotations(&self, pod: &Pod) -> Annotations {
        let owner = self.owners.annotations(pod).into_iter().flatten();
        let own = pod.metadata.annotations.iter().flatten();
        let own = own.filter(|(name, _)| name.starts_with(names::PREFIX));
        owner.chain(own).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Annotations of owners that the pod itself does not have; written to the pod with its binding.
    pub(super) fn inherited_annotations(&self, pod: &Pod) -> Annotations {
        let own = pod.metadata.annotations.as_ref();
        let mut all = self.annotations(pod);
        all.retain(|name, _| !own.is_some_and(|own| own.contains_key(name)));
        all
    }

    /// The request of a pod, with additions from its `GPUWorkload` and annotations.
    pub(super) fn request(&self, pod: &Pod, membership: &Membership) -> Result<PodDemand, Parked> {
        let mut asked = translate::pod(pod, &self.translation).map_err(Parked::Untranslatable)?;
        let spec = membership.workload.as_ref().and_then(|owner| self.workloads.spec(owner));
        if let Some(spec) = spec {
            gpu_workload::apply_gpu_requirements(spec, &mut asked.request);
        }
        if let Some(memory) = translate::min_gpu_memory(&self.annotations(pod)) {
            let least = &mut asked.request.min_gpu_memory;
            *least = (*least).max(memory);
        }
        // Task and attempt numbers belong to the controller: no affinity term selects them.
        asked.request.labels.remove(names::POD_TASK);
        asked.request.labels.remove(names::POD_ATTEMPT);
        Ok(asked)
    }
}

/// The controller of a pod, except a `GPUWorkload`, which is watched.
pub(super) fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.into_iter().find(|owner| owner.controller == Some(true) && owner.kind != "GPUWorkload")
}

/// Engine id of a pod that is a workload by itself.
pub(super) fn single_pod_id(key: &Key) -> WorkloadId {
    format!("{}/pod/{}", key.namespace, key.name).into()
}

/// Engine id of a `GPUWorkload`.
pub(super) fn workload_id(workload: &Key) -> WorkloadId {
    workload.to_string().into()
}

/// Engine id of a pod group.
pub(super) fn group_id(group: &Key) -> WorkloadId {
    format!("{}/group/{}", group.namespace, group.name).into()
}

/// Name of the pod group that a pod names.
pub(super) fn pod_group(pod: &Pod) -> Option<&str> {
    let native =
        pod.spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.as_deref());
    let label = || pod.metadata.labels.as_ref()?.get(names::POD_GROUP).map(String::as_str);
    native.or_else(label).filter(|name| !name.is_empty())
}

pub(super) fn is_in_pod_group(pod: &Pod, group: &Key) -> bool {
    pod_group(pod) == Some(&*group.name) && key_of(&pod.metadata).namespace == group.namespace
}
