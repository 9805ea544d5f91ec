//! The engine, its clock, and the events it rejected.

use agentaflow_engine::{
    Decision, Event, Explanation, NodeRanking, Policy, Rejected, Scheduler, Snapshot, Time, WhatIf,
    Workload, WorkloadId,
};
use std::panic::Location;

/// The only way by which events reach the engine.
#[derive(Debug)]
pub(super) struct EngineLink {
    scheduler: Scheduler,
    now: Time,
    rejected: Vec<(Sender, Rejected)>,
}

/// Position of the code that sent an event.
pub(super) type Sender = &'static Location<'static>;

impl EngineLink {
    /// `memory` is the last leader's snapshot: past usage and the round-robin cursor. Its times are clamped to `now`: the
    /// last leader's clock may have been ahead, and the engine would stop until the local clock passes that time.
    pub(super) fn restore(policy: &Policy, memory: Option<Snapshot>, now: Time) -> Self {
        let mut snapshot = memory.unwrap_or_default();
        snapshot.policy = policy.clone();
        snapshot.queues.retain(|facts| facts.queue.validate().is_ok());
        let times = snapshot.queues.iter_mut().flat_map(|facts| &mut facts.as_of);
        for time in times.chain([&mut snapshot.now]) {
            *time = (*time).min(now);
        }
        let scheduler =
            Scheduler::restore(snapshot).unwrap_or_else(|_| Scheduler::new(policy.clone()));
        Self { scheduler, now: Time(0), rejected: Vec::new() }
    }

    /// Time never runs backwards.
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// Sends an event that the engine must accept; a rejection is a bug of this crate and is logged. Returns true if the
    /// engine accepted the event.
    #[track_caller]
    pub(super) fn send(&mut self, event: Event) -> bool {
        let sender = Location::caller();
        let applied = self.scheduler.apply(self.now, event);
        applied.map_err(|why| self.rejected.push((sender, why))).is_ok()
    }

    /// Sends an event that the engine may reject; the caller handles the rejection.
    pub(super) fn try_send(&mut self, event: Event) -> Result<(), Rejected> {
        self.scheduler.apply(self.now, event)
    }

    /// Decisions of one pass, and the time of the next pass that the engine requests.
    pub(super) fn decide(&mut self) -> (Vec<Decision>, Option<Time>) {
        let plan = self.scheduler.decide(self.now);
        (plan.decisions, plan.wake_at)
    }

    /// Read access.
    pub(super) fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub(super) fn explain(&self, id: &WorkloadId) -> Option<Explanation> {
        self.scheduler.explain(self.now, id)
    }

    pub(super) fn what_if(&self, workload: Workload) -> Result<WhatIf, Rejected> {
        self.scheduler.what_if(self.now, workload)
    }

    pub(super) fn keep_rankings(&mut self, most: usize) {
        self.scheduler.record_rankings(most);
    }

    pub(super) fn take_rankings(&mut self) -> Vec<NodeRanking> {
        self.scheduler.take_rankings()
    }

    pub(super) fn take_rejected(&mut self) -> Vec<(Sender, Rejected)> {
        std::mem::take(&mut self.rejected)
    }
}
