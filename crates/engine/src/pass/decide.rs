//! One pass: everything that waits gets a place, a reason, or somebody else's place.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::decision::{Decision, Plan};
use crate::model::labels::Labels;
use crate::model::policy::QueueOrder;
use crate::model::request::{AffinityKind, TaskAffinity, TopologySpread};
use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::pass::head::MAX_NEXT_IN_LINE;
use crate::pass::place::Obstacle;
use crate::quota::queues::ROOT;
use crate::state::pending::{GroupIdx, GroupKey};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

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
        while let Some((group, workload)) = self.next_candidate() {
            let (group, workload) = self.next_in_reserved_queue(&pass).unwrap_or((group, workload));
            let lifted = self.suspend_savings(workload);
            self.try_group(group, workload, &mut pass);
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
        while let Some((at, workload)) =
            self.backoffs.first().copied().filter(|(at, _)| *at <= self.now)
        {
            self.backoffs.remove(&(at, workload));
            self.workloads.get_mut(workload).not_before = Time(0);
            if self.workloads.get(workload).spec.gate.is_none() {
                self.enqueue(workload);
            }
        }
    }

    fn expire_holds(&mut self) {
        let now = self.now;
        let lapsed = self.hold_owners(|hold| match hold.purpose {
            HoldPurpose::Preemption { until, .. } => until <= now,
            HoldPurpose::Reservation { start } => start.is_some_and(|start| start <= now),
        });
        for workload in lapsed {
            self.release_hold_and_requeue(workload);
        }
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
    fn try_group(&mut self, group: GroupIdx, workload: WorkloadIdx, pass: &mut Pass) {
        if let Some(head) = pass.head.filter(|_| !self.policy.backfill) {
            let reason = Arc::new(self.reserved_reason(head));
            self.pending.block(group, reason, &mut self.queues);
            return;
        }
        let obstacle = match self.place_or_backfill(workload) {
            Ok(()) => {
                self.record_start(workload, pass);
                return;
            }
            Err(obstacle) => obstacle,
        };
        if self.preempt_for(workload, pass) {
            return;
        }
        if matches!(obstacle, Obstacle::Quota(_)) {
            // It cannot pay for what is kept for it: others may have it.
            if self.holds.reserved == Some(workload) {
                self.release_hold(workload);
            }
            self.start_saving(workload);
        } else if self.savers.contains(&workload) && !self.fits_when_empty(workload) {
            self.stop_saving(workload);
        }
        let mut held = None;
        if matches!(obstacle, Obstacle::NoRoom | Obstacle::Gang { .. }) {
            if pass.head.is_none() && !pass.partial {
                if self.place_on_later_reservation(workload) {
                    self.record_start(workload, pass);
                    return;
                }
                self.reserve_for_next_in_line(pass);
                if pass.head.is_none() && self.reserve_for_head(workload) {
                    if self.start_on_reservation(workload) {
                        self.record_start(workload, pass);
                        return;
                    }
                    pass.head = Some(workload);
                } else if self.holds.reserved.is_some()
                    && pass.next_in_line.len() < MAX_NEXT_IN_LINE
                    && self.fits_when_empty(workload)
                {
                    pass.next_in_line.push(workload);
                }
            }
            held = self.blocking_holder(workload);
        }
        if held.is_some() {
            self.backfill_members(group, pass);
        }
        if self.pending.find(&self.group_key_of(group)).is_some() {
            let reason = match held {
                Some(by) => Arc::new(self.reserved_reason(by)),
                None => self.cached_reason(workload, &obstacle, pass),
            };
            self.pending.block(group, reason, &mut self.queues);
        }
    }

    /// The reason behind an obstacle, worked out once for all groups that ask for the same.
    fn cached_reason(
        &mut self,
        workload: WorkloadIdx,
        obstacle: &Obstacle,
        pass: &mut Pass,
    ) -> Arc<WaitReason> {
        if matches!(obstacle, Obstacle::Quota(_)) {
            return Arc::new(self.wait_reason(workload, obstacle));
        }
        // Limits on models make the same nodes lack different things for different queues.
        let queue =
            if self.queues.have_limits() { self.workloads.get(workload).queue } else { ROOT };
        let anybody =
            GroupKey { queue, priority: 0, may_preempt: true, ..self.group_key(workload) };
        if let Some(reason) = pass.reasons.get(&anybody) {
            return reason.clone();
        }
        // What is kept for itself is not lacking.
        self.suspend_hold(workload);
        let reason = Arc::new(self.wait_reason(workload, obstacle));
        self.resume_hold(workload);
        pass.reasons.insert(anybody, reason.clone());
        reason
    }

    fn group_key_of(&self, group: GroupIdx) -> GroupKey {
        self.pending.group(group).key.clone()
    }

    /// A booked workload leaves the queue.
    pub(crate) fn record_start(&mut self, workload: WorkloadIdx, pass: &mut Pass) {
        pass.reasons.clear();
        // What was saved for it is spent: that helps nobody else.
        let retry_blocked = self.retry_blocked;
        self.dequeue(workload);
        self.retry_blocked = retry_blocked;
        self.mark_placed(workload);
        self.push_placements(workload, pass);
        self.unblock_affinity_groups(workload);
    }

    /// Groups that wait to be near such a task, or to be spread with it, are worth another try.
    pub(crate) fn unblock_affinity_groups(&mut self, workload: WorkloadIdx) {
        let spec = self.workloads.get(workload).spec.clone();
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
