//! Gangs with several roles, for example a launcher and its workers.
//!
//! The search places one task after another, largest first, and gives up when one does not fit. It misses the
//! rare arrangement in which a small task must go first; such a gang stays pending, and neither a reservation
//! nor a preemption is made for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hold::reserve::{MAX_STEPS, PlannedStart};
use crate::model::request::Request;
use crate::model::units::Time;
use crate::model::workload::Topology;
use crate::quota::queues::GPU;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::room::{CPU, Claim, MEMORY, Room};
use crate::state::cluster::shape::ShapeIdx;
use crate::state::cluster::{NodeIdx, choose_devices};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};
use crate::strategy::View;

/// Tasks of a gang that the search treats alike.
#[derive(Clone, Debug)]
pub(crate) struct TaskBatch {
    pub(crate) tasks: Vec<u32>,
    pub(crate) request: Arc<Request>,
    pub(crate) shape: ShapeIdx,
}

/// Topology domain by node index; `None` excludes the node.
type EligibleDomains = Vec<Option<u32>>;

impl Scheduler {
    /// Batches of a workload's tasks, in descending order of GPUs, CPU and memory.
    pub(crate) fn batches_hardest_first(&self, workload: WorkloadIdx) -> Vec<TaskBatch> {
        let workload = self.workloads.get(workload);
        let parts = workload.role_shapes.iter().flat_map(|more| more.iter());
        let parts = parts.map(|part| (part.shape, &part.term_labels));
        let parts = std::iter::once((workload.shape, &workload.term_labels)).chain(parts);
        let mut batches: Vec<(TaskBatch, _)> = Vec::new();
        let mut next = 0;
        for ((tasks, request), (shape, term_labels)) in workload.spec.each_role().zip(parts) {
            let tasks = next..next + tasks;
            next = tasks.end;
            let same =
                batches.iter_mut().find(|(batch, f)| batch.shape == shape && *f == term_labels);
            if let Some((batch, _)) = same {
                batch.tasks.extend(tasks);
            } else {
                let tasks = tasks.collect();
                batches.push((TaskBatch { tasks, request: request.clone(), shape }, term_labels));
            }
        }
        let mut batches: Vec<TaskBatch> = batches.into_iter().map(|(batch, _)| batch).collect();
        if batches.len() > 1 {
            batches.sort_by_key(|batch| {
                let charge = self.nominal_charge(batch.shape, 1).base;
                Reverse((charge[GPU], charge[CPU], charge[MEMORY]))
            });
        }
        batches
    }

    /// An empty cluster with all nodes and GPUs healthy has room for a gang of several roles.
    pub(crate) fn gang_fits_when_empty(&self, workload: WorkloadIdx) -> bool {
        let topology = self.workloads.get(workload).spec.topology.as_ref();
        let domains = match topology {
            Some(Topology::Same(key) | Topology::Spread(key)) => self.cluster.make_domains(key).of,
            None => vec![Some(0); self.cluster.node_states.len()],
        };
        let same = matches!(topology, Some(Topology::Same(_)));
        let open = |batch: &TaskBatch| -> EligibleDomains {
            let mut open = vec![None; domains.len()];
            for node in &self.cluster.order {
                let (node_state, room) = (self.cluster.node_state(*node), self.cluster.room(*node));
                let shape = self.cluster.shape(batch.shape);
                let stands = matches!(
                    fit::eligibility(shape, &node_state.spec, room),
                    Eligibility::Eligible(_)
                );
                let domain = domains[*node as usize].map(|domain| if same { domain } else { 0 });
                open[*node as usize] = domain.filter(|_| stands);
            }
            open
        };
        let batches: Vec<(TaskBatch, EligibleDomains)> = self
            .batches_hardest_first(workload)
            .into_iter()
            .map(|batch| {
                let open = open(&batch);
                (batch, open)
            })
            .collect();
        let mut rooms = vec![Room::default(); self.cluster.node_states.len()];
        for node in &self.cluster.order {
            rooms[*node as usize] = self.empty_room_of(*node);
        }
        self.claims_in(workload, &batches, &rooms).is_some()
    }

    /// Start of a gang of several roles: the smallest number of expected ends that frees enough room, found
    /// by bisection.
    pub(crate) fn plan_gang_start(&mut self, workload: WorkloadIdx) -> Option<PlannedStart> {
        let (spec, strategy) = (
            self.workloads.get(workload).spec.clone(),
            self.strategy(self.workloads.get(workload)),
        );
        let mut batches = Vec::new();
        for batch in self.batches_hardest_first(workload) {
            let open = self.eligible_domains(&spec, &batch.request, batch.shape, strategy);
            batches.push((batch, open));
        }
        let ends = self.expected_ends_in_order(workload);
        let claims = |ended: usize| {
            let mut rooms = self.cluster.rooms.clone();
            for (_, other) in &ends[..ended] {
                for (_, allocation) in self.workloads.get(*other).allocations() {
                    rooms[allocation.node as usize].release(&allocation.claim);
                }
            }
            self.claims_in(workload, &batches, &rooms)
        };
        claims(ends.len())?;
        let (mut too_few, mut enough) = (None, ends.len());
        while too_few.map_or(0, |few| few + 1) < enough {
            let middle = usize::midpoint(too_few.map_or(0, |few| few + 1), enough);
            if claims(middle).is_some() {
                enough = middle;
            } else {
                too_few = Some(middle);
            }
        }
        let at = enough.checked_sub(1).and_then(|last| ends[last].0);
        Some(PlannedStart { at, claims: claims(enough)? })
    }

    /// Placed workloads in order of their expected end. Workloads without an estimate come last, and only
    /// after the policy's patience.
    fn expected_ends_in_order(&self, workload: WorkloadIdx) -> Vec<(Option<Time>, WorkloadIdx)> {
        let stopping =
            self.workloads.iter().filter(|(_, other)| other.phase == WorkloadPhase::Stopping);
        let mut ends: Vec<(Option<Time>, WorkloadIdx)> =
            stopping.filter(|_| self.holds.len() > 0).map(|(index, _)| (None, index)).collect();
        let known: BTreeSet<WorkloadIdx> = ends.iter().map(|(_, index)| *index).collect();
        let future = |end: &Time| *end > self.now;
        let expected = self.expected_ends.iter().filter(|(_, _, other)| !known.contains(other));
        ends.extend(expected.map(|(end, _, other)| (Some(*end).filter(future), *other)));
        if self.now.since(self.workloads.get(workload).submitted) >= self.policy.patience {
            let placed =
                self.workloads.iter().filter(|(_, other)| other.phase == WorkloadPhase::Placed);
            let mut unknown: Vec<_> = placed
                .filter(|(_, other)| other.end().is_none())
                .map(|(index, other)| (other.placed_at, other.serial, index))
                .collect();
            unknown.sort_unstable();
            ends.extend(unknown.into_iter().map(|(_, _, index)| (None, index)));
        }
        ends.truncate(MAX_STEPS);
        ends
    }

    /// Claims for all tasks on nodes with these rooms, within one topology domain.
    fn claims_in(
        &self,
        workload: WorkloadIdx,
        batches: &[(TaskBatch, EligibleDomains)],
        rooms: &[Room],
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        let domains: BTreeSet<u32> = batches.first()?.1.iter().flatten().copied().collect();
        domains
            .into_iter()
            .find_map(|domain| self.claims_in_domain(workload, batches, rooms, domain))
    }

    fn claims_in_domain(
        &self,
        workload: WorkloadIdx,
        batches: &[(TaskBatch, EligibleDomains)],
        rooms: &[Room],
        domain: u32,
    ) -> Option<Vec<(NodeIdx, Claim)>> {
        let strategy = self.strategy(self.workloads.get(workload));
        // Copy a room only when a task is booked on it.
        let mut booked: BTreeMap<NodeIdx, Room> = BTreeMap::new();
        let mut claims = vec![None; self.workloads.get(workload).count() as usize];
        for (batch, open) in batches {
            let shape = self.cluster.shape(batch.shape);
            // A node without room for one task of a batch has none for the rest.
            let mut nodes = self.cluster.order.iter().copied().peekable();
            for task in &batch.tasks {
                let fits = |node: NodeIdx| {
                    let room = booked.get(&node).unwrap_or(&rooms[node as usize]);
                    open[node as usize] == Some(domain) && fit::shortfall(shape, room).is_none()
                };
                while nodes.next_if(|node| !fits(*node)).is_some() {}
                let node = *nodes.peek()?;
                let room = booked.entry(node).or_insert_with(|| rooms[node as usize].clone());
                let view = View { room, shape, scoring: &self.scoring };
                let claim = choose_devices::choose_devices(strategy, &view, None)?;
                room.book(&claim);
                claims[*task as usize] = Some((node, claim));
            }
        }
        claims.into_iter().collect()
    }
}
