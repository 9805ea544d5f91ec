//! One pass: everything that waits gets a place, a reason, or somebody else's place.

use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::hold::holds::Purpose;
use crate::model::decision::{
    Decision, GpuAllocation, GpuAssignment, GpuShare, Placement, Plan, Victim,
};
use crate::model::labels::Labels;
use crate::model::node::DeviceSelection;
use crate::model::policy::QueueOrder;
use crate::model::request::{AffinityKind, MigProfile, TaskAffinity, TopologySpread};
use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::pass::head::MOST_HEIRS;
use crate::pass::place::Obstacle;
use crate::quota::charge::Charge;
use crate::quota::queues::ROOT;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::{NodeIdx, fit};
use crate::state::pending::{GroupIdx, GroupKey};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{JobIdx, Seat, State};

/// What a pass remembers while it runs.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) decisions: Vec<Decision>,
    /// The first workload that could not be placed: the head of the queue.
    pub(crate) head: Option<JobIdx>,
    /// The first ones that got no reservation because somebody else has it: next in line for one.
    pub(crate) heirs: Vec<JobIdx>,
    /// Those that have waited far too long are in that line already.
    pub(crate) lined_up: bool,
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
        let mut pass = Pass { decisions: std::mem::take(&mut self.notices), ..Pass::default() };
        // 1. What time alone has changed.
        self.queues.note_excess(&self.cluster);
        self.wake_up();
        self.lapse_holds();
        // 2. Whose victims are gone.
        self.start_beneficiaries(&mut pass);
        // Without backfill the head stands before everybody, newcomers too: all are looked at.
        if std::mem::take(&mut self.improved) || !self.policy.backfill {
            self.pending.unblock_all(&mut self.queues);
        }
        pass.partial = self.pending.any_blocked();
        // 3. Who is next, until nobody is left to try.
        self.prepare_order();
        while let Some((group, job)) = self.next_up() {
            let (group, job) = self.reserved_first(&pass).unwrap_or((group, job));
            let lifted = self.lift_savings(job);
            self.serve(group, job, &mut pass);
            self.return_savings(lifted);
        }
        self.reserve_for_heir(&mut pass);
        // 4. Why the others wait.
        self.report_waits(&mut pass.decisions);
        let wake = self.next_wake();
        #[cfg(debug_assertions)]
        debug_assert_eq!(self.lint(), Vec::new(), "the plan breaks an invariant");
        Plan { decisions: pass.decisions, wake_at: wake }
    }

    fn wake_up(&mut self) {
        while let Some(first) = self.timers.first().copied().filter(|at| *at <= self.now) {
            self.timers.remove(&first);
            self.improved = true;
        }
        while let Some((at, job)) = self.backoffs.first().copied().filter(|(at, _)| *at <= self.now)
        {
            self.backoffs.remove(&(at, job));
            self.jobs.get_mut(job).not_before = Time(0);
            if self.jobs.get(job).spec.gate.is_none() {
                self.enqueue(job);
            }
        }
    }

    fn lapse_holds(&mut self) {
        let now = self.now;
        let lapsed = self.holders(|hold| match hold.purpose {
            Purpose::Preemption { until, .. } => until <= now,
            Purpose::Reservation { start } => start.is_some_and(|start| start <= now),
        });
        for job in lapsed {
            self.end_hold(job);
        }
    }

    /// Holds without victims left become placements. What was planned for one was free, or its victims', and nothing of
    /// what others were to get: they give back what they have booked of it meanwhile, and get it from their own victims.
    fn start_beneficiaries(&mut self, pass: &mut Pass) {
        self.cluster.sort();
        let ready = |purpose: &Purpose| matches!(purpose, Purpose::Preemption { victims, .. } if victims.is_empty());
        for job in self.holders(|hold| ready(&hold.purpose)) {
            let Some(hold) = self.drop_hold(job) else { continue };
            let nodes: BTreeSet<NodeIdx> = hold.planned.iter().map(|(node, _)| *node).collect();
            for node in &nodes {
                self.give_way(*node);
            }
            let lifted = self.lift_savings(job);
            let seated =
                self.seats_are_free(job, &hold.planned) && self.seat_as_planned(job, hold.planned);
            for node in &nodes {
                self.top_up(*node);
            }
            // Its victims are gone: nobody goes before it, though what it gets is not what was planned.
            let seated = seated || self.place(job).is_ok();
            self.return_savings(lifted);
            if seated {
                self.mark_placed(job);
                self.announce(job, pass);
                self.wake_company(job);
            } else {
                self.jobs.get_mut(job).state = State::Waiting;
                self.enqueue(job);
            }
        }
    }

    pub(crate) fn can_pay(&self, job: JobIdx, planned: &[(u32, Claim)]) -> bool {
        let mut charge = Charge::default();
        for (_, claim) in planned {
            charge.add(&Charge::of(claim));
        }
        self.queues.excess(&self.cluster, self.jobs.get(job).queue, &charge).is_none()
    }

    /// Whether what was planned can be booked as it stands and paid for.
    pub(crate) fn seats_are_free(&mut self, job: JobIdx, planned: &[(u32, Claim)]) -> bool {
        let mut rooms = std::collections::BTreeMap::new();
        for (task, (node, claim)) in planned.iter().enumerate() {
            let shape = self.cluster.shape(self.jobs.get(job).shape_of(task as u32));
            let room = rooms.entry(*node).or_insert_with(|| self.cluster.room(*node).clone());
            if fit::lack(shape, room).is_some() || !room.has(claim) {
                return false;
            }
            room.book(claim);
        }
        self.can_pay(job, planned)
    }

    /// Books what was planned, unless terms between tasks have come to forbid it.
    pub(crate) fn seat_as_planned(&mut self, job: JobIdx, planned: Vec<(u32, Claim)>) -> bool {
        let spec = self.jobs.get(job).spec.clone();
        let strategy = self.strategy(self.jobs.get(job));
        for (task, (node, claim)) in planned.into_iter().enumerate() {
            let shape = self.jobs.get(job).shape_of(task as u32);
            let request = spec.request_of(task as u32);
            let barred = !self.terms.ignore(request)
                && self.judge(request, shape, strategy, &[]).verdicts[node as usize].lack.is_some();
            if barred {
                for task in 0..task {
                    self.unseat(job, task as u32);
                }
                return false;
            }
            self.seat(job, task as u32, node, claim);
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

    pub(crate) fn next_up(&self) -> Option<(GroupIdx, JobIdx)> {
        let queue = if self.pending.global { Some(ROOT) } else { self.queues.next(&self.cluster) };
        self.pending.next(queue?)
    }

    /// Places the first member of a group, or finds out why that cannot be.
    fn serve(&mut self, group: GroupIdx, job: JobIdx, pass: &mut Pass) {
        if let Some(head) = pass.head.filter(|_| !self.policy.backfill) {
            let reason = Arc::new(self.held_reason(head));
            self.pending.block(group, reason, &mut self.queues);
            return;
        }
        let obstacle = match self.place_or_backfill(job) {
            Ok(()) => {
                self.start(job, pass);
                return;
            }
            Err(obstacle) => obstacle,
        };
        if self.evict_for(job, pass) {
            return;
        }
        if matches!(obstacle, Obstacle::Quota(_)) {
            // It cannot pay for what is kept for it: others may have it.
            if self.holds.reserved == Some(job) {
                self.drop_hold(job);
            }
            self.save_for(job);
        } else if self.savers.contains(&job) && !self.ever_fits(job) {
            self.forget_savings(job);
        }
        let mut held = None;
        if matches!(obstacle, Obstacle::NoRoom | Obstacle::Gang { .. }) {
            if pass.head.is_none() && !pass.partial {
                if self.takes_over_reservation(job) {
                    self.start(job, pass);
                    return;
                }
                self.reserve_for_heir(pass);
                if pass.head.is_none() && self.reserve(job) {
                    if self.starts_as_reserved(job) {
                        self.start(job, pass);
                        return;
                    }
                    pass.head = Some(job);
                } else if self.holds.reserved.is_some()
                    && pass.heirs.len() < MOST_HEIRS
                    && self.ever_fits(job)
                {
                    pass.heirs.push(job);
                }
            }
            held = self.holder_in_the_way(job);
        }
        if held.is_some() {
            self.backfill_members(group, pass);
        }
        if self.pending.find(&self.group_key_of(group)).is_some() {
            let reason = match held {
                Some(by) => Arc::new(self.held_reason(by)),
                None => self.shared_reason(job, &obstacle, pass),
            };
            self.pending.block(group, reason, &mut self.queues);
        }
    }

    /// The reason behind an obstacle, worked out once for all groups that ask for the same.
    fn shared_reason(
        &mut self,
        job: JobIdx,
        obstacle: &Obstacle,
        pass: &mut Pass,
    ) -> Arc<WaitReason> {
        if matches!(obstacle, Obstacle::Quota(_)) {
            return Arc::new(self.reason(job, obstacle));
        }
        // Limits on models make the same nodes lack different things for different queues.
        let queue = if self.queues.have_limits() { self.jobs.get(job).queue } else { ROOT };
        let anybody = GroupKey { queue, priority: 0, may_preempt: true, ..self.group_key(job) };
        if let Some(reason) = pass.reasons.get(&anybody) {
            return reason.clone();
        }
        // What is kept for itself is not lacking.
        self.lift_hold(job);
        let reason = Arc::new(self.reason(job, obstacle));
        self.take_hold(job);
        pass.reasons.insert(anybody, reason.clone());
        reason
    }

    fn group_key_of(&self, group: GroupIdx) -> GroupKey {
        self.pending.group(group).key.clone()
    }

    /// Stops others for this workload, if it may and if that helps.
    fn evict_for(&mut self, job: JobIdx, pass: &mut Pass) -> bool {
        // What is kept for it already is its own to plan with, and so is what is kept for one that comes after it.
        self.lift_hold(job);
        let after = self.holds.reserved.filter(|other| self.comes_before(job, *other));
        if let Some(other) = after {
            self.lift_hold(other);
        }
        let Some(eviction) = self.plan_eviction(job) else {
            self.take_hold(job);
            if let Some(other) = after {
                self.take_hold(other);
            }
            return false;
        };
        if let Some(other) = after {
            self.drop_hold(other);
        }
        self.dequeue(job);
        self.jobs.get_mut(job).state = State::Preempting;
        for victim in &eviction.victims {
            self.draw_on_budgets(*victim);
            self.stop(*victim);
        }
        let gone = [eviction.victims.as_slice(), &eviction.awaited].concat();
        let until = self.kept_until(&gone);
        let victims: Vec<Victim> =
            eviction.victims.iter().map(|victim| self.as_victim(*victim, job)).collect();
        if !victims.is_empty() {
            let beneficiary = self.jobs.get(job).spec.id.clone();
            pass.decisions.push(Decision::Preempt { victims, beneficiary, until });
        }
        let reason = self.preempting(&gone, until);
        self.tell(job, &Arc::new(reason), &mut pass.decisions);
        self.hold(job, Purpose::Preemption { victims: gone, until }, eviction.seats);
        true
    }

    fn draw_on_budgets(&mut self, victim: JobIdx) {
        let spec = self.jobs.get(victim).spec.clone();
        for budget in &spec.budgets {
            if let Some(allowed) = self.budgets.get_mut(budget) {
                *allowed = allowed.saturating_sub(spec.task_count());
            }
        }
    }

    /// A booked workload leaves the queue.
    pub(crate) fn start(&mut self, job: JobIdx, pass: &mut Pass) {
        pass.reasons.clear();
        // What was saved for it is spent: that helps nobody else.
        let improved = self.improved;
        self.dequeue(job);
        self.improved = improved;
        self.mark_placed(job);
        self.announce(job, pass);
        self.wake_company(job);
    }

    /// Groups that wait to be near such a task, or to be spread with it, are worth another try.
    fn wake_company(&mut self, job: JobIdx) {
        let spec = self.jobs.get(job).spec.clone();
        for (_, request) in spec.each_role() {
            self.wake_company_of(&request.labels);
        }
    }

    fn wake_company_of(&mut self, labels: &Labels) {
        if !self.terms.ask_about(labels) {
            return;
        }
        let near = |term: &TaskAffinity| {
            term.kind == AffinityKind::Affinity && term.selector.matches(labels)
        };
        let spread = |term: &TopologySpread| term.selector.matches(labels);
        for group in self.pending.set_aside() {
            let key = &self.pending.group(group).key;
            let more = key.more.iter().flat_map(|more| more.iter()).map(|part| part.shape);
            let waits = std::iter::once(key.shape).chain(more).any(|shape| {
                let request = &self.cluster.shape(shape).key.request;
                request.affinity.iter().any(near) || request.spread.iter().any(spread)
            });
            if waits {
                self.pending.unblock(group, &mut self.queues);
            }
        }
    }

    fn announce(&self, job: JobIdx, pass: &mut Pass) {
        let job = self.jobs.get(job);
        for (task, seat) in job.seats() {
            pass.decisions.push(Decision::Place(Placement {
                workload: job.spec.id.clone(),
                task,
                node: self.cluster.host(seat.node).spec.id.clone(),
                gpus: self.gpus(seat),
            }));
        }
    }

    /// The devices of a seat in the body's words.
    pub(crate) fn gpus(&self, seat: &Seat) -> GpuAssignment {
        if self.cluster.host(seat.node).spec.device_selection == DeviceSelection::Node
            && !seat.known
        {
            return GpuAssignment::Count(seat.claim.devices.len() as u32);
        }
        GpuAssignment::Devices(self.parts(seat.node, &seat.claim))
    }

    /// The devices of a claim by name.
    pub(crate) fn parts(&self, node: u32, claim: &Claim) -> Vec<GpuAllocation> {
        let spec = &self.cluster.host(node).spec;
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
    fn report_waits(&mut self, decisions: &mut Vec<Decision>) {
        let (news, reasons) = self.pending.take_news();
        decisions.reserve(news.len());
        for (_, job, reason) in news {
            self.tell(job, &reasons[reason], decisions);
        }
    }

    /// Says why a workload waits, unless the same kind of reason was said before.
    pub(crate) fn tell(
        &mut self,
        job: JobIdx,
        reason: &Arc<WaitReason>,
        decisions: &mut Vec<Decision>,
    ) {
        let job = self.jobs.get_mut(job);
        let class = reason.class();
        if job.told != Some(class) {
            job.told = Some(class);
            decisions
                .push(Decision::Wait { workload: job.spec.id.clone(), reason: reason.clone() });
        }
    }

    /// When something may change without an event.
    fn next_wake(&self) -> Option<Time> {
        let holds = self.holds.iter().filter_map(|(_, hold)| match hold.purpose {
            Purpose::Preemption { until, .. } => Some(until),
            Purpose::Reservation { start } => start,
        });
        let backoffs = self.backoffs.first().map(|(at, _)| *at);
        // With nobody in the queue there is nothing to try again.
        let timers = self.timers.first().copied();
        let again = self.improved.then_some(self.now);
        let tries = timers.into_iter().chain(again).filter(|_| self.pending.len() > 0);
        holds.chain(backoffs).chain(tries).min()
    }
}
