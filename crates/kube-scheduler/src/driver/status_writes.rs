//! Queue of status writes: only the latest for each object, one at a time, the most urgent first.
//!
//! With two concurrent writes of one object, the older one could arrive last. So an object with a write in flight is busy,
//! and a newer write waits. A pod that is being bound gets no condition at all: a late `PodScheduled=False` must not stand on
//! a running pod.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use agentaflow_kube_core::unit::UnitKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::state::{EventRecord, Key, PendingCondition, PodRef, Urgency};

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
    /// With the time at which it was recorded: several writers do not keep the order.
    Event(EventRecord, Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRef {
    pub(crate) kind: &'static UnitKind,
    pub(crate) unit: Key,
    pub(crate) uid: Arc<str>,
}

#[derive(Debug, Default)]
pub(crate) struct StatusWrites {
    /// The latest write of each object.
    latest: BTreeMap<WriteTarget, (Urgency, StatusWrite)>,
    order: BTreeSet<(Urgency, WriteTarget)>,
    events: VecDeque<(EventRecord, Timestamp)>,
    /// Time of the next Event after a failed one.
    events_resume: Option<Instant>,
    /// Objects with a write in flight, and its urgency.
    busy: BTreeMap<WriteTarget, Urgency>,
    backoffs: BTreeMap<WriteTarget, Instant>,
    /// Pods with the number of their bindings in flight.
    binding: BTreeMap<PodRef, usize>,
}

/// The object of a status write, in the order of equal urgency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WriteTarget {
    Workload(Key),
    Job(&'static str, Key),
    Pod(PodRef),
    Queue(Arc<str>),
}

impl StatusWrites {
    /// Enqueues the write of an object's status, in place of an older one.
    pub(crate) fn add(&mut self, write: StatusWrite, urgency: Urgency) {
        if let Some(target) = target(&write) {
            self.remove(&target);
            self.order.insert((urgency, target.clone()));
            self.latest.insert(target, (urgency, write));
        }
    }

    /// Enqueues an Event; returns true if an older one was dropped.
    pub(crate) fn add_event(&mut self, event: EventRecord, time: Timestamp) -> bool {
        self.events.push_back((event, time));
        self.events.len() > MAX_EVENTS && self.events.pop_front().is_some()
    }

    /// The most urgent write, Events last. Its object is busy until [`StatusWrites::finish`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<StatusWrite> {
        self.backoffs.retain(|_, until| *until > now);
        let target =
            self.order.iter().map(|(_, target)| target).find(|target| self.is_free(target));
        if let Some(target) = target.cloned()
            && let Some((urgency, write)) = self.remove(&target)
        {
            self.busy.insert(target, urgency);
            return Some(write);
        }
        if self.events_resume.is_some_and(|until| now < until) {
            return None;
        }
        self.events_resume = None;
        self.events.pop_front().map(|(event, time)| StatusWrite::Event(event, time))
    }

    fn remove(&mut self, target: &WriteTarget) -> Option<(Urgency, StatusWrite)> {
        let (urgency, write) = self.latest.remove(target)?;
        self.order.remove(&(urgency, target.clone()));
        Some((urgency, write))
    }

    fn is_free(&self, target: &WriteTarget) -> bool {
        let is_binding = matches!(target, WriteTarget::Pod(pod) if self.binding.contains_key(pod));
        !is_binding && !self.busy.contains_key(target) && !self.backoffs.contains_key(target)
    }

    /// Ends a write. With `retry` it is enqueued again unless there is a newer one.
    pub(crate) fn finish(&mut self, write: StatusWrite, retry: bool, now: Instant) {
        let Some(target) = target(&write) else {
            if let StatusWrite::Event(event, time) = write
                && retry
            {
                // Behind all other Events: one that always fails must not block the queue.
                self.events.push_back((event, time));
                self.events_resume = Some(now + BACKOFF);
            }
            return;
        };
        let Some(urgency) = self.busy.remove(&target).filter(|_| retry) else { return };
        // A condition from before the binding is void.
        let is_void = matches!(&target, WriteTarget::Pod(pod) if self.binding.contains_key(pod));
        if !is_void && !self.latest.contains_key(&target) {
            self.add(write, urgency);
        }
        self.backoffs.insert(target, now + BACKOFF);
    }

    /// Returns true if a write waits only for its backoff.
    pub(crate) fn is_backing_off(&self) -> bool {
        !self.backoffs.is_empty() || self.events_resume.is_some()
    }

    /// Holds back conditions of a pod until [`StatusWrites::end_binding`].
    pub(crate) fn begin_binding(&mut self, pod: &PodRef) {
        self.remove(&WriteTarget::Pod(pod.clone()));
        *self.binding.entry(pod.clone()).or_default() += 1;
    }

    /// Returns true if a write of the pod's condition is in flight.
    pub(crate) fn is_busy(&self, pod: &PodRef) -> bool {
        self.busy.contains_key(&WriteTarget::Pod(pod.clone()))
    }

    /// Ends a binding. A condition that waited still holds only if the pod has no node.
    pub(crate) fn end_binding(&mut self, pod: &PodRef, has_node: bool) {
        if has_node {
            self.remove(&WriteTarget::Pod(pod.clone()));
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
        StatusWrite::Event(..) => None,
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

    impl StatusWrites {
        fn put(&mut self, write: StatusWrite) {
            match write {
                StatusWrite::Event(event, time) => assert!(!self.add_event(event, time)),
                write => self.add(write, Urgency::new(false, 0)),
            }
        }
    }

    #[test]
    fn new_states_come_first_then_high_priorities_of_any_kind_and_queues_last() {
        let mut writes = StatusWrites::default();
        let queue = StatusWrite::QueueStatus("q".into(), Box::default());
        let job = JobRef {
            kind: &agentaflow_kube_core::unit::KINDS[0],
            unit: Key::new("default", "j"),
            uid: "u".into(),
        };
        let expected = [
            (waits("z", "no room"), Urgency::new(false, 100_000)),
            (status("w", "no room"), Urgency::new(false, 7)),
            (StatusWrite::JobReason(job, "no room".into()), Urgency::new(false, 7)),
            (waits("a", "no room"), Urgency::new(false, 7)),
            (status("low", "no room"), Urgency::new(false, -5)),
            (waits("y", "no room"), Urgency::new(true, i32::MAX)),
            (status("runs", "still"), Urgency::new(true, 7)),
            (queue, Urgency::LAST),
        ];
        for (write, urgency) in expected.iter().rev() {
            writes.add(write.clone(), *urgency);
        }
        // The latest write of an object replaces an earlier one of another urgency.
        writes.add(waits("a", "old"), Urgency::new(false, 200_000));
        writes.add(waits("a", "no room"), Urgency::new(false, 7));
        let now = Instant::now();
        let order: Vec<StatusWrite> = std::iter::from_fn(|| writes.next(now)).collect();
        assert_eq!(order, expected.map(|(write, _)| write));
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
            writes.put(write("a", "old"));
            let old = writes.next(now).expect("the old write");
            writes.put(write("a", "new"));
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
            writes.put(status("a", "old"));
            let old = writes.next(now).expect("the old write");
            if let Some(message) = newer {
                writes.put(status("a", message));
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
        writes.put(status("a", "fails"));
        writes.put(status("b", "follows"));
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
            let event_type = EventType::Normal;
            let event = EventRecord { object, event_type, reason: "Scheduled", message };
            StatusWrite::Event(event, Timestamp::UNIX_EPOCH)
        };
        let mut writes = StatusWrites::default();
        writes.put(event("a"));
        writes.put(event("b"));
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
        writes.put(waits("a", "early"));
        let early = writes.next(now).expect("a write");
        writes.put(waits("a", "queued"));
        writes.begin_binding(&pod("a"));
        assert!(writes.is_busy(&pod("a")), "the binding waits for the write in flight");
        writes.finish(early, true, now);
        assert!(!writes.is_busy(&pod("a")));
        writes.put(waits("a", "meanwhile"));
        assert_eq!(writes.next(now + BACKOFF), None);
        writes.end_binding(&pod("a"), true);
        assert_eq!(writes.next(now + BACKOFF), None);
    }

    #[test]
    fn a_pod_that_could_not_be_bound_gets_its_condition() {
        let now = Instant::now();
        let mut writes = StatusWrites::default();
        writes.begin_binding(&pod("a"));
        writes.put(waits("a", "no room"));
        assert_eq!(writes.next(now), None);
        writes.end_binding(&pod("a"), false);
        assert_eq!(writes.next(now), Some(waits("a", "no room")));
    }
}
