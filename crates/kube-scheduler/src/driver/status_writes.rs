//! Queue of status writes: only the latest for each object, one at a time.
//!
//! With two concurrent writes of one object, the older one could arrive last. So an object with a write in flight is busy,
//! and a newer write waits. A pod that is being bound gets no condition at all: a late `PodScheduled=False` must not stand on
//! a running pod.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use agentaflow_kube_core::unit::UnitKind;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::state::{EventRecord, Key, PendingCondition, PodRef};

/// Events beyond this number are dropped, oldest first.
const MAX_EVENTS: usize = 20_000;
/// Backoff of an object after a failed write.
const BACKOFF: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StatusWrite {
    /// With the uid of the workload.
    WorkloadStatus(Key, Arc<str>, Box<GpuWorkloadStatus>),
    QueueStatus(Arc<str>, Box<GpuQueueStatus>),
    PodCondition(PodRef, PendingCondition),
    /// Pending reason of a suspended job.
    JobReason(JobRef, Arc<str>),
    Event(EventRecord),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRef {
    pub(crate) kind: &'static UnitKind,
    pub(crate) unit: Key,
    pub(crate) uid: Arc<str>,
}

#[derive(Debug, Default)]
pub(crate) struct StatusWrites {
    statuses: BTreeMap<Key, (Arc<str>, Box<GpuWorkloadStatus>)>,
    queues: BTreeMap<Arc<str>, Box<GpuQueueStatus>>,
    conditions: Conditions,
    /// By kind and name.
    reasons: BTreeMap<(&'static str, Key), (JobRef, Arc<str>)>,
    events: VecDeque<EventRecord>,
    /// Time of the next Event after a failed one.
    events_resume: Option<Instant>,
    busy: BTreeSet<WriteTarget>,
    backoffs: BTreeMap<WriteTarget, Instant>,
    /// Pods with the number of their bindings in flight.
    binding: BTreeMap<PodRef, usize>,
}

/// Conditions by pod, and their order: pods without a condition first, then by priority.
#[derive(Debug, Default)]
struct Conditions {
    by_pod: BTreeMap<PodRef, PendingCondition>,
    order: BTreeSet<(bool, Reverse<i32>, PodRef)>,
}

impl Conditions {
    fn insert(&mut self, pod: PodRef, condition: PendingCondition) {
        self.remove(&pod);
        self.order.insert(place(&pod, &condition));
        self.by_pod.insert(pod, condition);
    }

    fn remove(&mut self, pod: &PodRef) -> Option<PendingCondition> {
        let condition = self.by_pod.remove(pod)?;
        self.order.remove(&place(pod, &condition));
        Some(condition)
    }

    fn contains(&self, pod: &PodRef) -> bool {
        self.by_pod.contains_key(pod)
    }

    fn in_order(&self) -> impl Iterator<Item = &PodRef> {
        self.order.iter().map(|(_, _, pod)| pod)
    }
}

fn place(pod: &PodRef, condition: &PendingCondition) -> (bool, Reverse<i32>, PodRef) {
    (condition.already_false, Reverse(condition.priority), pod.clone())
}

/// The object of a status write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WriteTarget {
    Workload(Key),
    Queue(Arc<str>),
    Pod(PodRef),
    Job(&'static str, Key),
}

impl StatusWrites {
    /// Enqueues a write; returns the number of older Events that were dropped.
    pub(crate) fn add(&mut self, write: StatusWrite) -> usize {
        match write {
            StatusWrite::WorkloadStatus(key, uid, status) => {
                self.statuses.insert(key, (uid, status));
            }
            StatusWrite::QueueStatus(queue, status) => {
                self.queues.insert(queue, status);
            }
            StatusWrite::PodCondition(pod, condition) => self.conditions.insert(pod, condition),
            StatusWrite::JobReason(job, reason) => {
                self.reasons.insert((job.kind.kind, job.unit.clone()), (job, reason));
            }
            StatusWrite::Event(event) => {
                self.events.push_back(event);
                if self.events.len() > MAX_EVENTS {
                    self.events.pop_front();
                    return 1;
                }
            }
        }
        0
    }

    /// The next write: workloads first, then pods, queues, and Events. Its object is busy until [`StatusWrites::finish`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<StatusWrite> {
        self.backoffs.retain(|_, until| *until > now);
        let write = self.pick(now)?;
        self.busy.extend(target(&write));
        Some(write)
    }

    fn pick(&mut self, now: Instant) -> Option<StatusWrite> {
        let status =
            self.statuses.keys().find(|key| self.is_free(&WriteTarget::Workload((*key).clone())));
        if let Some((key, (uid, status))) =
            status.cloned().and_then(|key| self.statuses.remove_entry(&key))
        {
            return Some(StatusWrite::WorkloadStatus(key, uid, status));
        }
        let pod = self.conditions.in_order().find(|pod| {
            !self.binding.contains_key(*pod) && self.is_free(&WriteTarget::Pod((*pod).clone()))
        });
        if let Some(pod) = pod.cloned()
            && let Some(condition) = self.conditions.remove(&pod)
        {
            return Some(StatusWrite::PodCondition(pod, condition));
        }
        let queue =
            self.queues.keys().find(|queue| self.is_free(&WriteTarget::Queue((*queue).clone())));
        if let Some((queue, status)) =
            queue.cloned().and_then(|queue| self.queues.remove_entry(&queue))
        {
            return Some(StatusWrite::QueueStatus(queue, status));
        }
        let mut jobs = self.reasons.keys();
        let job =
            jobs.find(|(kind, job)| self.is_free(&WriteTarget::Job(kind, job.clone()))).cloned();
        if let Some((job, reason)) = job.and_then(|job| self.reasons.remove(&job)) {
            return Some(StatusWrite::JobReason(job, reason));
        }
        if self.events_resume.is_some_and(|until| now < until) {
            return None;
        }
        self.events_resume = None;
        self.events.pop_front().map(StatusWrite::Event)
    }

    fn is_free(&self, target: &WriteTarget) -> bool {
        !self.busy.contains(target) && !self.backoffs.contains_key(target)
    }

    /// Ends a write. With `retry` it is enqueued again unless there is a newer one.
    pub(crate) fn finish(&mut self, write: StatusWrite, retry: bool, now: Instant) {
        let Some(target) = target(&write) else {
            if let StatusWrite::Event(event) = write
                && retry
            {
                // Behind all other Events: one that always fails must not block the queue.
                self.events.push_back(event);
                self.events_resume = Some(now + BACKOFF);
            }
            return;
        };
        self.busy.remove(&target);
        if !retry {
            return;
        }
        match write {
            StatusWrite::WorkloadStatus(key, uid, status) => {
                self.statuses.entry(key).or_insert((uid, status));
            }
            StatusWrite::QueueStatus(queue, status) => {
                self.queues.entry(queue).or_insert(status);
            }
            // A condition from before the binding is void.
            StatusWrite::PodCondition(pod, ..) if self.binding.contains_key(&pod) => {}
            StatusWrite::PodCondition(pod, condition) => {
                if !self.conditions.contains(&pod) {
                    self.conditions.insert(pod, condition);
                }
            }
            StatusWrite::JobReason(job, reason) => {
                let target = (job.kind.kind, job.unit.clone());
                self.reasons.entry(target).or_insert((job, reason));
            }
            StatusWrite::Event(_) => {}
        }
        self.backoffs.insert(target, now + BACKOFF);
    }

    /// Returns true if a write waits only for its backoff.
    pub(crate) fn is_backing_off(&self) -> bool {
        !self.backoffs.is_empty() || self.events_resume.is_some()
    }

    /// Holds back conditions of a pod until [`StatusWrites::end_binding`].
    pub(crate) fn begin_binding(&mut self, pod: &PodRef) {
        self.conditions.remove(pod);
        *self.binding.entry(pod.clone()).or_default() += 1;
    }

    /// Returns true if a write of the pod's condition is in flight.
    pub(crate) fn is_busy(&self, pod: &PodRef) -> bool {
        self.busy.contains(&WriteTarget::Pod(pod.clone()))
    }

    /// Ends a binding. A condition that waited still holds only if the pod has no node.
    pub(crate) fn end_binding(&mut self, pod: &PodRef, has_node: bool) {
        if has_node {
            self.conditions.remove(pod);
        }
        if let Some(count) = self.binding.get_mut(pod) {
            *count -= 1;
            if *count == 0 {
                self.binding.remove(pod);
            }
        }
    }
}

/// Events have no target: no later Event contradicts them.
fn target(write: &StatusWrite) -> Option<WriteTarget> {
    match write {
        StatusWrite::WorkloadStatus(key, ..) => Some(WriteTarget::Workload(key.clone())),
        StatusWrite::QueueStatus(queue, _) => Some(WriteTarget::Queue(queue.clone())),
        StatusWrite::PodCondition(pod, ..) => Some(WriteTarget::Pod(pod.clone())),
        StatusWrite::JobReason(job, _) => Some(WriteTarget::Job(job.kind.kind, job.unit.clone())),
        StatusWrite::Event(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::EventType;
    use crate::state::ObjectRef;

    fn pod(name: &str) -> PodRef {
        PodRef { key: Key::new("default", name), uid: "u".into() }
    }

    fn waits(name: &str, message: &str) -> StatusWrite {
        let condition = PendingCondition {
            reason: "Unschedulable",
            message: message.into(),
            already_false: false,
            priority: 0,
        };
        StatusWrite::PodCondition(pod(name), condition)
    }

    #[test]
    fn pods_without_a_condition_come_first_then_high_priorities() {
        let mut writes = StatusWrites::default();
        let written = |name: &str, already_false: bool, priority: i32| {
            let reason = "Unschedulable";
            let condition =
                PendingCondition { reason, message: "no room".into(), already_false, priority };
            StatusWrite::PodCondition(pod(name), condition)
        };
        let expected = [
            written("z", false, 100_000),
            written("a", false, 0),
            written("b", false, -5),
            written("y", true, i32::MAX),
            written("x", true, 7),
        ];
        for write in expected.iter().rev() {
            writes.add(write.clone());
        }
        // The latest condition of a pod replaces an earlier one of another priority.
        writes.add(written("a", false, 200_000));
        writes.add(written("a", false, 0));
        let now = Instant::now();
        let order: Vec<StatusWrite> = std::iter::from_fn(|| writes.next(now)).collect();
        assert_eq!(order, expected);
    }

    fn status(name: &str, message: &str) -> StatusWrite {
        let status = GpuWorkloadStatus { message: Some(message.to_owned()), ..Default::default() };
        StatusWrite::WorkloadStatus(Key::new("default", name), "u".into(), Box::new(status))
    }

    #[test]
    fn a_newer_write_waits_for_the_older_one() {
        let now = Instant::now();
        for write in [status as fn(&str, &str) -> StatusWrite, waits] {
            let mut writes = StatusWrites::default();
            writes.add(write("a", "old"));
            let old = writes.next(now).expect("the old write");
            writes.add(write("a", "new"));
            assert_eq!(writes.next(now), None, "two writes of one object");
            writes.finish(old, false, now);
            assert_eq!(writes.next(now), Some(write("a", "new")));
        }
    }

    #[test]
    fn a_failed_write_is_retried_unless_there_is_a_newer_one() {
        let now = Instant::now();
        let later = now + BACKOFF;
        for (newer, expected) in [(None, "old"), (Some("new"), "new")] {
            let mut writes = StatusWrites::default();
            writes.add(status("a", "old"));
            let old = writes.next(now).expect("the old write");
            if let Some(message) = newer {
                writes.add(status("a", message));
            }
            writes.finish(old, true, now);
            assert_eq!(writes.next(now), None, "not before its backoff is over");
            assert!(writes.is_backing_off());
            assert_eq!(writes.next(later), Some(status("a", expected)));
            assert_eq!(writes.next(later), None);
        }
    }

    #[test]
    fn an_object_in_backoff_does_not_block_other_objects() {
        let now = Instant::now();
        let mut writes = StatusWrites::default();
        writes.add(status("a", "fails"));
        writes.add(status("b", "follows"));
        let first = writes.next(now).expect("a write");
        writes.finish(first, true, now);
        assert_eq!(writes.next(now), Some(status("b", "follows")));
    }

    #[test]
    fn a_failed_event_does_not_block_other_events() {
        let now = Instant::now();
        let event = |name: &str| {
            let object = ObjectRef { kind: "Pod", key: Key::new("default", name), uid: "u".into() };
            let message = "bound to node n".to_owned();
            StatusWrite::Event(EventRecord {
                object,
                event_type: EventType::Normal,
                reason: "Scheduled",
                message,
            })
        };
        let mut writes = StatusWrites::default();
        writes.add(event("a"));
        writes.add(event("b"));
        let first = writes.next(now).expect("a write");
        writes.finish(first, true, now);
        assert_eq!(writes.next(now), None, "not before the backoff is over");
        assert_eq!(writes.next(now + BACKOFF), Some(event("b")));
        assert_eq!(writes.next(now + BACKOFF), Some(event("a")));
    }

    #[test]
    fn a_pod_that_is_being_bound_gets_no_pending_condition() {
        let now = Instant::now();
        let mut writes = StatusWrites::default();
        writes.add(waits("a", "early"));
        let early = writes.next(now).expect("a write");
        writes.add(waits("a", "queued"));
        writes.begin_binding(&pod("a"));
        assert!(writes.is_busy(&pod("a")), "the binding waits for the write in flight");
        writes.finish(early, true, now);
        assert!(!writes.is_busy(&pod("a")));
        writes.add(waits("a", "meanwhile"));
        assert_eq!(writes.next(now + BACKOFF), None);
        writes.end_binding(&pod("a"), true);
        assert_eq!(writes.next(now + BACKOFF), None);
    }

    #[test]
    fn a_pod_that_could_not_be_bound_gets_its_condition() {
        let now = Instant::now();
        let mut writes = StatusWrites::default();
        writes.begin_binding(&pod("a"));
        writes.add(waits("a", "no room"));
        assert_eq!(writes.next(now), None);
        writes.end_binding(&pod("a"), false);
        assert_eq!(writes.next(now), Some(waits("a", "no room")));
    }
}
