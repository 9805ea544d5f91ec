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
use crate::state::workloads::JobIdx;

/// Room kept for one workload.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) purpose: Purpose,
    /// What each task is to take.
    pub(crate) planned: Vec<(NodeIdx, Claim)>,
    /// What is booked of it now.
    booked: Vec<(NodeIdx, Claim)>,
    /// Given back for a moment: nothing is booked even where there is room.
    lifted: bool,
}

/// Why room is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// These are being stopped for it; the hold lapses then.
    Preemption { victims: Vec<JobIdx>, until: Time },
    /// It is the head of the queue and can start then, if that is known.
    Reservation { start: Option<Time> },
}

/// All holds, by the workload they are for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    by_job: BTreeMap<JobIdx, Hold>,
    /// The one that is a reservation.
    pub(crate) reserved: Option<JobIdx>,
    /// Only tried out: holds stay as they are.
    pub(crate) frozen: bool,
}

impl Holds {
    pub(crate) fn get(&self, job: JobIdx) -> Option<&Hold> {
        self.by_job.get(&job)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (JobIdx, &Hold)> {
        self.by_job.iter().map(|(job, hold)| (*job, hold))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_job.len()
    }

    /// The expected start of the reserved workload.
    pub(crate) fn reserved_start(&self) -> Option<Time> {
        match self.get(self.reserved?)?.purpose {
            Purpose::Reservation { start } => start,
            Purpose::Preemption { .. } => None,
        }
    }

    /// A victim is gone; says whether any hold waited for it.
    pub(crate) fn victim_gone(&mut self, victim: JobIdx) -> bool {
        let mut found = false;
        for hold in self.by_job.values_mut() {
            if let Purpose::Preemption { victims, .. } = &mut hold.purpose {
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
    pub(crate) fn is_lifted(&self) -> bool {
        self.lifted
    }

    pub(crate) fn booked(&self) -> &[(NodeIdx, Claim)] {
        &self.booked
    }
}

impl Scheduler {
    /// Begins to keep room for a workload.
    pub(crate) fn hold(&mut self, job: JobIdx, purpose: Purpose, planned: Vec<(NodeIdx, Claim)>) {
        self.drop_hold(job);
        self.forget_savings(job);
        if matches!(purpose, Purpose::Reservation { .. }) {
            self.holds.reserved = Some(job);
        }
        self.holds.by_job.insert(job, Hold { purpose, planned, booked: Vec::new(), lifted: true });
        self.take_hold(job);
    }

    /// How long room is kept for somebody who waits for these to go: a while longer than each of them may take.
    pub(crate) fn kept_until(&self, leaving: &[JobIdx]) -> Time {
        let leaving = leaving.iter().map(|job| self.jobs.get(*job));
        let latest = leaving.filter_map(|job| job.gone_by(self.policy.hold)).max();
        latest.unwrap_or_else(|| self.now.after(self.policy.hold))
    }

    /// What somebody is told who waits for these to go.
    pub(crate) fn preempting(&self, leaving: &[JobIdx], until: Time) -> WaitReason {
        let names = leaving.iter().map(|victim| self.jobs.get(*victim).spec.id.clone());
        WaitReason::Preempting { victims: names.collect(), until }
    }

    /// Ends a hold; its room is free for all.
    pub(crate) fn drop_hold(&mut self, job: JobIdx) -> Option<Hold> {
        self.lift_hold(job);
        if self.holds.reserved == Some(job) {
            self.holds.reserved = None;
        }
        let hold = self.holds.by_job.remove(&job)?;
        self.improved = true;
        Some(hold)
    }

    /// Gives a hold's room back for a moment.
    pub(crate) fn lift_hold(&mut self, job: JobIdx) {
        let Some(hold) = self.holds.by_job.get_mut(&job) else { return };
        hold.lifted = true;
        self.queues.release_pledge(job);
        for (node, claim) in std::mem::take(&mut hold.booked) {
            self.cluster.release(node, &claim);
        }
    }

    /// Books as much of a hold as is free.
    pub(crate) fn take_hold(&mut self, job: JobIdx) {
        let Some(hold) = self.holds.by_job.get_mut(&job).filter(|hold| hold.lifted) else { return };
        hold.lifted = false;
        let mut charge = Charge::default();
        for (_, claim) in &hold.planned {
            charge.add(&Charge::of(claim));
        }
        self.queues.pledge(job, self.jobs.get(job).queue, charge);
        let nodes: BTreeSet<NodeIdx> = hold.planned.iter().map(|(node, _)| *node).collect();
        for node in nodes {
            self.top_up(node);
        }
    }

    /// Shares the free room of a node among the holds there, preemptions before the reservation and
    /// older workloads first: what each gets does not depend on how it came about.
    pub(crate) fn top_up(&mut self, node: NodeIdx) {
        if self.holds.by_job.is_empty() || self.holds.frozen {
            return;
        }
        self.give_way(node);
        let mut jobs = self.holders(|hold| !hold.lifted && hold.is_on(node));
        jobs.sort_by_key(|job| self.holds.reserved == Some(*job));
        for job in jobs {
            let Some(hold) = self.holds.by_job.get_mut(&job) else { continue };
            for (_, claim) in hold.planned.iter().filter(|(on, _)| *on == node) {
                let part = claim.clipped(self.cluster.room(node));
                self.cluster.book(node, &part);
                hold.booked.push((node, part));
            }
        }
    }

    /// Holds give back what they have of a node, until the next [`top_up`](Self::top_up).
    pub(crate) fn give_way(&mut self, node: NodeIdx) {
        for hold in self.holds.by_job.values_mut() {
            for (_, claim) in hold.booked.extract_if(.., |(on, _)| *on == node) {
                self.cluster.release(node, &claim);
            }
        }
    }

    /// Ends all holds that plan with a node which is no longer what it was.
    pub(crate) fn drop_holds_on(&mut self, node: NodeIdx) {
        for job in self.holders(|hold| hold.is_on(node)) {
            self.end_hold(job);
        }
    }

    /// The workloads of certain holds, oldest first.
    pub(crate) fn holders(&self, which: impl Fn(&Hold) -> bool) -> Vec<JobIdx> {
        let mut jobs: Vec<JobIdx> =
            self.holds.iter().filter(|(_, hold)| which(hold)).map(|(job, _)| job).collect();
        jobs.sort_unstable_by_key(|job| self.jobs.get(*job).serial);
        jobs
    }

    /// Ends a hold and lets its workload look for another place.
    pub(crate) fn end_hold(&mut self, job: JobIdx) {
        self.drop_hold(job);
        if self.jobs.get(job).state == crate::state::workloads::State::Preempting {
            self.jobs.get_mut(job).state = crate::state::workloads::State::Waiting;
            self.enqueue(job);
        }
    }
}
