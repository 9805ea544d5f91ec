//! Reasons: what stands in the way of a workload, and whether it would ever fit.

use std::collections::BTreeMap;

use crate::hold::holds::Purpose;
use crate::model::wait::{QuotaResource, WaitReason};
use crate::model::workload::Topology;
use crate::pass::place::Obstacle;
use crate::quota::charge::{Charge, Excess};
use crate::quota::queues::GPU;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::fit::{self, Standing};
use crate::state::cluster::room::{ModelIdx, Room};
use crate::state::cluster::shape::{Shape, ShapeIdx};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::JobIdx;

impl Scheduler {
    /// The reason behind an obstacle.
    pub(crate) fn reason(&mut self, job: JobIdx, obstacle: &Obstacle) -> WaitReason {
        if self.cluster.len() == 0 {
            return WaitReason::NoNodes;
        }
        if let Obstacle::Quota(excess) = obstacle {
            return self.quota_reason(excess);
        }
        let strategy = self.strategy(self.jobs.get(job));
        let ever = self.ever_fits(job);
        if !ever && !matches!(obstacle, Obstacle::Gang { .. }) {
            return WaitReason::NeverFits(self.tally_when_empty(self.jobs.get(job).shape));
        }
        let task = if let Obstacle::Gang { task, .. } = obstacle { *task } else { 0 };
        let (shape, beyond) = self.shape_within_quota(job, task);
        if let Some(excess) = beyond.filter(|_| !self.stands_anywhere(shape)) {
            return self.quota_reason(&excess);
        }
        let spec = self.jobs.get(job).spec.clone();
        let tally = self.tally(spec.request_of(task), shape, strategy);
        match obstacle {
            Obstacle::Gang { fits, .. } => {
                let needs = self.jobs.get(job).count();
                WaitReason::Gang { needs, fits: *fits, fits_when_empty: ever, summary: tally }
            }
            _ => WaitReason::NoRoom(tally),
        }
    }

    fn quota_reason(&self, excess: &Excess) -> WaitReason {
        WaitReason::Quota {
            queue: self.queues.get(excess.queue).spec.id.clone(),
            resource: excess.resource.clone(),
            limit: excess.limit,
            used: excess.used,
            reserved: excess.kept,
            requested: excess.asked,
        }
    }

    /// Whether the description of any node allows the shape.
    fn stands_anywhere(&self, shape: ShapeIdx) -> bool {
        let shape = self.cluster.shape(shape);
        self.cluster.order.iter().any(|node| {
            let standing =
                fit::standing(shape, &self.cluster.host(*node).spec, self.cluster.room(*node));
            matches!(standing, Standing::Yes(_))
        })
    }

    /// A task's shape without the models that its queue may not use more of, and one of the limits
    /// that close them.
    fn shape_within_quota(&mut self, job: JobIdx, task: u32) -> (ShapeIdx, Option<Excess>) {
        let (queue, shape) = (self.jobs.get(job).queue, self.jobs.get(job).shape_of(task));
        let one = self.nominal_charge(shape, 1);
        let milli = one.base[GPU].max(1);
        let beyond = |model: ModelIdx| {
            let charge = Charge { models: [(model, milli)].into_iter().collect(), ..one.clone() };
            let excess = self.queues.excess(&self.cluster, queue, &charge)?;
            matches!(excess.resource, QuotaResource::GpuModel(_)).then_some((model, excess))
        };
        let closed: Vec<(ModelIdx, Excess)> =
            (0..self.cluster.models.len() as ModelIdx).filter_map(beyond).collect();
        let Some((_, first)) = closed.first().cloned() else { return (shape, None) };
        let request = self.cluster.shape(shape).key.request.clone();
        let closed = closed.into_iter().map(|(model, _)| model).collect();
        (self.cluster.intern(&request, closed), Some(first))
    }

    pub(crate) fn held_reason(&self, by: JobIdx) -> WaitReason {
        let until = match self.holds.get(by).map(|hold| &hold.purpose) {
            Some(Purpose::Preemption { until, .. }) => Some(*until),
            Some(Purpose::Reservation { start }) => *start,
            None => None,
        };
        WaitReason::Reserved { workload: self.jobs.get(by).spec.id.clone(), until }
    }

    /// Whether an empty cluster, with all its nodes in order, would take the workload.
    pub(crate) fn ever_fits(&self, job: JobIdx) -> bool {
        self.ever_fits_as(job, self.jobs.get(job).shape)
    }

    /// The same for the workload in another shape, such as one without models that cost too much.
    pub(crate) fn ever_fits_as(&self, job: JobIdx, shape: ShapeIdx) -> bool {
        if self.jobs.get(job).more.is_some() {
            return self.ever_fit_together(job);
        }
        let spec = self.jobs.get(job).spec.clone();
        let shape = self.cluster.shape(shape);
        let mut wanted = spec.tasks;
        if let Some(Topology::Same(key)) = spec.topology.as_ref().filter(|_| spec.tasks > 1) {
            let domains = self.cluster.make_domains(key);
            let mut totals: BTreeMap<u32, u32> = BTreeMap::new();
            return self.cluster.order.iter().any(|node| {
                let Some(domain) = domains.of[*node as usize] else { return false };
                let total = totals.entry(domain).or_default();
                *total = total.saturating_add(self.empty_copies(shape, *node, spec.tasks));
                *total >= spec.tasks
            });
        }
        let domains = match spec.topology.as_ref().filter(|_| spec.tasks > 1) {
            Some(Topology::Spread(key)) => Some(self.cluster.make_domains(key)),
            _ => None,
        };
        let inside = |node: NodeIdx| {
            domains.as_ref().is_none_or(|domains| domains.of[node as usize].is_some())
        };
        self.cluster.order.iter().filter(|node| inside(**node)).any(|node| {
            wanted -= self.empty_copies(shape, *node, wanted);
            wanted == 0
        })
    }

    fn empty_copies(&self, shape: &Shape, node: NodeIdx, enough: u32) -> u32 {
        let (host, room) = (self.cluster.host(node), self.cluster.room(node));
        if matches!(fit::standing(shape, &host.spec, room), Standing::No(_)) {
            return 0;
        }
        fit::copies(shape, &self.empty_room_of(node), enough)
    }

    /// A node's room with nothing booked and everything in order.
    pub(crate) fn empty_room_of(&self, node: NodeIdx) -> Room {
        let mut empty =
            self.cluster.emptied(&self.cluster.host(node).spec, self.cluster.room(node));
        empty.open = true;
        for device in &mut empty.devices {
            device.open = true;
        }
        empty.summarise();
        empty
    }
}
