//! Looking in from outside: nodes, workloads and queues as they are now.

use serde::{Deserialize, Serialize};

use crate::model::decision::GpuAssignment;
use crate::model::name::{GpuId, NodeId, QueueId, WorkloadId};
use crate::model::node::{Gpu, GpuHealth, Node};
use crate::model::units::{Percent, Time};
use crate::model::workload::Workload;
use crate::state::cluster::Reachability;
use crate::state::cluster::room::Device;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{TaskAllocation, WorkloadEntry, WorkloadPhase};

/// What a workload is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadState {
    /// It waits for its turn, for room, or for victims to go.
    Pending,
    /// Its tasks are placed, but not all are confirmed.
    Placed,
    /// All its tasks are confirmed.
    Running,
    /// Its tasks are being stopped; it will wait again.
    Stopping,
}

/// A workload as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadView {
    /// As it was handed in.
    pub workload: Workload,
    /// What it is doing.
    pub state: WorkloadState,
    /// When it was handed in.
    pub submitted: Time,
    /// When it was placed; zero when it never was.
    pub placed_at: Time,
    /// Where its tasks are.
    pub tasks: Vec<TaskView>,
}

/// A placed task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// The task, from 0.
    pub task: u32,
    /// Its node.
    pub node: NodeId,
    /// Its GPUs.
    pub gpus: GpuAssignment,
}

/// A node as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its description.
    pub node: Node,
    /// Answers.
    pub up: bool,
    /// Takes new work.
    pub open: bool,
    /// CPU left, in thousandths of a core; negative when over-committed.
    pub cpu_free: i64,
    /// Host memory left in MiB; negative when over-committed.
    pub memory_free: i64,
    /// Its GPUs.
    pub gpus: Vec<GpuView>,
    /// Tasks of ours on it.
    pub tasks: u32,
    /// More is used than there is, by others.
    pub overcommitted: bool,
}

/// A GPU as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// The GPU.
    pub id: GpuId,
    /// Thousandths left; negative when over-committed.
    pub milli_free: i32,
    /// Memory left in MiB; negative when over-committed.
    pub memory_free: i32,
    /// Tasks and foreign uses on it, holds included.
    pub users: u16,
    /// Its health.
    pub health: GpuHealth,
    /// Its last reading.
    pub utilization: Percent,
}

/// A queue as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// The queue.
    pub id: QueueId,
    /// CPU, memory, storage and GPU thousandths in use, queues below included.
    pub used: [i64; 4],
    /// Workloads in it.
    pub workloads: u32,
}

impl Scheduler {
    /// The workload as it is now.
    pub fn workload(&self, id: &WorkloadId) -> Option<WorkloadView> {
        self.workloads.find(id).map(|workload| self.workload_view(self.workloads.get(workload)))
    }

    /// All workloads in the order they were handed in.
    pub fn workloads(&self) -> Vec<WorkloadView> {
        let mut workloads: Vec<&WorkloadEntry> =
            self.workloads.iter().map(|(_, workload)| workload).collect();
        workloads.sort_unstable_by_key(|workload| workload.serial);
        workloads.into_iter().map(|workload| self.workload_view(workload)).collect()
    }

    /// All nodes in order of rank and name.
    pub fn nodes(&self) -> Vec<NodeView> {
        self.cluster.ordered().into_iter().map(|node| self.node_view(node)).collect()
    }

    /// All queues by name.
    pub fn queues(&self) -> Vec<QueueView> {
        let mut queues: Vec<QueueView> = self
            .queues
            .iter()
            .map(|(_, queue)| QueueView {
                id: queue.spec.id.clone(),
                used: queue.total.used,
                workloads: queue.members,
            })
            .collect();
        queues.sort_by(|a, b| a.id.cmp(&b.id));
        queues
    }

    /// How many workloads wait for their turn.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// How many workloads wait or run.
    pub fn len(&self) -> usize {
        self.workloads.len()
    }

    /// Whether no workload waits or runs.
    pub fn is_empty(&self) -> bool {
        self.workloads.len() == 0
    }

    /// What the cluster has: thousandths of a core, MiB, MiB of storage, thousandths of a GPU.
    pub fn capacity(&self) -> [i64; 4] {
        self.cluster.capacity
    }

    fn workload_view(&self, workload: &WorkloadEntry) -> WorkloadView {
        let confirmed = workload.allocations().all(|(_, allocation)| allocation.confirmed);
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
            tasks: workload.allocations().map(task).collect(),
        }
    }

    fn node_view(&self, node: u32) -> NodeView {
        let (host, room) = (self.cluster.node_state(node), self.cluster.room(node));
        let gpu = |(gpu, device): (&Gpu, &Device)| GpuView {
            id: gpu.id.clone(),
            milli_free: device.milli,
            memory_free: device.mib,
            users: device.users,
            health: host.health.get(&gpu.id).copied().unwrap_or_default(),
            utilization: host.utilization.get(&gpu.id).copied().unwrap_or_default(),
        };
        NodeView {
            node: (*host.spec).clone(),
            up: host.reach == Reachability::Up,
            open: host.is_open(),
            cpu_free: room.free[0],
            memory_free: room.free[1],
            gpus: host.spec.gpus.iter().zip(&room.devices).map(gpu).collect(),
            tasks: host.tasks.len() as u32,
            overcommitted: room.overcommitted(),
        }
    }
}
