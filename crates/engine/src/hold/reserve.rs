//! Earliest start of the blocked head.
//!
//! Steps through the expected ends of running workloads and releases their claims on copies of the nodes
//! until the head fits. Its claims are then held; other workloads may use that room only if they end before
//! the head starts.

use std::collections::BTreeMap;

use crate::model::request::Request;
use crate::model::units::Time;
use crate::model::workload::{Topology, Workload};
use crate::quota::charge::Charge;
use crate::state::cluster::capacity;
use crate::state::cluster::fit::Eligibility;
use crate::state::cluster::room::{Claim, ModelIdx, Room};
use crate::state::cluster::shape::{GpuNeed, ShapeIdx};
use crate::state::cluster::{NodeIdx, choose_devices};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};
use crate::strategy::{Strategy, View};

/// Limit of expected ends examined.
pub(crate) const MAX_STEPS: usize = 20_000;

/// Start time and claims of a future start.
#[derive(Clone, Debug)]
pub(crate) struct PlannedStart {
    /// `None` when the running workloads have no estimates.
    pub(crate) at: Option<Time>,
    pub(crate) claims: Vec<(NodeIdx, Claim)>,
}

/// Rooms after future ends, and the number of tasks that fit on each node.
struct ClusterForecast<'a> {
    scheduler: &'a Scheduler,
    shape: ShapeIdx,
    tasks: u32,
    /// Topology domain by node index; `None` excludes the node.
    domain: Vec<Option<u32>>,
    rooms: BTreeMap<NodeIdx, Room>,
    copies: BTreeMap<NodeIdx, u32>,
    totals: BTreeMap<u32, u32>,
}

impl Scheduler {
    /// Earliest start of a pending workload if no other workload arrives.
    pub(crate) fn plan_start(&mut self, workload: WorkloadIdx) -> Option<PlannedStart> {
        if self.workloads.get(workload).role_shapes.is_some() {
            return self.plan_gang_start(workload);
        }
        let (shape, tasks) =
            (self.affordable_shape(workload), self.workloads.get(workload).spec.tasks);
        let strategy = self.strategy(self.workloads.get(workload));
        let young = self.now.since(self.workloads.get(workload).submitted) < self.policy.patience;
        if tasks == 1 && young && self.expected_ends.is_empty() && self.holds.len() == 0 {
            // No workload has an estimate and the patience has not passed.
            return None;
        }
        let spec = self.workloads.get(workload).spec.clone();
        let domain = self.eligible_domains(&spec, &spec.request, shape, strategy);
        let this: &Self = self;
        let mut forecast = ClusterForecast {
            scheduler: this,
            shape,
            tasks,
            domain,
            rooms: BTreeMap::new(),
            copies: BTreeMap::new(),
            totals: BTreeMap::new(),
        };
        forecast.load_current_rooms();
        let stopping =
            this.workloads.iter().filter(|(_, other)| other.phase == WorkloadPhase::Stopping);
        let stopping: Vec<WorkloadIdx> = if this.holds.len() > 0 {
            stopping.map(|(index, _)| index).collect()
        } else {
            Vec::new()
        };
        for other in stopping {
            forecast.release_workload(other);
        }
        if let Some(domain) = forecast.domain_with_room() {
            // The end of terminating tasks has no known time.
            return Some(PlannedStart { at: None, claims: forecast.claims(domain, strategy) });
        }
        for (end, _, other) in this.expected_ends.iter().take(MAX_STEPS) {
            forecast.release_workload(*other);
            if let Some(domain) = forecast.domain_with_room() {
                // An overdue workload may end at any time, so its end gives no start time.
                let at = Some(*end).filter(|end| *end > this.now);
                return Some(PlannedStart { at, claims: forecast.claims(domain, strategy) });
            }
        }
        this.plan_start_without_estimates(workload, forecast, strategy)
    }

    /// The workload's shape without the models that exceed its queue's quota.
    pub(crate) fn affordable_shape(&mut self, workload: WorkloadIdx) -> ShapeIdx {
        let (workload, shape) = (self.workloads.get(workload), self.workloads.get(workload).shape);
        if !self.queues.have_limits() {
            return shape;
        }
        let milli = match self.cluster.shape(shape).gpu_need {
            GpuNeed::None => return shape,
            GpuNeed::Whole(count) => i64::from(count) * 1000,
            GpuNeed::Share(milli) => i64::from(milli),
            GpuNeed::Memory(_) | GpuNeed::Mig(..) => 1,
        };
        let charge = |model: ModelIdx| {
            let mut charge = Charge::default();
            charge.models.push((model, milli * i64::from(workload.spec.tasks)));
            charge
        };
        let models = 0..self.cluster.models.len() as ModelIdx;
        let closed: Vec<ModelIdx> = models
            .filter(|model| {
                self.queues.excess(&self.cluster, workload.queue, &charge(*model)).is_some()
            })
            .collect();
        let request = self.cluster.shape(shape).key.request.clone();
        if closed.is_empty() { shape } else { self.cluster.intern(&request, closed) }
    }

    /// Start without estimates: after the policy's patience, frees the oldest workloads first. Without this
    /// reservation a stream of small workloads could delay the head forever.
    fn plan_start_without_estimates(
        &self,
        workload: WorkloadIdx,
        mut forecast: ClusterForecast<'_>,
        strategy: Strategy,
    ) -> Option<PlannedStart> {
        if self.now.since(self.workloads.get(workload).submitted) < self.policy.patience {
            return None;
        }
        let placed = self
            .workloads
            .iter()
            .filter(|(_, other)| other.phase == WorkloadPhase::Placed && other.end().is_none());
        let mut unknown: Vec<_> =
            placed.map(|(index, other)| (other.placed_at, other.serial, index)).collect();
        unknown.sort_unstable();
        for (_, _, other) in unknown.into_iter().take(MAX_STEPS) {
            forecast.release_workload(other);
            if let Some(domain) = forecast.domain_with_room() {
                return Some(PlannedStart { at: None, claims: forecast.claims(domain, strategy) });
            }
        }
        None
    }

    /// Topology domain by node index; `None` where the request may not run.
    pub(crate) fn eligible_domains(
        &mut self,
        spec: &Workload,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Vec<Option<u32>> {
        let topology = spec.topology.as_ref().filter(|_| spec.task_count() > 1);
        let judgement = (!self.terms.are_irrelevant_to(request))
            .then(|| self.judge(request, shape, strategy, &[]));
        let mut domain = match topology {
            Some(Topology::Same(key)) => self.cluster.domains(key).of.clone(),
            Some(Topology::Spread(key)) => {
                self.cluster.domains(key).of.iter().map(|domain| domain.map(|_| 0)).collect()
            }
            None => vec![Some(0); self.cluster.node_states.len()],
        };
        let scoring = (&self.scoring, self.scoring_version);
        let mut index = self.indexes.get(&self.cluster, scoring, shape, strategy);
        let mut allowed = vec![false; domain.len()];
        for (place, node) in self.cluster.order.iter().enumerate() {
            let barred =
                judgement.as_ref().is_some_and(|j| j.verdicts[*node as usize].shortfall.is_some());
            let stands = matches!(index.eligibility(place), Eligibility::Eligible(_));
            allowed[*node as usize] = stands && !barred && self.cluster.room(*node).open;
        }
        for (domain, allowed) in domain.iter_mut().zip(allowed) {
            *domain = domain.filter(|_| allowed);
        }
        domain
    }
}

impl ClusterForecast<'_> {
    fn load_current_rooms(&mut self) {
        if self.tasks == 1 {
            return;
        }
        let cluster = &self.scheduler.cluster;
        for node in &cluster.order {
            if let Some(domain) = self.domain[*node as usize] {
                let copies = capacity::task_capacity(
                    cluster.shape(self.shape),
                    cluster.room(*node),
                    self.tasks,
                );
                if copies > 0 {
                    self.copies.insert(*node, copies);
                    *self.totals.entry(domain).or_default() += copies;
                }
            }
        }
    }

    fn release_workload(&mut self, workload: WorkloadIdx) {
        let cluster = &self.scheduler.cluster;
        for (_, allocation) in self.scheduler.workloads.get(workload).allocations() {
            let Some(domain) = self.domain[allocation.node as usize] else { continue };
            let room = self
                .rooms
                .entry(allocation.node)
                .or_insert_with(|| cluster.room(allocation.node).clone());
            room.release(&allocation.claim);
            let copies = capacity::task_capacity(cluster.shape(self.shape), room, self.tasks);
            let before = self.copies.insert(allocation.node, copies).unwrap_or(0);
            let total = self.totals.entry(domain).or_default();
            *total = *total + copies - before;
        }
    }

    /// A domain with room for all tasks.
    fn domain_with_room(&self) -> Option<u32> {
        self.totals.iter().find(|(_, total)| **total >= self.tasks).map(|(domain, _)| *domain)
    }

    /// Claims for all tasks in a domain, on as few nodes as possible.
    fn claims(&mut self, domain: u32, strategy: Strategy) -> Vec<(NodeIdx, Claim)> {
        let cluster = &self.scheduler.cluster;
        let here =
            self.copies.iter().filter(|(node, _)| self.domain[**node as usize] == Some(domain));
        let mut nodes: Vec<(std::cmp::Reverse<u32>, u32, NodeIdx)> = here
            .map(|(node, copies)| {
                (std::cmp::Reverse(*copies), cluster.place[*node as usize], *node)
            })
            .collect();
        nodes.sort_unstable();
        let mut claims = Vec::new();
        for (std::cmp::Reverse(copies), _, node) in nodes {
            let room = self.rooms.entry(node).or_insert_with(|| cluster.room(node).clone());
            for _ in 0..copies.min(self.tasks - claims.len() as u32) {
                let view = View {
                    room,
                    shape: cluster.shape(self.shape),
                    scoring: &self.scheduler.scoring,
                };
                let Some(claim) = choose_devices::choose_devices(strategy, &view, None) else {
                    break;
                };
                room.book(&claim);
                claims.push((node, claim));
            }
        }
        claims
    }
}
