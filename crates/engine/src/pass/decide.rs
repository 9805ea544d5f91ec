//! `Scheduler::decide`: one scheduling pass from beginning to end.

use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::hold::holds::HoldPurpose;
use crate::model::decision::{Decision, Plan};
use crate::model::labels::Labels;
use crate::model::policy::QueueOrder;
use crate::model::request::{AffinityKind, TaskAffinity, TopologySpread};
use crate::model::units::{Priority, Time};
use crate::model::wait::WaitReason;
use crate::pass::head::MAX_NEXT_IN_LINE;
use crate::pass::place::Obstacle;
use crate::quota::queues::ROOT;
use crate::state::pending::{GroupIdx, GroupKey};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

/// State of one pass.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) decisions: Vec<Decision>,
    /// The first workload without room: the head of the queue.
    pub(crate) head: Option<WorkloadIdx>,
    /// Workloads that need a reservation while another workload has it, in order.
    pub(crate) next_in_line: Vec<WorkloadIdx>,
    /// `next_in_line` contains the overdue workloads.
    pub(crate) overdue_added: bool,
    /// The pass tries new workloads only; the head is in a blocked group.
    pub(crate) partial: bool,
    /// Wait reasons since the last placement. The key ignores queue and priority, which do not change the
    /// nodes' shortfalls.
    pub(crate) reasons: FxHashMap<GroupKey, Arc<WaitReason>>,
}

impl Scheduler {
    /// Runs one scheduling pass. Placements are booked at once; the driver answers each with
    /// [`PlacementConfirmed`](crate::Event::PlacementConfirmed) or
    /// [`PlacementRefused`](crate::Event::PlacementRefused).
    pub fn decide(&mut self, now: Time) -> Plan {
        self.advance(now);
        let mut pass =
            Pass { decisions: std::mem::take(&mut self.queued_decisions), ..Pass::default() };
        // 1. Timers, backoffs and expired holds.
        self.queues.record_excess(&self.cluster);
        self.process_timers();
        self.expire_holds();
        // 2. Preemptors whose victims are gone.
        self.start_preemptors(&mut pass);
        // 3. Lost tasks of running workloads: their places, replacements and restarts.
        self.process_lost_tasks(&mut pass);
        // Without backfill the head blocks every other workload, so the pass tries all of them.
        if std::mem::take(&mut self.retry_blocked) || !self.policy.backfill {
            self.pending.unblock_all(&mut self.queues);
        }
        pass.partial = self.pending.any_blocked();
        // 4. Pending workloads, in queue order.
        self.prepare_order();
        while let Some((group, workload)) = self.next_candidate() {
            let (group, workload) = self.next_in_reserved_queue(&pass).unwrap_or((group, workload));
            let lifted = self.suspend_savings(workload);
            self.try_group(group, workload, &mut pass);
            self.resume_savings(lifted);
        }
        self.reserve_for_next_in_line(&mut pass);
        // 5. Wait reasons of the rest.
        self.report_wait_reasons(&mut pass.decisions);
        let wake = self.next_wake_time();
        #[cfg(debug_assertions)]
        debug_assert_eq!(self.lint(), Vec::new(), "the plan broke an invariant");
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
        if self.expectation.renew(self.policy.strategy, &self.cluster, &mut self.scoring) {
            self.scoring_version += 1;
        }
    }

    pub(crate) fn next_candidate(&self) -> Option<(GroupIdx, WorkloadIdx)> {
        let queue = if self.pending.global { Some(ROOT) } else { self.queues.next(&self.cluster) };
        self.pending.next(queue?)
    }

    /// Places the first member of a group, or blocks the group with a reason.
    fn try_group(&mut self, group: GroupIdx, workload: WorkloadIdx, pass: &mut Pass) {
        if let Some(head) = pass.head.filter(|head| !self.policy.backfill && *head != workload) {
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
            // The queue may lack quota for a free model only, and the reservation is elsewhere.
            if self.holds.reserved == Some(workload) && !self.reservation_fits_quota(workload) {
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

    /// The reason of an obstacle, computed once for all groups with the same request.
    fn cached_reason(
        &mut self,
        workload: WorkloadIdx,
        obstacle: &Obstacle,
        pass: &mut Pass,
    ) -> Arc<WaitReason> {
        if matches!(obstacle, Obstacle::Quota(_)) {
            return Arc::new(self.wait_reason(workload, obstacle));
        }
        // Limits on models give the same nodes different shortfalls in different queues.
        let queue =
            if self.queues.have_limits() { self.workloads.get(workload).queue } else { ROOT };
        let shared_key = GroupKey {
            queue,
            priority: Priority(0),
            may_preempt: true,
            ..self.group_key(workload)
        };
        if let Some(reason) = pass.reasons.get(&shared_key) {
            return reason.clone();
        }
        // The workload's own reservation is not a shortfall.
        self.suspend_hold(workload);
        let reason = Arc::new(self.wait_reason(workload, obstacle));
        self.resume_hold(workload);
        pass.reasons.insert(shared_key, reason.clone());
        reason
    }

    fn group_key_of(&self, group: GroupIdx) -> GroupKey {
        self.pending.group(group).key.clone()
    }

    /// Moves a booked workload from its queue to the placed ones.
    pub(crate) fn record_start(&mut self, workload: WorkloadIdx, pass: &mut Pass) {
        pass.reasons.clear();
        pass.head = pass.head.filter(|head| *head != workload);
        // The workload's saved quota is spent; no other workload gains from its release.
        let retry_blocked = self.retry_blocked;
        self.dequeue(workload);
        self.retry_blocked = retry_blocked;
        self.mark_placed(workload);
        self.push_placements(workload, pass);
        self.unblock_affinity_groups(workload);
    }

    /// Unblocks groups with affinity or spread terms that match the started tasks.
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

    /// The next time at which the state may change without an event.
    fn next_wake_time(&self) -> Option<Time> {
        let holds = self.holds.iter().filter_map(|(_, hold)| match hold.purpose {
            HoldPurpose::Preemption { until, .. } => Some(until),
            HoldPurpose::Reservation { start } => start,
        });
        let backoffs = self.backoffs.first().map(|(at, _)| *at);
        // Timers matter only while workloads are pending.
        let timers = self.timers.first().copied();
        let again = self.retry_blocked.then_some(self.now);
        let tries = timers.into_iter().chain(again).filter(|_| self.pending.len() > 0);
        holds.chain(backoffs).chain(tries).chain(self.next_replacement_time()).min()
    }
}
