//! The committer: asks the engine, writes batches, and tells the world.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use agentaflow_api::event::Event;
use agentaflow_api::link::Message;
use agentaflow_api::units::Stamp;

use super::batch::Batch;
use super::hub::Hub;
use super::jobs::stops;
use super::pulse::Way;
use super::restore::ENGINE_MEMORY;
use super::state::State;
use crate::api_error::ApiError;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::{Change, SeatState, Store, StoreError};

/// Leases, budgets and timers are looked at this often.
const TICK: Duration = Duration::from_millis(200);
/// Spending is looked at this often.
const SPENDING: Duration = Duration::from_secs(1);
/// Signs of life and the engine's own memory are written down this often.
const FLUSH: Duration = Duration::from_secs(10);
/// Idempotency keys hold this long.
pub(crate) const KEY_LIFE: Duration = Duration::from_hours(24);
/// Keys are remembered in memory this long; the store knows older ones.
const KEY_MEMORY: Duration = Duration::from_mins(10);

/// What the core's handle and the committer share.
pub(crate) struct Inner {
    pub(crate) state: Mutex<State>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) hub: Hub,
    pub(crate) events: broadcast::Sender<Arc<Event>>,
    pub(crate) pushes: mpsc::UnboundedSender<(i64, Message)>,
    pub(crate) wake: Notify,
    pub(crate) stop: CancellationToken,
    /// Cancelled when the last batch is written and the store is closed.
    pub(crate) done: CancellationToken,
    /// Cancelled when the server must not go on: another one took over.
    pub(crate) fatal: CancellationToken,
    pub(crate) settings: Arc<Settings>,
    pub(crate) secrets: Arc<Keyring>,
    pub(super) reasons: super::waits::Latest,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

/// When the regular chores were done last.
struct Chores {
    tick: Instant,
    spending: Instant,
    flush: Instant,
    prune: Instant,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the server stops; the last batch is written.
    pub(crate) async fn commit_for_ever(self: Arc<Self>) {
        let now = Instant::now();
        let mut chores = Chores { tick: now, spending: now, flush: now, prune: now };
        loop {
            let stopping = self.stop.is_cancelled();
            if stopping {
                self.last_words();
            }
            while let Some(batch) = self.next_batch(&mut chores) {
                self.write(batch).await;
            }
            if stopping {
                break;
            }
            let sleep = self.sleep();
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(sleep) => {}
            }
        }
        self.store.close().await;
        self.done.cancel();
    }

    /// Until the engine wants to be asked, or the next tick.
    fn sleep(&self) -> Duration {
        let state = self.lock();
        let wake = state.wake.map(|at| Duration::from_millis(at.since(state.clock.now()).0));
        wake.unwrap_or(TICK).min(TICK)
    }

    /// What is to be written now, with everything that follows from it.
    fn next_batch(&self, chores: &mut Chores) -> Option<Written> {
        let mut state = self.lock();
        if state.closed.is_none() {
            self.do_chores(&mut state, chores);
            if state.money_moved {
                state.look_at_gates();
            }
            let due = state.wake.is_some_and(|at| at <= state.clock.now());
            if state.dirty || due {
                state.decide();
            }
        }
        if state.batch.is_empty() {
            return None;
        }
        let mut syncs: Vec<i64> = std::mem::take(&mut state.batch.syncs).into_iter().collect();
        // Agents that are called are told what they miss by the one who calls them.
        syncs.retain(|node| state.nodes.get(node).is_some_and(|node| !node.is_push()));
        let mut batch = std::mem::take(&mut state.batch);
        // Who is told everything needs nothing else.
        batch.outgoing.retain(|(node, _)| !syncs.contains(node));
        batch.outgoing.extend(syncs.into_iter().map(|node| (node, sync(&state, node))));
        let changes = changes(&state, &mut batch);
        state.writing = (!changes.is_empty()).then(Instant::now);
        Some(Written { batch, changes })
    }

    fn do_chores(&self, state: &mut State, chores: &mut Chores) {
        let due = |last: &mut Instant, every: Duration| {
            let due = last.elapsed() >= every;
            if due {
                *last = Instant::now();
            }
            due
        };
        if due(&mut chores.tick, TICK) {
            state.find_lost_nodes();
            state.stop_overdue_pushes();
            for node in self.hub.stopped_polling() {
                state.reach(node, Way::Stream(None));
            }
        }
        if due(&mut chores.spending, SPENDING) {
            state.watch_spending();
        }
        if due(&mut chores.flush, FLUSH) {
            state.flush_heartbeats();
            state.recent_keys.retain(|_, (_, _, at)| at.elapsed() < KEY_MEMORY);
            if !state.engine.is_empty() {
                let memory = state.engine_memory();
                state.batch.changes.push(Change::Meta(ENGINE_MEMORY, memory));
            }
        }
        if due(&mut chores.prune, Duration::from_hours(1)) {
            let before = Stamp(Stamp::now().0 - KEY_LIFE.as_millis() as i64);
            state.batch.changes.push(Change::IdempotencyBefore(before));
        }
    }

    /// Before the end, what is only in memory is written down.
    fn last_words(&self) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.flush_heartbeats();
            let memory = state.engine_memory();
            state.batch.changes.push(Change::Meta(ENGINE_MEMORY, memory));
            state.closed = Some("the server is stopping; try again in a moment");
        }
    }

    async fn write(&self, written: Written) {
        let Written { batch, changes } = written;
        let result = if changes.is_empty() { Ok(()) } else { self.store.commit(&changes).await };
        match result {
            Ok(()) => self.publish(batch),
            Err(error) => self.start_over(batch, &error).await,
        }
    }

    /// It is durable: tell everybody.
    fn publish(&self, batch: Batch) {
        let mut state = self.lock();
        state.writing = None;
        for (node, message) in batch.outgoing {
            let live = state.nodes.get(&node);
            if live.is_some_and(super::state::LiveNode::is_push) {
                let _ = self.pushes.send((node, message));
            } else {
                self.hub.send(node, message);
            }
        }
        drop(state);
        for event in batch.events {
            let _ = self.events.send(event);
        }
        for ticket in batch.tickets {
            let _ = ticket.send(Ok(()));
        }
    }

    /// It is not durable: memory and store differ, so the memory is loaded again.
    async fn start_over(&self, batch: Batch, error: &StoreError) {
        tracing::error!(error = %chain(error), "a transaction failed; the state is loaded again from the store");
        let refusal = ApiError::unavailable(
            "the server cannot write to its database now; try again in a moment",
        );
        let fenced = matches!(error, StoreError::Fenced);
        {
            // What came after stands on what was not written.
            let mut state = self.lock();
            state.closed = Some(if fenced {
                "another server has taken over the database"
            } else {
                "the server cannot write to its database now; try again in a moment"
            });
            fail(std::mem::take(&mut state.batch), &refusal);
        }
        fail(batch, &refusal);
        if fenced {
            self.fatal.cancel();
            return;
        }
        let mut pause = Duration::from_millis(100);
        while !self.stop.is_cancelled() {
            match self.store.load(&Stamp::now().month()).await {
                Ok(loaded) => {
                    let mut state = self.lock();
                    let mut fresh = State::load(
                        self.settings.clone(),
                        self.secrets.clone(),
                        loaded,
                        Some(&state),
                    );
                    let nodes: Vec<i64> = fresh.nodes.keys().copied().collect();
                    for node in nodes {
                        fresh.refresh_node(node);
                        if fresh.nodes.get(&node).is_some_and(super::state::LiveNode::reachable) {
                            fresh.batch.syncs.insert(node);
                        }
                    }
                    *state = fresh;
                    return;
                }
                Err(StoreError::Fenced) => return self.fatal.cancel(),
                Err(error) => tracing::error!(error = %chain(&error), "the store cannot be read"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }
}

/// A batch and the writes that it means.
struct Written {
    batch: Batch,
    changes: Vec<Change>,
}

/// All writes of a batch: jobs as they are now, then the rest in order.
fn changes(state: &State, batch: &mut Batch) -> Vec<Change> {
    let mut changes = Vec::with_capacity(batch.touched.len() + batch.changes.len());
    let row = |id: &i64| state.jobs.get(id).or_else(|| batch.finished.get(id));
    for id in &batch.new_jobs {
        changes.extend(row(id).map(|row| Change::NewJob(Box::new(row.clone()))));
    }
    for id in batch.touched.difference(&batch.new_jobs) {
        changes.extend(row(id).map(|row| Change::Job(*id, Box::new(row.state.clone()))));
    }
    changes.append(&mut batch.changes);
    changes
}

/// Everything that a node should have.
fn sync(state: &State, node: i64) -> Message {
    let jobs = state.nodes.get(&node).map(|node| node.jobs.clone()).unwrap_or_default();
    let (mut assignments, mut halts) = (Vec::new(), Vec::new());
    for id in jobs {
        let Some(job) = state.jobs.get(&id) else { continue };
        for seat in job
            .state
            .seats
            .iter()
            .filter(|seat| seat.node == node && seat.state != SeatState::Ended)
        {
            assignments.extend(state.assignment(id, seat.task));
        }
        halts.extend(
            stops(job, None).into_iter().filter(|(on, _)| *on == node).map(|(_, stop)| stop),
        );
    }
    Message::Sync { assignments, stops: halts }
}

fn fail(batch: Batch, refusal: &ApiError) {
    for ticket in batch.tickets {
        let _ = ticket.send(Err(refusal.clone()));
    }
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
