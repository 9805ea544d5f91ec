//! The future as far as it is known: ETAs and what-if questions, by running a copy forward.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::explain::explanation::Alternative;
use crate::model::decision::{Decision, Placement};
use crate::model::error::Rejected;
use crate::model::event::Event;
use crate::model::name::{NodeId, WorkloadId};
use crate::model::units::Time;
use crate::model::wait::{Shortfall, WaitReason};
use crate::model::workload::{OnFault, Workload};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

/// Steps a forecast looks ahead.
const MAX_STEPS: usize = 10_000;

/// When a workload is expected to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eta {
    /// At once.
    Now,
    /// Then, if running and waiting work keeps to its expected durations.
    At(Time),
    /// Not known: something in its way does not say how long it takes, or it never fits.
    Unknown,
}

/// What would happen to a workload if it were handed in now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    /// When it would start.
    pub eta: Eta,
    /// Where its tasks would start then.
    pub placements: Vec<Placement>,
    /// Who would be stopped for it.
    pub victims: Vec<WorkloadId>,
    /// Why it would not start at once.
    pub reason: Option<WaitReason>,
    /// Requests that would start at once instead.
    pub alternatives: Vec<Alternative>,
    /// The nodes that came closest, and what each lacks.
    pub closest: Vec<(NodeId, Shortfall)>,
}

/// What a forecast saw happen to one workload.
#[derive(Debug, Default)]
struct ForecastOutcome {
    placements: Vec<Placement>,
    at: Option<Time>,
    victims: Vec<WorkloadId>,
}

impl Scheduler {
    /// Where and when a workload would run if it were handed in now. Changes nothing.
    pub fn what_if(&self, now: Time, workload: Workload) -> Result<WhatIf, Rejected> {
        let id = workload.id.clone();
        let mut copy = self.clone();
        copy.apply(now, Event::Submitted(Box::new(workload)))?;
        let explained = copy.explain(now, &id);
        let seen = copy.run_forward(Some(&id)).remove(&id).unwrap_or_default();
        let eta = match seen.at {
            Some(at) if at <= later_of(now, self.now) => Eta::Now,
            Some(at) => Eta::At(at),
            None => Eta::Unknown,
        };
        let mut answer = WhatIf {
            eta,
            placements: seen.placements,
            victims: seen.victims,
            reason: None,
            alternatives: Vec::new(),
            closest: Vec::new(),
        };
        if let Some(explained) = explained.filter(|_| eta != Eta::Now) {
            answer.reason = explained.reason;
            answer.alternatives = explained.alternatives;
            answer.closest = explained.closest;
        }
        Ok(answer)
    }

    /// When each waiting workload is expected to start; those that nobody can tell are absent.
    pub fn etas(&self, now: Time) -> BTreeMap<WorkloadId, Time> {
        let mut copy = self.clone();
        copy.advance(now);
        let seen = copy.run_forward(None);
        seen.into_iter().filter_map(|(id, seen)| Some((id, seen.at?))).collect()
    }

    pub(crate) fn eta(&self, now: Time, id: &WorkloadId) -> Eta {
        let mut copy = self.clone();
        copy.advance(now);
        match copy.run_forward(Some(id)).remove(id).and_then(|seen| seen.at) {
            Some(at) if at <= later_of(now, self.now) => Eta::Now,
            Some(at) => Eta::At(at),
            None => Eta::Unknown,
        }
    }

    /// Lets time pass: placements succeed, victims go, and work ends when it is expected to. Stops
    /// when the wanted workload has been placed, or when nothing more is known.
    fn run_forward(
        &mut self,
        wanted: Option<&WorkloadId>,
    ) -> BTreeMap<WorkloadId, ForecastOutcome> {
        let mut seen: BTreeMap<WorkloadId, ForecastOutcome> = BTreeMap::new();
        // What is overdue may end at any time, or never: nothing is known about it.
        self.expected_ends.retain(|(end, _, _)| *end > self.now);
        let stopping =
            self.workloads.iter().filter(|(_, workload)| workload.phase == WorkloadPhase::Stopping);
        let mut stopping: Vec<_> =
            stopping.map(|(_, workload)| (workload.serial, workload.spec.id.clone())).collect();
        stopping.sort_unstable();
        for (_, id) in stopping {
            self.stop_at_once(&id);
        }
        for _ in 0..MAX_STEPS {
            let now = self.now;
            let plan = self.decide(now);
            for decision in plan.decisions {
                self.carry_out(decision, now, &mut seen);
            }
            let found =
                wanted.is_some_and(|wanted| seen.get(wanted).is_some_and(|seen| seen.at.is_some()));
            let idle = wanted.is_none() && self.pending.len() == 0 && self.holds.len() == 0;
            if found || idle {
                break;
            }
            let end = self.expected_ends.first().map(|(end, _, _)| *end);
            let wake = plan.wake_at.filter(|wake| *wake > now);
            let again = self.retry_blocked.then_some(now);
            let Some(next) = end.into_iter().chain(wake).chain(again).min() else { break };
            self.advance(next);
            self.finish_due();
        }
        seen
    }

    fn carry_out(
        &mut self,
        decision: Decision,
        now: Time,
        seen: &mut BTreeMap<WorkloadId, ForecastOutcome>,
    ) {
        match decision {
            Decision::Place(placement) => {
                let entry = seen.entry(placement.workload.clone()).or_default();
                if entry.at.is_none_or(|at| at == now) {
                    entry.at = Some(now);
                    entry.placements.push(placement);
                }
            }
            Decision::Preempt { victims, beneficiary, .. } => {
                let victims = victims.into_iter().map(|victim| victim.workload);
                let victims: Vec<WorkloadId> =
                    victims.inspect(|id| self.stop_at_once(id)).collect();
                seen.entry(beneficiary).or_default().victims.extend(victims);
            }
            Decision::Displace { workload, action: OnFault::Requeue, .. } => {
                self.stop_at_once(&workload)
            }
            Decision::Displace { .. } | Decision::Wait { .. } => {}
        }
    }

    /// A stopped workload is gone at once.
    fn stop_at_once(&mut self, id: &WorkloadId) {
        let stopping = self
            .workloads
            .find(id)
            .filter(|workload| self.workloads.get(*workload).phase == WorkloadPhase::Stopping);
        let Some(workload) = stopping else { return };
        for task in 0..self.workloads.get(workload).count() {
            self.retry_blocked |= self.release_task(workload, task).is_some();
        }
        self.requeue_when_stopped(workload);
    }

    fn finish_due(&mut self) {
        while let Some((_, _, workload)) =
            self.expected_ends.first().copied().filter(|(end, _, _)| *end <= self.now)
        {
            self.finish_workload(workload);
        }
    }

    fn finish_workload(&mut self, workload: WorkloadIdx) {
        let id = self.workloads.get(workload).spec.id.clone();
        let finished = self.apply(self.now, Event::Finished(id));
        debug_assert!(finished.is_ok(), "a workload with an expected end exists");
    }
}

fn later_of(now: Time, latest: Time) -> Time {
    now.max(latest)
}
