//! Pending tasks of other schedulers. Room that a preemption frees is open to them until the preemptor starts, so a
//! preemption also makes room for tasks that would be served first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::error::Rejected;
use crate::model::event::ForeignDemand;
use crate::model::name::ForeignId;
use crate::state::cluster::choose_devices::choose_devices;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{Claim, Room};
use crate::state::cluster::shape::ShapeIdx;
use crate::state::cluster::{Cluster, NodeIdx};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;
use crate::strategy::View;

#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignDemands(BTreeMap<ForeignId, (ForeignDemand, ShapeIdx)>);

/// Shapes of foreign tasks that would be served before a preemptor, first ones first, and their numbers.
pub(crate) type ForeignAhead = Vec<(ShapeIdx, u32)>;

impl ForeignDemands {
    pub(crate) fn facts(&self) -> BTreeMap<ForeignId, ForeignDemand> {
        self.0.iter().map(|(id, (demand, _))| (id.clone(), demand.clone())).collect()
    }
}

impl Scheduler {
    pub(crate) fn set_foreign_demand(
        &mut self,
        id: ForeignId,
        demand: Option<ForeignDemand>,
    ) -> Result<(), Rejected> {
        id.validate()?;
        if let Some(demand) = &demand {
            demand.request.validate()?;
        }
        if self.foreign_demand.0.get(&id).map(|(known, _)| known) == demand.as_ref() {
            return Ok(());
        }
        if let Some((_, shape)) = self.foreign_demand.0.remove(&id) {
            self.cluster.unuse_shape(shape);
            // Preemptions that counted it may be smaller now.
            self.retry_blocked = true;
        }
        if let Some(demand) = demand {
            let shape = self.cluster.intern(&demand.request, Vec::new());
            self.cluster.use_shape(shape);
            self.foreign_demand.0.insert(id, (demand, shape));
        }
        Ok(())
    }

    /// Foreign tasks of higher priority, or of equal priority and not younger, for which no node has free room. Their
    /// scheduler uses free room at once, so a task that could start and does not waits for something else.
    pub(crate) fn foreign_ahead_of(&self, workload: WorkloadIdx) -> ForeignAhead {
        let entry = self.workloads.get(workload);
        let rank = (Reverse(entry.spec.priority), entry.submitted);
        let ranked = self.foreign_demand.0.iter().map(|(id, (demand, shape))| {
            ((Reverse(demand.priority), demand.submitted), id, *shape)
        });
        let mut first: Vec<_> = ranked.filter(|(other, ..)| *other <= rank).collect();
        first.sort_unstable();
        let mut ahead = ForeignAhead::new();
        for (_, _, shape) in first {
            match ahead.iter_mut().find(|(known, _)| *known == shape) {
                Some((_, count)) => *count += 1,
                None => ahead.push((shape, 1)),
            }
        }
        ahead.retain(|(shape, _)| {
            let mut nodes = (0..).zip(&self.cluster.node_states).filter(|(_, node)| node.is_some());
            !nodes.any(|(node, _)| fits(&self.cluster, *shape, node, self.cluster.room(node)))
        });
        ahead
    }

    /// Claims of foreign tasks on this node with this room.
    pub(crate) fn foreign_claims(
        &self,
        ahead: &ForeignAhead,
        node: NodeIdx,
        mut room: Room,
    ) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (shape, count) in ahead {
            for _ in 0..*count {
                if !fits(&self.cluster, *shape, node, &room) {
                    break;
                }
                let shape = self.cluster.shape(*shape);
                let view = View { room: &room, shape, scoring: &self.scoring };
                let Some(claim) = choose_devices(self.policy.strategy, &view, None) else { break };
                room.book(&claim);
                claims.push(claim);
            }
        }
        claims
    }
}

fn fits(cluster: &Cluster, shape: ShapeIdx, node: NodeIdx, room: &Room) -> bool {
    let shape = cluster.shape(shape);
    let eligibility = fit::eligibility(shape, &cluster.node_state(node).spec, room);
    matches!(eligibility, Eligibility::Eligible(_)) && fit::shortfall(shape, room).is_none()
}
