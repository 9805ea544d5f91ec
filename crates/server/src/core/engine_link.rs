//! The scheduling engine, its clock, and the time of its next pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agentaflow_engine::{Decision, Event, Rejected, Scheduler, Time};

use super::clock::Clock;

/// Owner of the engine. Every event passes through [`EngineLink::apply`] or [`EngineLink::try_apply`], so that a pass
/// follows.
#[derive(Debug)]
pub(crate) struct EngineLink {
    scheduler: Scheduler,
    clock: Clock,
    /// The engine received an event since its last pass.
    needs_pass: bool,
    /// Time of the next pass that the engine requested.
    wake: Option<Time>,
    /// Changes of the engine since the server started, readable without the core's lock.
    changes: Arc<AtomicU64>,
}

/// Result of one pass of the engine.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) decisions: Vec<Decision>,
    pub(crate) now: Time,
    /// The engine requested another pass at once.
    pub(crate) again: bool,
}

impl EngineLink {
    /// `changes` continues the counter of an earlier link.
    pub(crate) fn new(scheduler: Scheduler, clock: Clock, changes: Arc<AtomicU64>) -> Self {
        changes.fetch_add(1, Ordering::SeqCst);
        Self { scheduler, clock, needs_pass: true, wake: None, changes }
    }

    pub(crate) fn changes(&self) -> &Arc<AtomicU64> {
        &self.changes
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Engine for questions that change nothing.
    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Applies an event that the engine may reject.
    pub(crate) fn try_apply(&mut self, event: Event) -> Result<(), Rejected> {
        self.scheduler.apply(self.clock.now(), event)?;
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.needs_pass = true;
        Ok(())
    }

    /// Applies an event that the engine must accept. A rejection is logged; the engine's own checks keep its state
    /// consistent.
    pub(crate) fn apply(&mut self, event: Event) {
        if let Err(rejected) = self.try_apply(event) {
            tracing::warn!(%rejected, "Scheduler rejected an event");
        }
    }

    /// Returns true if a pass is due: an event was applied, or the requested time has come.
    pub(crate) fn is_due(&self) -> bool {
        self.needs_pass || self.wake.is_some_and(|at| at <= self.clock.now())
    }

    /// Returns true if an event was applied since the last pass began.
    pub(crate) fn needs_pass(&self) -> bool {
        self.needs_pass
    }

    /// Time until the pass that the engine requested.
    pub(crate) fn until_wake(&self) -> Option<Duration> {
        self.wake.map(|at| Duration::from_millis(at.since(self.clock.now()).0))
    }

    pub(crate) fn run_pass(&mut self) -> Pass {
        let now = self.clock.now();
        self.needs_pass = false;
        let plan = self.scheduler.decide(now);
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.wake = plan.wake_at;
        Pass { again: plan.wake_at.is_some_and(|wake| wake <= now), decisions: plan.decisions, now }
    }

    /// State of the engine that no record holds, as JSON: round-robin cursor and decayed queue usage.
    pub(crate) fn memory(&self) -> String {
        serde_json::to_string(&self.scheduler.usage_history()).unwrap_or_default()
    }
}
