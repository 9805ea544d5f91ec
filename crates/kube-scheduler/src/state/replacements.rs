//! Ages of pods that replace lost ones. A controller replaces an evicted pod by a new one, which would wait behind all
//! younger pods; it gets the place of the lost pod in the queue instead.
//!
//! The ages live in memory only: after a restart of the scheduler, a replacement created before counts from its own
//! creation.

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
    /// Inherited submission times by pod uid.
    ages: BTreeMap<Arc<str>, Time>,
}

impl Replacements {
    /// Records a change of a pod of this scheduler; `old` is none for a new pod.
    pub(super) fn observe(&mut self, old: Option<&Pod>, pod: &Pod, now: Time) {
        let Some(owner) = controller(pod) else { return };
        let owner = owner.uid.as_str();
        if old.is_none() && node_of(pod).is_none() && !is_terminating(pod) {
            self.inherit(owner, pod, now);
        } else if is_lost(pod) && !old.is_some_and(is_lost) {
            let submitted = self.submitted(pod).unwrap_or(now);
            let lost = self.lost.entry(owner.into()).or_default();
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

    fn inherit(&mut self, owner: &str, pod: &Pod, now: Time) {
        let Some(lost) = self.lost.get_mut(owner) else { return };
        lost.retain(|(_, at)| now.0.saturating_sub(at.0) < WINDOW);
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
    let failed = pod.status.phase.as_deref() == Some("Failed");
    node_of(pod).is_some() && (is_terminating(pod) || (failed && !pod_end::own_fault(pod)))
}
