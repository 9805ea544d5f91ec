//! Holds: room that is kept for one waiting workload.
//!
//! A hold plans complete claims and books as much of them as is free; whatever is freed on its nodes
//! later goes to it first. Preemption holds the place that its victims leave. The reservation of the
//! blocked head is a hold too, with the time at which it is expected to be complete.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::quota::charge::Charge;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::room::Claim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

/// Room kept for one workload.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) purpose: HoldPurpose,
    /// What each task is to take.
    pub(crate) planned: Vec<(NodeIdx, Claim)>,
    /// What is booked of it now.
    booked: Vec<(NodeIdx, Claim)>,
    /// Given back for a moment: nothing is booked even where there is room.
    suspended: bool,
}

/// Why room is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HoldPurpose {
    /// These are being stopped for it; the hold lapses then.
    Preemption { victims: Vec<WorkloadIdx>, until: Time },
    /// It is the head of the queue and can start then, if that is known.
    Reservation { start: Option<Time> },
}

/// All holds, by the workload they are for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    by_job: BTreeMap<WorkloadIdx, Hold>,
    /// The one that is a reservation.
    pub(crate) reserved: Option<WorkloadIdx>,
    /// Only tried out: holds stay as they are.
    pub(crate) frozen: bool,
}

impl Holds {
    pub(crate) fn get(&self, workload: WorkloadIdx) -> Option<&Hold> {
        self.by_job.get(&workload)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkloadIdx, &Hold)> {
        self.by_job.iter().map(|(workload, hold)| (*workload, hold))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_job.len()
    }

    /// The expected start of the reserved workload.
    pub(crate) fn reserved_start(&self) -> Option<Time> {
        match self.get(self.reserved?)?.purpose {
            HoldPurpose::Reservation { start } => start,
            HoldPurpose::Preemption { .. } => None,
        }
    }

    /// A victim is gone; says whether any hold waited for it.
    pub(crate) fn remove_victim(&mut self, victim: WorkloadIdx) -> bool {
        let mut found = false;
        for hold in self.by_job.values_mut() {
            if let HoldPurpose::Preemption { victims, .. } = &mut hold.purpose {
                let before = victims.len();
                victims.retain(|waiting| *waiting != victim);
                found |= victims.len() < before;
            }
        }
        found
    }
}

impl Hold {
    /// Whether it plans with this node.
    pub(crate) fn is_on(&self, node: NodeIdx) -> bool {
        self.planned.iter().any(|(on, _)| *on == node)
    }

    /// Whether it keeps nothing for the moment.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    pub(crate) fn booked(&self) -> &[(NodeIdx, Claim)] {
        &self.booked
    }
}

impl Scheduler {
    /// Begins to keep room for a workload.
    pub(crate) fn place_hold(
        &mut self,
        workload: WorkloadIdx,
        purpose: HoldPurpose,
        planned: Vec<(NodeIdx, Claim)>,
    ) {
        self.release_hold(workload);
        self.stop_saving(workload);
        if matches!(purpose, HoldPurpose::Reservation { .. }) {
            self.holds.reserved = Some(workload);
        }
        self.holds
            .by_job
            .insert(workload, Hold { purpose, planned, booked: Vec::new(), suspended: true });
        self.resume_hold(workload);
    }

    /// How long room is kept for somebody who waits for these to go: a while longer than each of them may take.
    pub(crate) fn hold_deadline(&self, leaving: &[WorkloadIdx]) -> Time {
        let leaving = leaving.iter().map(|workload| self.workloads.get(*workload));
        let latest = leaving.filter_map(|workload| workload.terminated_by(self.policy.hold)).max();
        latest.unwrap_or_else(|| self.now.after(self.policy.hold))
    }

    /// What somebody is told who waits for these to go.
    pub(crate) fn preempting_reason(&self, leaving: &[WorkloadIdx], until: Time) -> WaitReason {
        let names = leaving.iter().map(|victim| self.workloads.get(*victim).spec.id.clone());
        WaitReason::Preempting { victims: names.collect(), until }
    }

    /// Ends a hold; its room is free for all.
    pub(crate) fn release_hold(&mut self, workload: WorkloadIdx) -> Option<Hold> {
        self.suspend_hold(workload);
        if self.holds.reserved == Some(workload) {
            self.holds.reserved = None;
        }
        let hold = self.holds.by_job.remove(&workload)?;
        self.retry_blocked = true;
        Some(hold)
    }

    /// Gives a hold's room back for a moment.
    pub(crate) fn suspend_hold(&mut self, workload: WorkloadIdx) {
        let Some(hold) = self.holds.by_job.get_mut(&workload) else { return };
        hold.suspended = true;
        self.queues.release_pledge(workload);
        for (node, claim) in std::mem::take(&mut hold.booked) {
            self.cluster.release(node, &claim);
        }
    }

    /// Books as much of a hold as is free.
    pub(crate) fn resume_hold(&mut self, workload: WorkloadIdx) {
        let Some(hold) = self.holds.by_job.get_mut(&workload).filter(|hold| hold.suspended) else {
            return;
        };
        hold.suspended = false;
        let mut charge = Charge::default();
        for (_, claim) in &hold.planned {
            charge.add(&Charge::of(claim));
        }
        self.queues.pledge(workload, self.workloads.get(workload).queue, charge);
        let nodes: BTreeSet<NodeIdx> = hold.planned.iter().map(|(node, _)| *node).collect();
        for node in nodes {
            self.refill_holds(node);
        }
    }

    /// Shares the free room of a node among the holds there, preemptions before the reservation and
    /// older workloads first: what each gets does not depend on how it came about.
    pub(crate) fn refill_holds(&mut self, node: NodeIdx) {
        if self.holds.by_job.is_empty() || self.holds.frozen {
            return;
        }
        self.free_hold_bookings(node);
        let mut workloads = self.hold_owners(|hold| !hold.suspended && hold.is_on(node));
        workloads.sort_by_key(|workload| self.holds.reserved == Some(*workload));
        for workload in workloads {
            let Some(hold) = self.holds.by_job.get_mut(&workload) else { continue };
            for (_, claim) in hold.planned.iter().filter(|(on, _)| *on == node) {
                let part = claim.clipped(self.cluster.room(node));
                self.cluster.book(node, &part);
                hold.booked.push((node, part));
            }
        }
    }

    /// Holds give back what they have of a node, until the next [`refill_holds`](Self::refill_holds).
    pub(crate) fn free_hold_bookings(&mut self, node: NodeIdx) {
        for hold in self.holds.by_job.values_mut() {
            for (_, claim) in hold.booked.extract_if(.., |(on, _)| *on == node) {
                self.cluster.release(node, &claim);
            }
        }
    }

    /// Ends all holds that plan with a node which is no longer what it was.
    pub(crate) fn release_holds_on(&mut self, node: NodeIdx) {
        for workload in self.hold_owners(|hold| hold.is_on(node)) {
            self.release_hold_and_requeue(workload);
        }
    }

    /// The workloads of certain holds, oldest first.
    pub(crate) fn hold_owners(&self, which: impl Fn(&Hold) -> bool) -> Vec<WorkloadIdx> {
        let mut workloads: Vec<WorkloadIdx> = self
            .holds
            .iter()
            .filter(|(_, hold)| which(hold))
            .map(|(workload, _)| workload)
            .collect();
        workloads.sort_unstable_by_key(|workload| self.workloads.get(*workload).serial);
        workloads
    }

    /// Ends a hold and lets its workload look for another place.
    pub(crate) fn release_hold_and_requeue(&mut self, workload: WorkloadIdx) {
        self.release_hold(workload);
        if self.workloads.get(workload).phase == crate::state::workloads::WorkloadPhase::Preempting
        {
            self.workloads.get_mut(workload).phase =
                crate::state::workloads::WorkloadPhase::Pending;
            self.enqueue(workload);
        }
    }
}
