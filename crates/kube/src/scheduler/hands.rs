//! Hands: carries out acts. Binding comes first; what is only said to people follows behind.
//!
//! Every write is idempotent, names the uid of its object, and is made only while we lead.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
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
    desks: [Desk; WORDS],
    metrics: Arc<super::metrics::Metrics>,
}

/// What one speaker has to say. All about one thing lies on one desk, so that the last word is written last.
#[derive(Debug, Default)]
struct Desk {
    words: Mutex<Words>,
    wake: Notify,
}

/// What is to be said to people: only the latest about each thing.
#[derive(Debug, Default)]
struct Words {
    statuses: BTreeMap<Key, (Arc<str>, Box<GpuWorkloadStatus>)>,
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
            desks: Default::default(),
            metrics,
        });
        for number in 0..WORDS {
            tokio::spawn(shared.clone().speak(number));
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
                let desk = shared.desk(&workload);
                desk.words().statuses.insert(workload, (uid, status));
                desk.wake.notify_one();
            }
            Act::QueueStatus { queue, status } => {
                let desk = shared.desk(&queue);
                desk.words().queues.insert(queue, status);
                desk.wake.notify_one();
            }
            Act::Explain { pod, reason, message } => {
                let desk = shared.desk(&pod);
                desk.words().conditions.insert(pod, (reason, message));
                desk.wake.notify_one();
            }
            Act::Note(note) => {
                let desk = shared.desk(&note.about);
                let mut words = desk.words();
                if words.notes.len() >= MAX_NOTES / WORDS {
                    words.notes.pop_front();
                    shared.metrics.dropped_events.inc();
                }
                words.notes.push_back(note);
                drop(words);
                desk.wake.notify_one();
            }
            Act::Bind(bind) => {
                shared.desk(&bind.pod).words().conditions.remove(&bind.pod);
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
    fn desk(&self, about: &impl Hash) -> &Desk {
        let mut hasher = DefaultHasher::new();
        about.hash(&mut hasher);
        &self.desks[hasher.finish() as usize % WORDS]
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
                let annotations = owners::annotations(&self.server, &owner).await;
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
    async fn speak(self: Arc<Self>, number: usize) {
        let desk = &self.desks[number];
        loop {
            let word = desk.words().next();
            let Some(word) = word else {
                tokio::select! {
                    () = desk.wake.notified() => continue,
                    () = self.reign.over.cancelled() => return,
                }
            };
            if !self.reign.holds() {
                return;
            }
            self.say(word, desk).await;
            let busy = self.binding.load(Ordering::Acquire) > 0;
            tokio::time::sleep(PAUSES[usize::from(!busy)]).await;
        }
    }

    async fn say(&self, word: Word, desk: &Desk) {
        match word {
            Word::Status(workload, uid, status) => {
                let said = writes::status(&self.server, &workload, &uid, &status).await;
                if Self::again(said, "workload status") {
                    let mut words = desk.words();
                    words.statuses.entry(workload).or_insert((uid, status));
                }
            }
            Word::Queue(queue, status) => {
                let said = writes::queue_status(&self.server, &queue, &status).await;
                if Self::again(said, "queue status") {
                    desk.words().queues.entry(queue).or_insert(status);
                }
            }
            Word::Condition(pod, reason, message) => {
                let said = writes::condition(&self.server, &pod, reason, &message).await;
                if Self::again(said, "pod condition") {
                    desk.words().conditions.entry(pod).or_insert((reason, message));
                }
            }
            Word::Note(note) => {
                let said = events::tell(&self.server, &self.identity, &note).await;
                let _ = Self::again(said, "event");
            }
        }
    }

    /// Whether it is worth saying again.
    fn again(said: Result<(), Failure>, what: &'static str) -> bool {
        match said {
            Ok(()) | Err(Failure::NotFound(_) | Failure::Conflict(_)) => false,
            Err(error) if error.is_passing() => {
                tracing::debug!(%error, what, "not written yet");
                true
            }
            Err(error) => {
                tracing::warn!(%error, what, "cannot be written");
                false
            }
        }
    }
}

impl Desk {
    fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Words {
    /// Workloads first, then pods, then events.
    fn next(&mut self) -> Option<Word> {
        if let Some((key, (uid, status))) = self.statuses.pop_first() {
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
