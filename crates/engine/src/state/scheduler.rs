//! The scheduler: owner of all state.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::explain::ranking::Rankings;
use crate::hold::foreign_demand::ForeignDemands;
use crate::hold::holds::Holds;
use crate::model::decision::Decision;
use crate::model::name::{BudgetId, GpuId, NodeId};
use crate::model::policy::{Policy, QueueOrder};
use crate::model::request::Request;
use crate::model::units::{Priority, Time};
use crate::pass::index::Indexes;
use crate::quota::charge::Charge;
use crate::quota::queues::Queues;
use crate::state::cluster::Cluster;
use crate::state::cluster::room::Claim;
use crate::state::pending::{GroupKey, Pending, Rank};
use crate::state::terms::{TaskTerms, Terms};
use crate::state::workloads::{
    RoleShape, TaskAllocation, TaskRef, WorkloadEntry, WorkloadIdx, WorkloadPhase, Workloads,
};
use crate::strategy::demand::Expectation;
use crate::strategy::{ScoringData, Strategy};

/// The scheduling state of a cluster. [`apply`](Scheduler::apply) takes events, [`decide`](Scheduler::decide)
/// returns decisions.
///
/// Equal histories give equal decisions on every machine. A clone is independent of the original; what-if
/// questions run on clones.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) policy: Policy,
    pub(crate) now: Time,
    pub(crate) cluster: Cluster,
    pub(crate) indexes: Indexes,
    pub(crate) scoring: ScoringData,
    /// Incremented with each change of the scoring data; invalidates cached scores.
    pub(crate) scoring_version: u64,
    pub(crate) expectation: Expectation,
    pub(crate) workloads: Workloads,
    pub(crate) queues: Queues,
    pub(crate) pending: Pending,
    pub(crate) terms: Terms,
    pub(crate) holds: Holds,
    /// Workloads that save quota.
    pub(crate) savers: BTreeSet<WorkloadIdx>,
    pub(crate) budgets: BTreeMap<BudgetId, u32>,
    pub(crate) foreign_demand: ForeignDemands,
    /// Last GPU of the round robin.
    pub(crate) cursor: Option<RoundRobinCursor>,
    /// Expected ends of placed workloads with an estimate.
    pub(crate) expected_ends: BTreeSet<(Time, u64, WorkloadIdx)>,
    /// Placed workloads that may be preempted.
    pub(crate) preemptible: BTreeSet<WorkloadIdx>,
    /// Placed workloads with lost tasks.
    pub(crate) incomplete: BTreeSet<WorkloadIdx>,
    /// Workloads in backoff, by its end.
    pub(crate) backoffs: BTreeSet<(Time, WorkloadIdx)>,
    /// Times at which blocked groups are tried again.
    pub(crate) timers: BTreeSet<Time>,
    /// Decisions for the next plan.
    pub(crate) queued_decisions: Vec<Decision>,
    pub(crate) rankings: Rankings,
    /// Room or quota was freed since the last pass: blocked groups are tried again.
    pub(crate) retry_blocked: bool,
    pub(crate) serial: u64,
}

/// Position of the round robin in the order of nodes and devices.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RoundRobinCursor {
    pub rank: u32,
    pub node: NodeId,
    pub gpu: Option<GpuId>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}

impl Scheduler {
    pub fn new(policy: Policy) -> Self {
        let mut scheduler = Self {
            policy: Policy::default(),
            now: Time(0),
            cluster: Cluster::default(),
            indexes: Indexes::default(),
            scoring: ScoringData::default(),
            scoring_version: 0,
            expectation: Expectation::default(),
            workloads: Workloads::default(),
            queues: Queues::default(),
            pending: Pending::default(),
            terms: Terms::default(),
            holds: Holds::default(),
            savers: BTreeSet::new(),
            budgets: BTreeMap::new(),
            foreign_demand: ForeignDemands::default(),
            cursor: None,
            expected_ends: BTreeSet::new(),
            preemptible: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            backoffs: BTreeSet::new(),
            timers: BTreeSet::new(),
            queued_decisions: Vec::new(),
            rankings: Rankings::default(),
            retry_blocked: true,
            serial: 0,
        };
        scheduler.set_policy(policy);
        scheduler
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Time of the latest event or pass.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Time is monotonic.
    pub(crate) fn advance(&mut self, to: Time) {
        self.now = self.now.max(to);
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        let reorder = self.policy.order() != policy.order() || self.policy.ageing != policy.ageing;
        self.policy = policy;
        self.expectation.expect_to_stay(self.policy.work_stays);
        self.scoring.goal = self.policy.utilization_goal.map(|goal| goal.get() / 5);
        self.scoring_version += 1;
        let waiting = if reorder || self.pending.global != self.is_global() {
            self.pending.drain(&mut self.queues)
        } else {
            Vec::new()
        };
        self.pending.global = self.is_global();
        for workload in waiting {
            self.enqueue(workload);
        }
        self.retry_blocked = true;
    }

    fn is_global(&self) -> bool {
        self.policy.order() != QueueOrder::FairShare
    }

    pub(crate) fn strategy(&self, workload: &WorkloadEntry) -> Strategy {
        workload.spec.strategy.unwrap_or(self.policy.strategy)
    }

    pub(crate) fn group_key(&self, workload: WorkloadIdx) -> GroupKey {
        let workload = self.workloads.get(workload);
        GroupKey {
            queue: workload.queue,
            shape: workload.shape,
            term_labels: workload.term_labels.clone(),
            tasks: workload.spec.tasks,
            role_shapes: workload.role_shapes.clone(),
            topology: workload.spec.topology.clone(),
            preferred_topology: workload.spec.preferred_topology.clone(),
            strategy: workload.spec.strategy,
            priority: workload.spec.priority,
            may_preempt: workload.spec.may_preempt,
            avoid: workload.avoid,
        }
    }

    /// Sort key within a queue. Ageing makes a priority point equal to a fixed waiting time, so the order of two pending
    /// workloads never changes.
    pub(crate) fn rank(&self, workload: WorkloadIdx) -> Rank {
        let workload = self.workloads.get(workload);
        let age = workload.submitted.0.min(1 << 55) as i64;
        let strict = (workload.spec.priority, workload.spec.precedence);
        let none = (Priority(0), 0);
        let estimate =
            workload.spec.estimate.map_or(i64::MAX / 4, |estimate| estimate.0.min(1 << 44) as i64);
        let (level, amount) = match self.policy.order() {
            QueueOrder::FairShare if self.policy.ageing.is_off() => (strict, age),
            QueueOrder::FairShare => {
                (none, age - self.policy.ageing.time_of(workload.spec.priority.0.into()))
            }
            QueueOrder::Priority => (strict, age),
            QueueOrder::Fifo => (none, age),
            QueueOrder::Shortest => (none, estimate),
            QueueOrder::LeastService => {
                let gpus = |(tasks, request): (u32, &Arc<Request>)| {
                    i64::from(request.gpu_count().max(1)) * i64::from(tasks)
                };
                (none, estimate.saturating_mul(workload.spec.each_role().map(gpus).sum()))
            }
        };
        Rank { level: Reverse(level), amount, serial: workload.serial }
    }

    /// Adds a pending workload to its group.
    pub(crate) fn enqueue(&mut self, workload: WorkloadIdx) {
        self.update_term_labels(workload);
        let (key, rank) = (self.group_key(workload), self.rank(workload));
        let group = self.pending.insert(key, rank, workload, &mut self.queues);
        // A hold blocks the group, but this workload is short enough for backfill.
        if self.ends_before_reserved_start(workload) {
            self.pending.unblock(group, &mut self.queues);
        }
    }

    /// Regroups pending workloads after selectors began or ceased to match on label keys.
    pub(crate) fn regroup_by_labels(&mut self) {
        let keys = self.terms.take_changed_keys();
        if keys.is_empty() {
            return;
        }
        let waiting = self.pending.groups().flat_map(|(_, group)| &group.members);
        let mut waiting: Vec<_> =
            waiting.map(|(rank, workload)| (rank.serial, *workload)).collect();
        waiting.retain(|(_, workload)| {
            let mut roles = self.workloads.get(*workload).spec.each_role();
            roles.any(|(_, request)| keys.iter().any(|key| request.labels.contains_key(key)))
        });
        waiting.sort_unstable();
        for (_, workload) in waiting {
            let (from, rank) = (self.group_key(workload), self.rank(workload));
            self.update_term_labels(workload);
            let to = self.group_key(workload);
            self.pending.move_member(&from, to, rank, workload, &mut self.queues);
        }
    }

    /// Stores the labels of a workload that any selector uses.
    fn update_term_labels(&mut self, workload: WorkloadIdx) {
        let spec = self.workloads.get(workload).spec.clone();
        let workload = self.workloads.get_mut(workload);
        workload.term_labels = self.terms.selected_labels(&spec.request.labels);
        if let Some(more) = &mut workload.role_shapes {
            let parts = more.iter().zip(&spec.roles).map(|(part, role)| RoleShape {
                term_labels: self.terms.selected_labels(&role.request.labels),
                ..part.clone()
            });
            *more = parts.collect();
        }
    }

    pub(crate) fn dequeue(&mut self, workload: WorkloadIdx) {
        self.stop_saving(workload);
        let (key, rank) = (self.group_key(workload), self.rank(workload));
        self.pending.remove(&key, rank, &mut self.queues);
    }

    /// Books a task on a node.
    pub(crate) fn book_task(&mut self, workload: WorkloadIdx, task: u32, node: u32, claim: Claim) {
        let spec = self.workloads.get(workload).spec.clone();
        let queue = self.workloads.get(workload).queue;
        self.cluster.book(node, &claim);
        self.cluster.node_state_mut(node).tasks.push(TaskRef { workload, task });
        self.terms.count_task(node, TaskTerms::of(spec.request_of(task), false), 1);
        self.queues.charge(queue, &Charge::of(&claim), 1, self.now, self.policy.half_life);
        let known = self.cluster.node_state(node).spec.device_selection
            == crate::model::node::DeviceSelection::Engine;
        let allocation = TaskAllocation {
            node,
            claim,
            confirmed: false,
            terminating_since: None,
            devices_known: known,
        };
        self.workloads.get_mut(workload).tasks[task as usize].allocation = Some(allocation);
    }

    /// Releases a task's resources; returns its node.
    pub(crate) fn release_task(&mut self, workload: WorkloadIdx, task: u32) -> Option<u32> {
        let allocation = self.workloads.get_mut(workload).tasks[task as usize].allocation.take()?;
        let spec = self.workloads.get(workload).spec.clone();
        let queue = self.workloads.get(workload).queue;
        self.cluster.release(allocation.node, &allocation.claim);
        let node_state = self.cluster.node_state_mut(allocation.node);
        if let Some(at) = node_state.tasks.iter().position(|on| *on == TaskRef { workload, task }) {
            node_state.tasks.swap_remove(at);
        }
        self.terms.count_task(
            allocation.node,
            TaskTerms::of(spec.request_of(task), allocation.terminating_since.is_some()),
            -1,
        );
        self.queues.charge(
            queue,
            &Charge::of(&allocation.claim),
            -1,
            self.now,
            self.policy.half_life,
        );
        self.room_freed(allocation.node);
        Some(allocation.node)
    }

    /// Marks a task as terminating; it keeps its resources until it stops.
    pub(crate) fn mark_terminating(&mut self, workload: WorkloadIdx, task: u32) {
        let spec = self.workloads.get(workload).spec.clone();
        let allocation = self.workloads.get_mut(workload).tasks[task as usize].allocation.as_mut();
        let Some(allocation) =
            allocation.filter(|allocation| allocation.terminating_since.is_none())
        else {
            return;
        };
        allocation.terminating_since = Some(self.now);
        let labels = &spec.request_of(task).labels;
        self.terms.mark_terminating(allocation.node, labels);
        // Blocked groups may have had too many such tasks nearby.
        self.retry_blocked |= self.terms.is_selected(labels);
    }

    /// Freed room refills the holds of the node before other workloads can use it.
    pub(crate) fn room_freed(&mut self, node: u32) {
        if self.cluster.room(node).overcommitted() {
            self.reassign_assumed_devices(node);
        }
        if !self.cluster.room(node).overcommitted() {
            self.cluster.node_state_mut(node).overcommitted_externally = false;
        }
        self.refill_holds(node);
    }

    pub(crate) fn mark_placed(&mut self, index: WorkloadIdx) {
        let now = self.now;
        let workload = self.workloads.get_mut(index);
        workload.phase = WorkloadPhase::Placed;
        workload.placed_at = now;
        workload.reported_class = None;
        let preemptible = workload.spec.preemptible;
        if let Some(end) = workload.end() {
            let serial = workload.serial;
            self.expected_ends.insert((end, serial, index));
        }
        if preemptible {
            self.preemptible.insert(index);
        }
    }

    /// Removes a workload from the placed ones, before it stops or ends.
    pub(crate) fn unmark_placed(&mut self, index: WorkloadIdx) {
        let workload = self.workloads.get(index);
        if let Some(end) = workload.end() {
            self.expected_ends.remove(&(end, workload.serial, index));
        }
        self.preemptible.remove(&index);
        self.incomplete.remove(&index);
    }
}
