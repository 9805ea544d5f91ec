//! Stopping running work for waiting work: the fewest, lowest, youngest victims, and never for nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::fit::{self, Standing};
use crate::cluster::room::{Claim, Room};
use crate::cluster::{NodeIdx, pick};
use crate::queues::Charge;
use crate::request::Request;
use crate::scheduler::Scheduler;
use crate::strategy::View;
use crate::task::{JobIdx, State};
use crate::units::Time;
use crate::workload::Topology;

/// Who is stopped and where the beneficiary then goes.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    pub(crate) victims: Vec<JobIdx>,
    pub(crate) seats: Vec<(NodeIdx, Claim)>,
}

/// The price of a set of victims: fewer, lower, younger is cheaper. The node's place in the order
/// makes the choice unique.
type Cost = (usize, u8, u64, Reverse<Time>, u32);

impl Scheduler {
    /// The cheapest set of victims that lets the workload start, if there is one.
    pub(crate) fn plan_eviction(&mut self, job: JobIdx) -> Option<Eviction> {
        let spec = self.jobs.get(job).spec.clone();
        if !self.policy.preemption || !spec.may_preempt || self.stoppable.is_empty() {
            return None;
        }
        let candidates = self.candidates(job);
        if candidates.is_empty() {
            return None;
        }
        let quota = self.quota_shortfall(job, &[]);
        if spec.tasks == 1 && !quota {
            self.evict_on_one_node(job, &candidates)
        } else {
            self.evict_step_by_step(job, &candidates)
        }
    }

    /// Who may be stopped for this workload, cheapest first: lowest priority, then youngest.
    fn candidates(&mut self, job: JobIdx) -> Vec<JobIdx> {
        let wanting = self.jobs.get(job);
        let charge = self.nominal_charge(wanting.shape, wanting.spec.tasks);
        let mut found = Vec::new();
        let mut later: Option<Time> = None;
        for victim in &self.stoppable {
            if *victim == job || !self.may_stop(*victim, job, &charge) {
                continue;
            }
            let other = self.jobs.get(*victim);
            let protected = other.spec.min_runtime.unwrap_or(self.policy.min_runtime);
            if other.ran(self.now) < protected {
                let free = other.placed_at.after(protected);
                later = Some(later.map_or(free, |later| later.min(free)));
            } else {
                found.push((other.spec.priority, Reverse(other.placed_at), Reverse(other.serial), *victim));
            }
        }
        if let Some(later) = later {
            self.timers.insert(later);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, _, victim)| victim).collect()
    }

    /// Whether rights and budgets allow it. Inside a queue the higher priority wins. Between queues
    /// only borrowed capacity can be taken: back by its owner, or by a higher priority.
    fn may_stop(&self, victim: JobIdx, job: JobIdx, charge: &Charge) -> bool {
        let (victim, job) = (self.jobs.get(victim), self.jobs.get(job));
        let lower = victim.spec.priority < job.spec.priority;
        let right = if victim.queue == job.queue {
            lower
        } else {
            (lower && self.queues.is_borrowing(&self.cluster, victim.queue, job.queue))
                || self.queues.may_reclaim(&self.cluster, victim.queue, job.queue, charge)
        };
        right
            && victim.state == State::Placed
            && victim.spec.budgets.iter().all(|budget| {
                self.budgets.get(budget).is_none_or(|allowed| *allowed >= victim.spec.tasks)
            })
    }

    /// Whether the workload's queue cannot pay for it while all but these are running.
    fn quota_shortfall(&self, job: JobIdx, victims: &[JobIdx]) -> bool {
        let job = self.jobs.get(job);
        let charge = self.nominal_charge(job.shape, job.spec.tasks);
        if victims.is_empty() {
            return self.queues.excess(&self.cluster, job.queue, &charge).is_some();
        }
        let mut queues = self.queues.clone();
        for victim in victims {
            let victim = self.jobs.get(*victim);
            for (_, seat) in victim.seats() {
                queues.charge(victim.queue, &Charge::of(&seat.claim), -1, self.now, self.policy.half_life);
            }
        }
        queues.excess(&self.cluster, job.queue, &charge).is_some()
    }

    /// One task: each node by itself, so that the fewest victims are found.
    fn evict_on_one_node(&mut self, job: JobIdx, candidates: &[JobIdx]) -> Option<Eviction> {
        let mut by_node: BTreeMap<NodeIdx, Vec<JobIdx>> = BTreeMap::new();
        for victim in candidates {
            let nodes: BTreeSet<NodeIdx> = self.jobs.get(*victim).seats().map(|(_, seat)| seat.node).collect();
            for node in nodes {
                by_node.entry(node).or_default().push(*victim);
            }
        }
        let mut best: Option<(Cost, Eviction)> = None;
        for (node, victims) in by_node {
            let Some((victims, claim)) = self.evict_here(job, node, &victims) else { continue };
            let cost = self.cost(&victims, node);
            if best.as_ref().is_none_or(|(cheapest, _)| cost < *cheapest) {
                best = Some((cost, Eviction { victims, seats: vec![(node, claim)] }));
            }
        }
        best.map(|(_, eviction)| eviction)
    }

    /// The victims needed on this node: all candidates gone, then each comes back that can stay,
    /// the most valuable first.
    fn evict_here(&mut self, job: JobIdx, node: NodeIdx, candidates: &[JobIdx]) -> Option<(Vec<JobIdx>, Claim)> {
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
            if self.within_budgets(&fewer) && self.fits_in(job, node, &fuller, &fewer) {
                room = fuller;
                victims = fewer;
            }
        }
        if victims.is_empty() || !self.within_budgets(&victims) {
            return None;
        }
        let shape = self.jobs.get(job).shape;
        let strategy = self.strategy(self.jobs.get(job));
        let view = View { room: &room, shape: self.cluster.shape(shape), outlook: &self.outlook };
        pick::claim(strategy, &view, None).map(|claim| (victims, claim))
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

    /// Places for all tasks once these victims are gone.
    fn seats_without(&mut self, job: JobIdx, victims: &[JobIdx]) -> Option<Vec<(NodeIdx, Claim)>> {
        if self.quota_shortfall(job, victims) {
            return None;
        }
        let shape = self.jobs.get(job).shape;
        let spec = self.jobs.get(job).spec.clone();
        let strategy = self.strategy(self.jobs.get(job));
        let mut changed: BTreeMap<NodeIdx, Room> = BTreeMap::new();
        for victim in victims {
            for (_, seat) in self.jobs.get(*victim).seats() {
                let room = changed.entry(seat.node).or_insert_with(|| self.cluster.room(seat.node).clone());
                room.release(&seat.claim);
            }
        }
        let open = self.open_nodes(job, victims);
        let domains = match &spec.topology {
            Some(Topology::Same(key)) => self.cluster.domains(key).of.clone(),
            _ => vec![Some(0); self.cluster.hosts.len()],
        };
        let mut by_domain: BTreeMap<u32, Vec<NodeIdx>> = BTreeMap::new();
        for node in open {
            if let Some(domain) = domains[node as usize] {
                by_domain.entry(domain).or_default().push(node);
            }
        }
        by_domain.into_values().find_map(|nodes| {
            let mut seats = Vec::new();
            for node in nodes {
                let mut room = changed.get(&node).unwrap_or(self.cluster.room(node)).clone();
                let wanted = spec.tasks - seats.len() as u32;
                for _ in 0..fit::copies(self.cluster.shape(shape), &room, wanted) {
                    let view = View { room: &room, shape: self.cluster.shape(shape), outlook: &self.outlook };
                    let Some(claim) = pick::claim(strategy, &view, None) else { break };
                    room.book(&claim);
                    seats.push((node, claim));
                }
                if seats.len() as u32 == spec.tasks {
                    return Some(seats);
                }
            }
            None
        })
    }

    /// Nodes that description and terms allow once these victims are gone.
    fn open_nodes(&mut self, job: JobIdx, victims: &[JobIdx]) -> Vec<NodeIdx> {
        let shape = self.jobs.get(job).shape;
        let strategy = self.strategy(self.jobs.get(job));
        let barred = self.barred(job, victims);
        let outlook = (&self.outlook, self.outlook_version);
        let mut index = self.indexes.get(&self.cluster, outlook, shape, strategy);
        let order = self.cluster.order.iter().enumerate();
        order
            .filter(|(place, node)| {
                matches!(index.standing(*place), Standing::Yes(_))
                    && self.cluster.room(**node).open
                    && !barred.as_ref().is_some_and(|barred| barred[**node as usize])
            })
            .map(|(_, node)| *node)
            .collect()
    }

    fn fits_in(&mut self, job: JobIdx, node: NodeIdx, room: &Room, victims: &[JobIdx]) -> bool {
        let shape = self.cluster.shape(self.jobs.get(job).shape);
        let stands = matches!(fit::standing(shape, &self.cluster.host(node).spec, room), Standing::Yes(_));
        stands
            && fit::lack(shape, room).is_none()
            && !self.barred(job, victims).is_some_and(|barred| barred[node as usize])
    }

    /// By node number, whether terms between tasks forbid it; nothing when no terms matter.
    fn barred(&mut self, job: JobIdx, victims: &[JobIdx]) -> Option<Vec<bool>> {
        let spec = self.jobs.get(job).spec.clone();
        if self.terms.ignore(&spec.request) {
            return None;
        }
        let specs: Vec<_> = victims.iter().map(|victim| self.jobs.get(*victim)).collect();
        let seats = specs.iter().flat_map(|v| v.seats().map(|(_, seat)| (seat.node, v.spec.clone())));
        let seats: Vec<_> = seats.collect();
        let without: Vec<(NodeIdx, &Request)> = seats.iter().map(|(node, spec)| (*node, &spec.request)).collect();
        let strategy = self.strategy(self.jobs.get(job));
        let judgement = self.judge(self.jobs.get(job).shape, strategy, &without);
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
                *drawn.entry(budget).or_default() += spec.tasks;
            }
        }
        drawn.iter().all(|(budget, tasks)| self.budgets.get(*budget).is_none_or(|allowed| tasks <= allowed))
    }

    fn cost(&self, victims: &[JobIdx], node: NodeIdx) -> Cost {
        let jobs = || victims.iter().map(|victim| self.jobs.get(*victim));
        let highest = jobs().map(|job| job.spec.priority).max().unwrap_or(0);
        let sum = jobs().map(|job| u64::from(job.spec.priority)).sum();
        let oldest = jobs().map(|job| job.placed_at).min().unwrap_or(self.now);
        (victims.len(), highest, sum, Reverse(oldest), self.cluster.place[node as usize])
    }
}
