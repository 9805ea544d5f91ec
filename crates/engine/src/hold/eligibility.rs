//! By what right running work is stopped for waiting work: priority, or what a queue is guaranteed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::hold::holds::Purpose;
use crate::hold::preempt::Eviction;
use crate::model::decision::{PreemptionReason, Victim};
use crate::model::units::Time;
use crate::quota::charge::Charge;
use crate::quota::queues::Queues;
use crate::state::cluster::room::Claim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{JobIdx, State};

/// The queues when some of their work is being stopped for others.
#[derive(Clone, Debug)]
pub(crate) struct Foreseen {
    /// With what their work is promised, and all that still runs: what they may ask for is within their guarantee.
    owed: Queues,
    /// The same without what is on its way out: what may be asked of them is beyond their guarantee.
    left: Queues,
}

impl Scheduler {
    /// Whether all victims may go for what the workload really takes: its devices are known only now.
    pub(crate) fn is_rightful(
        &self,
        job: JobIdx,
        eviction: &Eviction,
        foreseen: Option<&Foreseen>,
    ) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in &eviction.seats {
            charge.add(&Charge::of(claim));
        }
        self.rightful(job, &charge, &eviction.victims, foreseen) == eviction.victims
    }

    /// The queues with what is under way: it is not asked for again.
    pub(crate) fn foreseen(&self) -> Foreseen {
        let charge = |queues: &mut Queues, queue, claim: &Claim, sign| {
            queues.charge(queue, &Charge::of(claim), sign, self.now, self.policy.half_life);
        };
        let mut owed = self.queues.clone();
        for (job, hold) in self.holds.iter() {
            if matches!(hold.purpose, Purpose::Preemption { .. }) {
                for (_, claim) in &hold.planned {
                    charge(&mut owed, self.jobs.get(job).queue, claim, 1);
                }
            }
        }
        let mut left = owed.clone();
        for (_, job) in self.jobs.iter() {
            for (_, seat) in job.seats().filter(|(_, seat)| seat.leaving.is_some()) {
                charge(&mut left, job.queue, &seat.claim, -1);
            }
        }
        Foreseen { owed, left }
    }

    /// Who may be stopped for this workload, cheapest first: lowest priority, then youngest.
    pub(crate) fn candidates(&mut self, job: JobIdx, foreseen: Option<&Foreseen>) -> Vec<JobIdx> {
        let charge = self.charge_of(job);
        let mut found = Vec::new();
        let mut later: Option<Time> = None;
        for victim in &self.stoppable {
            if *victim == job || !self.may_stop(foreseen, *victim, job, &charge) {
                continue;
            }
            let other = self.jobs.get(*victim);
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

    /// Whether rights and budgets allow it. Inside a queue the higher priority wins. Between queues
    /// only borrowed capacity can be taken: back by its owner, or by a higher priority.
    fn may_stop(
        &self,
        foreseen: Option<&Foreseen>,
        victim: JobIdx,
        job: JobIdx,
        charge: &Charge,
    ) -> bool {
        let (victim, job) = (self.jobs.get(victim), self.jobs.get(job));
        let lower = victim.spec.priority < job.spec.priority;
        let (from, to) = (victim.queue, job.queue);
        let right = match foreseen {
            // Nobody is guaranteed anything.
            None => lower,
            Some(_) if from == to => lower,
            Some(Foreseen { owed, left }) => {
                left.is_borrowing(&self.cluster, from, to)
                    && (lower || owed.is_entitled(&self.cluster, from, to, charge))
            }
        };
        right
            && victim.state == State::Placed
            && victim.spec.budgets.iter().all(|budget| {
                self.budgets.get(budget).is_none_or(|allowed| *allowed >= victim.count())
            })
    }

    /// One that is stopped, and by what right: what a queue is guaranteed counts only against those who are not below.
    pub(crate) fn as_victim(&self, victim: JobIdx, job: JobIdx) -> Victim {
        let (victim, job) = (&self.jobs.get(victim).spec, &self.jobs.get(job).spec);
        let below = victim.priority < job.priority;
        let reason = if below { PreemptionReason::Priority } else { PreemptionReason::Reclaim };
        Victim { workload: victim.id.clone(), reason }
    }

    /// Those candidates that may all go together: what a queue is guaranteed stays with it, however
    /// many of its workloads are asked for one after the other.
    pub(crate) fn rightful(
        &self,
        job: JobIdx,
        charge: &Charge,
        candidates: &[JobIdx],
        foreseen: Option<&Foreseen>,
    ) -> Vec<JobIdx> {
        let mut rightful = candidates.to_vec();
        let Some(mut foreseen) = foreseen.cloned() else { return rightful };
        rightful.retain(|victim| {
            let right = self.may_stop(Some(&foreseen), *victim, job, charge);
            if right {
                let victim = self.jobs.get(*victim);
                for (_, seat) in victim.seats() {
                    foreseen.left.charge(
                        victim.queue,
                        &Charge::of(&seat.claim),
                        -1,
                        self.now,
                        self.policy.half_life,
                    );
                }
            }
            right
        });
        rightful
    }

    /// Whether the budgets let all of these go together.
    pub(crate) fn within_budgets(&self, victims: &[JobIdx]) -> bool {
        let mut drawn: BTreeMap<&crate::model::name::BudgetId, u32> = BTreeMap::new();
        for victim in victims {
            let spec = &self.jobs.get(*victim).spec;
            for budget in &spec.budgets {
                *drawn.entry(budget).or_default() += spec.task_count();
            }
        }
        drawn
            .iter()
            .all(|(budget, tasks)| self.budgets.get(*budget).is_none_or(|allowed| tasks <= allowed))
    }
}
