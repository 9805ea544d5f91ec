//! The scheduler: all state in one place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::explain::ranking::Rankings;
use crate::hold::holds::Holds;
use crate::model::decision::Decision;
use crate::model::name::{BudgetId, GpuId, NodeId};
use crate::model::policy::{Policy, QueueOrder};
use crate::model::request::Request;
use crate::model::units::Time;
use crate::pass::index::Indexes;
use crate::quota::charge::Charge;
use crate::quota::queues::Queues;
use crate::state::cluster::Cluster;
use crate::state::cluster::room::Claim;
use crate::state::pending::{GroupKey, Pending, Rank};
use crate::state::terms::{Subject, Terms};
use crate::state::workloads::{Job, JobIdx, Jobs, RoleShape, Seat, State, TaskRef};
use crate::strategy::demand::Expectation;
use crate::strategy::{Outlook, Strategy};

/// Owns the whole state of a cluster's scheduling: tell it what happens with
/// [`apply`](Scheduler::apply), ask what to do with [`decide`](Scheduler::decide).
///
/// Equal histories give equal decisions, on every machine. Copies are independent: that is how
/// what-if questions are answered.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) policy: Policy,
    pub(crate) now: Time,
    pub(crate) cluster: Cluster,
    pub(crate) indexes: Indexes,
    pub(crate) outlook: Outlook,
    /// Counts changes of the outlook.
    pub(crate) outlook_version: u64,
    pub(crate) expectation: Expectation,
    pub(crate) jobs: Jobs,
    pub(crate) queues: Queues,
    pub(crate) pending: Pending,
    pub(crate) terms: Terms,
    pub(crate) holds: Holds,
    /// Those who wait for quota that is kept for them.
    pub(crate) savers: BTreeSet<JobIdx>,
    pub(crate) budgets: BTreeMap<BudgetId, u32>,
    /// The last GPU that round robin gave out.
    pub(crate) cursor: Option<RoundRobinCursor>,
    /// Expected ends of placed workloads.
    pub(crate) ends: BTreeSet<(Time, u64, JobIdx)>,
    /// Placed workloads that may be stopped for others.
    pub(crate) stoppable: BTreeSet<JobIdx>,
    /// Refused workloads and when to try them again.
    pub(crate) backoffs: BTreeSet<(Time, JobIdx)>,
    /// Times at which something that failed may work.
    pub(crate) timers: BTreeSet<Time>,
    /// To be said with the next plan.
    pub(crate) notices: Vec<Decision>,
    /// How nodes stood for what was placed, if somebody wants to know.
    pub(crate) rankings: Rankings,
    /// Something got better since the last pass: set-aside groups are worth another try.
    pub(crate) improved: bool,
    pub(crate) serial: u64,
}

/// A place in the order of nodes and devices.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RoundRobinCursor {
    /// The node's rank.
    pub rank: u32,
    /// The node.
    pub node: NodeId,
    /// The GPU.
    pub gpu: Option<GpuId>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(Policy::default())
    }
}

impl Scheduler {
    /// An empty cluster.
    pub fn new(policy: Policy) -> Self {
        let mut scheduler = Self {
            policy: Policy::default(),
            now: Time(0),
            cluster: Cluster::default(),
            indexes: Indexes::default(),
            outlook: Outlook::default(),
            outlook_version: 0,
            expectation: Expectation::default(),
            jobs: Jobs::default(),
            queues: Queues::default(),
            pending: Pending::default(),
            terms: Terms::default(),
            holds: Holds::default(),
            savers: BTreeSet::new(),
            budgets: BTreeMap::new(),
            cursor: None,
            ends: BTreeSet::new(),
            stoppable: BTreeSet::new(),
            backoffs: BTreeSet::new(),
            timers: BTreeSet::new(),
            notices: Vec::new(),
            rankings: Rankings::default(),
            improved: true,
            serial: 0,
        };
        scheduler.set_policy(policy);
        scheduler
    }

    /// The settings in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The latest time that was heard of.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Time never runs backwards inside.
    pub(crate) fn advance(&mut self, to: Time) {
        self.now = self.now.max(to);
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        let reorder = self.policy.order() != policy.order() || self.policy.ageing != policy.ageing;
        self.policy = policy;
        self.expectation.expect_to_stay(self.policy.work_stays);
        self.outlook.goal = self.policy.utilization_goal.map(|goal| goal.get() / 5);
        self.outlook_version += 1;
        let waiting = if reorder || self.pending.global != self.is_global() {
            self.pending.drain(&mut self.queues)
        } else {
            Vec::new()
        };
        self.pending.global = self.is_global();
        for job in waiting {
            self.enqueue(job);
        }
        self.improved = true;
    }

    fn is_global(&self) -> bool {
        self.policy.order() != QueueOrder::FairShare
    }

    /// The strategy that chooses GPUs for this workload.
    pub(crate) fn strategy(&self, job: &Job) -> Strategy {
        job.spec.strategy.unwrap_or(self.policy.strategy)
    }

    pub(crate) fn group_key(&self, job: JobIdx) -> GroupKey {
        let job = self.jobs.get(job);
        GroupKey {
            queue: job.queue,
            shape: job.shape,
            facet: job.facet.clone(),
            tasks: job.spec.tasks,
            more: job.more.clone(),
            topology: job.spec.topology.clone(),
            strategy: job.spec.strategy,
            priority: job.spec.priority,
            may_preempt: job.spec.may_preempt,
            avoid: job.avoid,
        }
    }

    /// The workload's place in the order of its queue. With ageing a level of priority is worth a
    /// fixed span of waiting, so the order of two workloads does not change while they wait.
    pub(crate) fn rank(&self, job: JobIdx) -> Rank {
        let job = self.jobs.get(job);
        let age = job.submitted.0.min(1 << 55) as i64;
        let priority = i64::from(job.spec.priority);
        let estimate =
            job.spec.estimate.map_or(i64::MAX / 4, |estimate| estimate.0.min(1 << 44) as i64);
        let rank = match self.policy.order() {
            QueueOrder::FairShare => age - priority * self.policy.ageing.0.min(1 << 44) as i64,
            QueueOrder::Priority => age - (priority << 56),
            QueueOrder::Fifo => age,
            QueueOrder::Shortest => estimate,
            QueueOrder::LeastService => {
                let gpus = |(tasks, request): (u32, &Arc<Request>)| {
                    i64::from(request.gpu_count().max(1)) * i64::from(tasks)
                };
                estimate.saturating_mul(job.spec.each_role().map(gpus).sum())
            }
        };
        (rank, job.serial)
    }

    /// Puts a waiting workload into its group.
    pub(crate) fn enqueue(&mut self, job: JobIdx) {
        self.look_at_labels(job);
        let (key, rank) = (self.group_key(job), self.rank(job));
        let group = self.pending.insert(key, rank, job, &mut self.queues);
        // Equal work waits because of a hold, but this one is short enough to use it.
        if self.is_gone_in_time(job) {
            self.pending.unblock(group, &mut self.queues);
        }
    }

    /// Somebody asks about labels that nobody asked about before, or nobody does any more: what waits
    /// and has them is grouped anew.
    pub(crate) fn regroup(&mut self) {
        let keys = self.terms.take_changed_keys();
        if keys.is_empty() {
            return;
        }
        let waiting = self.pending.groups().flat_map(|(_, group)| &group.members);
        let mut waiting: Vec<_> = waiting.map(|((_, serial), job)| (*serial, *job)).collect();
        waiting.retain(|(_, job)| {
            let mut roles = self.jobs.get(*job).spec.each_role();
            roles.any(|(_, request)| keys.iter().any(|key| request.labels.contains_key(key)))
        });
        waiting.sort_unstable();
        for (_, job) in waiting {
            let (from, rank) = (self.group_key(job), self.rank(job));
            self.look_at_labels(job);
            let to = self.group_key(job);
            self.pending.regroup(&from, to, rank, job, &mut self.queues);
        }
    }

    /// Notes which of its labels somebody asks about.
    fn look_at_labels(&mut self, job: JobIdx) {
        let spec = self.jobs.get(job).spec.clone();
        let job = self.jobs.get_mut(job);
        job.facet = self.terms.facet(&spec.request.labels);
        if let Some(more) = &mut job.more {
            let parts = more.iter().zip(&spec.roles).map(|(part, role)| RoleShape {
                facet: self.terms.facet(&role.request.labels),
                ..part.clone()
            });
            *more = parts.collect();
        }
    }

    pub(crate) fn dequeue(&mut self, job: JobIdx) {
        self.forget_savings(job);
        let (key, rank) = (self.group_key(job), self.rank(job));
        self.pending.remove(&key, rank, &mut self.queues);
    }

    /// Books a task on a node for a workload.
    pub(crate) fn seat(&mut self, job: JobIdx, task: u32, node: u32, claim: Claim) {
        let spec = self.jobs.get(job).spec.clone();
        let queue = self.jobs.get(job).queue;
        self.cluster.book(node, &claim);
        self.cluster.host_mut(node).tasks.push(TaskRef { job, task });
        self.terms.moved(node, Subject::of(spec.request_of(task), false), 1);
        self.queues.charge(queue, &Charge::of(&claim), 1, self.now, self.policy.half_life);
        let known = self.cluster.host(node).spec.device_selection
            == crate::model::node::DeviceSelection::Engine;
        let seat = Seat { node, claim, confirmed: false, leaving: None, known };
        self.jobs.get_mut(job).tasks[task as usize].seat = Some(seat);
    }

    /// Frees what a task has; returns its node.
    pub(crate) fn unseat(&mut self, job: JobIdx, task: u32) -> Option<u32> {
        let seat = self.jobs.get_mut(job).tasks[task as usize].seat.take()?;
        let spec = self.jobs.get(job).spec.clone();
        let queue = self.jobs.get(job).queue;
        self.cluster.release(seat.node, &seat.claim);
        let host = self.cluster.host_mut(seat.node);
        if let Some(at) = host.tasks.iter().position(|on| *on == TaskRef { job, task }) {
            host.tasks.swap_remove(at);
        }
        self.terms.moved(seat.node, Subject::of(spec.request_of(task), seat.leaving.is_some()), -1);
        self.queues.charge(queue, &Charge::of(&seat.claim), -1, self.now, self.policy.half_life);
        self.settle(seat.node);
        Some(seat.node)
    }

    /// A task is being stopped; it holds what it has until it is gone.
    pub(crate) fn begin_to_stop(&mut self, job: JobIdx, task: u32) {
        let spec = self.jobs.get(job).spec.clone();
        let seat = self.jobs.get_mut(job).tasks[task as usize].seat.as_mut();
        let Some(seat) = seat.filter(|seat| seat.leaving.is_none()) else { return };
        seat.leaving = Some(self.now);
        let labels = &spec.request_of(task).labels;
        self.terms.begins_to_go(seat.node, labels);
        // Somebody may have too many such tasks around.
        self.improved |= self.terms.ask_about(labels);
    }

    /// A node got room: holds on it take their part before anybody else can.
    pub(crate) fn settle(&mut self, node: u32) {
        if self.cluster.room(node).overcommitted() {
            self.spread_assumed(node);
        }
        if !self.cluster.room(node).overcommitted() {
            self.cluster.host_mut(node).disturbed = false;
        }
        self.top_up(node);
    }

    /// Marks a workload as placed now.
    pub(crate) fn mark_placed(&mut self, index: JobIdx) {
        let now = self.now;
        let job = self.jobs.get_mut(index);
        job.state = State::Placed;
        job.placed_at = now;
        job.told = None;
        let preemptible = job.spec.preemptible;
        if let Some(end) = job.end() {
            let serial = job.serial;
            self.ends.insert((end, serial, index));
        }
        if preemptible {
            self.stoppable.insert(index);
        }
    }

    /// The opposite: it is no longer running, or about to be stopped.
    pub(crate) fn unmark_placed(&mut self, index: JobIdx) {
        let job = self.jobs.get(index);
        if let Some(end) = job.end() {
            self.ends.remove(&(end, job.serial, index));
        }
        self.stoppable.remove(&index);
    }
}
