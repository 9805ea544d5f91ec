//! Ages of pods that replace lost ones. A controller replaces an evicted pod by a new one, which would wait behind all
//! younger pods; it gets the place of the lost pod in the queue instead.
//!
//! The ages live in memory only: after a restart of the scheduler, a replacement created before counts from its own
//! creation. An annotation would survive, but a user could write it and pass the queue.

use agentaflow_engine::Time;
use agentaflow_kube_core::pod_end;
use agentaflow_kube_core::slim::Pod;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::membership::controller;
use super::pod_entry::{engine_time, is_terminating, node_of};

/// Milliseconds within which a controller replaces a lost pod; later pods are new work.
const WINDOW: u64 = 600_000;
/// Lost pods remembered for each owner.
const MOST_LOST: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Replacements {
    /// Lost pods by owner uid: time of submission and of loss.
    lost: BTreeMap<Arc<str>, VecDeque<(Time, Time)>>,
    /// Losses in the order of time, with the uid of the owner.
    losses: VecDeque<(Time, Arc<str>)>,
    /// Inherited submission times by pod uid.
    ages: BTreeMap<Arc<str>, Time>,
}

impl Replacements {
    /// Records a change of a pod of this scheduler; `old` is none for a new pod.
    pub(super) fn observe(&mut self, old: Option<&Pod>, pod: &Pod, now: Time) {
        self.expire(now);
        let Some(owner) = controller(pod) else { return };
        let owner = owner.uid.as_str();
        if old.is_none() && node_of(pod).is_none() && !is_terminating(pod) {
            self.inherit(owner, pod);
        } else if is_lost(pod) && !old.is_some_and(is_lost) {
            let submitted = self.submitted(pod).unwrap_or(now);
            let owner: Arc<str> = owner.into();
            self.losses.push_back((now, owner.clone()));
            let lost = self.lost.entry(owner).or_default();
            lost.push_back((submitted, now));
            if lost.len() > MOST_LOST {
                lost.pop_front();
            }
        }
    }

    /// Time of submission: inherited, or of the pod's creation.
    pub(super) fn submitted(&self, pod: &Pod) -> Option<Time> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| engine_time(time.0));
        self.ages.get(uid).copied().or(created)
    }

    pub(super) fn pod_removed(&mut self, uid: &str) {
        self.ages.remove(uid);
    }

    /// Forgets pods that were lost long ago: their owners may be gone.
    fn expire(&mut self, now: Time) {
        let is_over = |at: Time| now.0.saturating_sub(at.0) >= WINDOW;
        while self.losses.front().is_some_and(|(at, _)| is_over(*at)) {
            let Some((_, owner)) = self.losses.pop_front() else { return };
            let Some(lost) = self.lost.get_mut(&owner) else { continue };
            lost.retain(|(_, at)| !is_over(*at));
            if lost.is_empty() {
                self.lost.remove(&owner);
            }
        }
    }

    fn inherit(&mut self, owner: &str, pod: &Pod) {
        let Some(lost) = self.lost.get_mut(owner) else { return };
        let oldest = (0..lost.len()).min_by_key(|at| lost[*at].0);
        let inherited = oldest.and_then(|at| lost.remove(at));
        if lost.is_empty() {
            self.lost.remove(owner);
        }
        if let (Some((submitted, _)), Some(uid)) = (inherited, pod.metadata.uid.as_deref()) {
            self.ages.insert(uid.into(), submitted);
        }
    }
}

/// Returns true if a controller replaces the pod, and its program is not the cause.
fn is_lost(pod: &Pod) -> bool {
    let is_phase = |phase| pod.status.phase.as_deref() == Some(phase);
    let failed = is_phase("Failed") && !pod_end::own_fault(pod);
    node_of(pod).is_some() && (failed || (is_terminating(pod) && !is_phase("Succeeded")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, owner: &str, phase: &str, node: Option<&str>, terminating: bool) -> Pod {
        let deleted = terminating.then_some("2026-01-01T00:00:00Z");
        let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner,
            "uid": owner, "controller": true}]);
        let pod = json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owner,
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": deleted},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase},
        });
        serde_json::from_value(pod).expect("a pod")
    }

    #[test]
    fn lost_pods_of_owners_that_are_gone_are_forgotten() {
        let mut replacements = Replacements::default();
        for number in 0..10_u64 {
            let name = format!("owner-{number}");
            let lost = pod("a", &name, "Running", Some("n"), true);
            replacements.observe(None, &lost, Time(number));
        }
        assert_eq!((replacements.lost.len(), replacements.losses.len()), (10, 10));
        let other = pod("b", "another", "Running", Some("n"), false);
        replacements.observe(None, &other, Time(WINDOW + 100));
        assert_eq!((replacements.lost.len(), replacements.losses.len()), (0, 0));
    }

    #[test]
    fn a_deleted_pod_that_succeeded_passes_no_age_on() {
        let mut replacements = Replacements::default();
        for (phase, inherits) in [("Succeeded", false), ("Running", true)] {
            replacements.observe(None, &pod("old", "o", phase, Some("n"), true), Time(1));
            let new = pod("new", "o", "Pending", None, false);
            replacements.observe(None, &new, Time(2));
            assert_eq!(replacements.ages.contains_key("new"), inherits, "{phase}");
        }
    }
}
