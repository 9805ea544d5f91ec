//! Snapshots: the complete state as plain data.
//!
//! A snapshot holds facts: nodes, queues, live placements and pending workloads in their order, plus the
//! state that no fact shows: the round-robin cursor, past usage, holds and reported reasons. `restore.rs`
//! never decides a live placement again.

pub(crate) mod records;
mod restore;

use crate::hold::holds::HoldPurpose;
use crate::quota::queues::Account;
use crate::state::cluster::room::{Claim, DeviceClaim};
use crate::state::cluster::{NodeIdx, Reachability};
use crate::state::scheduler::Scheduler;
use crate::state::snapshot::records::{
    HoldSnapshot, LostTaskSnapshot, NodeSnapshot, QueueSnapshot, Snapshot, TaskSnapshot,
    WorkloadSnapshot,
};
use crate::state::workloads::{LostTask, TaskAllocation, WorkloadIdx};

impl Scheduler {
    /// The complete state; input of [`restore`](Self::restore).
    pub fn snapshot(&self) -> Snapshot {
        let mut workloads: Vec<WorkloadIdx> =
            self.workloads.iter().map(|(index, _)| index).collect();
        workloads.sort_unstable_by_key(|workload| self.workloads.get(*workload).serial);
        let blocked_groups = self.pending.groups().filter_map(|(_, group)| {
            let first = group.members.values().next()?;
            Some((self.workloads.get(*first).spec.id.clone(), group.blocked.clone()?))
        });
        let mut blocked_groups: Vec<_> = blocked_groups.collect();
        blocked_groups.sort_by(|a, b| a.0.cmp(&b.0));
        Snapshot {
            now: self.now,
            policy: self.policy.clone(),
            vocabulary: (self.cluster.models.clone(), self.cluster.resources.clone()),
            queues: self.queue_snapshots(),
            nodes: self
                .cluster
                .ordered()
                .into_iter()
                .map(|node| self.node_snapshot(node))
                .collect(),
            workloads: workloads
                .into_iter()
                .map(|workload| self.workload_snapshot(workload))
                .collect(),
            budgets: self.budgets.clone(),
            foreign_demand: self.foreign_demand.facts(),
            cursor: self.cursor.clone(),
            holds: self
                .hold_owners(|_| true)
                .into_iter()
                .filter_map(|workload| self.hold_snapshot(workload))
                .collect(),
            savers: self.saver_names(),
            blocked_groups,
            demand: self.expectation.facts(&self.cluster, &self.scoring),
            timers: self.timers.clone(),
            queued_decisions: self.queued_decisions.clone(),
            retry_blocked: self.retry_blocked,
        }
    }

    /// Past usage of queues and the round-robin cursor: the state that a driver's own records do not contain.
    /// The cost does not depend on the number of workloads.
    pub fn usage_history(&self) -> Snapshot {
        Snapshot {
            now: self.now,
            queues: self.queue_snapshots(),
            cursor: self.cursor.clone(),
            ..Snapshot::default()
        }
    }

    fn queue_snapshots(&self) -> Vec<QueueSnapshot> {
        let mut queues: Vec<_> = self.queues.iter().collect();
        queues.sort_by_key(|(index, queue)| {
            (self.queues.path(*index).count(), queue.spec.id.clone())
        });
        let bits = |account: &Account| account.past.map(f64::to_bits);
        let facts = |(_, queue): (u32, &crate::quota::queues::QueueState)| QueueSnapshot {
            queue: queue.spec.clone(),
            past: [bits(&queue.own), bits(&queue.total)],
            as_of: [queue.own.as_of, queue.total.as_of],
        };
        queues.into_iter().map(facts).collect()
    }

    fn node_snapshot(&self, node: NodeIdx) -> NodeSnapshot {
        let node_state = self.cluster.node_state(node);
        let foreign = node_state.foreign.iter().map(|(id, (uses, claim))| {
            let gpu =
                |part: &DeviceClaim| node_state.spec.gpus[usize::from(part.device)].id.clone();
            let assumed =
                claim.devices.iter().map(gpu).filter(|gpu| !uses.gpus.contains_key(gpu)).collect();
            (id.clone(), (uses.clone(), assumed))
        });
        NodeSnapshot {
            node: (*node_state.spec).clone(),
            lost: node_state.reach == Reachability::Lost,
            cordoned: node_state.cordoned,
            draining: node_state.draining,
            reclaimed: node_state.reclaimed,
            health: node_state.health.clone(),
            utilization: node_state.utilization.clone(),
            foreign: foreign.collect(),
        }
    }

    fn workload_snapshot(&self, index: WorkloadIdx) -> WorkloadSnapshot {
        let entry = self.workloads.get(index);
        let mut workload = (*entry.spec).clone();
        workload.submitted = Some(entry.submitted);
        let allocation = |(task, allocation): (u32, &TaskAllocation)| TaskSnapshot {
            task,
            node: self.cluster.node_state(allocation.node).spec.id.clone(),
            gpus: self.gpu_allocations(allocation.node, &allocation.claim),
            confirmed: allocation.confirmed,
            terminating_since: allocation.terminating_since,
            devices_known: allocation.devices_known,
        };
        let finished = entry.tasks.iter().enumerate().filter(|(_, slot)| slot.finished);
        let lost_task = |(task, lost): (u32, &LostTask)| LostTaskSnapshot {
            task,
            until: lost.until,
            replacement: lost.replacement,
            reported: lost.reported,
        };
        WorkloadSnapshot {
            workload,
            phase: entry.phase,
            placed_at: entry.placed_at,
            tasks: entry.allocations().map(allocation).collect(),
            finished: finished.map(|(task, _)| task as u32).collect(),
            lost: entry.lost().map(lost_task).collect(),
            refusals: entry.refusals,
            not_before: entry.not_before,
            avoid: entry.avoid.map(|node| self.cluster.node_state(node).spec.id.clone()),
            reported_class: entry.reported_class,
        }
    }

    fn hold_snapshot(&self, workload: WorkloadIdx) -> Option<HoldSnapshot> {
        let hold = self.holds.get(workload)?;
        let name = |workload: &WorkloadIdx| self.workloads.get(*workload).spec.id.clone();
        let (victims, until) = match &hold.purpose {
            HoldPurpose::Preemption { victims, until } => {
                (Some(victims.iter().map(name).collect()), Some(*until))
            }
            HoldPurpose::Reservation { start } => (None, *start),
        };
        let allocation = |(node, claim): &(NodeIdx, Claim)| {
            (self.cluster.node_state(*node).spec.id.clone(), self.gpu_allocations(*node, claim))
        };
        Some(HoldSnapshot {
            workload: name(&workload),
            victims,
            until,
            claims: hold.planned.iter().map(allocation).collect(),
        })
    }
}
