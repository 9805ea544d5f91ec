//! Workloads inside the engine: phase and task allocations.

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

/// Dense index of a workload.
pub(crate) type WorkloadIdx = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskRef {
    pub(crate) workload: WorkloadIdx,
    pub(crate) task: u32,
}

/// A workload and its scheduling state.
#[derive(Clone, Debug)]
pub(crate) struct WorkloadEntry {
    pub(crate) spec: Arc<Workload>,
    pub(crate) shape: ShapeIdx,
    /// Labels that selectors use, as of the last enqueue.
    pub(crate) term_labels: Option<Arc<Labels>>,
    /// Shapes of the further roles; `None` without roles.
    pub(crate) role_shapes: Option<Arc<[RoleShape]>>,
    pub(crate) queue: QueueIdx,
    pub(crate) phase: WorkloadPhase,
    pub(crate) tasks: SmallVec<[TaskState; 1]>,
    pub(crate) submitted: Time,
    /// Submission order; kept when the workload is requeued.
    pub(crate) serial: u64,
    pub(crate) placed_at: Time,
    pub(crate) refusals: u32,
    /// End of the backoff.
    pub(crate) not_before: Time,
    /// Node of the last refusal, avoided by the next placement.
    pub(crate) avoid: Option<NodeIdx>,
    /// Class of the last reported wait reason.
    pub(crate) reported_class: Option<WaitClass>,
}

/// Tasks of a role.
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

#[derive(Clone, Debug, Default)]
pub(crate) struct TaskState {
    /// Of a lost task: the place reserved for its replacement.
    pub(crate) allocation: Option<TaskAllocation>,
    pub(crate) finished: bool,
    /// Only of placed workloads. Boxed: a lost task is rare, and a fleet has hundreds of thousands of tasks.
    pub(crate) lost: Option<Box<LostTask>>,
}

impl TaskState {
    /// The task runs or is being started, as opposed to a place without a task.
    pub(crate) fn is_occupied(&self) -> bool {
        let starts = |lost: &LostTask| lost.replacement == Replacement::Starting;
        self.allocation.is_some() && self.lost.as_deref().is_none_or(starts)
    }
}

/// A task that ended before its work was done, until its replacement is confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostTask {
    /// The workload restarts at this time unless the replacement starts.
    pub(crate) until: Time,
    pub(crate) replacement: Replacement,
    /// The driver knows the current place.
    pub(crate) reported: bool,
}

/// State of the replacement of a lost task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replacement {
    /// Not there yet.
    Missing,
    /// Waits for a place, after this time.
    Waiting { not_before: Time },
    /// Placed and not confirmed.
    Starting,
}

/// Resources of a placed task.
#[derive(Clone, Debug)]
pub(crate) struct TaskAllocation {
    pub(crate) node: NodeIdx,
    pub(crate) claim: Claim,
    pub(crate) confirmed: bool,
    pub(crate) terminating_since: Option<Time>,
    /// The devices are reported or chosen by the engine, not assumed.
    pub(crate) devices_known: bool,
}

impl WorkloadEntry {
    /// Expected end of a placed workload with an estimate.
    pub(crate) fn end(&self) -> Option<Time> {
        let placed = matches!(self.phase, WorkloadPhase::Placed | WorkloadPhase::Stopping);
        self.spec.estimate.filter(|_| placed).map(|estimate| self.placed_at.after(estimate))
    }

    pub(crate) fn count(&self) -> u32 {
        self.tasks.len() as u32
    }

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

    /// Shapes and their task counts, in order.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (ShapeIdx, u32)> {
        let more = self.role_shapes.iter().flat_map(|more| more.iter());
        std::iter::once((self.shape, self.spec.tasks))
            .chain(more.map(|part| (part.shape, part.tasks)))
    }

    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u32, &TaskAllocation)> {
        let tasks = self.tasks.iter().enumerate();
        tasks.filter_map(|(task, slot)| Some((task as u32, slot.allocation.as_ref()?)))
    }

    /// Lost tasks, in order.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (u32, &LostTask)> {
        let tasks = self.tasks.iter().enumerate();
        tasks.filter_map(|(task, slot)| Some((task as u32, slot.lost.as_deref()?)))
    }

    /// Latest expected end of all terminating tasks; `None` when a task is not terminating.
    pub(crate) fn terminated_by(&self, slack: Span) -> Option<Time> {
        let last = self
            .allocations()
            .map(|(_, allocation)| allocation.terminating_since)
            .reduce(|one, other| Some(one?.max(other?)));
        Some(last??.after(self.spec.grace).after(slack))
    }

    pub(crate) fn ran(&self, now: Time) -> Span {
        now.since(self.placed_at)
    }
}

/// All workloads, by index and id.
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
        self.slots[workload as usize].as_ref().expect("a workload index in use has a workload")
    }

    pub(crate) fn get_mut(&mut self, workload: WorkloadIdx) -> &mut WorkloadEntry {
        self.slots[workload as usize].as_mut().expect("a workload index in use has a workload")
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
            self.slots[workload as usize].take().expect("a workload index in use has a workload");
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
