//! The head of the queue: room is kept for the first workload that cannot start, and others pass it only
//! where that does not delay it.

use crate::hold::holds::HoldPurpose;
use crate::model::units::Span;
use crate::model::workload::{MAX_PRIORITY, Topology};
use crate::pass::decide::Pass;
use crate::pass::place::Obstacle;
use crate::quota::queues::ROOT;
use crate::state::pending::GroupIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

/// How many are kept in line for the reservation.
pub(crate) const MAX_NEXT_IN_LINE: usize = 8;

impl Scheduler {
    /// Places a workload around what is held for others; the one the hold is for may use it, and so
    /// may one that comes before it, or that will be gone when it is needed.
    pub(crate) fn place_or_backfill(&mut self, workload: WorkloadIdx) -> Result<(), Obstacle> {
        let Some(reserved) = self.holds.reserved else { return self.place_workload(workload) };
        if reserved == workload {
            self.suspend_hold(workload);
            let placed = self.place_workload(workload);
            if placed.is_ok() {
                // What it held beyond its seats can only help those that were set aside before.
                let retry_blocked = self.retry_blocked || self.pending.any_blocked();
                self.release_hold(workload);
                self.retry_blocked = retry_blocked;
            } else {
                self.resume_hold(workload);
            }
            return placed;
        }
        let blocked = self.place_workload(workload);
        // Room and quota are kept from those who come later, not from those who come before.
        let may_use_it =
            self.ends_before_reserved_start(workload) || self.is_ahead_of(workload, reserved);
        if blocked.is_ok() || !may_use_it {
            return blocked;
        }
        self.place_in_reserved_room(workload, reserved)
    }

    pub(crate) fn place_in_reserved_room(
        &mut self,
        workload: WorkloadIdx,
        reserved: WorkloadIdx,
    ) -> Result<(), Obstacle> {
        self.suspend_hold(reserved);
        let placed = self.place_workload(workload);
        self.resume_hold(reserved);
        placed
    }

    /// Expected to end before the reserved workload is expected to start.
    pub(crate) fn ends_before_reserved_start(&self, workload: WorkloadIdx) -> bool {
        let end =
            self.workloads.get(workload).spec.estimate.map(|estimate| self.now.after(estimate));
        matches!((end, self.holds.reserved_start()), (Some(end), Some(start)) if end <= start)
    }

    /// Members of a group that only a hold keeps out, but that are short enough to use it.
    pub(crate) fn backfill_members(&mut self, group: GroupIdx, pass: &mut Pass) {
        let Some(reserved) = self.holds.reserved else { return };
        let members: Vec<WorkloadIdx> =
            self.pending.group(group).members.values().copied().skip(1).collect();
        for workload in members {
            if self.ends_before_reserved_start(workload) {
                if self.place_in_reserved_room(workload, reserved).is_err() {
                    return;
                }
                self.record_start(workload, pass);
            }
        }
    }

    /// The holder whose room would be enough for this workload.
    pub(crate) fn blocking_holder(&mut self, workload: WorkloadIdx) -> Option<WorkloadIdx> {
        let mut hold_owners = self.hold_owners(|_| true);
        hold_owners.retain(|holder| *holder != workload);
        if hold_owners.is_empty() {
            return None;
        }
        for holder in &hold_owners {
            self.suspend_hold(*holder);
        }
        let cursor = self.cursor.clone();
        let fits = self.place_workload(workload).is_ok();
        if fits {
            for task in 0..self.workloads.get(workload).count() {
                self.release_task(workload, task);
            }
        }
        self.cursor = cursor;
        for holder in &hold_owners {
            self.resume_hold(*holder);
        }
        fits.then(|| hold_owners[0])
    }

    /// Whether one comes before the other for good. The turn of queues changes with their shares, and
    /// two that take turns would take each other's reservation away for ever.
    pub(crate) fn is_ahead_of(&self, workload: WorkloadIdx, other: WorkloadIdx) -> bool {
        let same = self.pending.global
            || self.workloads.get(workload).queue == self.workloads.get(other).queue;
        same && self.rank(workload) < self.rank(other)
    }

    /// The reservation has become free: it goes to who came first, not to who comes next.
    pub(crate) fn reserve_for_next_in_line(&mut self, pass: &mut Pass) {
        if self.holds.reserved.is_none() && pass.head.is_none() {
            if !std::mem::replace(&mut pass.overdue_added, true) {
                pass.next_in_line.splice(0..0, self.overdue_workloads());
            }
            let next_in_line = std::mem::take(&mut pass.next_in_line);
            pass.head = next_in_line
                .into_iter()
                .find(|heir| self.is_queued(*heir) && self.reserve_for_head(*heir));
        }
    }

    /// Those that have waited for longer than any priority is worth, oldest first. Shares decide whose
    /// turn it is, and a queue with a small share could be passed by others for ever.
    pub(crate) fn overdue_workloads(&self) -> Vec<WorkloadIdx> {
        if self.pending.global {
            return Vec::new();
        }
        let ageing = self.policy.ageing.0.saturating_mul(u64::from(MAX_PRIORITY));
        let long = Span(self.policy.patience.0.saturating_add(ageing));
        let first =
            self.pending.groups().filter_map(|(_, group)| group.members.values().next().copied());
        let mut workloads: Vec<WorkloadIdx> = first
            .filter(|workload| self.workloads.get(*workload).submitted.after(long) <= self.now)
            .collect();
        workloads.sort_unstable_by_key(|workload| {
            (self.workloads.get(*workload).submitted, self.workloads.get(*workload).serial)
        });
        workloads.retain({
            let mut left = MAX_NEXT_IN_LINE;
            move |workload| {
                let fits = left > 0 && self.fits_when_empty(*workload);
                left -= usize::from(fits);
                fits
            }
        });
        workloads
    }

    /// All that is kept for it is free, and only the search for places, one task after the other, led
    /// it astray: it starts where room is kept.
    pub(crate) fn start_on_reservation(&mut self, workload: WorkloadIdx) -> bool {
        let spread =
            matches!(self.workloads.get(workload).spec.topology, Some(Topology::Spread(_)));
        let Some(hold) = self.holds.get(workload).filter(|_| !spread) else { return false };
        let planned = hold.planned.clone();
        self.suspend_hold(workload);
        let starts = self.claims_fit(workload, &planned) && self.book_claims(workload, planned);
        if starts {
            self.release_hold(workload);
        } else {
            self.resume_hold(workload);
        }
        starts
    }

    /// Without backfill, the queue that room is kept in goes first: two heads that wait for each other
    /// would wait for ever.
    pub(crate) fn next_in_reserved_queue(&self, pass: &Pass) -> Option<(GroupIdx, WorkloadIdx)> {
        let reserved =
            self.holds.reserved.filter(|_| !self.policy.backfill && pass.head.is_none())?;
        self.pending.next(if self.pending.global {
            ROOT
        } else {
            self.workloads.get(reserved).queue
        })
    }

    /// Nothing is kept for a workload against one that comes before it: that one may start there.
    pub(crate) fn place_on_later_reservation(&mut self, workload: WorkloadIdx) -> bool {
        match self.holds.reserved {
            Some(other) if self.is_ahead_of(workload, other) => {
                self.place_in_reserved_room(workload, other).is_ok()
            }
            _ => false,
        }
    }

    /// Keeps room for the head of the queue where it can start first. Says whether it is worth
    /// waiting for: what never fits must not keep others from being the head.
    pub(crate) fn reserve_for_head(&mut self, workload: WorkloadIdx) -> bool {
        if self.holds.reserved == Some(workload) {
            return true;
        }
        let other = self.holds.reserved;
        // Without backfill nobody passes one that could ever start.
        let stands = !self.policy.backfill && {
            let shape = self.affordable_shape(workload);
            self.fits_when_empty_as(workload, shape)
        };
        if other.is_some_and(|other| !self.is_ahead_of(workload, other)) {
            return stands;
        }
        if let Some(other) = other {
            self.suspend_hold(other);
        }
        // What its queue cannot pay for is no start.
        let start =
            self.plan_start(workload).filter(|start| self.fits_quota(workload, &start.claims));
        if let Some(other) = other {
            self.resume_hold(other);
        }
        let patience = self.workloads.get(workload).submitted.after(self.policy.patience);
        if let Some(start) = start {
            if let Some(other) = other {
                self.release_hold(other);
            }
            self.place_hold(workload, HoldPurpose::Reservation { start: start.at }, start.claims);
            return true;
        }
        if patience > self.now && self.fits_when_empty(workload) {
            self.timers.insert(patience);
        }
        stands
    }
}
