//! The condition `ForeignGpuPods` of `GPUNode`s: pods of other schedulers took GPUs that this scheduler had chosen, or wait
//! for GPUs of the node.
//!
//! The condition is written when its reason changes, for some nodes at a time: a pod that fits every node of a large cluster
//! must not cause as many writes at once.

use agentaflow_engine::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ClusterState;
use super::workload_table::timestamp;

/// Type of the condition.
pub(super) const FOREIGN_GPU_PODS: &str = "ForeignGpuPods";
pub(super) const RACE_LOST: &str = "RaceLost";
/// Time for which a lost race is reported.
const RACE_REPORTED: Span = Span::minutes(10);
/// Age of a reported pending pod: its scheduler places most pods sooner.
pub(super) const PENDING_REPORTED: Span = Span::seconds(10);
/// Time between two comparisons, and most conditions written after each of them.
const INTERVAL: Span = Span::seconds(5);
const MOST: usize = 50;

/// Reason and message while the condition is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignPods {
    pub(super) reason: &'static str,
    pub(super) message: Arc<str>,
}

/// Races that this scheduler lost, and the time of the next comparison.
#[derive(Debug, Default)]
pub(super) struct ForeignReports {
    races: BTreeMap<Arc<str>, (Time, Arc<str>)>,
    next: Option<Time>,
}

impl ForeignReports {
    pub(super) fn next(&self) -> Option<Time> {
        self.next
    }

    /// Compares the conditions at this time, or sooner if that is planned.
    pub(super) fn compare_at(&mut self, time: Time) {
        self.next = Some(self.next.map_or(time, |planned| planned.min(time)));
    }

    pub(super) fn record_race(&mut self, node: &Arc<str>, now: Time, message: &str) {
        self.races.insert(node.clone(), (now, message.into()));
        self.compare_at(now);
    }

    /// Returns true if a comparison is due; forgets old races.
    fn begin(&mut self, now: Time) -> bool {
        if self.next.is_none_or(|next| next > now) {
            return false;
        }
        self.next = None;
        self.races.retain(|_, (at, _)| at.after(RACE_REPORTED) > now);
        true
    }

    fn race(&self, node: &str) -> Option<ForeignPods> {
        let (_, message) = self.races.get(node)?;
        Some(ForeignPods { reason: RACE_LOST, message: message.clone() })
    }
}

impl ClusterState {
    /// Keeps the races that the last leader published.
    pub(super) fn adopt_foreign_reports(&mut self) {
        let now = self.engine.now();
        for (node, message) in self.nodes.published_races() {
            self.foreign_reports.record_race(&node, now, &message);
        }
        self.foreign_reports.compare_at(now);
    }

    /// Writes the conditions whose reason changed.
    pub(super) fn report_foreign_pods(&mut self) {
        let now = self.engine.now();
        if !self.foreign_reports.begin(now) {
            return;
        }
        let waited_for = self.nodes_of_pending_foreign_pods(now);
        let mut writes = 0;
        for node in self.nodes.names() {
            let found = self.foreign_reports.race(&node).or_else(|| {
                waited_for
                    .contains(&*node)
                    .then(|| ForeignPods { reason: "PodsPending", message: PENDING.into() })
            });
            let action = self.nodes.foreign_pods_action(&node, found.as_ref(), timestamp(now));
            writes += usize::from(action.is_some());
            self.actions.extend(action);
            if writes == MOST {
                break;
            }
        }
        // A write may conflict with a report of the monitor: the next comparison repeats it.
        let goes_on = !self.foreign_reports.races.is_empty() || self.foreign_demand.len() > 0;
        if goes_on || writes > 0 {
            self.foreign_reports.compare_at(now.after(INTERVAL));
        }
    }

    /// Nodes that a pending pod of another scheduler fits when they are empty.
    fn nodes_of_pending_foreign_pods(&self, now: Time) -> BTreeSet<String> {
        let old: BTreeSet<String> =
            self.foreign_demand.pending_since(now).map(ToString::to_string).collect();
        if old.is_empty() {
            return BTreeSet::new();
        }
        let nodes = self.engine.scheduler().nodes_of_foreign_demand(|id| old.contains(id.as_str()));
        nodes.into_iter().map(|node| node.to_string()).collect()
    }
}

const PENDING: &str = "GPU pods of other schedulers are pending and may take GPUs of this node. See `agentaflow exclusive`";
