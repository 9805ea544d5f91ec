//! Stopping running work for waiting work: the fewest, lowest, youngest victims, and never for nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::hold::eligibility::QueueForecast;
use crate::model::request::Request;
use crate::model::units::{Span, Time};
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{Claim, Room};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, WorkloadIdx};

/// Who is stopped and where the beneficiary then goes.
#[derive(Clone, Debug)]
pub(crate) struct PreemptionPlan {
    pub(crate) victims: Vec<WorkloadIdx>,
    /// Those who are on their way out anyway and must be gone too.
    pub(crate) awaited: Vec<WorkloadIdx>,
    pub(crate) claims: Vec<(NodeIdx, Claim)>,
}

/// The price of a set of victims: fewer workloads, lower, younger is cheaper. A gang counts as one, for
/// one person loses its work. The node's place in the order
/// makes the choice unique.
type Cost = (usize, u8, u64, Reverse<Time>, u32);

/// Sets of victims that are tried out in full before the search is made task by task.
const MAX_TRIALS: usize = 8;

impl Scheduler {
    /// The cheapest set of victims that lets the workload start, if there is one. What others leave anyway, and no later,
    /// costs nobody anything: where it spares victims, it is waited for.
    pub(crate) fn plan_preemption(&mut self, workload: WorkloadIdx) -> Option<PreemptionPlan> {
        let eviction = self.choose_victims(workload)?;
        let graces = eviction.victims.iter().map(|victim| self.workloads.get(*victim).spec.grace);
        let leaving = self.terminating_unclaimed(self.now.after(graces.max().unwrap_or_default()));
        if leaving.is_empty() {
            return Some(eviction);
        }
        let fewer = self.plan_after_leaving(workload, &leaving);
        Some(fewer.filter(|fewer| fewer.victims.len() < eviction.victims.len()).unwrap_or(eviction))
    }

    /// The eviction when all of these are gone, and which of them it needs gone.
    fn plan_after_leaving(
        &mut self,
        workload: WorkloadIdx,
        leaving: &[WorkloadIdx],
    ) -> Option<PreemptionPlan> {
        let planned = self.with_workloads_removed(leaving, |this| {
            let claims = this.claims_without(workload, &[]);
            let none =
                claims.map(|claims| PreemptionPlan { victims: vec![], awaited: vec![], claims });
            none.or_else(|| this.choose_victims(workload))
        });
        let mut planned = planned?;
        let nodes: BTreeSet<NodeIdx> = planned.claims.iter().map(|(node, _)| *node).collect();
        let is_near = |allocation: &TaskAllocation| nodes.contains(&allocation.node);
        let mut awaited = leaving.to_vec();
        awaited.retain(|other| {
            self.workloads.get(*other).allocations().any(|(_, allocation)| is_near(allocation))
        });
        let everybody = |awaited: &[WorkloadIdx]| [&planned.victims, awaited].concat();
        planned.claims = self.claims_without(workload, &everybody(&awaited))?;
        for other in awaited.clone() {
            let fewer: Vec<WorkloadIdx> =
                awaited.iter().copied().filter(|one| *one != other).collect();
            if let Some(claims) = self.claims_without(workload, &everybody(&fewer)) {
                (awaited, planned.claims) = (fewer, claims);
            }
        }
        let eviction = PreemptionPlan { awaited, ..planned };
        let queue_forecast = self.queues.have_guarantees().then(|| self.queue_forecast());
        self.may_preempt_all(workload, &eviction, queue_forecast.as_ref()).then_some(eviction)
    }

    /// Work of which all is being stopped, for nobody else, that ends by then and is not overdue.
    fn terminating_unclaimed(&self, by: Time) -> Vec<WorkloadIdx> {
        let is_free =
            |node| self.holds.iter().all(|(_, hold)| hold.is_suspended() || !hold.is_on(node));
        let leaving = self.workloads.iter().filter(|(_, workload)| {
            workload
                .terminated_by(Span(0))
                .is_some_and(|at| at <= by && at.after(self.policy.hold) > self.now)
                && workload.allocations().all(|(_, allocation)| is_free(allocation.node))
        });
        let mut leaving: Vec<WorkloadIdx> = leaving.map(|(index, _)| index).collect();
        leaving.sort_unstable_by_key(|workload| self.workloads.get(*workload).serial);
        leaving
    }

    /// The victims that let the workload start.
    fn choose_victims(&mut self, workload: WorkloadIdx) -> Option<PreemptionPlan> {
        let spec = self.workloads.get(workload).spec.clone();
        if !self.policy.preemption || !spec.may_preempt || self.preemptible.is_empty() {
            return None;
        }
        let queue_forecast = self.queues.have_guarantees().then(|| self.queue_forecast());
        let queue_forecast = queue_forecast.as_ref();
        let candidates = self.victim_candidates(workload, queue_forecast);
        if candidates.is_empty() {
            return None;
        }
        let single = spec.task_count() == 1;
        let one = if single {
            self.victims_on_one_node(workload, &candidates, queue_forecast)
        } else {
            None
        };
        one.or_else(|| {
            let useful = self.useful_victims(workload, candidates);
            let eligible_together = self.eligible_together(
                workload,
                &self.charge_of(workload),
                &useful,
                queue_forecast,
            );
            let eviction = self.victims_across_nodes(workload, &eligible_together)?;
            self.may_preempt_all(workload, &eviction, queue_forecast).then_some(eviction)
        })
    }

    /// Those candidates whose going would free something where the workload could go, or quota.
    fn useful_victims(
        &self,
        workload: WorkloadIdx,
        mut candidates: Vec<WorkloadIdx>,
    ) -> Vec<WorkloadIdx> {
        let wanting = self.workloads.get(workload);
        candidates.retain(|victim| {
            let victim = self.workloads.get(*victim);
            let helps = |node: NodeIdx| {
                let (host, room) = (self.cluster.node_state(node), self.cluster.room(node));
                wanting.shapes().any(|(shape, _)| {
                    let standing = fit::eligibility(self.cluster.shape(shape), &host.spec, room);
                    matches!(standing, Eligibility::Eligible(_))
                })
            };
            let mut claims = victim.allocations();
            victim.queue == wanting.queue || claims.any(|(_, allocation)| helps(allocation.node))
        });
        candidates
    }

    /// One task: each node by itself, so that the fewest victims are found.
    fn victims_on_one_node(
        &mut self,
        workload: WorkloadIdx,
        candidates: &[WorkloadIdx],
        queue_forecast: Option<&QueueForecast>,
    ) -> Option<PreemptionPlan> {
        let mut by_node: BTreeMap<NodeIdx, Vec<WorkloadIdx>> = BTreeMap::new();
        for victim in candidates {
            let nodes: BTreeSet<NodeIdx> = self
                .workloads
                .get(*victim)
                .allocations()
                .map(|(_, allocation)| allocation.node)
                .collect();
            for node in nodes {
                by_node.entry(node).or_default().push(*victim);
            }
        }
        let mut found: Vec<(Cost, Vec<WorkloadIdx>)> = Vec::new();
        for (node, victims) in by_node {
            if let Some(victims) =
                self.eligible_victims_on(workload, node, &victims, queue_forecast)
            {
                found.push((self.victim_cost(&victims, node), victims));
            }
        }
        found.sort_unstable();
        // Quotas and terms have their say last: the cheapest that they allow.
        found.into_iter().take(MAX_TRIALS).find_map(|(_, victims)| {
            let claims = self.claims_without(workload, &victims)?;
            let eviction = PreemptionPlan { victims, awaited: Vec::new(), claims };
            self.may_preempt_all(workload, &eviction, queue_forecast).then_some(eviction)
        })
    }

    /// The victims needed on this node that may all go together. When those that would be taken first
    /// may not, fewer of them are tried, and each by itself: a queue chooses poorly what it gives back.
    fn eligible_victims_on(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        candidates: &[WorkloadIdx],
        queue_forecast: Option<&QueueForecast>,
    ) -> Option<Vec<WorkloadIdx>> {
        let victims = self.victims_on(workload, node, candidates)?;
        let charge = self.charge_of(workload);
        if self.eligible_together(workload, &charge, &victims, queue_forecast) == victims {
            return Some(victims);
        }
        let fewer = self.eligible_together(workload, &charge, candidates, queue_forecast);
        self.victims_on(workload, node, &fewer).or_else(|| {
            candidates
                .iter()
                .take(MAX_TRIALS)
                .find_map(|one| self.victims_on(workload, node, &[*one]))
        })
    }

    /// The victims needed on this node: all candidates gone, then each comes back that can stay,
    /// the most valuable first.
    fn victims_on(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        candidates: &[WorkloadIdx],
    ) -> Option<Vec<WorkloadIdx>> {
        let mut room = self.cluster.room(node).clone();
        for victim in candidates {
            self.release_from(&mut room, node, *victim);
        }
        if !self.fits_in(workload, node, &room, candidates) {
            return None;
        }
        let mut victims = candidates.to_vec();
        for victim in candidates.iter().rev() {
            let mut fuller = room.clone();
            for (_, allocation) in self
                .workloads
                .get(*victim)
                .allocations()
                .filter(|(_, allocation)| allocation.node == node)
            {
                fuller.book(&allocation.claim);
            }
            let fewer: Vec<WorkloadIdx> = victims.iter().copied().filter(|v| v != victim).collect();
            if self.fits_in(workload, node, &fuller, &fewer) {
                room = fuller;
                victims = fewer;
            }
        }
        (!victims.is_empty() && self.within_budgets(&victims)).then_some(victims)
    }

    /// A gang, or a quota in the way: victims one after the other until all fits, then those that
    /// turned out not to be needed come back, the most valuable first.
    fn victims_across_nodes(
        &mut self,
        workload: WorkloadIdx,
        candidates: &[WorkloadIdx],
    ) -> Option<PreemptionPlan> {
        let mut allowed = Vec::new();
        for victim in candidates {
            allowed.push(*victim);
            if !self.within_budgets(&allowed) {
                allowed.pop();
            }
        }
        self.claims_without(workload, &allowed)?;
        // With more victims gone more fits, so the shortest sufficient list is found by halving.
        let (mut too_few, mut enough) = (0, allowed.len());
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            if self.claims_without(workload, &allowed[..middle]).is_some() {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        let mut victims = allowed[..enough].to_vec();
        for victim in victims.clone().into_iter().rev() {
            let fewer: Vec<WorkloadIdx> =
                victims.iter().copied().filter(|v| *v != victim).collect();
            if self.claims_without(workload, &fewer).is_some() {
                victims = fewer;
            }
        }
        let claims = self.claims_without(workload, &victims)?;
        (!victims.is_empty()).then_some(PreemptionPlan { victims, awaited: Vec::new(), claims })
    }

    /// Places for all tasks once these victims are gone: they are taken away, the workload is placed
    /// as it will be, and everything is put back.
    pub(crate) fn claims_without(
        &mut self,
        workload: WorkloadIdx,
        victims: &[WorkloadIdx],
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        self.with_workloads_removed(victims, |this| {
            let cursor = this.cursor.clone();
            let placed = this.place_workload(workload).is_ok();
            this.cursor = cursor;
            let claims = this.workloads.get(workload).allocations();
            let claims =
                claims.map(|(_, allocation)| (allocation.node, allocation.claim.clone())).collect();
            for task in 0..this.workloads.get(workload).count() {
                this.release_task(workload, task);
            }
            placed.then_some(claims)
        })
    }

    /// Something tried out while these are gone; then all is as it was.
    fn with_workloads_removed<T>(
        &mut self,
        gone: &[WorkloadIdx],
        trial: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let mut taken = Vec::new();
        for workload in gone {
            for (task, allocation) in self.workloads.get(*workload).allocations() {
                taken.push((*workload, task, allocation.clone()));
            }
        }
        // What they leave is for the trial: nobody who waits for room there takes it meanwhile.
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        for (workload, task, _) in &taken {
            self.release_task(*workload, *task);
        }
        let found = trial(self);
        self.holds.frozen = frozen;
        for (victim, task, allocation) in taken {
            let node = allocation.node;
            // In a trial within a trial holds stay as they are.
            if !frozen {
                self.free_hold_bookings(node);
            }
            // If that is too much, it was before, and by nobody's fault here.
            self.book_found(victim, task, allocation);
            self.refill_holds(node);
        }
        found
    }

    fn fits_in(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        room: &Room,
        victims: &[WorkloadIdx],
    ) -> bool {
        let shape = self.cluster.shape(self.workloads.get(workload).shape);
        let stands = matches!(
            fit::eligibility(shape, &self.cluster.node_state(node).spec, room),
            Eligibility::Eligible(_)
        );
        stands
            && fit::shortfall(shape, room).is_none()
            && !self
                .nodes_barred_by_terms(workload, victims)
                .is_some_and(|barred| barred[node as usize])
    }

    /// By node number, whether terms between tasks forbid it; nothing when no terms matter.
    pub(crate) fn nodes_barred_by_terms(
        &mut self,
        workload: WorkloadIdx,
        victims: &[WorkloadIdx],
    ) -> Option<Vec<bool>> {
        let spec = self.workloads.get(workload).spec.clone();
        if self.terms.are_irrelevant_to(&spec.request) {
            return None;
        }
        let specs: Vec<_> = victims.iter().map(|victim| self.workloads.get(*victim)).collect();
        let claims = specs.iter().flat_map(|v| {
            v.allocations().map(|(task, allocation)| (allocation.node, task, &v.spec))
        });
        let claims = claims.map(|(node, task, spec)| (node, spec.request_of(task).clone()));
        let claims: Vec<_> = claims.collect();
        let without: Vec<(NodeIdx, &Request)> =
            claims.iter().map(|(node, request)| (*node, &**request)).collect();
        let strategy = self.strategy(self.workloads.get(workload));
        let shape = self.workloads.get(workload).shape;
        let judgement = self.judge(&spec.request, shape, strategy, &without);
        Some(judgement.verdicts.iter().map(|verdict| verdict.shortfall.is_some()).collect())
    }

    fn release_from(&self, room: &mut Room, node: NodeIdx, victim: WorkloadIdx) {
        for (_, allocation) in self
            .workloads
            .get(victim)
            .allocations()
            .filter(|(_, allocation)| allocation.node == node)
        {
            room.release(&allocation.claim);
        }
    }

    fn victim_cost(&self, victims: &[WorkloadIdx], node: NodeIdx) -> Cost {
        let workloads = || victims.iter().map(|victim| self.workloads.get(*victim));
        let highest = workloads().map(|workload| workload.spec.priority).max().unwrap_or(0);
        let sum = workloads().map(|workload| u64::from(workload.spec.priority)).sum();
        let oldest = workloads().map(|workload| workload.placed_at).min().unwrap_or(self.now);
        (victims.len(), highest, sum, Reverse(oldest), self.cluster.place[node as usize])
    }
}
