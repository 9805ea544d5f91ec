//! Work that watch events and action results leave for the next pass.
//!
//! Items are deduplicated and ordered by kind and name, so that equal histories give equal passes. Kinds that later kinds
//! depend on come first: queues before pods, gangs before the pods that wait for them.

use agentaflow_engine::WorkloadId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Key;

/// Runs of one item within a pass. An item that is enqueued more often waits for the next pass, so that two items that
/// enqueue each other cannot keep a pass from ending.
const MAX_RUNS: u32 = 8;

/// One item of work. The order of the variants is the order of processing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WorkItem {
    /// Send changed queues to the engine.
    SyncQueues,
    /// Volumes, classes or namespaces changed: compute foreign usage and requests again that were made from them.
    RefreshDependents,
    /// Pods of a running workload use other resources than the engine knows.
    Readopt(WorkloadId),
    /// Make the engine's workload agree with the pods of a gang.
    SyncGang(WorkloadId),
    /// Make the engine's knowledge of a pod agree with the pod.
    ReconcilePod(Key),
    /// Reserve the nodes that pending pods of a workload are nominated for.
    RebuildHold(WorkloadId),
    /// An eviction was refused: the pod keeps running.
    KeepUnevictable(Key),
    /// Pods of a workload got their volumes.
    ReleaseVolumes(WorkloadId),

    /// A placement of this pass cannot be carried out.
    UndoPlacement { pod: Key, workload: WorkloadId, task: u32, node: Arc<str> },
    /// Create and delete pods of a `GPUWorkload`, and write its status.
    ReconcileWorkload(Key),
}

impl WorkItem {
    fn follows_decisions(&self) -> bool {
        matches!(self, Self::UndoPlacement { .. } | Self::ReconcileWorkload(_))
    }
}

#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    before_decisions: BTreeSet<WorkItem>,
    after_decisions: BTreeSet<WorkItem>,
    /// Items for the next pass.
    deferred: BTreeSet<WorkItem>,
    /// Runs in the current pass.
    runs: BTreeMap<WorkItem, u32>,
}

impl WorkQueue {
    pub(super) fn push(&mut self, item: WorkItem) {
        if self.runs.get(&item).is_some_and(|runs| *runs >= MAX_RUNS) {
            self.deferred.insert(item);
        } else if item.follows_decisions() {
            self.after_decisions.insert(item);
        } else {
            self.before_decisions.insert(item);
        }
    }

    pub(super) fn push_pods(&mut self, pods: impl IntoIterator<Item = Key>) {
        for pod in pods {
            self.push(WorkItem::ReconcilePod(pod));
        }
    }

    pub(super) fn contains(&self, item: &WorkItem) -> bool {
        self.before_decisions.contains(item)
            || self.after_decisions.contains(item)
            || self.deferred.contains(item)
    }

    pub(super) fn remove(&mut self, item: &WorkItem) {
        self.before_decisions.remove(item);
        self.after_decisions.remove(item);
        self.deferred.remove(item);
    }

    /// Begins a pass: deferred items may run again.
    pub(super) fn begin_pass(&mut self) {
        self.runs.clear();
        for item in std::mem::take(&mut self.deferred) {
            self.push(item);
        }
    }

    /// The next item to process before the engine decides.
    pub(super) fn next_before_decisions(&mut self) -> Option<WorkItem> {
        let item = self.before_decisions.pop_first()?;
        *self.runs.entry(item.clone()).or_default() += 1;
        Some(item)
    }

    /// The next item to process after the engine decided.
    pub(super) fn next_after_decisions(&mut self) -> Option<WorkItem> {
        let item = self.after_decisions.pop_first()?;
        *self.runs.entry(item.clone()).or_default() += 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> WorkItem {
        WorkItem::ReconcilePod(Key::new("ns", name))
    }

    #[test]
    fn items_run_once_in_the_order_of_their_kinds() {
        let mut queue = WorkQueue::default();
        queue.begin_pass();
        for item in [pod("b"), WorkItem::ReconcileWorkload(Key::new("ns", "w")), pod("a"), pod("b")]
        {
            queue.push(item);
        }
        queue.push(WorkItem::SyncQueues);
        let mut order = Vec::new();
        while let Some(item) = queue.next_before_decisions() {
            order.push(item);
        }
        assert_eq!(order, [WorkItem::SyncQueues, pod("a"), pod("b")]);
        assert!(matches!(queue.next_after_decisions(), Some(WorkItem::ReconcileWorkload(_))));
        assert_eq!(queue.next_after_decisions(), None);
    }

    #[test]
    fn an_item_that_enqueues_itself_waits_for_the_next_pass() {
        let mut queue = WorkQueue::default();
        queue.begin_pass();
        queue.push(pod("a"));
        let mut runs = 0;
        while let Some(item) = queue.next_before_decisions() {
            runs += 1;
            queue.push(item);
        }
        assert_eq!(runs, MAX_RUNS);
        assert!(queue.contains(&pod("a")));
        queue.begin_pass();
        assert_eq!(queue.next_before_decisions(), Some(pod("a")));
    }
}
