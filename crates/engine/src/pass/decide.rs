//! One pass: everything that waits gets a place, a reason, or somebody else's place.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::decision::{
    Decision, GpuAllocation, GpuAssignment, GpuShare, Placement, Plan, Victim,
};
use crate::model::labels::Labels;
use crate::model::node::DeviceSelection;
use crate::model::policy::QueueOrder;
use crate::model::request::{AffinityKind, MigProfile, TaskAffinity, TopologySpread};
use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::pass::head::MAX_NEXT_IN_LINE;
use crate::pass::place::Obstacle;
use crate::quota::charge::Charge;
use crate::quota::queues::ROOT;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::{NodeIdx, fit};
use crate::state::pending::{GroupIdx, GroupKey};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, WorkloadIdx, WorkloadPhase};

/// What a pass remembers while it runs.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) decisions: Vec<Decision>,
    /// The first workload that could not be placed: the head of the queue.
    pub(crate) head: Option<WorkloadIdx>,
    /// The first ones that got no reservation because somebody else has it: next in line for one.
    pub(crate) next_in_line: Vec<WorkloadIdx>,
    /// Those that have waited far too long are in that line already.
    pub(crate) overdue_added: bool,
    /// Only newcomers are looked at; the head is among those set aside before.
    pub(crate) partial: bool,
    /// Reasons found since the last placement, by what was asked for: queues and priorities differ,
    /// but what the nodes lack does not.
    pub(crate) reasons: FxHashMap<GroupKey, Arc<WaitReason>>,
}

impl Scheduler {
    /// Decides what to do now. Placements are booked at once; answer each with
    /// [`Confirmed`](crate::Event::PlacementConfirmed) or [`Refused`](crate::Event::PlacementRefused).
    pub fn decide(&mut self, now: Time) -> Plan {
        self.advance(now);
        let mut pass =
            Pass { decisions: std::mem::take(&mut self.queued_decisions), ..Pass::default() };
        // 1. What time alone has changed.
        self.queues.record_excess(&self.cluster);
        self.process_timers();
        self.expire_holds();
        // 2. Whose victims are gone.
        self.start_preemptors(&mut pass);
        // Without backfill the head stands before everybody, newcomers too: all are looked at.
        if std::mem::take(&mut self.retry_blocked) || !self.policy.backfill {
            self.pending.unblock_all(&mut self.queues);
        }
        pass.partial = self.pending.any_blocked();
        // 3. Who is next, until nobody is left to try.
        self.prepare_order();
        while let Some((group, job)) = self.next_candidate() {
            let (group, job) = self.next_in_reserved_queue(&pass).unwrap_or((group, job));
            let lifted = self.suspend_savings(job);
            self.try_group(group, job, &mut pass);
            self.resume_savings(lifted);
        }
        self.reserve_for_next_in_line(&mut pass);
        // 4. Why the others wait.
        self.report_wait_reasons(&mut pass.decisions);
        let wake = self.next_wake_time();
        #[cfg(debug_assertions)]
        debug_assert_eq!(self.lint(), Vec::new(), "the plan breaks an invariant");
        Plan { decisions: pass.decisions, wake_at: wake }
    }

    fn process_timers(&mut self) {
        while let Some(first) = self.timers.first().copied().filter(|at| *at <= self.now) {
            self.timers.remove(&first);
            self.retry_blocked = true;
        }
        while let Some((at, job)) = self.backoffs.first().copied().filter(|(at, _)| *at <= self.now)
        {
            self.backoffs.remove(&(at, job));
            self.workloads.get_mut(job).not_before = Time(0);
            if self.workloads.get(job).spec.gate.is_none() {
                self.enqueue(job);
            }
        }
    }

    fn expire_holds(&mut self) {
        let now = self.now;
        let lapsed = self.hold_owners(|hold| match hold.purpose {
            HoldPurpose::Preemption { until, .. } => until <= now,
            HoldPurpose::Reservation { start } => start.is_some_and(|start| start <= now),
        });
        for job in lapsed {
            self.release_hold_and_requeue(job);
        }
    }

    /// Holds without victims left become placements. What was planned for one was free, or its victims', and nothing of
    /// what others were to get: they give back what they have booked of it meanwhile, and get it from their own victims.
    fn start_preemptors(&mut self, pass: &mut Pass) {
        self.cluster.sort();
        let ready = |purpose: &HoldPurpose| matches!(purpose, HoldPurpose::Preemption { victims, .. } if victims.is_empty());
        for job in self.hold_owners(|hold| ready(&hold.purpose)) {
            let Some(hold) = self.release_hold(job) else { continue };
            let nodes: BTreeSet<NodeIdx> = hold.planned.iter().map(|(node, _)| *node).collect();
            for node in &nodes {
                self.free_hold_bookings(*node);
            }
            let lifted = self.suspend_savings(job);
            let placed_workload =
                self.claims_fit(job, &hold.planned) && self.book_claims(job, hold.planned);
            for node in &nodes {
                self.refill_holds(*node);
            }
            // Its victims are gone: nobody goes before it, though what it gets is not what was planned.
            let placed_workload = placed_workload || self.place_workload(job).is_ok();
            self.resume_savings(lifted);
            if placed_workload {
                self.mark_placed(job);
                self.push_placements(job, pass);
                self.unblock_affinity_groups(job);
            } else {
                self.workloads.get_mut(job).phase = WorkloadPhase::Pending;
                self.enqueue(job);
            }
        }
    }

    pub(crate) fn fits_quota(&self, job: WorkloadIdx, planned: &[(u32, Claim)]) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in planned {
            charge.add(&Charge::of(claim));
        }
        self.queues.excess(&self.cluster, self.workloads.get(job).queue, &charge).is_none()
    }

    /// Whether what was planned can be booked as it stands and paid for.
    pub(crate) fn claims_fit(&mut self, job: WorkloadIdx, planned: &[(u32, Claim)]) -> bool {
        let mut rooms = std::collections::BTreeMap::new();
        for (task, (node, claim)) in planned.iter().enumerate() {
            let shape = self.cluster.shape(self.workloads.get(job).shape_of(task as u32));
            let room = rooms.entry(*node).or_insert_with(|| self.cluster.room(*node).clone());
            if fit::shortfall(shape, room).is_some() || !room.has(claim) {
                return false;
            }
            room.book(claim);
        }
        self.fits_quota(job, planned)
    }

    /// Books what was planned, unless terms between tasks have come to forbid it.
    pub(crate) fn book_claims(&mut self, job: WorkloadIdx, planned: Vec<(u32, Claim)>) -> bool {
        let spec = self.workloads.get(job).spec.clone();
        let strategy = self.strategy(self.workloads.get(job));
        for (task, (node, claim)) in planned.into_iter().enumerate() {
            let shape = self.workloads.get(job).shape_of(task as u32);
            let request = spec.request_of(task as u32);
            let barred = !self.terms.are_irrelevant_to(request)
                && self.judge(request, shape, strategy, &[]).verdicts[node as usize]
                    .shortfall
                    .is_some();
            if barred {
                for task in 0..task {
                    self.release_task(job, task as u32);
                }
                return false;
            }
            self.book_task(job, task as u32, node, claim);
        }
        true
    }

    fn prepare_order(&mut self) {
        self.cluster.sort();
        if self.policy.order() == QueueOrder::FairShare {
            self.queues.accrue(self.now, self.policy.half_life);
        }
        if !self.expectation.learns && self.expectation.is_needed(self.policy.strategy) {
            self.begin_to_learn();
        }
        if self.expectation.renew(self.policy.strategy, &self.cluster, &mut self.outlook) {
            self.outlook_version += 1;
        }
    }

    pub(crate) fn next_candidate(&self) -> Option<(GroupIdx, WorkloadIdx)> {
        let queue = if self.pending.global { Some(ROOT) } else { self.queues.next(&self.cluster) };
        self.pending.next(queue?)
    }

    /// Places the first member of a group, or finds out why that cannot be.
    fn try_group(&mut self, group: GroupIdx, job: WorkloadIdx, pass: &mut Pass) {
        if let Some(head) = pass.head.filter(|_| !self.policy.backfill) {
            let reason = Arc::new(self.reserved_reason(head));
            self.pending.block(group, reason, &mut self.queues);
            return;
        }
        let obstacle = match self.place_or_backfill(job) {
            Ok(()) => {
                self.record_start(job, pass);
                return;
            }
            Err(obstacle) => obstacle,
        };
        if self.preempt_for(job, pass) {
            return;
        }
        if matches!(obstacle, Obstacle::Quota(_)) {
            // It cannot pay for what is kept for it: others may have it.
            if self.holds.reserved == Some(job) {
                self.release_hold(job);
            }
            self.start_saving(job);
        } else if self.savers.contains(&job) && !self.fits_when_empty(job) {
            self.stop_saving(job);
        }
        let mut held = None;
        if matches!(obstacle, Obstacle::NoRoom | Obstacle::Gang { .. }) {
            if pass.head.is_none() && !pass.partial {
                if self.place_on_later_reservation(job) {
                    self.record_start(job, pass);
                    return;
                }
                self.reserve_for_next_in_line(pass);
                if pass.head.is_none() && self.reserve_for_head(job) {
                    if self.start_on_reservation(job) {
                        self.record_start(job, pass);
                        return;
                    }
                    pass.head = Some(job);
                } else if self.holds.reserved.is_some()
                    && pass.next_in_line.len() < MAX_NEXT_IN_LINE
                    && self.fits_when_empty(job)
                {
                    pass.next_in_line.push(job);
                }
            }
            held = self.blocking_holder(job);
        }
        if held.is_some() {
            self.backfill_members(group, pass);
        }
        if self.pending.find(&self.group_key_of(group)).is_some() {
            let reason = match held {
                Some(by) => Arc::new(self.reserved_reason(by)),
                None => self.cached_reason(job, &obstacle, pass),
            };
            self.pending.block(group, reason, &mut self.queues);
        }
    }

    /// The reason behind an obstacle, worked out once for all groups that ask for the same.
    fn cached_reason(
        &mut self,
        job: WorkloadIdx,
        obstacle: &Obstacle,
        pass: &mut Pass,
    ) -> Arc<WaitReason> {
        if matches!(obstacle, Obstacle::Quota(_)) {
            return Arc::new(self.wait_reason(job, obstacle));
        }
        // Limits on models make the same nodes lack different things for different queues.
        let queue = if self.queues.have_limits() { self.workloads.get(job).queue } else { ROOT };
        let anybody = GroupKey { queue, priority: 0, may_preempt: true, ..self.group_key(job) };
        if let Some(reason) = pass.reasons.get(&anybody) {
            return reason.clone();
        }
        // What is kept for itself is not lacking.
        self.suspend_hold(job);
        let reason = Arc::new(self.wait_reason(job, obstacle));
        self.resume_hold(job);
        pass.reasons.insert(anybody, reason.clone());
        reason
    }

    fn group_key_of(&self, group: GroupIdx) -> GroupKey {
        self.pending.group(group).key.clone()
    }

    /// Stops others for this workload, if it may and if that helps.
    fn preempt_for(&mut self, job: WorkloadIdx, pass: &mut Pass) -> bool {
        // What is kept for it already is its own to plan with, and so is what is kept for one that comes after it.
        self.suspend_hold(job);
        let after = self.holds.reserved.filter(|other| self.is_ahead_of(job, *other));
        if let Some(other) = after {
            self.suspend_hold(other);
        }
        let Some(eviction) = self.plan_preemption(job) else {
            self.resume_hold(job);
            if let Some(other) = after {
                self.resume_hold(other);
            }
            return false;
        };
        if let Some(other) = after {
            self.release_hold(other);
        }
        self.dequeue(job);
        self.workloads.get_mut(job).phase = WorkloadPhase::Preempting;
        for victim in &eviction.victims {
            self.charge_disruption_budgets(*victim);
            self.stop_workload(*victim);
        }
        let gone = [eviction.victims.as_slice(), &eviction.awaited].concat();
        let until = self.hold_deadline(&gone);
        let victims: Vec<Victim> =
            eviction.victims.iter().map(|victim| self.victim_of(*victim, job)).collect();
        if !victims.is_empty() {
            let beneficiary = self.workloads.get(job).spec.id.clone();
            pass.decisions.push(Decision::Preempt { victims, beneficiary, until });
        }
        let reason = self.preempting_reason(&gone, until);
        self.report_wait_reason(job, &Arc::new(reason), &mut pass.decisions);
        self.place_hold(job, HoldPurpose::Preemption { victims: gone, until }, eviction.claims);
        true
    }

    fn charge_disruption_budgets(&mut self, victim: WorkloadIdx) {
        let spec = self.workloads.get(victim).spec.clone();
        for budget in &spec.budgets {
            if let Some(allowed) = self.budgets.get_mut(budget) {
                *allowed = allowed.saturating_sub(spec.task_count());
            }
        }
    }

    /// A booked workload leaves the queue.
    pub(crate) fn record_start(&mut self, job: WorkloadIdx, pass: &mut Pass) {
        pass.reasons.clear();
        // What was saved for it is spent: that helps nobody else.
        let retry_blocked = self.retry_blocked;
        self.dequeue(job);
        self.retry_blocked = retry_blocked;
        self.mark_placed(job);
        self.push_placements(job, pass);
        self.unblock_affinity_groups(job);
    }

    /// Groups that wait to be near such a task, or to be spread with it, are worth another try.
    fn unblock_affinity_groups(&mut self, job: WorkloadIdx) {
        let spec = self.workloads.get(job).spec.clone();
        for (_, request) in spec.each_role() {
            self.unblock_groups_matching(&request.labels);
        }
    }

    fn unblock_groups_matching(&mut self, labels: &Labels) {
        if !self.terms.is_selected(labels) {
            return;
        }
        let near = |term: &TaskAffinity| {
            term.kind == AffinityKind::Affinity && term.selector.matches(labels)
        };
        let spread = |term: &TopologySpread| term.selector.matches(labels);
        for group in self.pending.blocked_groups() {
            let key = &self.pending.group(group).key;
            let more = key.role_shapes.iter().flat_map(|more| more.iter()).map(|part| part.shape);
            let waits = std::iter::once(key.shape).chain(more).any(|shape| {
                let request = &self.cluster.shape(shape).key.request;
                request.affinity.iter().any(near) || request.spread.iter().any(spread)
            });
            if waits {
                self.pending.unblock(group, &mut self.queues);
            }
        }
    }

    fn push_placements(&self, job: WorkloadIdx, pass: &mut Pass) {
        let job = self.workloads.get(job);
        for (task, seat) in job.allocations() {
            pass.decisions.push(Decision::Place(Placement {
                workload: job.spec.id.clone(),
                task,
                node: self.cluster.node_state(seat.node).spec.id.clone(),
                gpus: self.gpu_assignment(seat),
            }));
        }
    }

    /// The devices of a seat in the body's words.
    pub(crate) fn gpu_assignment(&self, seat: &TaskAllocation) -> GpuAssignment {
        if self.cluster.node_state(seat.node).spec.device_selection == DeviceSelection::Node
            && !seat.devices_known
        {
            return GpuAssignment::Count(seat.claim.devices.len() as u32);
        }
        GpuAssignment::Devices(self.gpu_allocations(seat.node, &seat.claim))
    }

    /// The devices of a claim by name.
    pub(crate) fn gpu_allocations(&self, node: u32, claim: &Claim) -> Vec<GpuAllocation> {
        let spec = &self.cluster.node_state(node).spec;
        let part = |claim: &DeviceClaim| {
            let device = &self.cluster.room(node).devices[usize::from(claim.device)];
            let part = match (claim.slice, device.geometry) {
                (Some((profile, start)), Some(geometry)) => {
                    let name = geometry.get(profile).map_or("", |profile| profile.name);
                    MigProfile::new(name)
                        .map_or(GpuShare::Whole, |profile| GpuShare::MigSlice { profile, start })
                }
                _ if claim.milli >= 1000 => GpuShare::Whole,
                _ => GpuShare::Fraction {
                    milli: claim.milli as u32,
                    mib: crate::model::units::MiB(claim.mib as u64),
                },
            };
            GpuAllocation { gpu: spec.gpus[usize::from(claim.device)].id.clone(), share: part }
        };
        claim.devices.iter().map(part).collect()
    }

    /// Tells everybody who does not know yet why they wait, in the order they were handed in.
    fn report_wait_reasons(&mut self, decisions: &mut Vec<Decision>) {
        let (news, reasons) = self.pending.take_unreported();
        decisions.reserve(news.len());
        for (_, job, reason) in news {
            self.report_wait_reason(job, &reasons[reason], decisions);
        }
    }

    /// Says why a workload waits, unless the same kind of reason was said before.
    pub(crate) fn report_wait_reason(
        &mut self,
        job: WorkloadIdx,
        reason: &Arc<WaitReason>,
        decisions: &mut Vec<Decision>,
    ) {
        let job = self.workloads.get_mut(job);
        let class = reason.class();
        if job.reported_class != Some(class) {
            job.reported_class = Some(class);
            decisions
                .push(Decision::Wait { workload: job.spec.id.clone(), reason: reason.clone() });
        }
    }

    /// When something may change without an event.
    fn next_wake_time(&self) -> Option<Time> {
        let holds = self.holds.iter().filter_map(|(_, hold)| match hold.purpose {
            HoldPurpose::Preemption { until, .. } => Some(until),
            HoldPurpose::Reservation { start } => start,
        });
        let backoffs = self.backoffs.first().map(|(at, _)| *at);
        // With nobody in the queue there is nothing to try again.
        let timers = self.timers.first().copied();
        let again = self.retry_blocked.then_some(self.now);
        let tries = timers.into_iter().chain(again).filter(|_| self.pending.len() > 0);
        holds.chain(backoffs).chain(tries).min()
    }
}
