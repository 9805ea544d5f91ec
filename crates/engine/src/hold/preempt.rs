//! Choice of preemption victims: the lowest, fewest, youngest ones, and none without effect.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::hold::eligibility::QueueForecast;
use crate::hold::foreign_demand::ForeignAhead;
use crate::model::request::Request;
use crate::model::units::{Priority, Span, Time};
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{Claim, Room};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, WorkloadIdx};

/// Victims and the claims of the preemptor.
#[derive(Clone, Debug)]
pub(crate) struct PreemptionPlan {
    pub(crate) victims: Vec<WorkloadIdx>,
    /// Workloads that terminate for other reasons and whose room the plan needs.
    pub(crate) awaited: Vec<WorkloadIdx>,
    pub(crate) claims: Vec<(NodeIdx, Claim)>,
}

/// Cost of a set of victims: highest priority, sum of priorities above the lowest possible one, latest start, position of
/// the node. The sum also counts the victims; a gang counts as one. The position makes the choice unique.
type Cost = (Priority, u64, Reverse<Time>, u32);

/// Limit of victim sets that are tried in full.
const MAX_TRIALS: usize = 8;

impl Scheduler {
    /// The cheapest set of victims that lets the workload start. Waits for workloads that terminate anyway,
    /// no later than the victims, when that saves victims.
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

    /// Plan after these workloads end, and the subset of them that the plan needs.
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
        let all_victims = |awaited: &[WorkloadIdx]| [&planned.victims, awaited].concat();
        planned.claims = self.claims_without(workload, &all_victims(&awaited))?;
        for other in awaited.clone() {
            let fewer: Vec<WorkloadIdx> =
                awaited.iter().copied().filter(|one| *one != other).collect();
            if let Some(claims) = self.claims_without(workload, &all_victims(&fewer)) {
                awaited = fewer;
                planned.claims = claims;
            }
        }
        let eviction = PreemptionPlan { awaited, ..planned };
        let queue_forecast = self.queues.have_guarantees().then(|| self.queue_forecast());
        self.may_preempt_all(workload, &eviction, queue_forecast.as_ref()).then_some(eviction)
    }

    /// Workloads that terminate completely by this time, on nodes without holds, and are not overdue.
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
        let ahead = self.foreign_ahead_of(workload);
        let single = spec.task_count() == 1;
        let one = if single {
            self.victims_on_one_node(workload, &candidates, queue_forecast, &ahead)
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
            let eviction = self.victims_across_nodes(workload, &eligible_together, &ahead)?;
            self.may_preempt_all(workload, &eviction, queue_forecast).then_some(eviction)
        })
    }

    /// Candidates whose end frees room on an eligible node, or quota of the same queue.
    fn useful_victims(
        &self,
        workload: WorkloadIdx,
        mut candidates: Vec<WorkloadIdx>,
    ) -> Vec<WorkloadIdx> {
        let wanting = self.workloads.get(workload);
        candidates.retain(|victim| {
            let victim = self.workloads.get(*victim);
            let helps = |node: NodeIdx| {
                let (node_state, room) = (self.cluster.node_state(node), self.cluster.room(node));
                wanting.shapes().any(|(shape, _)| {
                    let standing =
                        fit::eligibility(self.cluster.shape(shape), &node_state.spec, room);
                    matches!(standing, Eligibility::Eligible(_))
                })
            };
            let mut claims = victim.allocations();
            victim.queue == wanting.queue || claims.any(|(_, allocation)| helps(allocation.node))
        });
        candidates
    }

    /// Single task: examines each node separately to find the fewest victims.
    fn victims_on_one_node(
        &mut self,
        workload: WorkloadIdx,
        candidates: &[WorkloadIdx],
        queue_forecast: Option<&QueueForecast>,
        ahead: &ForeignAhead,
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
                self.eligible_victims_on(workload, node, &victims, queue_forecast, ahead)
            {
                found.push((self.victim_cost(&victims, node), victims));
            }
        }
        found.sort_unstable();
        // Quotas and terms are checked last, on the cheapest sets.
        found.into_iter().take(MAX_TRIALS).find_map(|(_, victims)| {
            let claims = self.claims_without(workload, &victims)?;
            let eviction = PreemptionPlan { victims, awaited: Vec::new(), claims };
            self.may_preempt_all(workload, &eviction, queue_forecast).then_some(eviction)
        })
    }

    /// Victims on this node that may be preempted together. When the preferred set is not eligible, tries the
    /// eligible subset, then single candidates.
    fn eligible_victims_on(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        candidates: &[WorkloadIdx],
        queue_forecast: Option<&QueueForecast>,
        ahead: &ForeignAhead,
    ) -> Option<Vec<WorkloadIdx>> {
        let victims = self.victims_on(workload, node, candidates, ahead)?;
        let charge = self.charge_of(workload);
        if self.eligible_together(workload, &charge, &victims, queue_forecast) == victims {
            return Some(victims);
        }
        let fewer = self.eligible_together(workload, &charge, candidates, queue_forecast);
        self.victims_on(workload, node, &fewer, ahead).or_else(|| {
            candidates
                .iter()
                .take(MAX_TRIALS)
                .find_map(|one| self.victims_on(workload, node, &[*one], ahead))
        })
    }

    /// Victims needed on this node. Foreign tasks count only if the room of the fewest victims attracts them.
    fn victims_on(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        candidates: &[WorkloadIdx],
        ahead: &ForeignAhead,
    ) -> Option<Vec<WorkloadIdx>> {
        let victims = self.fewest_victims_on(workload, node, candidates, &ForeignAhead::new())?;
        if ahead.is_empty() {
            return Some(victims);
        }
        let room = self.room_without(node, &victims);
        if self.fits_in(workload, node, &room, &victims, ahead) {
            return Some(victims);
        }
        self.fewest_victims_on(workload, node, candidates, ahead)
    }

    /// Starts with all candidates, then keeps each one that can stay: first candidates beyond their budgets, then the rest,
    /// most valuable first.
    fn fewest_victims_on(
        &mut self,
        workload: WorkloadIdx,
        node: NodeIdx,
        candidates: &[WorkloadIdx],
        ahead: &ForeignAhead,
    ) -> Option<Vec<WorkloadIdx>> {
        let mut room = self.room_without(node, candidates);
        if !self.fits_in(workload, node, &room, candidates, ahead) {
            return None;
        }
        let mut victims = candidates.to_vec();
        let (beyond, within) = self.split_by_budgets(candidates);
        for victim in beyond.iter().chain(&within) {
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
            if self.fits_in(workload, node, &fuller, &fewer, ahead) {
                room = fuller;
                victims = fewer;
            }
        }
        (!victims.is_empty() && self.within_budgets(&victims)).then_some(victims)
    }

    /// Candidates beyond their disruption budgets, if the most valuable ones draw on them first, and the rest; both most
    /// valuable first.
    fn split_by_budgets(&self, candidates: &[WorkloadIdx]) -> (Vec<WorkloadIdx>, Vec<WorkloadIdx>) {
        let (mut beyond, mut within) = (Vec::new(), Vec::new());
        if self.within_budgets(candidates) {
            return (beyond, candidates.iter().rev().copied().collect());
        }
        for candidate in candidates.iter().rev() {
            within.push(*candidate);
            if !self.within_budgets(&within) {
                beyond.extend(within.pop());
            }
        }
        (beyond, within)
    }

    /// Room of a node without these victims.
    fn room_without(&self, node: NodeIdx, victims: &[WorkloadIdx]) -> Room {
        let mut room = self.cluster.room(node).clone();
        for victim in victims {
            self.release_from(&mut room, node, *victim);
        }
        room
    }

    /// Victims for gangs and exceeded quotas. Foreign tasks count only if the room of the fewest victims attracts
    /// them.
    fn victims_across_nodes(
        &mut self,
        workload: WorkloadIdx,
        candidates: &[WorkloadIdx],
        ahead: &ForeignAhead,
    ) -> Option<PreemptionPlan> {
        let plan = self.fewest_victims_across(workload, candidates, &ForeignAhead::new())?;
        if ahead.is_empty() || self.claims_beside(workload, &plan.victims, ahead).is_some() {
            return Some(plan);
        }
        self.fewest_victims_across(workload, candidates, ahead)
    }

    /// The shortest sufficient prefix of the candidates, without the victims that turn out unnecessary, most
    /// valuable first.
    fn fewest_victims_across(
        &mut self,
        workload: WorkloadIdx,
        candidates: &[WorkloadIdx],
        ahead: &ForeignAhead,
    ) -> Option<PreemptionPlan> {
        let mut allowed = Vec::new();
        for victim in candidates {
            allowed.push(*victim);
            if !self.within_budgets(&allowed) {
                allowed.pop();
            }
        }
        self.claims_beside(workload, &allowed, ahead)?;
        // More victims free more room, so bisection finds the shortest sufficient prefix.
        let (mut too_few, mut enough) = (0, allowed.len());
        while enough - too_few > 1 {
            let middle = usize::midpoint(too_few, enough);
            if self.claims_beside(workload, &allowed[..middle], ahead).is_some() {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        let mut victims = allowed[..enough].to_vec();
        for victim in victims.clone().into_iter().rev() {
            let fewer: Vec<WorkloadIdx> =
                victims.iter().copied().filter(|v| *v != victim).collect();
            if self.claims_beside(workload, &fewer, ahead).is_some() {
                victims = fewer;
            }
        }
        let claims = self.claims_beside(workload, &victims, ahead)?;
        (!victims.is_empty()).then_some(PreemptionPlan { victims, awaited: Vec::new(), claims })
    }

    /// Claims of all tasks without these victims, found by a trial placement that is undone.
    pub(crate) fn claims_without(
        &mut self,
        workload: WorkloadIdx,
        victims: &[WorkloadIdx],
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        self.claims_beside(workload, victims, &ForeignAhead::new())
    }

    /// Claims without these victims if foreign tasks take the room of the victims first. A foreign task counts on every
    /// node of a victim: the choice of its scheduler is unknown.
    fn claims_beside(
        &mut self,
        workload: WorkloadIdx,
        victims: &[WorkloadIdx],
        ahead: &ForeignAhead,
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        let freed = victims.iter().flat_map(|victim| self.workloads.get(*victim).allocations());
        let freed: BTreeSet<NodeIdx> = freed.map(|(_, allocation)| allocation.node).collect();
        self.with_workloads_removed(victims, |this| {
            let mut foreign = Vec::new();
            for node in freed.into_iter().filter(|_| !ahead.is_empty()) {
                let room = this.cluster.room(node).clone();
                for claim in this.foreign_claims(ahead, node, room) {
                    this.cluster.book(node, &claim);
                    foreign.push((node, claim));
                }
            }
            let cursor = this.cursor.clone();
            let placed = this.place_workload(workload).is_ok();
            this.cursor = cursor;
            let claims = this.workloads.get(workload).allocations();
            let claims =
                claims.map(|(_, allocation)| (allocation.node, allocation.claim.clone())).collect();
            for task in 0..this.workloads.get(workload).count() {
                this.release_task(workload, task);
            }
            for (node, claim) in foreign {
                this.cluster.release(node, &claim);
            }
            placed.then_some(claims)
        })
    }

    /// Runs a trial without these workloads, then restores their bookings.
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
        // The freed room belongs to the trial: holds must not take it.
        let frozen = std::mem::replace(&mut self.holds.frozen, true);
        for (workload, task, _) in &taken {
            self.release_task(*workload, *task);
        }
        let found = trial(self);
        self.holds.frozen = frozen;
        for (victim, task, allocation) in taken {
            let node = allocation.node;
            // A nested trial leaves the holds unchanged.
            if !frozen {
                self.free_hold_bookings(node);
            }
            // The restored bookings may exceed capacity only if they did before.
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
        ahead: &ForeignAhead,
    ) -> bool {
        let mut room = Cow::Borrowed(room);
        if !ahead.is_empty() {
            for claim in self.foreign_claims(ahead, node, room.clone().into_owned()) {
                room.to_mut().book(&claim);
            }
        }
        let shape = self.cluster.shape(self.workloads.get(workload).shape);
        let stands = matches!(
            fit::eligibility(shape, &self.cluster.node_state(node).spec, &room),
            Eligibility::Eligible(_)
        );
        stands
            && fit::shortfall(shape, &room).is_none()
            && !self
                .nodes_barred_by_terms(workload, victims)
                .is_some_and(|barred| barred[node as usize])
    }

    /// By node index: affinity or spread terms exclude the node; `None` when no term applies.
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
        let highest = workloads().map(|workload| workload.spec.priority).max();
        let sum = workloads().map(|workload| workload.spec.priority.above_min() + 1).sum();
        let oldest = workloads().map(|workload| workload.placed_at).min().unwrap_or(self.now);
        let highest = highest.unwrap_or(Priority::MIN);
        (highest, sum, Reverse(oldest), self.cluster.place[node as usize])
    }
}
