//! Executes actions. Bindings go first; statuses, conditions and Events follow behind.
//!
//! Every write is idempotent, names the uid of its object, and is sent only while this replica leads.

use agentaflow_kube_core::names;
use jiff::Timestamp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::{Interval, MissedTickBehavior};

use super::api::{ApiServer, Failure};
use super::lease::Leadership;
use super::status_writes::{JobRef, StatusWrite, StatusWrites};
use super::writes::WritePermits;
use super::{bind, events, owner_lookup, writes};
use crate::controller::EventType;
use crate::state::{
    Action, ActionResult, BindResult, EventRecord, ObjectRef, PendingCondition, PodRef, Urgency,
};

/// Concurrent bindings.
const MAX_BINDINGS: usize = 48;
/// Pods whose claims are polled concurrently.
const MAX_CLAIM_POLLS: usize = 8;
/// Other concurrent writes to pods.
const MAX_WRITES: usize = 16;
/// Concurrent reads of owners.
const MAX_LOOKUPS: usize = 4;
/// Concurrent status writes.
const STATUS_WRITERS: usize = 24;
/// Time between two status writes while bindings are in flight: 100 in a second, a fraction of the bindings that an API
/// server answers.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two looks at writes that wait for their backoff.
const BACKOFF_POLL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub(crate) struct Executor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: ApiServer,
    leadership: Leadership,
    identity: String,
    results: mpsc::UnboundedSender<ActionResult>,
    bindings: Semaphore,
    claims: Semaphore,
    changes: Semaphore,
    lookups: Semaphore,
    in_flight: AtomicUsize,
    binding: AtomicUsize,
    status_writes: Mutex<StatusWrites>,
    wake: Notify,
    /// Paces status writes. The writer that holds it chooses the next write.
    pace: tokio::sync::Mutex<Interval>,
    /// Notified after each status write.
    write_finished: Notify,
    metrics: Arc<super::metrics::Metrics>,
}

impl Executor {
    pub(crate) fn new(
        server: ApiServer,
        leadership: Leadership,
        identity: &str,
        results: mpsc::UnboundedSender<ActionResult>,
        metrics: Arc<super::metrics::Metrics>,
    ) -> Self {
        let mut pace = tokio::time::interval(BUSY_INTERVAL);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = Arc::new(Shared {
            server,
            leadership,
            identity: identity.to_owned(),
            results,
            bindings: Semaphore::new(MAX_BINDINGS),
            claims: Semaphore::new(MAX_CLAIM_POLLS),
            changes: Semaphore::new(MAX_WRITES),
            lookups: Semaphore::new(MAX_LOOKUPS),
            in_flight: AtomicUsize::new(0),
            binding: AtomicUsize::new(0),
            status_writes: Mutex::default(),
            wake: Notify::new(),
            pace: tokio::sync::Mutex::new(pace),
            write_finished: Notify::new(),
            metrics,
        });
        for _ in 0..STATUS_WRITERS {
            tokio::spawn(shared.clone().send_status_writes());
        }
        Self { shared }
    }

    /// Starts the actions; returns at once.
    pub(crate) fn submit(&self, actions: Vec<Action>) {
        for action in actions {
            self.start(action);
        }
    }

    /// Stops new writes, and waits until no pod write is in flight, or for `limit`.
    pub(crate) async fn finish(&self, limit: Duration) {
        self.shared.leadership.close();
        let idle = async {
            while self.shared.in_flight.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(limit, idle).await;
    }

    fn start(&self, action: Action) {
        let shared = &self.shared;
        match action {
            Action::WriteStatus { workload, uid, status, urgency } => {
                shared.enqueue(StatusWrite::WorkloadStatus(workload, uid, status), urgency);
            }
            Action::WriteQueueStatus { queue, status } => {
                shared.enqueue(StatusWrite::QueueStatus(queue, status), Urgency::LAST);
            }
            Action::WriteCondition { pod, condition } => {
                let urgency = Urgency::new(condition.already_false, condition.priority);
                shared.enqueue(StatusWrite::PodCondition(pod, condition), urgency);
            }
            Action::WriteReason { kind, unit, uid, reason, urgency } => {
                shared.enqueue(StatusWrite::JobReason(JobRef { kind, unit, uid }, reason), urgency);
            }
            Action::RecordEvent(event) => shared.record(event),
            Action::Bind(bind) => {
                shared.status_writes().begin_binding(&bind.pod);
                shared.in_flight.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(shared.clone().bind(bind));
            }
            other => {
                shared.in_flight.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(shared.clone().change(other));
            }
        }
    }
}

impl Shared {
    fn status_writes(&self) -> MutexGuard<'_, StatusWrites> {
        self.status_writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(&self, write: StatusWrite, urgency: Urgency) {
        self.status_writes().add(write, urgency);
        self.wake.notify_one();
    }

    fn record(&self, event: EventRecord) {
        if self.status_writes().add_event(event, Timestamp::now()) {
            self.metrics.dropped_events.inc();
        }
        self.wake.notify_one();
    }

    async fn bind(self: Arc<Self>, bind: Box<crate::state::Bind>) {
        let (pod, plan, placed) = (bind.pod.clone(), bind.plan, Instant::now());
        // Thousands of bindings wait at a time: request bodies are built when a permit is free.
        let ready = if bind.claims.is_empty() {
            Ok(())
        } else {
            Box::pin(bind::claims(&self.server, &self.leadership, &self.claims, &bind)).await
        };
        let result = match ready {
            Ok(()) => self.bind_pod(&bind).await,
            Err(result) => result,
        };
        let has_node = matches!(result, BindResult::Bound | BindResult::BoundToOther(_));
        self.status_writes().end_binding(&pod, has_node);
        self.wake.notify_one();
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        // After the loss of leadership, the new leader reads the result from the API server.
        if self.leadership.is_open() {
            self.metrics.bindings(&result);
            self.metrics.binds.observe(placed.elapsed());
            let _ = self.results.send(ActionResult::Bind { pod, plan, result });
        }
    }

    async fn bind_pod(&self, bind: &crate::state::Bind) -> BindResult {
        self.wait_for_condition_write(&bind.pod).await;
        self.binding.fetch_add(1, Ordering::AcqRel);
        let permits = WritePermits { leadership: &self.leadership, permits: &self.bindings };
        let permit = permits.permits.acquire().await;
        let result = Box::pin(bind::pod(&self.server, permits, permit.ok(), bind)).await;
        self.binding.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Waits until no write of the condition `PodScheduled=False` is in flight.
    async fn wait_for_condition_write(&self, pod: &PodRef) {
        loop {
            let write_finished = self.write_finished.notified();
            if !self.status_writes().is_busy(pod) {
                return;
            }
            write_finished.await;
        }
    }

    async fn change(self: Arc<Self>, action: Action) {
        let result = match action {
            // Takes as long as the disruption budgets demand; holds no permit.
            Action::Evict { pod, .. } => {
                let failed = writes::evict(&self.server, &self.leadership, &pod).await;
                self.metrics.eviction(failed.is_some());
                failed.map(|message| ActionResult::EvictionFailed { pod, message })
            }
            Action::LookUpOwner(owner) => {
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
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if let Some(result) = result.filter(|_| self.leadership.is_open()) {
            let _ = self.results.send(result);
        }
    }

    async fn write(&self, action: Action) -> Option<ActionResult> {
        let server = &self.server;
        let permits = WritePermits { leadership: &self.leadership, permits: &self.changes };
        match action {
            Action::Create { workload, name, body } => {
                return Some(writes::create(server, permits, workload, name, &body).await);
            }
            Action::Suspend { kind, unit, uid, suspend } => {
                let message = writes::suspend(server, permits, kind, &unit, &uid, suspend).await?;
                return Some(ActionResult::SuspendRefused { kind, unit, uid, message });
            }
            Action::CreateService { workload, body } => {
                writes::create_service(server, permits, &workload, &body).await;
            }
            Action::DeleteWorkload { workload, uid } => {
                writes::delete_workload(server, permits, &workload, &uid).await;
            }
            Action::Delete { pod, grace } => writes::delete(server, permits, &pod, grace).await,
            Action::DeleteOrphan { pod, node } => {
                writes::delete_orphan(server, permits, &pod, &node).await;
            }
            Action::Nominate { pod, node } => {
                writes::nominate(server, permits, &pod, node.as_deref()).await;
            }
            Action::WriteNodeConditions { node, version, conditions } => {
                writes::node_conditions(server, permits, &node, &version, &conditions).await;
            }
            Action::RemoveFinalizer { workload, uid, version, present } => {
                let about = writes::Revision { workload: &workload, uid: &uid, version: &version };
                writes::remove_finalizer(server, permits, about, present).await;
            }
            _ => {}
        }
        None
    }

    /// Sends status writes until this replica stops leading.
    async fn send_status_writes(self: Arc<Self>) {
        loop {
            let write = tokio::select! {
                write = self.next_status_write() => write,
                () = self.leadership.over.cancelled() => return,
            };
            if !self.leadership.holds() {
                return;
            }
            let retry = self.send(&write).await;
            self.status_writes().finish(write, retry, Instant::now());
            self.wake.notify_one();
            self.write_finished.notify_waiters();
        }
    }

    /// Waits for the next status write: paced while bindings are in flight, at once otherwise.
    async fn next_status_write(&self) -> StatusWrite {
        let mut pace = self.pace.lock().await;
        loop {
            if self.is_binding() {
                pace.tick().await;
            }
            let (write, backing_off) = {
                let mut queue = self.status_writes();
                (queue.next(Instant::now()), queue.is_backing_off())
            };
            if let Some(write) = write {
                return write;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(BACKOFF_POLL), if backing_off => {}
            }
        }
    }

    fn is_binding(&self) -> bool {
        self.binding.load(Ordering::Acquire) > 0
    }

    /// Writes the condition for programs, and enqueues an Event for users behind the conditions of other pods: `kubectl
    /// describe` shows no messages of conditions.
    async fn write_condition(
        &self,
        pod: &PodRef,
        condition: &PendingCondition,
    ) -> Result<(), Failure> {
        writes::condition(&self.server, pod, condition).await?;
        let object = ObjectRef { kind: "Pod", key: pod.key.clone(), uid: pod.uid.clone() };
        let message = condition.message.to_string();
        let (event_type, reason) = (EventType::Warning, names::FAILED_SCHEDULING);
        self.record(EventRecord { object, event_type, reason, message });
        Ok(())
    }

    /// Sends one status write; returns true if it must be retried.
    async fn send(&self, write: &StatusWrite) -> bool {
        let (sent, what) = match write {
            StatusWrite::WorkloadStatus(workload, uid, status) => {
                (writes::status(&self.server, workload, uid, status).await, "workload status")
            }
            StatusWrite::QueueStatus(queue, status) => {
                (writes::queue_status(&self.server, queue, status).await, "queue status")
            }
            StatusWrite::PodCondition(pod, why) => {
                (self.write_condition(pod, why).await, "pod condition")
            }
            StatusWrite::JobReason(job, reason) => {
                (writes::job_reason(&self.server, job, reason).await, "pending reason")
            }
            StatusWrite::Event(event, time) => {
                (events::record(&self.server, &self.identity, event, *time).await, "event")
            }
        };
        match sent {
            Ok(()) | Err(Failure::NotFound(_) | Failure::Conflict(_)) => false,
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, what, "write failed; retrying");
                true
            }
            Err(error) => {
                tracing::warn!(%error, what, "write failed");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
