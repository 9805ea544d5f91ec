//! Plan linter: recomputes every invariant from scratch.
//!
//! Debug builds run it after every pass; so do the tests and, on request, the simulator.

use std::collections::BTreeMap;

use crate::model::name::{NodeId, QueueId, WorkloadId};
use crate::model::node::DeviceSelection;
use crate::quota::charge::Charge;
use crate::quota::queues::QuotaAmounts;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::room::{Claim, Room};
use crate::state::cluster::shape::GpuNeed;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{
    LostTask, TaskAllocation, WorkloadEntry, WorkloadIdx, WorkloadPhase,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bookings exceed the node's capacity without external overcommitment.
    #[error("node `{0}` is overbooked")]
    OverBooked(NodeId),
    /// Recorded room differs from the sum of the claims.
    #[error("bookings of node `{node}` do not match its claims: {what}")]
    BookingMismatch { node: NodeId, what: String },
    /// A task of a placed gang has no node.
    #[error("workload `{0}` is partially placed")]
    PartialGang(WorkloadId),
    /// A task holds fewer GPUs than requested although its node, which chose them, has enough.
    #[error("workload `{0}` holds fewer GPUs than requested")]
    MissingGpus(WorkloadId),
    /// A lost task of a workload that is not placed, or a place for its replacement where no task can start.
    #[error("workload `{0}` waits for a replacement in vain")]
    InvalidLoss(WorkloadId),
    #[error("pending workload `{0}` has allocated tasks")]
    AllocatedWhilePending(WorkloadId),
    #[error("an exclusive GPU of node `{0}` has several users")]
    SharedExclusiveGpu(NodeId),
    /// The usage of a queue exceeds its limit without external cause.
    #[error("queue `{0}` is over its limit")]
    OverLimit(QueueId),
    /// Recorded usage differs from the sum of the claims.
    #[error("usage of queue `{0}` does not match its claims")]
    UsageMismatch(QueueId),
    #[error("pending workload `{0}` is in no queue")]
    NotQueued(WorkloadId),
    /// The group of the workload counts it as told, but its last report is another one.
    #[error("pending workload `{0}` is not told its wait reason")]
    NotReported(WorkloadId),
}

impl Scheduler {
    /// Returns the broken invariants.
    pub fn lint(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        self.lint_nodes(&mut found);
        self.lint_workloads(&mut found);
        self.lint_queues(&mut found);
        found
    }

    fn lint_nodes(&self, found: &mut Vec<Violation>) {
        let mut claims: BTreeMap<NodeIdx, Vec<&Claim>> = BTreeMap::new();
        for (_, workload) in self.workloads.iter() {
            for (_, allocation) in workload.allocations() {
                claims.entry(allocation.node).or_default().push(&allocation.claim);
            }
        }
        for (_, hold) in self.holds.iter() {
            for (node, claim) in hold.booked() {
                claims.entry(*node).or_default().push(claim);
            }
        }
        for (node, node_state) in self.cluster.node_states.iter().enumerate() {
            let Some(node_state) = node_state else { continue };
            let room = &self.cluster.rooms[node];
            let id = || node_state.spec.id.clone();
            let foreign = node_state.foreign.values().map(|(_, claim)| claim);
            let booked = claims.get(&(node as NodeIdx)).into_iter().flatten().copied();
            if let Some(what) = wrong_books(&node_state.spec, room, foreign.chain(booked), self) {
                found.push(Violation::BookingMismatch { node: id(), what });
            }
            if !node_state.overcommitted_externally && room.overcommitted() {
                let shared = room.devices.iter().any(|d| d.exclusive > 0 && d.users > 1);
                found.push(if shared {
                    Violation::SharedExclusiveGpu(id())
                } else {
                    Violation::OverBooked(id())
                });
            }
        }
    }

    fn lint_workloads(&self, found: &mut Vec<Violation>) {
        for (index, workload) in self.workloads.iter() {
            let placed_workload = workload.allocations().count();
            let finished = workload.tasks.iter().filter(|slot| slot.finished).count();
            let homeless = workload.tasks.iter().filter(|slot| slot.allocation.is_none());
            let homeless = homeless.filter(|slot| slot.lost.is_some()).count();
            let id = || workload.spec.id.clone();
            match workload.phase {
                WorkloadPhase::Placed
                    if placed_workload + finished + homeless != workload.tasks.len() =>
                {
                    found.push(Violation::PartialGang(id()));
                }
                WorkloadPhase::Pending | WorkloadPhase::Preempting if placed_workload > 0 => {
                    found.push(Violation::AllocatedWhilePending(id()));
                }
                _ => {}
            }
            if workload
                .allocations()
                .any(|(task, allocation)| self.lacks_gpus(workload, task, allocation))
            {
                found.push(Violation::MissingGpus(id()));
            }
            if self.has_invalid_loss(index, workload) {
                found.push(Violation::InvalidLoss(id()));
            }
            let waits_outside = workload.spec.gate.is_some()
                || self.backoffs.contains(&(workload.not_before, index));
            if workload.phase == WorkloadPhase::Pending && !waits_outside {
                let group = self.pending.find(&self.group_key(index));
                let group = group.map(|group| self.pending.group(group));
                if group.and_then(|group| group.members.get(&self.rank(index))) != Some(&index) {
                    found.push(Violation::NotQueued(id()));
                }
                if group.is_some_and(|group| !group.knows_report(index, workload.reported_class)) {
                    found.push(Violation::NotReported(id()));
                }
            }
            if workload.phase == WorkloadPhase::Preempting && self.holds.get(index).is_none() {
                found.push(Violation::NotQueued(id()));
            }
        }
    }

    fn has_invalid_loss(&self, index: WorkloadIdx, workload: &WorkloadEntry) -> bool {
        let is_placed = workload.phase == WorkloadPhase::Placed;
        let invalid = |(task, _): (u32, &LostTask)| {
            let slot = &workload.tasks[task as usize];
            let closed = |place: &TaskAllocation| !self.is_open_place(place);
            let reserved = slot.allocation.as_ref().filter(|_| !slot.is_occupied());
            !is_placed || slot.finished || reserved.is_some_and(closed)
        };
        workload.lost().any(invalid)
            || workload.lost().next().is_some() != self.incomplete.contains(&index)
    }

    /// The node chooses devices itself and has enough GPUs, but the claim has too few.
    fn lacks_gpus(&self, workload: &WorkloadEntry, task: u32, allocation: &TaskAllocation) -> bool {
        let GpuNeed::Whole(asked) = self.cluster.shape(workload.shape_of(task)).gpu_need else {
            return false;
        };
        let asked = usize::from(asked);
        self.cluster.node_state(allocation.node).spec.device_selection == DeviceSelection::Node
            && self.cluster.room(allocation.node).devices.len() >= asked
            && allocation.claim.devices.len() != asked
    }

    fn lint_queues(&self, found: &mut Vec<Violation>) {
        let mut expected: BTreeMap<u32, QuotaAmounts> = BTreeMap::new();
        for (_, workload) in self.workloads.iter() {
            for (_, allocation) in workload.allocations() {
                let charge = Charge::of(&allocation.claim);
                for queue in self.queues.path(workload.queue) {
                    let used = expected.entry(queue).or_default();
                    for (used, amount) in used.iter_mut().zip(charge.base) {
                        *used += amount;
                    }
                }
            }
        }
        for (index, queue) in self.queues.iter() {
            if queue.total.used != expected.get(&index).copied().unwrap_or_default() {
                found.push(Violation::UsageMismatch(queue.spec.id.clone()));
            }
            if self.queues.is_over(&self.cluster, index) && !queue.overcommitted_externally {
                found.push(Violation::OverLimit(queue.spec.id.clone()));
            }
        }
    }
}

/// Books all claims on an empty room and compares.
fn wrong_books<'a>(
    spec: &crate::model::node::Node,
    room: &Room,
    claims: impl Iterator<Item = &'a Claim>,
    scheduler: &Scheduler,
) -> Option<String> {
    let mut fresh = scheduler.cluster.without_bookings(spec, room);
    for claim in claims {
        fresh.book(claim);
    }
    if fresh.free != room.free {
        return Some(format!("left {:?}, expected {:?}", room.free, fresh.free));
    }
    let named =
        |room: &Room| room.named.iter().filter(|(_, left)| *left != 0).copied().collect::<Vec<_>>();
    if named(&fresh) != named(room) {
        return Some(format!("left {:?}, expected {:?}", room.named, fresh.named));
    }
    if fresh.tokens != room.tokens {
        return Some("tokens differ".to_owned());
    }
    for (at, (expected, device)) in fresh.devices.iter().zip(&room.devices).enumerate() {
        let state = |d: &crate::state::cluster::room::Device| {
            (d.milli, d.mib, d.users, d.exclusive, d.slots)
        };
        if state(expected) != state(device) {
            return Some(format!(
                "GPU {at} has {:?}, expected {:?}",
                state(device),
                state(expected)
            ));
        }
    }
    None
}
