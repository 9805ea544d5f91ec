//! The head of the queue: room is kept for the first workload that cannot start, and others pass it only
//! where that does not delay it.

use crate::hold::holds::Purpose;
use crate::model::units::Span;
use crate::model::workload::{MAX_PRIORITY, Topology};
use crate::pass::decide::Pass;
use crate::pass::place::Obstacle;
use crate::quota::queues::ROOT;
use crate::state::pending::GroupIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::JobIdx;

/// How many are kept in line for the reservation.
pub(crate) const MOST_HEIRS: usize = 8;

impl Scheduler {
    /// Places a workload around what is held for others; the one the hold is for may use it, and so
    /// may one that comes before it, or that will be gone when it is needed.
    pub(crate) fn place_or_backfill(&mut self, job: JobIdx) -> Result<(), Obstacle> {
        let Some(reserved) = self.holds.reserved else { return self.place(job) };
        if reserved == job {
            self.lift_hold(job);
            let placed = self.place(job);
            if placed.is_ok() {
                // What it held beyond its seats can only help those that were set aside before.
                let improved = self.improved || self.pending.any_blocked();
                self.drop_hold(job);
                self.improved = improved;
            } else {
                self.take_hold(job);
            }
            return placed;
        }
        let blocked = self.place(job);
        // Room and quota are kept from those who come later, not from those who come before.
        let may_use_it = self.is_gone_in_time(job) || self.comes_before(job, reserved);
        if blocked.is_ok() || !may_use_it {
            return blocked;
        }
        self.place_in_held_room(job, reserved)
    }

    pub(crate) fn place_in_held_room(
        &mut self,
        job: JobIdx,
        reserved: JobIdx,
    ) -> Result<(), Obstacle> {
        self.lift_hold(reserved);
        let placed = self.place(job);
        self.take_hold(reserved);
        placed
    }

    /// Expected to end before the reserved workload is expected to start.
    pub(crate) fn is_gone_in_time(&self, job: JobIdx) -> bool {
        let end = self.jobs.get(job).spec.estimate.map(|estimate| self.now.after(estimate));
        matches!((end, self.holds.reserved_start()), (Some(end), Some(start)) if end <= start)
    }

    /// Members of a group that only a hold keeps out, but that are short enough to use it.
    pub(crate) fn backfill_members(&mut self, group: GroupIdx, pass: &mut Pass) {
        let Some(reserved) = self.holds.reserved else { return };
        let members: Vec<JobIdx> =
            self.pending.group(group).members.values().copied().skip(1).collect();
        for job in members {
            if self.is_gone_in_time(job) {
                if self.place_in_held_room(job, reserved).is_err() {
                    return;
                }
                self.start(job, pass);
            }
        }
    }

    /// The holder whose room would be enough for this workload.
    pub(crate) fn holder_in_the_way(&mut self, job: JobIdx) -> Option<JobIdx> {
        let mut holders = self.holders(|_| true);
        holders.retain(|holder| *holder != job);
        if holders.is_empty() {
            return None;
        }
        for holder in &holders {
            self.lift_hold(*holder);
        }
        let cursor = self.cursor.clone();
        let fits = self.place(job).is_ok();
        if fits {
            for task in 0..self.jobs.get(job).count() {
                self.unseat(job, task);
            }
        }
        self.cursor = cursor;
        for holder in &holders {
            self.take_hold(*holder);
        }
        fits.then(|| holders[0])
    }

    /// Whether one comes before the other for good. The turn of queues changes with their shares, and
    /// two that take turns would take each other's reservation away for ever.
    pub(crate) fn comes_before(&self, job: JobIdx, other: JobIdx) -> bool {
        let same = self.pending.global || self.jobs.get(job).queue == self.jobs.get(other).queue;
        same && self.rank(job) < self.rank(other)
    }

    /// The reservation has become free: it goes to who came first, not to who comes next.
    pub(crate) fn reserve_for_heir(&mut self, pass: &mut Pass) {
        if self.holds.reserved.is_none() && pass.head.is_none() {
            if !std::mem::replace(&mut pass.lined_up, true) {
                pass.heirs.splice(0..0, self.overdue());
            }
            let heirs = std::mem::take(&mut pass.heirs);
            pass.head = heirs.into_iter().find(|heir| self.is_queued(*heir) && self.reserve(*heir));
        }
    }

    /// Those that have waited for longer than any priority is worth, oldest first. Shares decide whose
    /// turn it is, and a queue with a small share could be passed by others for ever.
    pub(crate) fn overdue(&self) -> Vec<JobIdx> {
        if self.pending.global {
            return Vec::new();
        }
        let ageing = self.policy.ageing.0.saturating_mul(u64::from(MAX_PRIORITY));
        let long = Span(self.policy.patience.0.saturating_add(ageing));
        let first =
            self.pending.groups().filter_map(|(_, group)| group.members.values().next().copied());
        let mut jobs: Vec<JobIdx> =
            first.filter(|job| self.jobs.get(*job).submitted.after(long) <= self.now).collect();
        jobs.sort_unstable_by_key(|job| {
            (self.jobs.get(*job).submitted, self.jobs.get(*job).serial)
        });
        jobs.retain({
            let mut left = MOST_HEIRS;
            move |job| {
                let fits = left > 0 && self.ever_fits(*job);
                left -= usize::from(fits);
                fits
            }
        });
        jobs
    }

    /// All that is kept for it is free, and only the search for places, one task after the other, led
    /// it astray: it starts where room is kept.
    pub(crate) fn starts_as_reserved(&mut self, job: JobIdx) -> bool {
        let spread = matches!(self.jobs.get(job).spec.topology, Some(Topology::Spread(_)));
        let Some(hold) = self.holds.get(job).filter(|_| !spread) else { return false };
        let planned = hold.planned.clone();
        self.lift_hold(job);
        let starts = self.seats_are_free(job, &planned) && self.seat_as_planned(job, planned);
        if starts {
            self.drop_hold(job);
        } else {
            self.take_hold(job);
        }
        starts
    }

    /// Without backfill, the queue that room is kept in goes first: two heads that wait for each other
    /// would wait for ever.
    pub(crate) fn reserved_first(&self, pass: &Pass) -> Option<(GroupIdx, JobIdx)> {
        let reserved =
            self.holds.reserved.filter(|_| !self.policy.backfill && pass.head.is_none())?;
        self.pending.next(if self.pending.global { ROOT } else { self.jobs.get(reserved).queue })
    }

    /// Nothing is kept for a workload against one that comes before it: that one may start there.
    pub(crate) fn takes_over_reservation(&mut self, job: JobIdx) -> bool {
        match self.holds.reserved {
            Some(other) if self.comes_before(job, other) => {
                self.place_in_held_room(job, other).is_ok()
            }
            _ => false,
        }
    }

    /// Keeps room for the head of the queue where it can start first. Says whether it is worth
    /// waiting for: what never fits must not keep others from being the head.
    pub(crate) fn reserve(&mut self, job: JobIdx) -> bool {
        if self.holds.reserved == Some(job) {
            return true;
        }
        let other = self.holds.reserved;
        // Without backfill nobody passes one that could ever start.
        let stands = !self.policy.backfill && {
            let shape = self.affordable_shape(job);
            self.ever_fits_as(job, shape)
        };
        if other.is_some_and(|other| !self.comes_before(job, other)) {
            return stands;
        }
        if let Some(other) = other {
            self.lift_hold(other);
        }
        // What its queue cannot pay for is no start.
        let start = self.foresee(job).filter(|start| self.can_pay(job, &start.seats));
        if let Some(other) = other {
            self.take_hold(other);
        }
        let patience = self.jobs.get(job).submitted.after(self.policy.patience);
        if let Some(start) = start {
            if let Some(other) = other {
                self.drop_hold(other);
            }
            self.hold(job, Purpose::Reservation { start: start.at }, start.seats);
            return true;
        }
        if patience > self.now && self.ever_fits(job) {
            self.timers.insert(patience);
        }
        stands
    }
}
