//! The head of the queue: a reservation for the first workload that does not fit, and backfill of workloads
//! that do not delay it.

use std::cmp::Reverse;

use crate::hold::holds::HoldPurpose;
use crate::model::units::Span;
use crate::model::workload::Topology;
use crate::pass::decide::Pass;
use crate::pass::place::Obstacle;
use crate::quota::queues::ROOT;
use crate::state::pending::GroupIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

/// Limit of [`Pass::next_in_line`].
pub(crate) const MAX_NEXT_IN_LINE: usize = 8;

/// Difference between the lowest and the highest priority that users of a server choose. Workloads that are submitted
/// later may have them.
const USUAL_DIFFERENCE: i64 = 10;

impl Scheduler {
    /// Places a workload outside the reserved room. The reserved room is open to its owner, to a workload
    /// ahead of the owner, and to a workload that ends before the owner starts.
    pub(crate) fn place_or_backfill(&mut self, workload: WorkloadIdx) -> Result<(), Obstacle> {
        let Some(reserved) = self.holds.reserved else { return self.place_workload(workload) };
        if reserved == workload {
            self.suspend_hold(workload);
            let placed = self.place_workload(workload);
            if placed.is_ok() {
                // The room beyond the new allocations can only help blocked groups.
                let retry_blocked = self.retry_blocked || self.pending.any_blocked();
                self.release_hold(workload);
                self.retry_blocked = retry_blocked;
            } else {
                self.resume_hold(workload);
            }
            return placed;
        }
        let blocked = self.place_workload(workload);
        // A reservation excludes workloads behind its owner only.
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

    pub(crate) fn ends_before_reserved_start(&self, workload: WorkloadIdx) -> bool {
        let end =
            self.workloads.get(workload).spec.estimate.map(|estimate| self.now.after(estimate));
        matches!((end, self.holds.reserved_start()), (Some(end), Some(start)) if end <= start)
    }

    /// Backfills further members of a group that are short enough for the reserved room.
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

    /// The owner of the hold whose room would be enough for this workload.
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

    /// `workload` is permanently ahead of `other`. The turn between queues changes with their shares, so
    /// workloads of different queues never are: they would take the reservation from each other forever.
    pub(crate) fn is_ahead_of(&self, workload: WorkloadIdx, other: WorkloadIdx) -> bool {
        let same = self.pending.global
            || self.workloads.get(workload).queue == self.workloads.get(other).queue;
        same && self.rank(workload) < self.rank(other)
    }

    /// Gives a free reservation to the first workload in line.
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

    /// Workloads that waited longer than any priority difference, oldest first; without ageing the highest priority first.
    /// Without them, a queue with a small share could stay behind the other queues forever.
    pub(crate) fn overdue_workloads(&self) -> Vec<WorkloadIdx> {
        if self.pending.global {
            return Vec::new();
        }
        let long = Span(self.policy.patience.0.saturating_add(self.time_of_priorities()));
        let first =
            self.pending.groups().filter_map(|(_, group)| group.members.values().next().copied());
        let mut workloads: Vec<WorkloadIdx> = first
            .filter(|workload| self.workloads.get(*workload).submitted.after(long) <= self.now)
            .collect();
        workloads.sort_unstable_by_key(|workload| {
            let workload = self.workloads.get(*workload);
            let strict = self.policy.ageing.is_off().then_some(workload.spec.priority);
            (Reverse(strict), workload.submitted, workload.serial)
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

    pub(crate) fn reservation_fits_quota(&mut self, workload: WorkloadIdx) -> bool {
        let Some(hold) = self.holds.get(workload) else { return false };
        let planned = hold.planned.clone();
        self.suspend_hold(workload);
        let fits = self.fits_quota(workload, &planned);
        self.resume_hold(workload);
        fits
    }

    /// Waiting time in milliseconds that makes up for the largest difference between pending priorities; none without
    /// ageing.
    fn time_of_priorities(&self) -> u64 {
        if self.policy.ageing.is_off() {
            return 0;
        }
        let priorities = || self.pending.groups().map(|(_, group)| i64::from(group.key.priority.0));
        let difference = priorities().max().unwrap_or(0) - priorities().min().unwrap_or(0);
        self.policy.ageing.time_of(difference.max(USUAL_DIFFERENCE)) as u64
    }

    /// Starts a gang on its reserved claims when all of them are free. The greedy search, one task after
    /// another, can miss such an arrangement.
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

    /// Without backfill, the queue of the reservation goes first: otherwise two heads could block each other
    /// forever.
    pub(crate) fn next_in_reserved_queue(&self, pass: &Pass) -> Option<(GroupIdx, WorkloadIdx)> {
        let reserved =
            self.holds.reserved.filter(|_| !self.policy.backfill && pass.head.is_none())?;
        self.pending.next(if self.pending.global {
            ROOT
        } else {
            self.workloads.get(reserved).queue
        })
    }

    /// Starts a workload in the room reserved for a workload behind it.
    pub(crate) fn place_on_later_reservation(&mut self, workload: WorkloadIdx) -> bool {
        match self.holds.reserved {
            Some(other) if self.is_ahead_of(workload, other) => {
                self.place_in_reserved_room(workload, other).is_ok()
            }
            _ => false,
        }
    }

    /// Reserves the earliest room for the head of the queue. Returns true if the workload counts as the head; a workload
    /// that never fits does not.
    pub(crate) fn reserve_for_head(&mut self, workload: WorkloadIdx) -> bool {
        if self.holds.reserved == Some(workload) {
            return true;
        }
        let other = self.holds.reserved;
        // Without backfill no workload passes a head that fits an empty cluster.
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
        // Ignore a start that the queue's quota does not cover.
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
