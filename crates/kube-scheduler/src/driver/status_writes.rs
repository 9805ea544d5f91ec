//! What is to be said to people: only the latest about each thing, by one speaker at a time.
//!
//! Two writers of the same object could end with the older word as the last one. So a thing that is being spoken of
//! is busy, and a newer word about it waits. A pod that is being bound is not spoken of at all: a late "not placed"
//! must not stand on a pod that runs.

use agentaflow_kube_core::crd::{GpuQueueStatus, GpuWorkloadStatus};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::state::{EventRecord, Key, PendingCondition, PodRef};

/// StatusWrites that wait to be said; more are dropped, oldest first.
const MAX_NOTES: usize = 20_000;
/// How long a thing is left alone after a word about it could not be said.
const REST: Duration = Duration::from_secs(1);

/// One thing to say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StatusWrite {
    /// The status of a workload, and which one of that name.
    WorkloadStatus(Key, Arc<str>, Box<GpuWorkloadStatus>),
    /// The status of a queue.
    QueueStatus(Arc<str>, Box<GpuQueueStatus>),
    /// PendingCondition a pod is not placed.
    PodCondition(PodRef, PendingCondition),
    /// An event.
    Event(EventRecord),
}

/// What waits to be said.
#[derive(Debug, Default)]
pub(crate) struct StatusWrites {
    statuses: BTreeMap<Key, (Arc<str>, Box<GpuWorkloadStatus>)>,
    queues: BTreeMap<Arc<str>, Box<GpuQueueStatus>>,
    conditions: BTreeMap<PodRef, PendingCondition>,
    notes: VecDeque<EventRecord>,
    /// The API server did not hear the last note: the next is said then.
    quiet_until: Option<Instant>,
    busy: BTreeSet<WriteTarget>,
    resting: BTreeMap<WriteTarget, Instant>,
    /// Pods that are being bound, and how often.
    binding: BTreeMap<PodRef, usize>,
}

/// What a word is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WriteTarget {
    Workload(Key),
    Queue(Arc<str>),
    Pod(PodRef),
}

impl StatusWrites {
    /// Something new to say. Says how many older events had to be dropped for it.
    pub(crate) fn add(&mut self, word: StatusWrite) -> usize {
        match word {
            StatusWrite::WorkloadStatus(key, uid, status) => {
                self.statuses.insert(key, (uid, status));
            }
            StatusWrite::QueueStatus(queue, status) => {
                self.queues.insert(queue, status);
            }
            StatusWrite::PodCondition(pod, why) => {
                self.conditions.insert(pod, why);
            }
            StatusWrite::Event(note) => {
                self.notes.push_back(note);
                if self.notes.len() > MAX_NOTES {
                    self.notes.pop_front();
                    return 1;
                }
            }
        }
        0
    }

    /// The next word: workloads first, then pods, queues, and events. Its topic is busy until [`StatusWrites::said`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<StatusWrite> {
        self.resting.retain(|_, until| *until > now);
        let word = self.pick(now)?;
        self.busy.extend(topic(&word));
        Some(word)
    }

    fn pick(&mut self, now: Instant) -> Option<StatusWrite> {
        let status =
            self.statuses.keys().find(|key| self.is_free(&WriteTarget::Workload((*key).clone())));
        if let Some((key, (uid, status))) =
            status.cloned().and_then(|key| self.statuses.remove_entry(&key))
        {
            return Some(StatusWrite::WorkloadStatus(key, uid, status));
        }
        let pod = self.conditions.keys().find(|pod| {
            !self.binding.contains_key(*pod) && self.is_free(&WriteTarget::Pod((*pod).clone()))
        });
        if let Some((pod, why)) = pod.cloned().and_then(|pod| self.conditions.remove_entry(&pod)) {
            return Some(StatusWrite::PodCondition(pod, why));
        }
        let queue =
            self.queues.keys().find(|queue| self.is_free(&WriteTarget::Queue((*queue).clone())));
        if let Some((queue, status)) =
            queue.cloned().and_then(|queue| self.queues.remove_entry(&queue))
        {
            return Some(StatusWrite::QueueStatus(queue, status));
        }
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        self.quiet_until = None;
        self.notes.pop_front().map(StatusWrite::Event)
    }

    fn is_free(&self, topic: &WriteTarget) -> bool {
        !self.busy.contains(topic) && !self.resting.contains_key(topic)
    }

    /// A word was said. When it has to be said `again`, it waits unless there is a newer one.
    pub(crate) fn said(&mut self, word: StatusWrite, again: bool, now: Instant) {
        let Some(topic) = topic(&word) else {
            if let StatusWrite::Event(note) = word
                && again
            {
                // Behind the others: one that is never heard must not keep them waiting.
                self.notes.push_back(note);
                self.quiet_until = Some(now + REST);
            }
            return;
        };
        self.busy.remove(&topic);
        if !again {
            return;
        }
        match word {
            StatusWrite::WorkloadStatus(key, uid, status) => {
                self.statuses.entry(key).or_insert((uid, status));
            }
            StatusWrite::QueueStatus(queue, status) => {
                self.queues.entry(queue).or_insert(status);
            }
            // What was to be said before the binding is void.
            StatusWrite::PodCondition(pod, ..) if self.binding.contains_key(&pod) => {}
            StatusWrite::PodCondition(pod, why) => {
                self.conditions.entry(pod).or_insert(why);
            }
            StatusWrite::Event(_) => {}
        }
        self.resting.insert(topic, now + REST);
    }

    /// Whether something could be said as soon as its rest is over.
    pub(crate) fn is_resting(&self) -> bool {
        !self.resting.is_empty() || self.quiet_until.is_some()
    }

    /// A pod is to be bound: nothing is said about it until [`StatusWrites::bound`].
    pub(crate) fn bind(&mut self, pod: &PodRef) {
        self.conditions.remove(pod);
        *self.binding.entry(pod.clone()).or_default() += 1;
    }

    /// Whether somebody is speaking about a pod now.
    pub(crate) fn is_busy(&self, pod: &PodRef) -> bool {
        self.busy.contains(&WriteTarget::Pod(pod.clone()))
    }

    /// A binding is over. What was to be said meanwhile is still true only if the pod has no node.
    pub(crate) fn bound(&mut self, pod: &PodRef, has_node: bool) {
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

/// What a word is about; events are about nothing that a later one could contradict.
fn topic(word: &StatusWrite) -> Option<WriteTarget> {
    match word {
        StatusWrite::WorkloadStatus(key, ..) => Some(WriteTarget::Workload(key.clone())),
        StatusWrite::QueueStatus(queue, _) => Some(WriteTarget::Queue(queue.clone())),
        StatusWrite::PodCondition(pod, ..) => Some(WriteTarget::Pod(pod.clone())),
        StatusWrite::Event(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ObjectRef;

    fn pod(name: &str) -> PodRef {
        PodRef { key: Key::new("default", name), uid: "u".into() }
    }

    fn waits(name: &str, message: &str) -> StatusWrite {
        let why =
            PendingCondition { reason: "Unschedulable", message: message.into(), again: false };
        StatusWrite::PodCondition(pod(name), why)
    }

    fn status(name: &str, message: &str) -> StatusWrite {
        let status = GpuWorkloadStatus { message: Some(message.to_owned()), ..Default::default() };
        StatusWrite::WorkloadStatus(Key::new("default", name), "u".into(), Box::new(status))
    }

    #[test]
    fn a_newer_word_waits_until_the_older_one_is_said() {
        let now = Instant::now();
        for word in [status as fn(&str, &str) -> StatusWrite, waits] {
            let mut words = StatusWrites::default();
            words.add(word("a", "old"));
            let old = words.next(now).expect("the old word");
            words.add(word("a", "new"));
            assert_eq!(words.next(now), None, "two speakers about one thing");
            words.said(old, false, now);
            assert_eq!(words.next(now), Some(word("a", "new")));
        }
    }

    #[test]
    fn a_word_that_failed_is_said_again_unless_there_is_a_newer_one() {
        let now = Instant::now();
        let later = now + REST;
        for (newer, expected) in [(None, "old"), (Some("new"), "new")] {
            let mut words = StatusWrites::default();
            words.add(status("a", "old"));
            let old = words.next(now).expect("the old word");
            if let Some(message) = newer {
                words.add(status("a", message));
            }
            words.said(old, true, now);
            assert_eq!(words.next(now), None, "not before it has rested");
            assert!(words.is_resting());
            assert_eq!(words.next(later), Some(status("a", expected)));
            assert_eq!(words.next(later), None);
        }
    }

    #[test]
    fn a_thing_that_rests_does_not_keep_others_waiting() {
        let now = Instant::now();
        let mut words = StatusWrites::default();
        words.add(status("a", "fails"));
        words.add(status("b", "follows"));
        let first = words.next(now).expect("a word");
        words.said(first, true, now);
        assert_eq!(words.next(now), Some(status("b", "follows")));
    }

    #[test]
    fn an_event_that_is_not_heard_does_not_keep_others_waiting() {
        let now = Instant::now();
        let note = |name: &str| {
            let about = ObjectRef { kind: "Pod", key: Key::new("default", name), uid: "u".into() };
            let message = "bound to node n".to_owned();
            StatusWrite::Event(EventRecord { about, warning: false, reason: "Scheduled", message })
        };
        let mut words = StatusWrites::default();
        words.add(note("a"));
        words.add(note("b"));
        let first = words.next(now).expect("a word");
        words.said(first, true, now);
        assert_eq!(words.next(now), None, "not before it was quiet for a while");
        assert_eq!(words.next(now + REST), Some(note("b")));
        assert_eq!(words.next(now + REST), Some(note("a")));
    }

    #[test]
    fn a_pod_that_is_being_bound_is_never_called_unplaced() {
        let now = Instant::now();
        let mut words = StatusWrites::default();
        words.add(waits("a", "early"));
        let early = words.next(now).expect("a word");
        words.add(waits("a", "queued"));
        words.bind(&pod("a"));
        assert!(words.is_busy(&pod("a")), "the binding waits for the word under way");
        words.said(early, true, now);
        assert!(!words.is_busy(&pod("a")));
        words.add(waits("a", "meanwhile"));
        assert_eq!(words.next(now + REST), None);
        words.bound(&pod("a"), true);
        assert_eq!(words.next(now + REST), None);
    }

    #[test]
    fn a_pod_that_could_not_be_bound_is_spoken_of_again() {
        let now = Instant::now();
        let mut words = StatusWrites::default();
        words.bind(&pod("a"));
        words.add(waits("a", "no room"));
        assert_eq!(words.next(now), None);
        words.bound(&pod("a"), false);
        assert_eq!(words.next(now), Some(waits("a", "no room")));
    }
}
