//! Forecasts: ETAs and what-if questions, answered by running a copy forward in time.

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

/// Limit of simulated steps.
const MAX_STEPS: usize = 10_000;

/// Expected start of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eta {
    Now,
    /// Provided that running and pending workloads keep to their estimates.
    At(Time),
    /// A workload in the way has no estimate, or this workload never fits.
    Unknown,
}

/// Outcome of a hypothetical submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhatIf {
    pub eta: Eta,
    /// Placements at the start.
    pub placements: Vec<Placement>,
    pub victims: Vec<WorkloadId>,
    /// `None` when the workload would start at once.
    pub reason: Option<WaitReason>,
    pub alternatives: Vec<Alternative>,
    /// The nodes with the smallest shortfall.
    pub closest: Vec<(NodeId, Shortfall)>,
}

/// Events of one workload in a forecast.
#[derive(Debug, Default)]
struct ForecastOutcome {
    placements: Vec<Placement>,
    at: Option<Time>,
    victims: Vec<WorkloadId>,
}

impl Scheduler {
    /// Forecast of a workload that is not submitted. Changes nothing.
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

    /// Expected starts of all pending workloads; unknown ones are absent.
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

    /// Advances time: placements succeed, victims stop, lost tasks are replaced, and workloads end at their estimates. Ends when the
    /// wanted workload is placed, or when no further event is known.
    fn run_forward(
        &mut self,
        wanted: Option<&WorkloadId>,
    ) -> BTreeMap<WorkloadId, ForecastOutcome> {
        let mut seen: BTreeMap<WorkloadId, ForecastOutcome> = BTreeMap::new();
        // The end of an overdue workload is unknown.
        self.expected_ends.retain(|(end, _, _)| *end > self.now);
        let stopping =
            self.workloads.iter().filter(|(_, workload)| workload.phase == WorkloadPhase::Stopping);
        let mut stopping: Vec<_> =
            stopping.map(|(_, workload)| (workload.serial, workload.spec.id.clone())).collect();
        stopping.sort_unstable();
        for (_, id) in stopping {
            self.stop_at_once(&id);
        }
        self.assume_replacements();
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
                self.stop_at_once(&workload);
            }
            Decision::Displace { .. }
            | Decision::AwaitReplacement { .. }
            | Decision::Wait { .. } => {}
        }
    }

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
