//! Translates Kubernetes objects into the engine's types. Pure, and without decisions.
//!
//! Everything that kube-scheduler's filters and scores consider becomes a part of the engine's [`Request`], [`Node`]
//! and [`ForeignUse`]. Anything that cannot be expressed is an [`Obstacle`], never ignored silently. Objects are user
//! input: no content may panic.
//!
//! [`Node`]: agentaflow_engine::Node

mod annotations;
mod disks;
mod features;
mod namespaces;
mod node;
mod places;
mod ports;
mod price;
mod quantity;
mod resources;
mod selector;
mod taints;
mod terms;
#[cfg(test)]
mod tests;
mod volumes;

pub use annotations::{
    annotation_problem, asked, duration, estimate, min_gpu_memory, preemptible, priority,
    replacement_timeout,
};
pub use namespaces::Namespaces;
pub use node::{NodeView, closed_gpus, node};
pub use price::{dollars, hourly, micro_dollars};
pub use resources::{gpu_need, gpu_resources, has_equal_requests};
pub(crate) use selector::short;
pub use selector::{labels, selector};
pub use volumes::{
    ClaimBinding, ClaimToBind, SELECTED_NODE, Volumes, VolumesLeft, is_counted, reaches,
};

use agentaflow_engine::labels::NodeTerm;
use agentaflow_engine::{ForeignUse, GpuRequest, MAX_NODE_GPUS, NodePreference, Request};
use std::collections::BTreeSet;

use crate::slim::Pod;
use places::{MAX_TERMS, Places, TooMany};
use quantity::LARGEST;
pub use quantity::{mebibytes, milli_cpu};

/// Objects that the translation looks up.
#[derive(Clone, Copy, Debug)]
pub struct TranslationContext<'a> {
    /// Claims, volumes and classes.
    pub volumes: &'a Volumes,
    /// Namespaces and their labels.
    pub namespaces: &'a Namespaces,
}

/// Request of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDemand {
    pub request: Request,
    /// Claims to bind before the pod is bound.
    pub claims: Vec<ClaimToBind>,
    pub depends: Dependencies,
}

/// Objects that the translation of a pod looked up: a change of one requires a new translation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Namespace and name, including claims that do not exist.
    pub claims: BTreeSet<(String, String)>,
    /// Volumes that these claims name.
    pub volumes: BTreeSet<String>,
    /// Storage classes of unbound claims: the class and all of its volumes matter.
    pub classes: BTreeSet<String>,
    /// Namespaces were selected by label.
    pub namespaces: bool,
}

impl Dependencies {
    /// True if the request depends on the pod alone.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Reason that a pod cannot be requested from the engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Unsupported field.
    #[error("{field}: {reason}")]
    Unsupported { field: &'static str, reason: String },
    /// A required object does not exist yet.
    #[error("{reason}")]
    NotYet { reason: String },
    /// No storage capacity is left for a volume to be provisioned.
    #[error("{reason}")]
    NoStorage { reason: String },
    #[error("held by scheduling gates: {}", .0.join(", "))]
    Gated(Vec<String>),
}

impl Obstacle {
    fn unsupported(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Unsupported { field, reason: reason.into() }
    }
}

/// Request of a pod, or the reason that it cannot be placed now.
pub fn pod(pod: &Pod, around: &TranslationContext<'_>) -> Result<PodDemand, Obstacle> {
    check_supported(pod)?;
    let needs =
        resources::needs(pod).map_err(|why| Obstacle::unsupported("spec.containers", why))?;
    let claims = volumes::of_pod(pod, around.volumes)?;
    let mut request = Request {
        gpu: whole_gpus(needs.gpus)?,
        cpu: needs.cpu,
        memory: needs.memory,
        storage: needs.storage,
        resources: needs.resources,
        tokens: ports::tokens(pod),
        node_selector: labels(pod.spec.node_selector.as_ref()),
        required_nodes: required_nodes(pod, claims.places)?,
        preferred_nodes: preferred_nodes(pod)?,
        tolerations: taints::tolerations(pod),
        labels: terms::task_labels(pod),
        affinity: terms::affinity(pod, around.namespaces)?,
        spread: terms::spread(pod)?,
        ..Request::default()
    };
    request.node_selector.extend(features::needed(pod));
    request.tokens.extend(disks::tokens(pod));
    request.tokens.extend(claims.tokens);
    request.resources.extend(claims.attached);
    request.validate().map_err(|error| Obstacle::unsupported("spec", error.to_string()))?;
    Ok(PodDemand { request, claims: claims.binds, depends: depends(pod, around) })
}

/// Foreign usage of a pod: resources on its node that the engine did not place.
pub fn foreign(pod: &Pod, around: &TranslationContext<'_>) -> ForeignUse {
    let takes = resources::takes(pod);
    let mut uses = ForeignUse {
        cpu: takes.cpu,
        memory: takes.memory,
        storage: takes.storage,
        resources: takes.resources,
        tokens: ports::tokens(pod),
        gpu_count: takes.gpus.min(MAX_NODE_GPUS as u64) as u32,
        labels: terms::task_labels(pod),
        anti_affinity: terms::running_anti_affinity(pod, around.namespaces),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        ..ForeignUse::default()
    };
    let (tokens, attached) = volumes::taken_by(pod, around.volumes);
    uses.tokens.extend(disks::tokens(pod));
    uses.tokens.extend(tokens);
    uses.resources.extend(attached);
    uses.cpu.0 = uses.cpu.0.min(LARGEST);
    uses.memory.0 = uses.memory.0.min(LARGEST);
    uses.storage.0 = uses.storage.0.min(LARGEST);
    uses.resources.values_mut().for_each(|amount| *amount = (*amount).min(LARGEST));
    uses
}

/// Objects that the translation of a pod looks up, regardless of its result.
pub fn depends(pod: &Pod, around: &TranslationContext<'_>) -> Dependencies {
    let mut depends =
        Dependencies { namespaces: terms::asks_for_namespaces(pod), ..Dependencies::default() };
    let namespace = terms::namespace(pod);
    for (name, _) in volumes::claim_names(pod) {
        if let Some(claim) = around.volumes.claim(namespace, &name) {
            match claim.spec.volume_name.as_ref().filter(|volume| !volume.is_empty()) {
                Some(volume) => depends.volumes.insert(volume.clone()),
                None => depends.classes.insert(volumes::class_of_claim(claim).to_owned()),
            };
        }
        depends.claims.insert((namespace.to_owned(), name));
    }
    depends
}

fn check_supported(pod: &Pod) -> Result<(), Obstacle> {
    let gates = pod.spec.scheduling_gates.iter().flatten().map(|gate| gate.name.clone());
    let gates: Vec<String> = gates.collect();
    if !gates.is_empty() {
        return Err(Obstacle::Gated(gates));
    }
    if pod.spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        let why = "dynamic resource allocation is not supported; ask for nvidia.com/gpu instead";
        return Err(Obstacle::unsupported("spec.resourceClaims", why));
    }
    if pod.spec.workload_ref.as_ref().is_some_and(|reference| !reference.is_null()) {
        let why = "workloads of Kubernetes 1.35 are not supported; use spec.schedulingGroup or a pod group";
        return Err(Obstacle::unsupported("spec.workloadRef", why));
    }
    Ok(())
}

fn whole_gpus(count: u64) -> Result<GpuRequest, Obstacle> {
    match count {
        0 => Ok(GpuRequest::None),
        count if count > MAX_NODE_GPUS as u64 => {
            let why =
                format!("{count} GPUs are more than the {MAX_NODE_GPUS} that one node can have");
            Err(Obstacle::unsupported("nvidia.com/gpu", why))
        }
        count => Ok(GpuRequest::Whole(count as u32)),
    }
}

/// Required node affinity combined with the nodes of the volumes.
fn required_nodes(pod: &Pod, volumes: Places) -> Result<Vec<NodeTerm>, Obstacle> {
    const FIELD: &str = "spec.affinity.nodeAffinity";
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let asked = match required {
        None => Places::ANYWHERE,
        Some(required) => {
            let terms = selector::node_terms(required);
            Places::any_of(terms.map_err(|why| Obstacle::unsupported(FIELD, why))?)
        }
    };
    asked.and(volumes).and_then(Places::into_terms).map_err(|TooMany| {
        let why = format!(
            "with the places of its volumes it comes to more than {MAX_TERMS} alternatives"
        );
        Obstacle::unsupported(FIELD, why)
    })
}

/// Preferred nodes; a term without conditions or weight has no effect.
fn preferred_nodes(pod: &Pod) -> Result<Vec<NodePreference>, Obstacle> {
    const FIELD: &str = "spec.affinity.nodeAffinity";
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let preferred =
        affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
    let mut made = Vec::new();
    for preference in preferred.into_iter().flatten() {
        let term = selector::node_term(&preference.preference);
        let term = term.map_err(|why| Obstacle::unsupported(FIELD, why))?;
        let weight = terms::weight(preference.weight, FIELD)?;
        made.extend(
            weight.filter(|_| !term.is_empty()).map(|weight| NodePreference { weight, term }),
        );
    }
    Ok(made)
}
