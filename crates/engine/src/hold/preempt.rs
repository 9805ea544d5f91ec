//! Stopping running work for waiting work: the fewest, lowest, youngest victims, and never for nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::hold::eligibility::Foreseen;
use crate::model::request::Request;
use crate::model::units::{Span, Time};
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit::{self, Standing};
use crate::state::cluster::room::{Claim, Room};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{JobIdx, Seat};

/// Who is stopped and where the beneficiary then goes.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    pub(crate) victims: Vec<JobIdx>,
    /// Those who are on their way out anyway and must be gone too.
    pub(crate) awaited: Vec<JobIdx>,
    pub(crate) seats: Vec<(NodeIdx, Claim)>,
}

/// The price of a set of victims: fewer workloads, lower, younger is cheaper. A gang counts as one, for
/// one person loses its work. The node's place in the order
/// makes the choice unique.
type Cost = (usize, u8, u64, Reverse<Time>, u32);

/// Sets of victims that are tried out in full before the search is made task by task.
const MOST_TRIALS: usize = 8;

impl Scheduler {
    /// The cheapest set of victims that lets the workload start, if there is one. What others leave anyway, and no later,
    /// costs nobody anything: where it spares victims, it is waited for.
    pub(crate) fn plan_eviction(&mut self, job: JobIdx) -> Option<Eviction> {
        let eviction = self.plan_victims(job)?;
        let graces = eviction.victims.iter().map(|victim| self.jobs.get(*victim).spec.grace);
        let leaving = self.leaving_for_nobody(self.now.after(graces.max().unwrap_or_default()));
        if leaving.is_empty() {
            return Some(eviction);
        }
        let fewer = self.plan_without(job, &leaving);
        Some(fewer.filter(|fewer| fewer.victims.len() < eviction.victims.len()).unwrap_or(eviction))
    }

    /// The eviction when all of these are gone, and which of them it needs gone.
    fn plan_without(&mut self, job: JobIdx, leaving: &[JobIdx]) -> Option<Eviction> {
        let planned = self.trying_without(leaving, |this| {
            let seats = this.seats_without(job, &[]);
            let none = seats.map(|seats| Eviction { victims: vec![], awaited: vec![], seats });
            none.or_else(|| this.plan_victims(job))
        });
        let mut planned = planned?;
        let nodes: BTreeSet<NodeIdx> = planned.seats.iter().map(|(node, _)| *node).collect();
        let is_near = |seat: &Seat| nodes.contains(&seat.node);
        let mut awaited = leaving.to_vec();
        awaited.retain(|other| self.jobs.get(*other).seats().any(|(_, seat)| is_near(seat)));
        let everybody = |awaited: &[JobIdx]| [&planned.victims, awaited].concat();
        planned.seats = self.seats_without(job, &everybody(&awaited))?;
        for other in awaited.clone() {
            let fewer: Vec<JobIdx> = awaited.iter().copied().filter(|one| *one != other).collect();
            if let Some(seats) = self.seats_without(job, &everybody(&fewer)) {
                (awaited, planned.seats) = (fewer, seats);
            }
        }
        let eviction = Eviction { awaited, ..planned };
        let foreseen = self.queues.have_guarantees().then(|| self.foreseen());
        self.is_rightful(job, &eviction, foreseen.as_ref()).then_some(eviction)
    }

    /// Work of which all is being stopped, for nobody else, that ends by then and is not overdue.
    fn leaving_for_nobody(&self, by: Time) -> Vec<JobIdx> {
        let is_free =
            |node| self.holds.iter().all(|(_, hold)| hold.is_lifted() || !hold.is_on(node));
        let leaving = self.jobs.iter().filter(|(_, job)| {
            job.gone_by(Span(0)).is_some_and(|at| at <= by && at.after(self.policy.hold) > self.now)
                && job.seats().all(|(_, seat)| is_free(seat.node))
        });
        let mut leaving: Vec<JobIdx> = leaving.map(|(index, _)| index).collect();
        leaving.sort_unstable_by_key(|job| self.jobs.get(*job).serial);
        leaving
    }

    /// The victims that let the workload start.
    fn plan_victims(&mut self, job: JobIdx) -> Option<Eviction> {
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
            let eviction = Eviction { victims, awaited: Vec::new(), seats };
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
        (!victims.is_empty()).then_some(Eviction { victims, awaited: Vec::new(), seats })
    }

    /// Places for all tasks once these victims are gone: they are taken away, the workload is placed
    /// as it will be, and everything is put back.
    pub(crate) fn seats_without(
        &mut self,
        job: JobIdx,
        victims: &[JobIdx],
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        self.trying_without(victims, |this| {
            let cursor = this.cursor.clone();
            let placed = this.place(job).is_ok();
            this.cursor = cursor;
            let seats = this.jobs.get(job).seats();
            let seats = seats.map(|(_, seat)| (seat.node, seat.claim.clone())).collect();
            for task in 0..this.jobs.get(job).count() {
                this.unseat(job, task);
            }
            placed.then_some(seats)
        })
    }

    /// Something tried out while these are gone; then all is as it was.
    fn trying_without<T>(&mut self, gone: &[JobIdx], trial: impl FnOnce(&mut Self) -> T) -> T {
        let mut taken = Vec::new();
        for job in gone {
            for (task, seat) in self.jobs.get(*job).seats() {
                taken.push((*job, task, seat.clone()));
            }
        }
        // What they leave is for the trial: nobody who waits for room there takes it meanwhile.
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        for (job, task, _) in &taken {
            self.unseat(*job, *task);
        }
        let found = trial(self);
        self.holds.frozen = frozen;
        for (victim, task, seat) in taken {
            let node = seat.node;
            // In a trial within a trial holds stay as they are.
            if !frozen {
                self.give_way(node);
            }
            // If that is too much, it was before, and by nobody's fault here.
            self.seat_as_found(victim, task, seat);
            self.top_up(node);
        }
        found
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

    fn cost(&self, victims: &[JobIdx], node: NodeIdx) -> Cost {
        let jobs = || victims.iter().map(|victim| self.jobs.get(*victim));
        let highest = jobs().map(|job| job.spec.priority).max().unwrap_or(0);
        let sum = jobs().map(|job| u64::from(job.spec.priority)).sum();
        let oldest = jobs().map(|job| job.placed_at).min().unwrap_or(self.now);
        (victims.len(), highest, sum, Reverse(oldest), self.cluster.place[node as usize])
    }
}
