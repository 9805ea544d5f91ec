//! Stopping running work for waiting work: the fewest, lowest, youngest victims, and never for nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::NodeIdx;
use crate::cluster::fit::{self, Standing};
use crate::cluster::room::{Claim, Room};
use crate::decision::{Right, Victim};
use crate::hold::Purpose;
use crate::queues::Queues;
use crate::quota::Charge;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::task::{JobIdx, State};
use crate::units::Time;

/// Who is stopped and where the beneficiary then goes.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    pub(crate) victims: Vec<JobIdx>,
    pub(crate) seats: Vec<(NodeIdx, Claim)>,
}

/// The queues when some of their work is being stopped for others.
#[derive(Clone, Debug)]
struct Foreseen {
    /// With what their work is promised, and all that still runs: what they may ask for is within their guarantee.
    owed: Queues,
    /// The same without what is on its way out: what may be asked of them is beyond their guarantee.
    left: Queues,
}

/// The price of a set of victims: fewer workloads, lower, younger is cheaper. A gang counts as one, for
/// one person loses its work. The node's place in the order
/// makes the choice unique.
type Cost = (usize, u8, u64, Reverse<Time>, u32);

/// Sets of victims that are tried out in full before the search is made task by task.
const MOST_TRIALS: usize = 8;

impl Scheduler {
    /// The cheapest set of victims that lets the workload start, if there is one.
    pub(crate) fn plan_eviction(&mut self, job: JobIdx) -> Option<Eviction> {
        let spec = self.jobs.get(job).spec.clone();
        if !self.policy.preemption || !spec.may_preempt || self.stoppable.is_empty() {
            return None;
        }
        let foreseen = self.queues.have_guarantees().then(|| self.foreseen());
        let foreseen = foreseen.as_ref();
        let candidates = self.candidates(job, foreseen);
        if candidates.is_empty() {
            return None;
        }
        let single = spec.task_count() == 1;
        let one = if single { self.evict_on_one_node(job, &candidates, foreseen) } else { None };
        one.or_else(|| {
            let useful = self.useful(job, candidates);
            let rightful = self.rightful(job, &self.charge_of(job), &useful, foreseen);
            let eviction = self.evict_step_by_step(job, &rightful)?;
            self.is_rightful(job, &eviction, foreseen).then_some(eviction)
        })
    }

    /// Whether all victims may go for what the workload really takes: its devices are known only now.
    fn is_rightful(&self, job: JobIdx, eviction: &Eviction, foreseen: Option<&Foreseen>) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in &eviction.seats {
            charge.add(&Charge::of(claim));
        }
        self.rightful(job, &charge, &eviction.victims, foreseen) == eviction.victims
    }

    /// The queues with what is under way: it is not asked for again.
    fn foreseen(&self) -> Foreseen {
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
            for (_, seat) in job.seats().filter(|(_, seat)| seat.terminating) {
                charge(&mut left, job.queue, &seat.claim, -1);
            }
        }
        Foreseen { owed, left }
    }

    /// Those candidates whose going would free something where the workload could go, or quota.
    fn useful(&self, job: JobIdx, mut candidates: Vec<JobIdx>) -> Vec<JobIdx> {
        let wanting = self.jobs.get(job);
        candidates.retain(|victim| {
            let victim = self.jobs.get(*victim);
            let helps = |node: NodeIdx| {
                let (host, room) = (self.cluster.host(node), self.cluster.room(node));
                wanting.shapes().any(|(shape, _)| {
                    let standing = fit::standing(self.cluster.shape(shape), &host.spec, room);
                    matches!(standing, Standing::Yes(_))
                })
            };
            let mut seats = victim.seats();
            victim.queue == wanting.queue || seats.any(|(_, seat)| helps(seat.node))
        });
        candidates
    }

    /// Who may be stopped for this workload, cheapest first: lowest priority, then youngest.
    fn candidates(&mut self, job: JobIdx, foreseen: Option<&Foreseen>) -> Vec<JobIdx> {
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
        let right = if below { Right::Priority } else { Right::Guarantee };
        Victim { workload: victim.id.clone(), right }
    }

    /// Those candidates that may all go together: what a queue is guaranteed stays with it, however
    /// many of its workloads are asked for one after the other.
    fn rightful(
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

    /// One task: each node by itself, so that the fewest victims are found.
    fn evict_on_one_node(
        &mut self,
        job: JobIdx,
        candidates: &[JobIdx],
        foreseen: Option<&Foreseen>,
    ) -> Option<Eviction> {
        let mut by_node: BTreeMap<NodeIdx, Vec<JobIdx>> = BTreeMap::new();
        for victim in candidates {
            let nodes: BTreeSet<NodeIdx> =
                self.jobs.get(*victim).seats().map(|(_, seat)| seat.node).collect();
            for node in nodes {
                by_node.entry(node).or_default().push(*victim);
            }
        }
        let mut found: Vec<(Cost, Vec<JobIdx>)> = Vec::new();
        for (node, victims) in by_node {
            if let Some(victims) = self.evict_rightfully(job, node, &victims, foreseen) {
                found.push((self.cost(&victims, node), victims));
            }
        }
        found.sort_unstable();
        // Quotas and terms have their say last: the cheapest that they allow.
        found.into_iter().take(MOST_TRIALS).find_map(|(_, victims)| {
            let seats = self.seats_without(job, &victims)?;
            let eviction = Eviction { victims, seats };
            self.is_rightful(job, &eviction, foreseen).then_some(eviction)
        })
    }

    /// The victims needed on this node that may all go together. When those that would be taken first
    /// may not, fewer of them are tried, and each by itself: a queue chooses poorly what it gives back.
    fn evict_rightfully(
        &mut self,
        job: JobIdx,
        node: NodeIdx,
        candidates: &[JobIdx],
        foreseen: Option<&Foreseen>,
    ) -> Option<Vec<JobIdx>> {
        let victims = self.evict_here(job, node, candidates)?;
        let charge = self.charge_of(job);
        if self.rightful(job, &charge, &victims, foreseen) == victims {
            return Some(victims);
        }
        let fewer = self.rightful(job, &charge, candidates, foreseen);
        self.evict_here(job, node, &fewer).or_else(|| {
            candidates.iter().take(MOST_TRIALS).find_map(|one| self.evict_here(job, node, &[*one]))
        })
    }

    /// The victims needed on this node: all candidates gone, then each comes back that can stay,
    /// the most valuable first.
    fn evict_here(
        &mut self,
        job: JobIdx,
        node: NodeIdx,
        candidates: &[JobIdx],
    ) -> Option<Vec<JobIdx>> {
        let mut room = self.cluster.room(node).clone();
        for victim in candidates {
            self.move_out(&mut room, node, *victim);
        }
        if !self.fits_in(job, node, &room, candidates) {
            return None;
        }
        let mut victims = candidates.to_vec();
        for victim in candidates.iter().rev() {
            let mut fuller = room.clone();
            for (_, seat) in self.jobs.get(*victim).seats().filter(|(_, seat)| seat.node == node) {
                fuller.book(&seat.claim);
            }
            let fewer: Vec<JobIdx> = victims.iter().copied().filter(|v| v != victim).collect();
            if self.fits_in(job, node, &fuller, &fewer) {
                room = fuller;
                victims = fewer;
            }
        }
        (!victims.is_empty() && self.within_budgets(&victims)).then_some(victims)
    }

    /// A gang, or a quota in the way: victims one after the other until all fits, then those that
    /// turned out not to be needed come back, the most valuable first.
    fn evict_step_by_step(&mut self, job: JobIdx, candidates: &[JobIdx]) -> Option<Eviction> {
        let mut allowed = Vec::new();
        for victim in candidates {
            allowed.push(*victim);
            if !self.within_budgets(&allowed) {
                allowed.pop();
            }
        }
        self.seats_without(job, &allowed)?;
        // With more victims gone more fits, so the shortest sufficient list is found by halving.
        let (mut too_few, mut enough) = (0, allowed.len());
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            if self.seats_without(job, &allowed[..middle]).is_some() {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        let mut victims = allowed[..enough].to_vec();
        for victim in victims.clone().into_iter().rev() {
            let fewer: Vec<JobIdx> = victims.iter().copied().filter(|v| *v != victim).collect();
            if self.seats_without(job, &fewer).is_some() {
                victims = fewer;
            }
        }
        let seats = self.seats_without(job, &victims)?;
        (!victims.is_empty()).then_some(Eviction { victims, seats })
    }

    /// Places for all tasks once these victims are gone: they are taken away, the workload is placed
    /// as it will be, and everything is put back.
    pub(crate) fn seats_without(
        &mut self,
        job: JobIdx,
        victims: &[JobIdx],
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        let mut taken = Vec::new();
        for victim in victims {
            for (task, seat) in self.jobs.get(*victim).seats() {
                taken.push((*victim, task, seat.clone()));
            }
        }
        // What they leave is for this workload: nobody else who waits for room there takes it meanwhile.
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        for (victim, task, _) in &taken {
            self.unseat(*victim, *task);
        }
        let cursor = self.cursor.clone();
        let placed = self.place(job).is_ok();
        self.cursor = cursor;
        self.holds.frozen = frozen;
        let seats =
            self.jobs.get(job).seats().map(|(_, seat)| (seat.node, seat.claim.clone())).collect();
        for task in 0..self.jobs.get(job).count() {
            self.unseat(job, task);
        }
        for (victim, task, seat) in taken {
            let node = seat.node;
            self.give_way(node);
            // If that is too much, it was before, and by nobody's fault here.
            self.seat_as_found(victim, task, seat);
            self.top_up(node);
        }
        placed.then_some(seats)
    }

    fn fits_in(&mut self, job: JobIdx, node: NodeIdx, room: &Room, victims: &[JobIdx]) -> bool {
        let shape = self.cluster.shape(self.jobs.get(job).shape);
        let stands =
            matches!(fit::standing(shape, &self.cluster.host(node).spec, room), Standing::Yes(_));
        stands
            && fit::lack(shape, room).is_none()
            && !self.barred(job, victims).is_some_and(|barred| barred[node as usize])
    }

    /// By node number, whether terms between tasks forbid it; nothing when no terms matter.
    pub(crate) fn barred(&mut self, job: JobIdx, victims: &[JobIdx]) -> Option<Vec<bool>> {
        let spec = self.jobs.get(job).spec.clone();
        if self.terms.ignore(&spec.request) {
            return None;
        }
        let specs: Vec<_> = victims.iter().map(|victim| self.jobs.get(*victim)).collect();
        let seats =
            specs.iter().flat_map(|v| v.seats().map(|(task, seat)| (seat.node, task, &v.spec)));
        let seats = seats.map(|(node, task, spec)| (node, spec.request_of(task).clone()));
        let seats: Vec<_> = seats.collect();
        let without: Vec<(NodeIdx, &Request)> =
            seats.iter().map(|(node, request)| (*node, &**request)).collect();
        let strategy = self.strategy(self.jobs.get(job));
        let shape = self.jobs.get(job).shape;
        let judgement = self.judge(&spec.request, shape, strategy, &without);
        Some(judgement.verdicts.iter().map(|verdict| verdict.lack.is_some()).collect())
    }

    fn move_out(&self, room: &mut Room, node: NodeIdx, victim: JobIdx) {
        for (_, seat) in self.jobs.get(victim).seats().filter(|(_, seat)| seat.node == node) {
            room.release(&seat.claim);
        }
    }

    /// Whether the budgets let all of these go together.
    fn within_budgets(&self, victims: &[JobIdx]) -> bool {
        let mut drawn: BTreeMap<&crate::name::BudgetId, u32> = BTreeMap::new();
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

    fn cost(&self, victims: &[JobIdx], node: NodeIdx) -> Cost {
        let jobs = || victims.iter().map(|victim| self.jobs.get(*victim));
        let highest = jobs().map(|job| job.spec.priority).max().unwrap_or(0);
        let sum = jobs().map(|job| u64::from(job.spec.priority)).sum();
        let oldest = jobs().map(|job| job.placed_at).min().unwrap_or(self.now);
        (victims.len(), highest, sum, Reverse(oldest), self.cluster.place[node as usize])
    }
}
