//! Pod affinity, anti-affinity and topology spread.

use agentaflow_engine::labels::{Expr, Labels, Op, Selector};
use agentaflow_engine::{AffinityKind, TaskAffinity, TopologySpread};
use k8s_openapi::api::core::v1::{PodAffinityTerm, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::selector::{labels, selector, short};
use super::{Namespaces, Obstacle};
use crate::names;
use crate::slim::Pod;

/// Topology key of the engine for single nodes; a Kubernetes term must not use it.
const EACH_NODE: &str = "node";

/// Labels that terms match: the labels of the pod, and its namespace.
pub(super) fn task_labels(pod: &Pod) -> Labels {
    let mut labels = labels(pod.metadata.labels.as_ref());
    labels.insert(names::NAMESPACE_KEY.into(), namespace(pod).into());
    labels
}

pub(super) fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// All terms of a pod's affinity and anti-affinity.
pub(super) fn affinity(pod: &Pod, namespaces: &Namespaces) -> Result<Vec<TaskAffinity>, Obstacle> {
    let mut terms = required_near(pod, namespaces)?;
    terms.extend(required_away(pod, namespaces)?);
    let affinity = pod.spec.affinity.as_ref();
    let near = affinity.and_then(|affinity| affinity.pod_affinity.as_ref());
    let away = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let near =
        near.and_then(|near| near.preferred_during_scheduling_ignored_during_execution.as_ref());
    let away =
        away.and_then(|away| away.preferred_during_scheduling_ignored_during_execution.as_ref());
    let near = near
        .into_iter()
        .flatten()
        .map(|term| (AffinityKind::Affinity, "spec.affinity.podAffinity", term));
    let away = away
        .into_iter()
        .flatten()
        .map(|term| (AffinityKind::AntiAffinity, "spec.affinity.podAntiAffinity", term));
    for (side, field, preferred) in near.chain(away) {
        let Some(weight) = weight(preferred.weight, field)? else { continue };
        let (selector, key) = term(pod, &preferred.pod_affinity_term, namespaces, field)?;
        terms.push(TaskAffinity { kind: side, selector, key, weight: Some(weight) });
    }
    Ok(terms)
}

/// Anti-affinity terms of a running pod; invalid ones are ignored.
pub(super) fn running_anti_affinity(pod: &Pod, namespaces: &Namespaces) -> Vec<TaskAffinity> {
    let terms =
        anti_affinity_terms(pod).filter_map(|wanted| anti_affinity(pod, wanted, namespaces).ok());
    terms.collect()
}

/// True if a term of the pod selects namespaces by label.
pub(super) fn asks_for_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = &pod.spec.affinity else { return false };
    let near = affinity.pod_affinity.iter().flat_map(|near| {
        let preferred = near.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        let required = near.required_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|term| &term.pod_affinity_term))
    });
    let away = affinity.pod_anti_affinity.iter().flat_map(|away| {
        let preferred = away.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        let required = away.required_during_scheduling_ignored_during_execution.iter().flatten();
        required.chain(preferred.map(|term| &term.pod_affinity_term))
    });
    near.chain(away)
        .any(|term| term.namespace_selector.as_ref().is_some_and(|wanted| !is_empty(wanted)))
}

/// Topology spread constraints; only pods of the same namespace count.
pub(super) fn spread(pod: &Pod) -> Result<Vec<TopologySpread>, Obstacle> {
    pod.spec
        .topology_spread_constraints
        .iter()
        .flatten()
        .map(|wanted| constraint(pod, wanted))
        .collect()
}

/// A weight from 1 to 100; `None` for a weight of 0.
pub(super) fn weight(weight: i32, field: &'static str) -> Result<Option<u32>, Obstacle> {
    match u32::try_from(weight) {
        Ok(0) => Ok(None),
        Ok(weight @ 1..=100) => Ok(Some(weight)),
        _ => Err(Obstacle::unsupported(
            field,
            format!("a weight of {weight} is not between 1 and 100"),
        )),
    }
}

/// A matching pod must match every required term at once, so that all terms get one selector, as in kube-scheduler; each
/// keeps its own topology.
fn required_near(pod: &Pod, namespaces: &Namespaces) -> Result<Vec<TaskAffinity>, Obstacle> {
    let near = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    let near =
        near.and_then(|near| near.required_during_scheduling_ignored_during_execution.as_ref());
    let mut merged = Selector::default();
    let mut keys = BTreeSet::new();
    for wanted in near.into_iter().flatten() {
        let (selector, key) = term(pod, wanted, namespaces, "spec.affinity.podAffinity")?;
        merge(&mut merged, selector);
        keys.insert(key);
    }
    let near = |key| TaskAffinity {
        kind: AffinityKind::Affinity,
        selector: merged.clone(),
        key,
        weight: None,
    };
    Ok(keys.into_iter().map(near).collect())
}

fn required_away(pod: &Pod, namespaces: &Namespaces) -> Result<Vec<TaskAffinity>, Obstacle> {
    anti_affinity_terms(pod).map(|wanted| anti_affinity(pod, wanted, namespaces)).collect()
}

fn anti_affinity_terms(pod: &Pod) -> impl Iterator<Item = &PodAffinityTerm> {
    let away = pod.spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let away =
        away.and_then(|away| away.required_during_scheduling_ignored_during_execution.as_ref());
    away.into_iter().flatten()
}

fn anti_affinity(
    pod: &Pod,
    wanted: &PodAffinityTerm,
    namespaces: &Namespaces,
) -> Result<TaskAffinity, Obstacle> {
    let (selector, key) = term(pod, wanted, namespaces, "spec.affinity.podAntiAffinity")?;
    Ok(TaskAffinity { kind: AffinityKind::AntiAffinity, selector, key, weight: None })
}

/// Selected pods and topology of a term.
fn term(
    pod: &Pod,
    term: &PodAffinityTerm,
    namespaces: &Namespaces,
    field: &'static str,
) -> Result<(Selector, String), Obstacle> {
    let key = topology(&term.topology_key, field)?;
    let mut picked = picked(term.label_selector.as_ref(), field)?;
    if term.label_selector.is_some() {
        add_own_values(&mut picked, pod, term.match_label_keys.as_deref(), Op::In);
        add_own_values(&mut picked, pod, term.mismatch_label_keys.as_deref(), Op::NotIn);
    }
    match namespaces_of_term(pod, term, namespaces) {
        None => {}
        Some(names) if names.is_empty() => picked = Selector::nothing(),
        Some(names) => add(&mut picked, Expr::new(names::NAMESPACE_KEY, Op::In, names)),
    }
    Ok((picked, key))
}

/// Namespaces of a term; `None` selects all.
fn namespaces_of_term(
    pod: &Pod,
    term: &PodAffinityTerm,
    namespaces: &Namespaces,
) -> Option<BTreeSet<Arc<str>>> {
    let mut names: BTreeSet<Arc<str>> =
        term.namespaces.iter().flatten().map(|name| name.as_str().into()).collect();
    match &term.namespace_selector {
        None if names.is_empty() => {
            names.insert(namespace(pod).into());
        }
        None => {}
        Some(wanted) if is_empty(wanted) => return None,
        Some(wanted) => names.extend(namespaces.matching(wanted)),
    }
    Some(names)
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// A missing selector selects no pod, unlike an empty one.
fn picked(wanted: Option<&LabelSelector>, field: &'static str) -> Result<Selector, Obstacle> {
    let Some(wanted) = wanted else { return Ok(Selector::nothing()) };
    selector(wanted).map_err(|why| Obstacle::unsupported(field, why))
}

/// The API server usually has added these conditions; adding them again changes nothing.
fn add_own_values(selector: &mut Selector, pod: &Pod, keys: Option<&[String]>, op: Op) {
    for key in keys.into_iter().flatten() {
        let value = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        if let Some(value) = value {
            add(selector, Expr::new(key.as_str(), op, [value.as_str()]));
        }
    }
}

fn add(selector: &mut Selector, expr: Expr) {
    if !selector.exprs.contains(&expr) {
        selector.exprs.push(expr);
    }
}

fn merge(all: &mut Selector, other: Selector) {
    for (key, value) in other.match_labels {
        match all.match_labels.get(&key) {
            Some(known) if *known != value => add(all, Expr::new(key, Op::In, [value])),
            _ => {
                all.match_labels.insert(key, value);
            }
        }
    }
    other.exprs.into_iter().for_each(|expr| add(all, expr));
}

fn topology(key: &str, field: &'static str) -> Result<String, Obstacle> {
    if key.is_empty() || key == EACH_NODE {
        let why = format!(
            "`{key}` cannot be used as a topology key; `kubernetes.io/hostname` means each node"
        );
        return Err(Obstacle::unsupported(field, why));
    }
    Ok(key.to_owned())
}

fn constraint(pod: &Pod, wanted: &TopologySpreadConstraint) -> Result<TopologySpread, Obstacle> {
    const FIELD: &str = "spec.topologySpreadConstraints";
    let refuse = |why: String| Obstacle::unsupported(FIELD, why);
    let mut selector = picked(wanted.label_selector.as_ref(), FIELD)?;
    if wanted.label_selector.is_some() {
        add_own_values(&mut selector, pod, wanted.match_label_keys.as_deref(), Op::In);
    }
    // An empty selector counts no pod, as in kube-scheduler: only the topology matters.
    if selector.is_empty() {
        selector = Selector::nothing();
    }
    selector.match_labels.insert(names::NAMESPACE_KEY.into(), namespace(pod).into());
    let required = match wanted.when_unsatisfiable.as_str() {
        "DoNotSchedule" => true,
        "ScheduleAnyway" => false,
        other => {
            return Err(refuse(format!(
                "`{}` is not what to do without an even spread",
                short(other)
            )));
        }
    };
    let max_skew = u32::try_from(wanted.max_skew).ok().filter(|skew| *skew > 0);
    let max_skew =
        max_skew.ok_or_else(|| refuse(format!("a skew of {} is impossible", wanted.max_skew)))?;
    Ok(TopologySpread {
        selector,
        key: topology(&wanted.topology_key, FIELD)?,
        max_skew,
        required,
        min_domains: wanted.min_domains.and_then(|least| u32::try_from(least).ok()).unwrap_or(0),
        ignore_node_affinity: !honors(wanted.node_affinity_policy.as_deref(), true),
        honor_taints: honors(wanted.node_taints_policy.as_deref(), false),
    })
}

/// True if a policy is `Honor`; an unknown value means the default.
fn honors(policy: Option<&str>, default: bool) -> bool {
    match policy {
        Some("Honor") => true,
        Some("Ignore") => false,
        _ => default,
    }
}
