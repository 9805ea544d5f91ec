//! The committer: runs the engine, writes batches, and then answers callers and agents.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use agentaflow_api::event::Event;
use agentaflow_api::ids::NodeId;
use agentaflow_api::job::TaskState;
use agentaflow_api::link::Message;
use agentaflow_api::units::Stamp;
use agentaflow_backoff::BackoffPolicy;

use super::activity::Activity;
use super::clock::Clock;
use super::journal::{AgentMessage, Batch};
use super::node::{Contact, LiveNode};
use super::outbox::Outboxes;
use super::planner::Planner;
use super::published::Published;
use super::restore::{CLOCK_STEP, ENGINE_MEMORY, LEASE, LEAST_STEP_MS};
use super::state::State;
use super::stop::stops;
use crate::api_error::ApiError;
use crate::directory::SharedDirectory;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::storage::Storage;
use crate::store::{Change, Loaded, Store, StoreError};

/// Interval of checks of leases and timers.
const TICK: Duration = Duration::from_millis(200);
/// Interval of checks of running jobs against budgets, and of unconfirmed tasks.
const BUDGET_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which heartbeats and the engine's own memory are saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);
const PRUNE_INTERVAL: Duration = Duration::from_hours(1);
/// Steps of this size are reported.
const WARN_STEP_MS: u64 = 60_000;
/// Lifetime of idempotency keys.
pub(super) const KEY_LIFE: Duration = Duration::from_hours(24);

/// Delays between attempts to reload the state after a failed transaction.
const RELOAD: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(100), Duration::from_secs(5));

const CANNOT_WRITE: &str = "the server cannot write to its database now; try again in a moment";
const STOPPING: &str = "the server is stopping; try again in a moment";

/// Shared by the core's handles and the committer.
pub(super) struct Inner {
    pub(super) state: Mutex<State>,
    pub(super) published: Published,
    pub(super) directory: SharedDirectory,
    pub(super) store: Arc<dyn Store>,
    pub(super) outboxes: Outboxes,
    pub(super) events: broadcast::Sender<Arc<Event>>,
    pub(super) pushes: mpsc::UnboundedSender<AgentMessage>,
    pub(super) wake: Notify,
    pub(super) stop: CancellationToken,
    /// Cancelled once the last batch is written and the store is closed.
    pub(super) done: CancellationToken,
    /// Cancelled when another server took over the database.
    pub(super) fatal: CancellationToken,
    pub(super) settings: Arc<Settings>,
    pub(super) secrets: Arc<Keyring>,
    pub(super) clock: Clock,
    pub(super) activity: Arc<Activity>,
    pub(super) storage: Arc<Storage>,
    /// The store has a longer lease than the settings.
    pub(super) lease_to_save: AtomicBool,
    pub(super) planner: Planner,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

/// Work that repeats at an interval.
struct Periodic {
    interval: Duration,
    last: Instant,
}

impl Periodic {
    fn new(interval: Duration) -> Self {
        Self { interval, last: Instant::now() }
    }

    fn is_due(&mut self) -> bool {
        let due = self.last.elapsed() >= self.interval;
        if due {
            self.last = Instant::now();
        }
        due
    }
}

struct Chores {
    tick: Periodic,
    budgets: Periodic,
    save: Periodic,
    prune: Periodic,
    /// Step of the wall clock that the store has, in milliseconds.
    saved_step: i64,
}

/// A batch with its writes.
struct Transaction {
    batch: Batch,
    changes: Vec<Change>,
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits batches until the server stops; the last batch is written.
    pub(super) async fn run_committer(self: Arc<Self>) {
        let mut chores = Chores {
            tick: Periodic::new(TICK),
            budgets: Periodic::new(BUDGET_INTERVAL),
            save: Periodic::new(SAVE_INTERVAL),
            prune: Periodic::new(PRUNE_INTERVAL),
            saved_step: 0,
        };
        loop {
            self.activity.record_turn(self.clock.stamp());
            let stopping = self.stop.is_cancelled();
            if stopping {
                self.close_journal(&mut chores);
            }
            while let Some(transaction) = self.next_transaction(&mut chores) {
                self.commit(transaction).await;
                self.activity.record_turn(self.clock.stamp());
            }
            if stopping {
                break;
            }
            let delay = self.lock().engine.until_wake().unwrap_or(TICK).min(TICK);
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(delay) => {}
            }
        }
        self.store.close().await;
        self.done.cancel();
    }

    /// Runs the engine and takes the batch, unless the batch is empty.
    fn next_transaction(&self, chores: &mut Chores) -> Option<Transaction> {
        let mut state = self.lock();
        if state.journal.is_open() {
            self.run_maintenance(&mut state, chores);
            state.update_budget_gates();
            if state.engine.is_due() {
                let began = Instant::now();
                state.run_engine();
                self.activity.passes.observe(began.elapsed());
            }
        }
        if state.journal.is_empty() && !state.jobs.has_unsaved() {
            state.publish(&self.published);
            return None;
        }
        let mut batch = state.journal.take_batch();
        add_syncs(&state, &mut batch);
        let mut changes = state.jobs.take_changes();
        changes.append(&mut batch.changes);
        if !changes.is_empty() {
            state.journal.begin_write();
        }
        Some(Transaction { batch, changes })
    }

    fn run_maintenance(&self, state: &mut State, chores: &mut Chores) {
        if chores.tick.is_due() {
            state.find_lost_nodes();
            state.stop_overdue_pushes();
            state.release_sealed_jobs();
            for node in self.outboxes.stopped_polling() {
                state.connect_node(node, Contact::StreamClosed);
            }
        }
        if chores.budgets.is_due() {
            state.enforce_budgets();
            state.requeue_unconfirmed();
        }
        if chores.save.is_due() {
            self.save_shorter_lease(state);
            state.save_heartbeats();
            self.save_clock_step(state, chores);
            state.jobs.keys_mut().expire();
            if !state.engine.scheduler().is_empty() {
                save_engine_memory(state);
            }
        }
        if chores.prune.is_due() {
            let before = Stamp(self.clock.stamp().0 - KEY_LIFE.as_millis() as i64);
            state.journal.write(Change::IdempotencyBefore(before));
        }
    }

    fn save_shorter_lease(&self, state: &mut State) {
        let shorter = self.lease_to_save.load(Ordering::Relaxed);
        if shorter && !state.nodes.lease().earlier_leases_valid(Instant::now()) {
            let length = self.settings.lease.as_millis();
            state.journal.write(Change::Meta(LEASE, length.to_string()));
            self.lease_to_save.store(false, Ordering::Relaxed);
        }
    }

    /// Saves a step of the wall clock for a run after a boot of the machine, which cannot measure it.
    fn save_clock_step(&self, state: &mut State, chores: &mut Chores) {
        let step = self.clock.step(&self.settings.wall_clock);
        if step.abs_diff(chores.saved_step) >= LEAST_STEP_MS {
            if step.abs_diff(chores.saved_step) >= WARN_STEP_MS {
                let seconds = step / 1000;
                tracing::warn!(
                    seconds,
                    "The wall clock was set; times follow the old one until the server restarts"
                );
            }
            chores.saved_step = step;
            state.journal.write(Change::Meta(CLOCK_STEP, step.to_string()));
        }
    }

    /// Saves the state that is only in memory, and accepts no more changes.
    fn close_journal(&self, chores: &mut Chores) {
        let mut state = self.lock();
        if state.journal.is_open() {
            state.save_heartbeats();
            self.save_clock_step(&mut state, chores);
            save_engine_memory(&mut state);
            state.journal.close(STOPPING);
        }
    }

    async fn commit(&self, transaction: Transaction) {
        let Transaction { batch, changes } = transaction;
        let result = if changes.is_empty() { Ok(()) } else { self.write(&changes).await };
        match result {
            Ok(()) => self.announce(batch),
            Err(error) => self.reload(batch, &error).await,
        }
    }

    async fn write(&self, changes: &[Change]) -> Result<(), StoreError> {
        let began = Instant::now();
        let result = self.store.commit(changes).await;
        self.activity.commits.observe(began.elapsed());
        if result.is_err() {
            self.activity.failed_commits.inc();
        }
        result
    }

    /// Publishes a durable batch: views, messages, events, and then the answers to callers.
    fn announce(&self, mut batch: Batch) {
        let mut state = self.lock();
        state.journal.end_write();
        state.publish(&self.published);
        for AgentMessage { node, message } in batch.messages.drain(..) {
            if state.nodes.get(node).is_some_and(LiveNode::is_push) {
                // The receiver ends with the server.
                let _ = self.pushes.send(AgentMessage { node, message });
            } else {
                self.outboxes.send(node, message);
            }
        }
        drop(state);
        for event in batch.events.drain(..) {
            // Without subscribers nothing receives the event.
            let _ = self.events.send(event);
        }
        batch.answer(&Ok(()));
    }

    /// Replaces the state with the store's after a failed transaction: memory has changes that the store lacks.
    async fn reload(&self, batch: Batch, error: &StoreError) {
        tracing::error!(error = %chain(error), "Transaction failed; the state is reloaded from the store");
        let fenced = matches!(error, StoreError::Fenced);
        let failed = Err(ApiError::unavailable(CANNOT_WRITE));
        let later = {
            // Later changes build on the failed ones.
            let mut state = self.lock();
            let reason =
                if fenced { "another server has taken over the database" } else { CANNOT_WRITE };
            state.journal.close(reason);
            drop(state.jobs.take_changes());
            state.journal.take_batch()
        };
        later.answer(&failed);
        batch.answer(&failed);
        if fenced {
            self.fatal.cancel();
            return;
        }
        match self.stop.run_until_cancelled(self.load_again()).await {
            Some(Some(loaded)) => self.replace_state(loaded),
            Some(None) => self.fatal.cancel(),
            None => {}
        }
    }

    /// Loads the store until it succeeds; none if another server took over the database.
    async fn load_again(&self) -> Option<Loaded> {
        let mut backoff = RELOAD.start();
        loop {
            match self.store.load(&self.clock.month()).await {
                Ok(loaded) => return Some(loaded),
                Err(StoreError::Fenced) => return None,
                Err(error) => tracing::error!(error = %chain(&error), "Cannot read the store"),
            }
            backoff.sleep().await;
        }
    }

    fn replace_state(&self, loaded: Loaded) {
        let mut state = self.lock();
        let mut fresh = State::load(
            self.settings.clone(),
            self.secrets.clone(),
            self.directory.clone(),
            loaded,
            self.clock,
            Some(&state),
        );
        for node in fresh.nodes.ids() {
            fresh.report_node(node);
            if fresh.nodes.get(node).is_some_and(LiveNode::is_reachable) {
                fresh.journal.request_sync(node);
            }
        }
        self.published.retain(&fresh.nodes.ids());
        fresh.publish(&self.published);
        *state = fresh;
    }
}

/// Replaces the messages of nodes that need a full sync. A push agent receives missed messages from the task that calls
/// it.
fn add_syncs(state: &State, batch: &mut Batch) {
    let mut syncs = std::mem::take(&mut batch.syncs);
    syncs.retain(|node| state.nodes.get(*node).is_some_and(|node| !node.is_push()));
    batch.messages.retain(|message| !syncs.contains(&message.node));
    let full = |node: NodeId| AgentMessage { node, message: full_sync(state, node) };
    batch.messages.extend(syncs.into_iter().map(full));
}

/// All assignments and stops of a node.
fn full_sync(state: &State, node: NodeId) -> Message {
    let jobs = state.nodes.get(node).map(LiveNode::jobs).unwrap_or_default();
    let mut assignments = Vec::new();
    let mut node_stops = Vec::new();
    for job in jobs.into_iter().filter_map(|id| state.jobs.get(id)) {
        let here = job.state.tasks.iter().filter(|task| task.node == node);
        let live = here.filter(|task| task.state != TaskState::Ended);
        assignments.extend(live.filter_map(|task| state.assignment(job, task)));
        let stops = stops(job, None).into_iter().filter(|stop| stop.node == node);
        node_stops.extend(stops.map(|stop| stop.stop));
    }
    Message::Sync { assignments, stops: node_stops }
}

fn save_engine_memory(state: &mut State) {
    let memory = state.engine.memory();
    state.journal.write(Change::Meta(ENGINE_MEMORY, memory));
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
