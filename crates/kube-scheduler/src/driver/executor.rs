//! Executor: carries out acts. Binding comes first; what is only said to people follows behind.
//!
//! Every write is idempotent, names the uid of its object, and is made only while we lead.

use agentaflow_kube_core::names;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::api::{ApiServer, Failure};
use super::lease::Leadership;
use super::status_writes::{StatusWrite, StatusWrites};
use super::writes::WritePermits;
use super::{bind, events, owner_lookup, writes};
use crate::state::{
    Action, ActionResult, BindResult, EventRecord, ObjectRef, PendingCondition, PodRef,
};

/// Bindings at a time.
const BINDINGS: usize = 48;
/// Pods at a time whose claims are looked at.
const CLAIMS: usize = 8;
/// Other changes of pods at a time.
const CHANGES: usize = 16;
/// Owners asked at a time.
const LOOKUPS: usize = 4;
/// StatusWrites to people at a time.
const WORDS: usize = 4;
/// The pause between two words to people while bindings are under way, and while none are.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(8)];

/// Carries out acts.
#[derive(Clone, Debug)]
pub(crate) struct Executor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: ApiServer,
    leadership: Leadership,
    identity: String,
    outcomes: mpsc::UnboundedSender<ActionResult>,
    bindings: Semaphore,
    claims: Semaphore,
    changes: Semaphore,
    lookups: Semaphore,
    under_way: AtomicUsize,
    binding: AtomicUsize,
    words: Mutex<StatusWrites>,
    wake: Notify,
    /// Somebody has finished speaking.
    silent: Notify,
    metrics: Arc<super::metrics::Metrics>,
}

impl Executor {
    pub(crate) fn new(
        server: ApiServer,
        leadership: Leadership,
        identity: &str,
        outcomes: mpsc::UnboundedSender<ActionResult>,
        metrics: Arc<super::metrics::Metrics>,
    ) -> Self {
        let shared = Arc::new(Shared {
            server,
            leadership,
            identity: identity.to_owned(),
            outcomes,
            bindings: Semaphore::new(BINDINGS),
            claims: Semaphore::new(CLAIMS),
            changes: Semaphore::new(CHANGES),
            lookups: Semaphore::new(LOOKUPS),
            under_way: AtomicUsize::new(0),
            binding: AtomicUsize::new(0),
            words: Mutex::default(),
            wake: Notify::new(),
            silent: Notify::new(),
            metrics,
        });
        for _ in 0..WORDS {
            tokio::spawn(shared.clone().speak());
        }
        Self { shared }
    }

    /// Takes acts over; returns at once.
    pub(crate) fn give(&self, acts: Vec<Action>) {
        for act in acts {
            self.take(act);
        }
    }

    /// Begins nothing new, and waits until nothing that changes pods is under way, or the time is over.
    pub(crate) async fn finish(&self, limit: Duration) {
        self.shared.leadership.close();
        let idle = async {
            while self.shared.under_way.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(limit, idle).await;
    }

    fn take(&self, act: Action) {
        let shared = &self.shared;
        match act {
            Action::Status { workload, uid, status } => {
                shared.add(StatusWrite::WorkloadStatus(workload, uid, status));
            }
            Action::QueueStatus { queue, status } => {
                shared.add(StatusWrite::QueueStatus(queue, status))
            }
            Action::Explain { pod, why } => shared.add(StatusWrite::PodCondition(pod, why)),
            Action::RecordEvent(note) => shared.add(StatusWrite::Event(note)),
            Action::Bind(bind) => {
                shared.words().bind(&bind.pod);
                shared.under_way.fetch_add(1, Ordering::AcqRel);
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
    fn words(&self) -> MutexGuard<'_, StatusWrites> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, word: StatusWrite) {
        let dropped = self.words().add(word);
        for _ in 0..dropped {
            self.metrics.dropped_events.inc();
        }
        self.wake.notify_one();
    }

    async fn bind(self: Arc<Self>, bind: Box<crate::state::Bind>) {
        let (pod, plan) = (bind.pod.clone(), bind.plan);
        // Thousands wait for their turn at a time: what the calls need is made when it comes.
        let ready = if bind.claims.is_empty() {
            Ok(())
        } else {
            Box::pin(bind::claims(&self.server, &self.leadership, &self.claims, &bind)).await
        };
        let result = match ready {
            Ok(()) => self.bind_pod(&bind).await,
            Err(result) => result,
        };
        let has_node = matches!(result, BindResult::Bound | BindResult::Elsewhere(_));
        self.words().bound(&pod, has_node);
        self.wake.notify_one();
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        // A leader no more: whoever leads now reads from the API server what came of it.
        if self.leadership.is_open() {
            self.metrics.bindings(&result);
            let _ = self.outcomes.send(ActionResult::Bind { pod, plan, result });
        }
    }

    async fn bind_pod(&self, bind: &crate::state::Bind) -> BindResult {
        self.silence(&bind.pod).await;
        self.binding.fetch_add(1, Ordering::AcqRel);
        let turns = WritePermits { leadership: &self.leadership, permits: &self.bindings };
        let turn = turns.permits.acquire().await;
        let result = Box::pin(bind::pod(&self.server, turns, turn.ok(), bind)).await;
        self.binding.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Waits until nobody says any more that the pod is not placed.
    async fn silence(&self, pod: &PodRef) {
        loop {
            let silent = self.silent.notified();
            if !self.words().is_busy(pod) {
                return;
            }
            silent.await;
        }
    }

    async fn change(self: Arc<Self>, act: Action) {
        let outcome = match act {
            // It may take long: a budget says when.
            Action::Evict { pod, .. } => {
                let failed = writes::evict(&self.server, &self.leadership, &pod).await;
                failed.map(|why| ActionResult::EvictionFailed { pod, why })
            }
            Action::LookUp(owner) => {
                let _permit = self.lookups.acquire().await;
                let annotations =
                    owner_lookup::annotations(&self.server, &self.leadership, &owner).await;
                Some(ActionResult::Owner {
                    namespace: owner.namespace,
                    uid: owner.uid,
                    annotations,
                })
            }
            other => self.write(other).await,
        };
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        if let Some(outcome) = outcome.filter(|_| self.leadership.is_open()) {
            let _ = self.outcomes.send(outcome);
        }
    }

    async fn write(&self, act: Action) -> Option<ActionResult> {
        let server = &self.server;
        let turns = WritePermits { leadership: &self.leadership, permits: &self.changes };
        match act {
            Action::Create { workload, name, body } => {
                return Some(writes::create(server, turns, workload, name, &body).await);
            }
            Action::Delete { pod, grace } => writes::delete(server, turns, &pod, grace).await,
            Action::DeleteOrphan { pod, node } => {
                writes::delete_orphan(server, turns, &pod, &node).await;
            }
            Action::Nominate { pod, node } => {
                writes::nominate(server, turns, &pod, node.as_deref()).await;
            }
            Action::Finalizer { workload, uid, version, add, present } => {
                let about = writes::Revision { workload: &workload, uid: &uid, version: &version };
                writes::finalizer(server, turns, about, add, present).await;
            }
            _ => {}
        }
        None
    }

    /// Says what is to be said, slowly while bindings are under way.
    async fn speak(self: Arc<Self>) {
        loop {
            let (word, resting) = {
                let mut words = self.words();
                (words.next(Instant::now()), words.is_resting())
            };
            let Some(word) = word else {
                tokio::select! {
                    () = self.wake.notified() => continue,
                    () = tokio::time::sleep(Duration::from_millis(250)), if resting => continue,
                    () = self.leadership.over.cancelled() => return,
                }
            };
            if !self.leadership.holds() {
                return;
            }
            let again = self.say(&word).await;
            self.words().said(word, again, Instant::now());
            self.silent.notify_waiters();
            let busy = self.binding.load(Ordering::Acquire) > 0;
            tokio::time::sleep(PAUSES[usize::from(!busy)]).await;
        }
    }

    /// PendingCondition a pod is not placed: its condition for programs, an event for people, who see no messages of conditions in
    /// `kubectl describe`.
    async fn say_why(&self, pod: &PodRef, why: &PendingCondition) -> Result<(), Failure> {
        writes::condition(&self.server, pod, why).await?;
        let about = ObjectRef { kind: "Pod", key: pod.key.clone(), uid: pod.uid.clone() };
        let message = why.message.to_string();
        let note = EventRecord { about, warning: true, reason: names::FAILED_SCHEDULING, message };
        events::tell(&self.server, &self.identity, &note).await
    }

    /// Says it; tells whether it is worth saying again.
    async fn say(&self, word: &StatusWrite) -> bool {
        let (said, what) = match word {
            StatusWrite::WorkloadStatus(workload, uid, status) => {
                (writes::status(&self.server, workload, uid, status).await, "workload status")
            }
            StatusWrite::QueueStatus(queue, status) => {
                (writes::queue_status(&self.server, queue, status).await, "queue status")
            }
            StatusWrite::PodCondition(pod, why) => (self.say_why(pod, why).await, "pod condition"),
            StatusWrite::Event(note) => {
                (events::tell(&self.server, &self.identity, note).await, "event")
            }
        };
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
