//! Views: current state of nodes, workloads and queues for drivers and tests.

use serde::{Deserialize, Serialize};

use crate::model::decision::GpuAssignment;
use crate::model::name::{GpuId, NodeId, QueueId, WorkloadId};
use crate::model::node::{Gpu, GpuHealth, Node};
use crate::model::units::{Percent, Time};
use crate::model::workload::Workload;
use crate::quota::queues::{GPU, QuotaAmounts};
use crate::state::cluster::Reachability;
use crate::state::cluster::room::{CPU, Device, MEMORY, STORAGE};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{
    LostTask, Replacement, TaskAllocation, WorkloadEntry, WorkloadPhase,
};

/// Thousandths of one GPU.
const WHOLE: i32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadState {
    /// In its queue, gated, backing off or preempting.
    Pending,
    /// Not all tasks are confirmed.
    Placed,
    /// All tasks are confirmed.
    Running,
    /// Tasks are terminating; the workload is pending again afterwards.
    Stopping,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadView {
    /// As submitted.
    pub workload: Workload,
    pub state: WorkloadState,
    pub submitted: Time,
    /// Zero when never placed.
    pub placed_at: Time,
    pub tasks: Vec<TaskView>,
    /// Tasks that wait for a replacement.
    pub lost: Vec<LostTaskView>,
}

/// A lost task and the place reserved for its replacement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostTaskView {
    pub task: u32,
    /// `None` while no node has room.
    pub node: Option<NodeId>,
    /// The workload restarts at this time unless the replacement starts.
    pub until: Time,
    pub replacement: Replacement,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Numbered from 0.
    pub task: u32,
    pub node: NodeId,
    pub gpus: GpuAssignment,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub node: Node,
    /// Reachable.
    pub up: bool,
    /// Takes new tasks.
    pub open: bool,
    /// Thousandths of a core; negative when overcommitted.
    pub cpu_free: i64,
    /// MiB; negative when overcommitted.
    pub memory_free: i64,
    pub gpus: Vec<GpuView>,
    /// Number of tasks, without foreign ones.
    pub tasks: u32,
    /// Foreign use or adopted tasks exceed the capacity.
    pub overcommitted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    pub id: GpuId,
    /// Thousandths; negative when overcommitted.
    pub milli_free: i32,
    /// MiB; negative when overcommitted.
    pub memory_free: i32,
    /// Tasks, foreign uses and holds.
    pub users: u16,
    pub health: GpuHealth,
    pub utilization: Percent,
}

/// Free amounts of a node for one more task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeRoom {
    /// Reachable, open, and below its maximum number of tasks.
    pub takes_tasks: bool,
    /// Thousandths of a core; negative when overcommitted.
    pub cpu_free: i64,
    /// Most MiB free on one healthy GPU; negative when overcommitted, `None` without such a GPU.
    pub gpu_memory_free: Option<i32>,
    /// Number of GPUs, unhealthy ones included.
    pub gpus: u32,
    /// Healthy GPUs without any use.
    pub gpus_free: u32,
    /// Allocated thousandths of GPUs.
    pub gpu_milli_allocated: u64,
    /// Free thousandths of partly allocated healthy GPUs.
    pub gpu_milli_fragmented: u64,
}

/// Amounts summed over tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceTotals {
    /// Thousandths of cores.
    pub cpu_milli: i64,
    /// MiB.
    pub memory: i64,
    /// MiB.
    pub storage: i64,
    /// Thousandths of GPUs.
    pub gpu_milli: i64,
}

impl From<QuotaAmounts> for ResourceTotals {
    fn from(amounts: QuotaAmounts) -> Self {
        Self {
            cpu_milli: amounts[CPU],
            memory: amounts[MEMORY],
            storage: amounts[STORAGE],
            gpu_milli: amounts[GPU],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    pub id: QueueId,
    /// Usage of the queue and its descendants.
    pub used: ResourceTotals,
    /// Workloads of the queue itself.
    pub workloads: u32,
}

impl Scheduler {
    pub fn workload(&self, id: &WorkloadId) -> Option<WorkloadView> {
        self.workloads.find(id).map(|workload| self.workload_view(self.workloads.get(workload)))
    }

    /// In order of submission.
    pub fn workloads(&self) -> Vec<WorkloadView> {
        let mut workloads: Vec<&WorkloadEntry> =
            self.workloads.iter().map(|(_, workload)| workload).collect();
        workloads.sort_unstable_by_key(|workload| workload.serial);
        workloads.into_iter().map(|workload| self.workload_view(workload)).collect()
    }

    /// In order of rank and name.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.cluster.ordered().into_iter().map(|node| self.node_view(node)).collect()
    }

    pub fn node_room(&self, id: &NodeId) -> Option<NodeRoom> {
        let node = self.cluster.find_node(id)?;
        let (node_state, room) = (self.cluster.node_state(node), self.cluster.room(node));
        let spec = &node_state.spec;
        let is_healthy = |gpu: &Gpu| {
            node_state.health.get(&gpu.id).is_none_or(|health| *health == GpuHealth::Healthy)
        };
        let all = || spec.gpus.iter().zip(&room.devices);
        let healthy = || all().filter(|(gpu, _)| is_healthy(gpu)).map(|(_, device)| device);
        let free = |device: &Device| device.milli.clamp(0, WHOLE) as u64;
        let partly = |device: &&Device| device.users > 0 && device.milli > 0;
        Some(NodeRoom {
            takes_tasks: node_state.reach == Reachability::Up
                && node_state.is_open()
                && spec.max_tasks.is_none_or(|most| (node_state.tasks.len() as u32) < most),
            cpu_free: room.free[CPU],
            gpu_memory_free: healthy().map(|device| device.mib).max(),
            gpus: spec.gpus.len() as u32,
            gpus_free: healthy().filter(|device| device.milli >= WHOLE).count() as u32,
            gpu_milli_allocated: all().map(|(_, device)| WHOLE as u64 - free(device)).sum(),
            gpu_milli_fragmented: healthy().filter(partly).map(free).sum(),
        })
    }

    /// Nodes with room held for a pending workload.
    pub fn held_nodes(&self) -> Vec<NodeId> {
        let planned = self.holds.iter().flat_map(|(_, hold)| &hold.planned);
        planned.map(|(node, _)| self.cluster.node_state(*node).spec.id.clone()).collect()
    }

    /// By name.
    pub fn queues(&self) -> Vec<QueueView> {
        let mut queues: Vec<QueueView> = self
            .queues
            .iter()
            .map(|(_, queue)| QueueView {
                id: queue.spec.id.clone(),
                used: queue.total.used.into(),
                workloads: queue.members,
            })
            .collect();
        queues.sort_by(|a, b| a.id.cmp(&b.id));
        queues
    }

    /// Number of workloads in their queues.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Number of pending and placed workloads.
    pub fn len(&self) -> usize {
        self.workloads.len()
    }

    pub fn is_empty(&self) -> bool {
        self.workloads.len() == 0
    }

    fn workload_view(&self, workload: &WorkloadEntry) -> WorkloadView {
        let occupied = || {
            let is_occupied = |task: u32| workload.tasks[task as usize].is_occupied();
            workload.allocations().filter(move |(task, _)| is_occupied(*task))
        };
        let confirmed = occupied().all(|(_, allocation)| allocation.confirmed);
        let task = |(task, allocation): (u32, &TaskAllocation)| TaskView {
            task,
            node: self.cluster.node_state(allocation.node).spec.id.clone(),
            gpus: self.gpu_assignment(allocation),
        };
        WorkloadView {
            workload: (*workload.spec).clone(),
            state: match workload.phase {
                WorkloadPhase::Pending | WorkloadPhase::Preempting => WorkloadState::Pending,
                WorkloadPhase::Placed if confirmed => WorkloadState::Running,
                WorkloadPhase::Placed => WorkloadState::Placed,
                WorkloadPhase::Stopping => WorkloadState::Stopping,
            },
            submitted: workload.submitted,
            placed_at: workload.placed_at,
            tasks: occupied().map(task).collect(),
            lost: self.lost_task_views(workload),
        }
    }

    fn lost_task_views(&self, workload: &WorkloadEntry) -> Vec<LostTaskView> {
        let view = |(task, lost): (u32, &LostTask)| {
            let place = workload.tasks[task as usize].allocation.as_ref();
            let node = place.map(|place| self.cluster.node_state(place.node).spec.id.clone());
            LostTaskView { task, node, until: lost.until, replacement: lost.replacement }
        };
        workload.lost().map(view).collect()
    }

    fn node_view(&self, node: u32) -> NodeView {
        let (node_state, room) = (self.cluster.node_state(node), self.cluster.room(node));
        let gpu = |(gpu, device): (&Gpu, &Device)| GpuView {
            id: gpu.id.clone(),
            milli_free: device.milli,
            memory_free: device.mib,
            users: device.users,
            health: node_state.health.get(&gpu.id).copied().unwrap_or_default(),
            utilization: node_state.utilization.get(&gpu.id).copied().unwrap_or_default(),
        };
        NodeView {
            node: (*node_state.spec).clone(),
            up: node_state.reach == Reachability::Up,
            open: node_state.is_open(),
            cpu_free: room.free[CPU],
            memory_free: room.free[MEMORY],
            gpus: node_state.spec.gpus.iter().zip(&room.devices).map(gpu).collect(),
            tasks: node_state.tasks.len() as u32,
            overcommitted: room.overcommitted(),
        }
    }
}
