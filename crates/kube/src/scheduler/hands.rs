//! Hands: carries out acts. Binding comes first; what is only said to people follows behind.
//!
//! Every write is idempotent, names the uid of its object, and is made only while we lead.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc};

use super::api::{Failure, Server};
use super::lease::Reign;
use super::{bind, events, owners, writes};
use crate::crd::{GpuQueueStatus, GpuWorkloadStatus};
use crate::world::{Act, Key, Note, Outcome, PodRef};

/// Bindings at a time.
const BINDINGS: usize = 48;
/// Other changes of pods at a time.
const CHANGES: usize = 16;
/// Words to people at a time.
const WORDS: usize = 4;
/// The pause between two words to people while bindings are under way, and while none are.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(8)];
/// The pause after the API server did not answer.
const TROUBLED: Duration = Duration::from_secs(1);
/// Words that wait to be said; more are dropped, oldest first.
const MAX_NOTES: usize = 20_000;

/// Carries out acts.
#[derive(Clone, Debug)]
pub(crate) struct Hands {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: Server,
    reign: Reign,
    identity: String,
    outcomes: mpsc::UnboundedSender<Outcome>,
    bindings: Semaphore,
    changes: Semaphore,
    under_way: AtomicUsize,
    binding: AtomicUsize,
    words: Mutex<Words>,
    wake: Notify,
    metrics: Arc<super::metrics::Metrics>,
}

/// What is to be said to people: only the latest about each thing.
#[derive(Debug, Default)]
struct Words {
    statuses: BTreeMap<Key, (Arc<str>, Box<GpuWorkloadStatus>)>,
    /// Workloads whose status is being written: the next must not overtake it.
    writing: BTreeSet<Key>,
    queues: BTreeMap<Arc<str>, Box<GpuQueueStatus>>,
    conditions: BTreeMap<PodRef, (&'static str, Arc<str>)>,
    notes: VecDeque<Note>,
}

/// One thing to say.
enum Word {
    Status(Key, Arc<str>, Box<GpuWorkloadStatus>),
    Queue(Arc<str>, Box<GpuQueueStatus>),
    Condition(PodRef, &'static str, Arc<str>),
    Note(Note),
}

impl Hands {
    pub(crate) fn new(
        server: Server,
        reign: Reign,
        identity: &str,
        outcomes: mpsc::UnboundedSender<Outcome>,
        metrics: Arc<super::metrics::Metrics>,
    ) -> Self {
        let shared = Arc::new(Shared {
            server,
            reign,
            identity: identity.to_owned(),
            outcomes,
            bindings: Semaphore::new(BINDINGS),
            changes: Semaphore::new(CHANGES),
            under_way: AtomicUsize::new(0),
            binding: AtomicUsize::new(0),
            words: Mutex::default(),
            wake: Notify::new(),
            metrics,
        });
        for _ in 0..WORDS {
            tokio::spawn(shared.clone().speak());
        }
        Self { shared }
    }

    /// Takes acts over; returns at once.
    pub(crate) fn give(&self, acts: Vec<Act>) {
        for act in acts {
            self.take(act);
        }
    }

    /// Waits until nothing that changes pods is under way, or the time is over.
    pub(crate) async fn finish(&self, limit: Duration) {
        let idle = async {
            while self.shared.under_way.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(limit, idle).await;
    }

    fn take(&self, act: Act) {
        let shared = &self.shared;
        match act {
            Act::Status { workload, uid, status } => {
                shared.words().statuses.insert(workload, (uid, status));
                shared.wake.notify_one();
            }
            Act::QueueStatus { queue, status } => {
                shared.words().queues.insert(queue, status);
                shared.wake.notify_one();
            }
            Act::Explain { pod, reason, message } => {
                shared.words().conditions.insert(pod, (reason, message));
                shared.wake.notify_one();
            }
            Act::Note(note) => {
                let mut words = shared.words();
                if words.notes.len() >= MAX_NOTES {
                    words.notes.pop_front();
                    shared.metrics.dropped_events.inc();
                }
                words.notes.push_back(note);
                drop(words);
                shared.wake.notify_one();
            }
            Act::Bind(bind) => {
                shared.words().conditions.remove(&bind.pod);
                shared.clone().begin(&shared.binding);
                tokio::spawn(shared.clone().bind(bind));
            }
            other => {
                shared.under_way.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(shared.clone().change(other));
            }
        }
    }
}

impl Shared {
    fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: Arc<Self>, counter: &AtomicUsize) {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        counter.fetch_add(1, Ordering::AcqRel);
    }

    async fn bind(self: Arc<Self>, bind: Box<crate::world::Bind>) {
        let (pod, plan) = (bind.pod.clone(), bind.plan);
        let ready = bind::claims(&self.server, &self.reign, &bind).await;
        let result = match ready {
            Ok(()) => {
                let _permit = self.bindings.acquire().await;
                bind::pod(&self.server, &self.reign, &bind).await
            }
            Err(result) => result,
        };
        self.metrics.bindings(&result);
        self.binding.fetch_sub(1, Ordering::AcqRel);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        // A leader no more: whoever leads now reads from the API server what came of it.
        if self.reign.holds() {
            let _ = self.outcomes.send(Outcome::Bind { pod, plan, result });
        }
    }

    async fn change(self: Arc<Self>, act: Act) {
        let permit = self.changes.acquire().await;
        let outcome = match act {
            Act::Create { workload, name, body } => {
                Some(writes::create(&self.server, &self.reign, workload, name, &body).await)
            }
            Act::Delete { pod, grace } => {
                writes::delete(&self.server, &self.reign, &pod, grace).await;
                None
            }
            Act::DeleteOrphan { pod, node } => {
                writes::delete_orphan(&self.server, &self.reign, &pod, &node).await;
                None
            }
            Act::Evict { pod, .. } => {
                // It may take long: a budget says when.
                drop(permit);
                let failed = writes::evict(&self.server, &self.reign, &pod).await;
                failed.map(|why| Outcome::EvictionFailed { pod, why })
            }
            Act::Nominate { pod, node } => {
                writes::nominate(&self.server, &self.reign, &pod, node.as_deref()).await;
                None
            }
            Act::LookUp(owner) => {
                let uid = owner.uid.clone();
                let annotations = owners::annotations(&self.server, &self.reign, &owner).await;
                Some(Outcome::Owner { uid, annotations })
            }
            Act::Finalizer { workload, uid, add, present } => {
                writes::finalizer(&self.server, &self.reign, &workload, &uid, add, present).await;
                None
            }
            _ => None,
        };
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        if let Some(outcome) = outcome.filter(|_| self.reign.holds()) {
            let _ = self.outcomes.send(outcome);
        }
    }

    /// Says what is to be said, slowly while bindings are under way.
    async fn speak(self: Arc<Self>) {
        loop {
            let word = self.words().next();
            let Some(word) = word else {
                tokio::select! {
                    () = self.wake.notified() => continue,
                    () = self.reign.over.cancelled() => return,
                }
            };
            if !self.reign.holds() {
                return;
            }
            let again = self.say(word).await;
            let busy = self.binding.load(Ordering::Acquire) > 0;
            let pause = if again { TROUBLED } else { PAUSES[usize::from(!busy)] };
            tokio::time::sleep(pause).await;
        }
    }

    /// Says it; what the API server did not hear is kept, and it tells so.
    async fn say(&self, word: Word) -> bool {
        match word {
            Word::Status(workload, uid, status) => {
                let said = writes::status(&self.server, &workload, &uid, &status).await;
                let again = Self::again(said, "workload status");
                let mut words = self.words();
                words.writing.remove(&workload);
                if again {
                    words.statuses.entry(workload).or_insert((uid, status));
                }
                drop(words);
                self.wake.notify_one();
                again
            }
            Word::Queue(queue, status) => {
                let said = writes::queue_status(&self.server, &queue, &status).await;
                let again = Self::again(said, "queue status");
                if again {
                    self.words().queues.entry(queue).or_insert(status);
                }
                again
            }
            Word::Condition(pod, reason, message) => {
                let said = writes::condition(&self.server, &pod, reason, &message).await;
                let again = Self::again(said, "pod condition");
                if again {
                    self.words().conditions.entry(pod).or_insert((reason, message));
                }
                again
            }
            Word::Note(note) => {
                let said = events::tell(&self.server, &self.identity, &note).await;
                let again = Self::again(said, "event");
                if again {
                    self.words().notes.push_front(note);
                }
                again
            }
        }
    }

    /// Whether it is worth saying again.
    fn again(said: Result<(), Failure>, what: &'static str) -> bool {
        match said {
            Ok(()) | Err(Failure::NotFound(_) | Failure::Conflict(_)) => false,
            Err(error) => {
                tracing::debug!(%error, what, "not written");
                error.is_passing()
            }
        }
    }
}

impl Words {
    /// Workloads first, then pods, then events.
    fn next(&mut self) -> Option<Word> {
        let free = self.statuses.keys().find(|key| !self.writing.contains(*key)).cloned();
        if let Some((key, (uid, status))) = free.and_then(|key| self.statuses.remove_entry(&key)) {
            self.writing.insert(key.clone());
            return Some(Word::Status(key, uid, status));
        }
        if let Some((pod, (reason, message))) = self.conditions.pop_first() {
            return Some(Word::Condition(pod, reason, message));
        }
        if let Some((queue, status)) = self.queues.pop_first() {
            return Some(Word::Queue(queue, status));
        }
        self.notes.pop_front().map(Word::Note)
    }
}
