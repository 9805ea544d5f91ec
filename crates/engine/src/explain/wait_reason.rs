//! Wait reasons of failed placements, and the check against an empty cluster.

use std::collections::BTreeMap;

use crate::hold::holds::HoldPurpose;
use crate::model::wait::{QuotaResource, WaitReason};
use crate::model::workload::Topology;
use crate::pass::place::Obstacle;
use crate::quota::charge::{Charge, Excess};
use crate::quota::queues::GPU;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::capacity;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{ModelIdx, Room};
use crate::state::cluster::shape::{Shape, ShapeIdx};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;

impl Scheduler {
    pub(crate) fn wait_reason(&mut self, workload: WorkloadIdx, obstacle: &Obstacle) -> WaitReason {
        if self.cluster.len() == 0 {
            return WaitReason::NoNodes;
        }
        if let Obstacle::Quota(excess) = obstacle {
            return self.quota_reason(excess);
        }
        let strategy = self.strategy(self.workloads.get(workload));
        let ever = self.fits_when_empty(workload);
        if !ever && !matches!(obstacle, Obstacle::Gang { .. }) {
            return WaitReason::NeverFits(
                self.fit_summary_when_empty(self.workloads.get(workload).shape),
            );
        }
        let task = if let Obstacle::Gang { task, .. } = obstacle { *task } else { 0 };
        let (shape, beyond) = self.shape_within_quota(workload, task);
        if let Some(excess) = beyond.filter(|_| !self.is_eligible_anywhere(shape)) {
            return self.quota_reason(&excess);
        }
        let spec = self.workloads.get(workload).spec.clone();
        let tally = self.fit_summary(spec.request_of(task), shape, strategy);
        match obstacle {
            Obstacle::Gang { fits, .. } => {
                let needs = self.workloads.get(workload).count();
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
            reserved: excess.reserved,
            requested: excess.requested,
        }
    }

    fn is_eligible_anywhere(&self, shape: ShapeIdx) -> bool {
        let shape = self.cluster.shape(shape);
        self.cluster.order.iter().any(|node| {
            let standing = fit::eligibility(
                shape,
                &self.cluster.node_state(*node).spec,
                self.cluster.room(*node),
            );
            matches!(standing, Eligibility::Eligible(_))
        })
    }

    /// A task's shape without the models over quota, and one of the exceeded limits.
    fn shape_within_quota(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
    ) -> (ShapeIdx, Option<Excess>) {
        let (queue, shape) =
            (self.workloads.get(workload).queue, self.workloads.get(workload).shape_of(task));
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

    pub(crate) fn reserved_reason(&self, by: WorkloadIdx) -> WaitReason {
        let until = match self.holds.get(by).map(|hold| &hold.purpose) {
            Some(HoldPurpose::Preemption { until, .. }) => Some(*until),
            Some(HoldPurpose::Reservation { start }) => *start,
            None => None,
        };
        WaitReason::Reserved { workload: self.workloads.get(by).spec.id.clone(), until }
    }

    /// An empty cluster with all nodes and GPUs healthy has room for the workload.
    pub(crate) fn fits_when_empty(&self, workload: WorkloadIdx) -> bool {
        self.fits_when_empty_as(workload, self.workloads.get(workload).shape)
    }

    /// [`fits_when_empty`](Self::fits_when_empty) with another shape, for example without models over quota.
    pub(crate) fn fits_when_empty_as(&self, workload: WorkloadIdx, shape: ShapeIdx) -> bool {
        if self.workloads.get(workload).role_shapes.is_some() {
            return self.gang_fits_when_empty(workload);
        }
        let spec = self.workloads.get(workload).spec.clone();
        let shape = self.cluster.shape(shape);
        let mut wanted = spec.tasks;
        if let Some(Topology::Same(key)) = spec.topology.as_ref().filter(|_| spec.tasks > 1) {
            let domains = self.cluster.make_domains(key);
            let mut totals: BTreeMap<u32, u32> = BTreeMap::new();
            return self.cluster.order.iter().any(|node| {
                let Some(domain) = domains.of[*node as usize] else { return false };
                let total = totals.entry(domain).or_default();
                *total = total.saturating_add(self.tasks_when_empty(shape, *node, spec.tasks));
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
            wanted -= self.tasks_when_empty(shape, *node, wanted);
            wanted == 0
        })
    }

    fn tasks_when_empty(&self, shape: &Shape, node: NodeIdx, enough: u32) -> u32 {
        let (node_state, room) = (self.cluster.node_state(node), self.cluster.room(node));
        if matches!(fit::eligibility(shape, &node_state.spec, room), Eligibility::Excluded(_)) {
            return 0;
        }
        capacity::task_capacity(shape, &self.empty_room_of(node), enough)
    }

    /// Room of a node without bookings and with all GPUs available.
    pub(crate) fn empty_room_of(&self, node: NodeIdx) -> Room {
        let mut empty = self
            .cluster
            .without_bookings(&self.cluster.node_state(node).spec, self.cluster.room(node));
        empty.open = true;
        for device in &mut empty.devices {
            device.open = true;
        }
        empty.summarise();
        empty
    }
}
