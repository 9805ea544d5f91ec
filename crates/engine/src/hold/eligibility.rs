//! Eligibility of victims: priority, or reclaim of guaranteed quota.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::hold::holds::HoldPurpose;
use crate::hold::preempt::PreemptionPlan;
use crate::model::decision::{PreemptionReason, Victim};
use crate::model::units::Time;
use crate::quota::charge::Charge;
use crate::quota::queues::Queues;
use crate::state::cluster::room::Claim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

/// Queue usage after all preemptions in progress.
#[derive(Clone, Debug)]
pub(crate) struct QueueForecast {
    /// With the holds of preemptors and all running tasks. Decides which queues may still reclaim.
    entitled: Queues,
    /// `entitled` without terminating tasks. Decides which queues still borrow.
    remaining: Queues,
}

impl Scheduler {
    /// All victims are eligible for the claims of the plan. The exact charge is known only after the devices
    /// are chosen.
    pub(crate) fn may_preempt_all(
        &self,
        workload: WorkloadIdx,
        eviction: &PreemptionPlan,
        queue_forecast: Option<&QueueForecast>,
    ) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in &eviction.claims {
            charge.add(&Charge::of(claim));
        }
        self.eligible_together(workload, &charge, &eviction.victims, queue_forecast)
            == eviction.victims
    }

    /// Counts preemptions in progress, so no queue reclaims the same quota twice.
    pub(crate) fn queue_forecast(&self) -> QueueForecast {
        let charge = |queues: &mut Queues, queue, claim: &Claim, sign| {
            queues.charge(queue, &Charge::of(claim), sign, self.now, self.policy.half_life);
        };
        let mut entitled = self.queues.clone();
        for (workload, hold) in self.holds.iter() {
            if matches!(hold.purpose, HoldPurpose::Preemption { .. }) {
                for (_, claim) in &hold.planned {
                    charge(&mut entitled, self.workloads.get(workload).queue, claim, 1);
                }
            }
        }
        let mut remaining = entitled.clone();
        for (_, workload) in self.workloads.iter() {
            for (_, allocation) in workload
                .allocations()
                .filter(|(_, allocation)| allocation.terminating_since.is_some())
            {
                charge(&mut remaining, workload.queue, &allocation.claim, -1);
            }
        }
        QueueForecast { entitled, remaining }
    }

    /// Eligible victims, cheapest first: lowest priority, then latest start.
    pub(crate) fn victim_candidates(
        &mut self,
        workload: WorkloadIdx,
        queue_forecast: Option<&QueueForecast>,
    ) -> Vec<WorkloadIdx> {
        let charge = self.charge_of(workload);
        let mut found = Vec::new();
        let mut later: Option<Time> = None;
        for victim in &self.preemptible {
            if *victim == workload
                || !self.may_preempt_workload(queue_forecast, *victim, workload, &charge)
            {
                continue;
            }
            let other = self.workloads.get(*victim);
            let protected = other.spec.min_runtime.unwrap_or(self.policy.min_runtime);
            if other.ran(self.now) < protected {
                let free = other.placed_at.after(protected);
                later = Some(later.map_or(free, |later| later.min(free)));
            } else {
                found.push((
                    other.spec.priority,
                    Reverse(other.placed_at),
                    Reverse(other.serial),
                    *victim,
                ));
            }
        }
        if let Some(later) = later.filter(|later| *later > self.now) {
            self.timers.insert(later);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, _, victim)| victim).collect()
    }

    /// Priority, quota and budgets permit the preemption. Within a queue the higher priority wins. Between
    /// queues only borrowed quota is preempted, by its owner or by a higher priority.
    fn may_preempt_workload(
        &self,
        queue_forecast: Option<&QueueForecast>,
        victim: WorkloadIdx,
        workload: WorkloadIdx,
        charge: &Charge,
    ) -> bool {
        let (victim, workload) = (self.workloads.get(victim), self.workloads.get(workload));
        let lower = victim.spec.priority < workload.spec.priority;
        let (from, to) = (victim.queue, workload.queue);
        let right = match queue_forecast {
            // No queue has a guarantee.
            None => lower,
            Some(_) if from == to => lower,
            Some(QueueForecast { entitled, remaining }) => {
                remaining.is_borrowing(&self.cluster, from, to)
                    && (lower || entitled.is_entitled(&self.cluster, from, to, charge))
            }
        };
        right
            && victim.phase == WorkloadPhase::Placed
            && victim.spec.budgets.iter().all(|budget| {
                self.budgets.get(budget).is_none_or(|allowed| *allowed >= victim.count())
            })
    }

    /// The priority is the reason when the victim's is lower; otherwise the guarantee is.
    pub(crate) fn victim_of(&self, victim: WorkloadIdx, workload: WorkloadIdx) -> Victim {
        let (victim, workload) =
            (&self.workloads.get(victim).spec, &self.workloads.get(workload).spec);
        let below = victim.priority < workload.priority;
        let reason = if below { PreemptionReason::Priority } else { PreemptionReason::Reclaim };
        Victim { workload: victim.id.clone(), reason }
    }

    /// The candidates that may all be preempted together: each one reduces the borrowed quota that is left to
    /// reclaim.
    pub(crate) fn eligible_together(
        &self,
        workload: WorkloadIdx,
        charge: &Charge,
        candidates: &[WorkloadIdx],
        queue_forecast: Option<&QueueForecast>,
    ) -> Vec<WorkloadIdx> {
        let mut eligible_together = candidates.to_vec();
        let Some(mut queue_forecast) = queue_forecast.cloned() else { return eligible_together };
        eligible_together.retain(|victim| {
            let right = self.may_preempt_workload(Some(&queue_forecast), *victim, workload, charge);
            if right {
                let victim = self.workloads.get(*victim);
                for (_, allocation) in victim.allocations() {
                    queue_forecast.remaining.charge(
                        victim.queue,
                        &Charge::of(&allocation.claim),
                        -1,
                        self.now,
                        self.policy.half_life,
                    );
                }
            }
            right
        });
        eligible_together
    }

    /// The disruption budgets allow all victims together.
    pub(crate) fn within_budgets(&self, victims: &[WorkloadIdx]) -> bool {
        let mut drawn: BTreeMap<&crate::model::name::BudgetId, u32> = BTreeMap::new();
        for victim in victims {
            let spec = &self.workloads.get(*victim).spec;
            for budget in &spec.budgets {
                *drawn.entry(budget).or_default() += spec.task_count();
            }
        }
        drawn
            .iter()
            .all(|(budget, tasks)| self.budgets.get(*budget).is_none_or(|allowed| tasks <= allowed))
    }
}
