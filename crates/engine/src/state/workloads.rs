//! Workloads inside the engine: what state each is in and where its tasks are.

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

use crate::model::labels::Labels;
use crate::model::name::WorkloadId;
use crate::model::units::{Span, Time};
use crate::model::wait::WaitClass;
use crate::model::workload::Workload;
use crate::quota::queues::QueueIdx;
use crate::state::cluster::NodeIdx;
use crate::state::cluster::room::Claim;
use crate::state::cluster::shape::ShapeIdx;

/// Dense number of a workload.
pub(crate) type WorkloadIdx = u32;

/// One task of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskRef {
    pub(crate) workload: WorkloadIdx,
    pub(crate) task: u32,
}

/// A workload and its state.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadEntry {
    pub(crate) spec: Arc<Workload>,
    pub(crate) shape: ShapeIdx,
    /// Its labels, as far as anybody asked about them when it was put into its queue.
    pub(crate) term_labels: Option<Arc<Labels>>,
    /// The same for tasks that ask for something else than the first ones.
    pub(crate) role_shapes: Option<Arc<[RoleShape]>>,
    pub(crate) queue: QueueIdx,
    pub(crate) phase: WorkloadPhase,
    pub(crate) tasks: SmallVec<[TaskState; 1]>,
    pub(crate) submitted: Time,
    /// Orders workloads of the same age; kept when it waits again.
    pub(crate) serial: u64,
    pub(crate) placed_at: Time,
    pub(crate) refusals: u32,
    /// Not to be tried before; set after a refusal.
    pub(crate) not_before: Time,
    /// Where it was refused last; avoided while it backs off for longer and longer.
    pub(crate) avoid: Option<NodeIdx>,
    /// The sort of wait reason that was reported last.
    pub(crate) reported_class: Option<WaitClass>,
}

/// Tasks of a gang that ask for the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoleShape {
    pub(crate) tasks: u32,
    pub(crate) shape: ShapeIdx,
    pub(crate) term_labels: Option<Arc<Labels>>,
}

/// Lifecycle phase of a workload in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadPhase {
    /// In its queue, gated, or backing off.
    Pending,
    /// Pending; a hold reserves the room that its victims leave.
    Preempting,
    /// All tasks are placed.
    Placed,
    /// Tasks are terminating; the workload is pending again after the last one.
    Stopping,
}

/// One task's place.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    pub(crate) allocation: Option<TaskAllocation>,
    pub(crate) finished: bool,
}

/// Where a task is and what it takes there.
#[derive(Clone, Debug)]
pub(crate) struct TaskAllocation {
    pub(crate) node: NodeIdx,
    pub(crate) claim: Claim,
    pub(crate) confirmed: bool,
    /// Since when it is being stopped.
    pub(crate) terminating_since: Option<Time>,
    /// The devices are what the task really has, not the engine's guess for a node that chooses.
    pub(crate) devices_known: bool,
}

impl WorkloadEntry {
    /// When it is expected to end.
    pub(crate) fn end(&self) -> Option<Time> {
        let placed = matches!(self.phase, WorkloadPhase::Placed | WorkloadPhase::Stopping);
        self.spec.estimate.filter(|_| placed).map(|estimate| self.placed_at.after(estimate))
    }

    /// How many tasks it has.
    pub(crate) fn count(&self) -> u32 {
        self.tasks.len() as u32
    }

    /// The shape of a task.
    pub(crate) fn shape_of(&self, task: u32) -> ShapeIdx {
        let Some(more) = &self.role_shapes else { return self.shape };
        let mut behind = self.spec.tasks;
        let mut last = self.shape;
        for part in more.iter() {
            if task < behind {
                break;
            }
            behind += part.tasks;
            last = part.shape;
        }
        last
    }

    /// Shapes and how many tasks have them, in order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (ShapeIdx, u32)> {
        let more = self.role_shapes.iter().flat_map(|more| more.iter());
        std::iter::once((self.shape, self.spec.tasks))
            .chain(more.map(|part| (part.shape, part.tasks)))
    }

    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u32, &TaskAllocation)> {
        let tasks = self.tasks.iter().enumerate();
        tasks.filter_map(|(task, slot)| Some((task as u32, slot.allocation.as_ref()?)))
    }

    /// When all that is being stopped of it should be gone; nothing when something of it stays.
    pub(crate) fn terminated_by(&self, slack: Span) -> Option<Time> {
        let last = self
            .allocations()
            .map(|(_, allocation)| allocation.terminating_since)
            .reduce(|one, other| Some(one?.max(other?)));
        Some(last??.after(self.spec.grace).after(slack))
    }

    /// How long it has run.
    pub(crate) fn ran(&self, now: Time) -> Span {
        now.since(self.placed_at)
    }
}

/// All workloads that wait or run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workloads {
    slots: Vec<Option<WorkloadEntry>>,
    by_name: FxHashMap<WorkloadId, WorkloadIdx>,
    vacant: Vec<WorkloadIdx>,
}

impl Workloads {
    pub(crate) fn find(&self, name: &WorkloadId) -> Option<WorkloadIdx> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn get(&self, workload: WorkloadIdx) -> &WorkloadEntry {
        self.slots[workload as usize].as_ref().expect("a workload number in use has a workload")
    }

    pub(crate) fn get_mut(&mut self, workload: WorkloadIdx) -> &mut WorkloadEntry {
        self.slots[workload as usize].as_mut().expect("a workload number in use has a workload")
    }

    pub(crate) fn insert(&mut self, workload: WorkloadEntry) -> WorkloadIdx {
        let name = workload.spec.id.clone();
        let index = if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = Some(workload);
            index
        } else {
            self.slots.push(Some(workload));
            self.slots.len() as WorkloadIdx - 1
        };
        self.by_name.insert(name, index);
        index
    }

    pub(crate) fn remove(&mut self, workload: WorkloadIdx) -> WorkloadEntry {
        let removed =
            self.slots[workload as usize].take().expect("a workload number in use has a workload");
        self.by_name.remove(&removed.spec.id);
        self.vacant.push(workload);
        removed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkloadIdx, &WorkloadEntry)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, workload)| Some((index as WorkloadIdx, workload.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}
