//! Holds: room reserved for one pending workload.
//!
//! A hold plans complete claims and books their free part; room that is freed on its nodes later refills the
//! hold first. A preemption holds the room of its victims. The reservation of the blocked head is a hold with
//! an expected start.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::units::Time;
use crate::model::wait::WaitReason;
use crate::quota::charge::Charge;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::room::Claim;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

/// Room reserved for one pending workload.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) purpose: HoldPurpose,
    /// Node and claim of each task.
    pub(crate) planned: Vec<(NodeIdx, Claim)>,
    /// Part of `planned` that is booked now.
    booked: Vec<(NodeIdx, Claim)>,
    /// Bookings are released for the duration of a trial.
    suspended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HoldPurpose {
    /// Victims that still terminate, and the expiry of the hold.
    Preemption { victims: Vec<WorkloadIdx>, until: Time },
    /// Expected start of the head, when known.
    Reservation { start: Option<Time> },
}

/// All holds, by their owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    by_workload: BTreeMap<WorkloadIdx, Hold>,
    /// Owner of the reservation.
    pub(crate) reserved: Option<WorkloadIdx>,
    /// A trial is running: released room does not refill holds.
    pub(crate) frozen: bool,
}

impl Holds {
    pub(crate) fn get(&self, workload: WorkloadIdx) -> Option<&Hold> {
        self.by_workload.get(&workload)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkloadIdx, &Hold)> {
        self.by_workload.iter().map(|(workload, hold)| (*workload, hold))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_workload.len()
    }

    pub(crate) fn reserved_start(&self) -> Option<Time> {
        match self.get(self.reserved?)?.purpose {
            HoldPurpose::Reservation { start } => start,
            HoldPurpose::Preemption { .. } => None,
        }
    }

    /// Returns true if any hold waited for the victim.
    pub(crate) fn remove_victim(&mut self, victim: WorkloadIdx) -> bool {
        let mut found = false;
        for hold in self.by_workload.values_mut() {
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
    pub(crate) fn is_on(&self, node: NodeIdx) -> bool {
        self.planned.iter().any(|(on, _)| *on == node)
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended
    }

    pub(crate) fn booked(&self) -> &[(NodeIdx, Claim)] {
        &self.booked
    }
}

impl Scheduler {
    /// Replaces the workload's hold.
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
            .by_workload
            .insert(workload, Hold { purpose, planned, booked: Vec::new(), suspended: true });
        self.resume_hold(workload);
    }

    /// Expiry of a hold on these victims: the policy's hold time after the last grace period.
    pub(crate) fn hold_deadline(&self, leaving: &[WorkloadIdx]) -> Time {
        let leaving = leaving.iter().map(|workload| self.workloads.get(*workload));
        let latest = leaving.filter_map(|workload| workload.terminated_by(self.policy.hold)).max();
        latest.unwrap_or_else(|| self.now.after(self.policy.hold))
    }

    pub(crate) fn preempting_reason(&self, leaving: &[WorkloadIdx], until: Time) -> WaitReason {
        let names = leaving.iter().map(|victim| self.workloads.get(*victim).spec.id.clone());
        WaitReason::Preempting { victims: names.collect(), until }
    }

    /// Removes a hold and frees its room.
    pub(crate) fn release_hold(&mut self, workload: WorkloadIdx) -> Option<Hold> {
        self.suspend_hold(workload);
        if self.holds.reserved == Some(workload) {
            self.holds.reserved = None;
        }
        let hold = self.holds.by_workload.remove(&workload)?;
        self.retry_blocked = true;
        Some(hold)
    }

    /// Releases a hold's bookings and pledge until [`resume_hold`](Self::resume_hold).
    pub(crate) fn suspend_hold(&mut self, workload: WorkloadIdx) {
        let Some(hold) = self.holds.by_workload.get_mut(&workload) else { return };
        hold.suspended = true;
        self.queues.release_pledge(workload);
        for (node, claim) in std::mem::take(&mut hold.booked) {
            self.cluster.release(node, &claim);
        }
    }

    /// Books the free part of a suspended hold.
    pub(crate) fn resume_hold(&mut self, workload: WorkloadIdx) {
        let Some(hold) = self.holds.by_workload.get_mut(&workload).filter(|hold| hold.suspended)
        else {
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

    /// Distributes the free room of a node to its holds: preemptions before the reservation, then older
    /// workloads first. The result does not depend on the order of earlier bookings.
    pub(crate) fn refill_holds(&mut self, node: NodeIdx) {
        if self.holds.by_workload.is_empty() || self.holds.frozen {
            return;
        }
        self.free_hold_bookings(node);
        let mut workloads = self.hold_owners(|hold| !hold.suspended && hold.is_on(node));
        workloads.sort_by_key(|workload| self.holds.reserved == Some(*workload));
        for workload in workloads {
            let Some(hold) = self.holds.by_workload.get_mut(&workload) else { continue };
            for (_, claim) in hold.planned.iter().filter(|(on, _)| *on == node) {
                let part = claim.clipped(self.cluster.room(node));
                self.cluster.book(node, &part);
                hold.booked.push((node, part));
            }
        }
    }

    /// Releases all hold bookings on a node until the next [`refill_holds`](Self::refill_holds).
    pub(crate) fn free_hold_bookings(&mut self, node: NodeIdx) {
        for hold in self.holds.by_workload.values_mut() {
            for (_, claim) in hold.booked.extract_if(.., |(on, _)| *on == node) {
                self.cluster.release(node, &claim);
            }
        }
    }

    pub(crate) fn release_holds_on(&mut self, node: NodeIdx) {
        for workload in self.hold_owners(|hold| hold.is_on(node)) {
            self.release_hold_and_requeue(workload);
        }
    }

    /// Owners of the matching holds, oldest first.
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

    /// Removes a hold; its owner becomes pending again.
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
