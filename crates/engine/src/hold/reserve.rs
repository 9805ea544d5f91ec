//! When and where the blocked head of the queue will be able to start.
//!
//! Walks forward through the expected ends of running work and frees what they hold in copies of
//! the nodes, until the head fits. What it would take is then held; smaller work may use it only if
//! it is expected to be gone by then.

use std::collections::BTreeMap;

use crate::model::request::Request;
use crate::model::units::Time;
use crate::model::workload::{Topology, Workload};
use crate::quota::charge::Charge;
use crate::state::cluster::fit::{self, Standing};
use crate::state::cluster::room::{Claim, ModelIdx, Room};
use crate::state::cluster::shape::{Ask, ShapeIdx};
use crate::state::cluster::{NodeIdx, pick};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{JobIdx, State};
use crate::strategy::{Strategy, View};

/// Ends looked at before giving up: enough for any schedule that a person would believe.
pub(crate) const MOST_STEPS: usize = 20_000;

/// A start and the places for it.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// Unknown when running work says nothing about its end.
    pub(crate) at: Option<Time>,
    pub(crate) seats: Vec<(NodeIdx, Claim)>,
}

/// Nodes as they will be, and how many tasks each could take.
struct Future<'a> {
    scheduler: &'a Scheduler,
    shape: ShapeIdx,
    tasks: u32,
    /// By node number: the domain it counts for; none when the task may not go there.
    domain: Vec<Option<u32>>,
    rooms: BTreeMap<NodeIdx, Room>,
    copies: BTreeMap<NodeIdx, u32>,
    totals: BTreeMap<u32, u32>,
}

impl Scheduler {
    /// When and where a waiting workload could start if nothing else came.
    pub(crate) fn foresee(&mut self, job: JobIdx) -> Option<Start> {
        if self.jobs.get(job).more.is_some() {
            return self.foresee_together(job);
        }
        let (shape, tasks) = (self.affordable_shape(job), self.jobs.get(job).spec.tasks);
        let strategy = self.strategy(self.jobs.get(job));
        let young = self.now.since(self.jobs.get(job).submitted) < self.policy.patience;
        if tasks == 1 && young && self.ends.is_empty() && self.holds.len() == 0 {
            // No end is known and none is guessed yet: there is nothing to look forward to.
            return None;
        }
        let spec = self.jobs.get(job).spec.clone();
        let domain = self.domains_open_to(&spec, &spec.request, shape, strategy);
        let this: &Self = self;
        let mut future = Future {
            scheduler: this,
            shape,
            tasks,
            domain,
            rooms: BTreeMap::new(),
            copies: BTreeMap::new(),
            totals: BTreeMap::new(),
        };
        future.look_at_now();
        let stopping = this.jobs.iter().filter(|(_, other)| other.state == State::Stopping);
        let stopping: Vec<JobIdx> = if this.holds.len() > 0 {
            stopping.map(|(index, _)| index).collect()
        } else {
            Vec::new()
        };
        for other in stopping {
            future.free(other);
        }
        if let Some(domain) = future.enough() {
            // It starts when what is being stopped is gone, and nobody knows when that is.
            return Some(Start { at: None, seats: future.seats(domain, strategy) });
        }
        for (end, _, other) in this.ends.iter().take(MOST_STEPS) {
            future.free(*other);
            if let Some(domain) = future.enough() {
                // An overdue end may come at any moment: that is no time to wait for.
                let at = Some(*end).filter(|end| *end > this.now);
                return Some(Start { at, seats: future.seats(domain, strategy) });
            }
        }
        this.foresee_unknown(job, future, strategy)
    }

    /// The workload's shape without the models that its queue could not pay for.
    pub(crate) fn affordable_shape(&mut self, job: JobIdx) -> ShapeIdx {
        let (job, shape) = (self.jobs.get(job), self.jobs.get(job).shape);
        if !self.queues.have_limits() {
            return shape;
        }
        let milli = match self.cluster.shape(shape).ask {
            Ask::None => return shape,
            Ask::Whole(count) => i64::from(count) * 1000,
            Ask::Share(milli) => i64::from(milli),
            Ask::Memory(_) | Ask::Mig(..) => 1,
        };
        let charge = |model: ModelIdx| {
            let mut charge = Charge::default();
            charge.models.push((model, milli * i64::from(job.spec.tasks)));
            charge
        };
        let models = 0..self.cluster.models.len() as ModelIdx;
        let closed: Vec<ModelIdx> = models
            .filter(|model| self.queues.excess(&self.cluster, job.queue, &charge(*model)).is_some())
            .collect();
        let request = self.cluster.shape(shape).key.request.clone();
        if closed.is_empty() { shape } else { self.cluster.intern(&request, closed) }
    }

    /// Nothing is known about the end of what is in the way. After some patience, room is kept
    /// anyway, where the oldest work is: otherwise a stream of small work could pass for ever.
    fn foresee_unknown(
        &self,
        job: JobIdx,
        mut future: Future<'_>,
        strategy: Strategy,
    ) -> Option<Start> {
        if self.now.since(self.jobs.get(job).submitted) < self.policy.patience {
            return None;
        }
        let placed = self
            .jobs
            .iter()
            .filter(|(_, other)| other.state == State::Placed && other.end().is_none());
        let mut unknown: Vec<_> =
            placed.map(|(index, other)| (other.placed_at, other.serial, index)).collect();
        unknown.sort_unstable();
        for (_, _, other) in unknown.into_iter().take(MOST_STEPS) {
            future.free(other);
            if let Some(domain) = future.enough() {
                return Some(Start { at: None, seats: future.seats(domain, strategy) });
            }
        }
        None
    }

    /// By node number, the domain that it counts for, or none where tasks of this request may not go.
    pub(crate) fn domains_open_to(
        &mut self,
        spec: &Workload,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
    ) -> Vec<Option<u32>> {
        let topology = spec.topology.as_ref().filter(|_| spec.task_count() > 1);
        let judgement =
            (!self.terms.ignore(request)).then(|| self.judge(request, shape, strategy, &[]));
        let mut domain = match topology {
            Some(Topology::Same(key)) => self.cluster.domains(key).of.clone(),
            Some(Topology::Spread(key)) => {
                self.cluster.domains(key).of.iter().map(|domain| domain.map(|_| 0)).collect()
            }
            None => vec![Some(0); self.cluster.hosts.len()],
        };
        let outlook = (&self.outlook, self.outlook_version);
        let mut index = self.indexes.get(&self.cluster, outlook, shape, strategy);
        let mut allowed = vec![false; domain.len()];
        for (place, node) in self.cluster.order.iter().enumerate() {
            let barred =
                judgement.as_ref().is_some_and(|j| j.verdicts[*node as usize].lack.is_some());
            let stands = matches!(index.standing(place), Standing::Yes(_));
            allowed[*node as usize] = stands && !barred && self.cluster.room(*node).open;
        }
        for (domain, allowed) in domain.iter_mut().zip(allowed) {
            *domain = domain.filter(|_| allowed);
        }
        domain
    }
}

impl Future<'_> {
    /// Counts what fits now; only a gang can find anything.
    fn look_at_now(&mut self) {
        if self.tasks == 1 {
            return;
        }
        let cluster = &self.scheduler.cluster;
        for node in &cluster.order {
            if let Some(domain) = self.domain[*node as usize] {
                let copies =
                    fit::copies(cluster.shape(self.shape), cluster.room(*node), self.tasks);
                if copies > 0 {
                    self.copies.insert(*node, copies);
                    *self.totals.entry(domain).or_default() += copies;
                }
            }
        }
    }

    /// Frees what a workload holds.
    fn free(&mut self, job: JobIdx) {
        let cluster = &self.scheduler.cluster;
        for (_, seat) in self.scheduler.jobs.get(job).seats() {
            let Some(domain) = self.domain[seat.node as usize] else { continue };
            let room =
                self.rooms.entry(seat.node).or_insert_with(|| cluster.room(seat.node).clone());
            room.release(&seat.claim);
            let copies = fit::copies(cluster.shape(self.shape), room, self.tasks);
            let before = self.copies.insert(seat.node, copies).unwrap_or(0);
            let total = self.totals.entry(domain).or_default();
            *total = *total + copies - before;
        }
    }

    /// A domain with room for all tasks.
    fn enough(&self) -> Option<u32> {
        self.totals.iter().find(|(_, total)| **total >= self.tasks).map(|(domain, _)| *domain)
    }

    /// Places for all tasks in a domain, on as few nodes as possible.
    fn seats(&mut self, domain: u32, strategy: Strategy) -> Vec<(NodeIdx, Claim)> {
        let cluster = &self.scheduler.cluster;
        let here =
            self.copies.iter().filter(|(node, _)| self.domain[**node as usize] == Some(domain));
        let mut nodes: Vec<(std::cmp::Reverse<u32>, u32, NodeIdx)> = here
            .map(|(node, copies)| {
                (std::cmp::Reverse(*copies), cluster.place[*node as usize], *node)
            })
            .collect();
        nodes.sort_unstable();
        let mut seats = Vec::new();
        for (std::cmp::Reverse(copies), _, node) in nodes {
            let room = self.rooms.entry(node).or_insert_with(|| cluster.room(node).clone());
            for _ in 0..copies.min(self.tasks - seats.len() as u32) {
                let view = View {
                    room,
                    shape: cluster.shape(self.shape),
                    outlook: &self.scheduler.outlook,
                };
                let Some(claim) = pick::claim(strategy, &view, None) else { break };
                room.book(&claim);
                seats.push((node, claim));
            }
        }
        seats
    }
}
