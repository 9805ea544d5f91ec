//! Looking in from outside: state as data, and why something waits.

use serde::{Deserialize, Serialize};

use crate::cluster::fit::{self, Standing};
use crate::decision::{Gpus, Lack, WaitReason};
use crate::forecast::Eta;
use crate::name::{GpuId, GpuModel, NodeId, QueueId, WorkloadId};
use crate::node::{GpuHealth, Node};
use crate::place::Obstacle;
use crate::request::{GpuAsk, Request};
use crate::scheduler::Scheduler;
use crate::task::{Job, JobIdx, State};
use crate::units::{MiB, MilliCpu, MilliGpu, Percent, Time};
use crate::workload::Workload;

/// Nodes named as having come closest.
const CLOSEST: usize = 3;

/// Everything there is to say about a workload that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Why it waits; none when it does not.
    pub reason: Option<WaitReason>,
    /// Its place among all that wait, from 1; none when it does not wait for its turn.
    pub position: Option<u32>,
    /// How many wait.
    pub waiting: u32,
    /// Smaller or more tolerant requests that would start now.
    pub nearby: Vec<Nearby>,
    /// The nodes that came closest, and what each lacks.
    pub closest: Vec<(NodeId, Lack)>,
    /// When it is expected to start.
    pub eta: Eta,
}

/// A change to a request with which it would start now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nearby {
    /// So many GPUs instead.
    Gpus(u32),
    /// This share of a GPU instead.
    Share(MilliGpu),
    /// This much GPU memory instead.
    GpuMemory(MiB),
    /// GPUs with this much memory instead.
    MinGpuMemory(MiB),
    /// These models instead.
    Models(Vec<GpuModel>),
    /// A gang of so many tasks instead.
    Tasks(u32),
    /// So much CPU instead.
    Cpu(MilliCpu),
    /// So much host memory instead.
    Memory(MiB),
    /// GPUs that need not be joined by `NVLink`.
    WithoutNvlink,
    /// GPUs shared with others.
    Shared,
}

/// What a workload is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadState {
    /// It waits for its turn, for room, or for victims to go.
    Waiting,
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
    pub gpus: Gpus,
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
        self.jobs.find(id).map(|job| self.workload_view(self.jobs.get(job)))
    }

    /// All workloads in the order they were handed in.
    pub fn workloads(&self) -> Vec<WorkloadView> {
        let mut jobs: Vec<&Job> = self.jobs.iter().map(|(_, job)| job).collect();
        jobs.sort_unstable_by_key(|job| job.serial);
        jobs.into_iter().map(|job| self.workload_view(job)).collect()
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
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// How many workloads wait or run.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether no workload waits or runs.
    pub fn is_empty(&self) -> bool {
        self.jobs.len() == 0
    }

    /// What the cluster has: thousandths of a core, MiB, MiB of storage, thousandths of a GPU.
    pub fn capacity(&self) -> [i64; 4] {
        self.cluster.capacity
    }

    /// Why a workload waits, how far it is from its turn, what would start at once instead, and
    /// when it is expected to start. Changes nothing.
    pub fn explain(&self, now: Time, id: &WorkloadId) -> Option<Explanation> {
        let job = self.jobs.find(id)?;
        let mut copy = self.clone();
        copy.advance(now);
        let reason = copy.current_reason(job);
        let unplaced = matches!(self.jobs.get(job).state, State::Waiting | State::Preempting);
        let no_room = reason.as_ref().is_some_and(WaitReason::cured_by_nodes);
        let too_much = no_room || matches!(reason, Some(WaitReason::Quota { .. }));
        let nearby = if too_much { copy.nearby(job) } else { Vec::new() };
        let closest = if no_room { copy.closest(job) } else { Vec::new() };
        Some(Explanation {
            // Last, because it uses the copy up.
            position: copy.position(job),
            waiting: self.pending.len() as u32,
            nearby,
            closest,
            eta: if unplaced { self.eta(now, id) } else { Eta::Now },
            reason,
        })
    }

    /// Why it waits, with the numbers of this moment.
    pub(crate) fn current_reason(&mut self, job: JobIdx) -> Option<WaitReason> {
        let this = self.jobs.get(job);
        match this.state {
            State::Placed | State::Stopping => return None,
            State::Preempting => {
                let hold = self.holds.get(job)?;
                let crate::hold::Purpose::Preemption { victims, until } = &hold.purpose else { return None };
                let victims = victims.iter().map(|victim| self.jobs.get(*victim).spec.id.clone()).collect();
                return Some(WaitReason::Preempting { victims, until: *until });
            }
            State::Waiting => {}
        }
        if let Some(gate) = &this.spec.gate {
            return Some(WaitReason::Gated(gate.clone()));
        }
        if this.not_before > self.now {
            return Some(WaitReason::BackingOff { until: this.not_before, refusals: this.refusals });
        }
        self.cluster.sort();
        if self.holds.reserved == Some(job) {
            self.lift_hold(job);
        }
        match self.place(job) {
            Err(obstacle @ Obstacle::Quota(_)) => Some(self.reason(job, &obstacle)),
            Err(obstacle) => Some(match self.holder_in_the_way(job) {
                Some(by) => self.held_reason(by),
                None => self.reason(job, &obstacle),
            }),
            // It would start in the next pass.
            Ok(()) => {
                for task in 0..self.jobs.get(job).spec.tasks {
                    self.unseat(job, task);
                }
                // Unless the order alone keeps it back.
                let group = self.pending.find(&self.group_key(job)).filter(|_| !self.policy.backfill)?;
                self.pending.group(group).blocked.as_deref().cloned()
            }
        }
    }

    /// The place in the order of tries, as if everything before it were started.
    fn position(&mut self, job: JobIdx) -> Option<u32> {
        let group = self.pending.find(&self.group_key(job))?;
        self.pending.group(group).members.get(&self.rank(job))?;
        self.pending.unblock_all(&mut self.queues);
        for position in 1.. {
            let (_, next) = self.next_up()?;
            if next == job {
                return Some(position);
            }
            let (shape, tasks) = (self.jobs.get(next).shape, self.jobs.get(next).spec.tasks);
            let charge = self.nominal_charge(shape, tasks);
            let queue = self.jobs.get(next).queue;
            self.dequeue(next);
            self.queues.charge(queue, &charge, 1, self.now, self.policy.half_life);
        }
        None
    }

    /// Changes to the request with which it would start now, the mildest kind first.
    fn nearby(&mut self, job: JobIdx) -> Vec<Nearby> {
        let spec = self.jobs.get(job).spec.clone();
        let request = &spec.request;
        let tasks = spec.tasks;
        let mut found = Vec::new();
        let mut offer = |this: &mut Self, changed: Request, nearby: Nearby| {
            if this.fits_now(job, &changed, tasks) {
                found.push(nearby);
            }
        };
        if request.nvlink {
            offer(self, Request { nvlink: false, ..request.clone() }, Nearby::WithoutNvlink);
        }
        if request.exclusive && !matches!(request.gpu, GpuAsk::Whole(_)) {
            offer(self, Request { exclusive: false, ..request.clone() }, Nearby::Shared);
        }
        if !request.models.is_empty() {
            let any = Request { models: Vec::new(), ..request.clone() };
            let models: Vec<GpuModel> = self.cluster.models.clone();
            let fits = |model: &GpuModel| Request { models: vec![model.clone()], ..any.clone() };
            let usable: Vec<_> = models.into_iter().filter(|m| self.fits_now(job, &fits(m), tasks)).collect();
            if !usable.is_empty() {
                offer(self, any, Nearby::Models(usable));
            }
        }
        found.extend(self.smaller(job, request, tasks));
        if tasks > 1 {
            let fewer = largest(tasks - 1, |fewer| self.fits_now(job, request, fewer));
            found.extend(fewer.map(Nearby::Tasks));
        }
        found
    }

    /// The same with less of one thing.
    fn smaller(&mut self, job: JobIdx, request: &Request, tasks: u32) -> Vec<Nearby> {
        let mut found = Vec::new();
        let with = |gpu: GpuAsk| Request { gpu, ..request.clone() };
        match request.gpu {
            GpuAsk::Whole(count) => {
                let fewer = largest(count - 1, |n| self.fits_now(job, &with(GpuAsk::Whole(n)), tasks));
                found.extend(fewer.map(Nearby::Gpus));
            }
            GpuAsk::Fraction(share) => {
                let fits = |m| MilliGpu::new(m).is_ok_and(|m| self.fits_now(job, &with(GpuAsk::Fraction(m)), tasks));
                let less = largest(share.get() - 1, fits);
                found.extend(less.and_then(|milli| MilliGpu::new(milli).ok()).map(Nearby::Share));
            }
            GpuAsk::Memory(mib) => {
                let fits = |m: u32| self.fits_now(job, &with(GpuAsk::Memory(MiB(m.into()))), tasks);
                let less = largest(mib.0 as u32 - 1, fits);
                found.extend(less.map(|mib| Nearby::GpuMemory(MiB(mib.into()))));
            }
            GpuAsk::None | GpuAsk::Mig { .. } => {}
        }
        if request.min_gpu_memory.0 > 0 {
            let with = |m: u32| Request { min_gpu_memory: MiB(m.into()), ..request.clone() };
            let less = largest(request.min_gpu_memory.0 as u32 - 1, |m| self.fits_now(job, &with(m), tasks));
            found.extend(less.map(|mib| Nearby::MinGpuMemory(MiB(mib.into()))));
        }
        let most = u64::from(u32::MAX);
        if (1..most).contains(&request.cpu.0) {
            let with = |cpu: u32| Request { cpu: MilliCpu(cpu.into()), ..request.clone() };
            let less = largest(request.cpu.0 as u32 - 1, |cpu| self.fits_now(job, &with(cpu), tasks));
            found.extend(less.map(|cpu| Nearby::Cpu(MilliCpu(cpu.into()))));
        }
        if (1..most).contains(&request.memory.0) {
            let with = |memory: u32| Request { memory: MiB(memory.into()), ..request.clone() };
            let less = largest(request.memory.0 as u32 - 1, |memory| self.fits_now(job, &with(memory), tasks));
            found.extend(less.map(|memory| Nearby::Memory(MiB(memory.into()))));
        }
        found
    }

    /// Whether the workload would start now if it asked for this instead; tried out, so that topology,
    /// terms between tasks and quotas count as they do in a pass.
    fn fits_now(&mut self, job: JobIdx, request: &Request, tasks: u32) -> bool {
        let shape = self.cluster.intern(&std::sync::Arc::new(request.clone()), Vec::new());
        let this = self.jobs.get_mut(job);
        let before = (this.spec.clone(), this.shape, this.tasks.clone());
        let spec = std::sync::Arc::make_mut(&mut this.spec);
        spec.request = request.clone();
        spec.tasks = tasks;
        this.shape = shape;
        this.tasks = smallvec::SmallVec::from_elem(crate::task::Slot::default(), tasks as usize);
        let fits = self.place(job).is_ok();
        if fits {
            for task in 0..tasks {
                self.unseat(job, task);
            }
        }
        let this = self.jobs.get_mut(job);
        (this.spec, this.shape, this.tasks) = before;
        fits
    }

    /// The nodes that lack the least: nothing of what only their description could change, and most
    /// GPU left.
    fn closest(&self, job: JobIdx) -> Vec<(NodeId, Lack)> {
        let shape = self.jobs.get(job).shape;
        let mut nodes: Vec<(i32, u32, u32)> = Vec::new();
        for node in &self.cluster.order {
            let room = self.cluster.room(*node);
            let standing = fit::standing(self.cluster.shape(shape), &self.cluster.host(*node).spec, room);
            if matches!(standing, Standing::Yes(_)) && room.open {
                nodes.push((-room.free_milli, self.cluster.place[*node as usize], *node));
            }
        }
        nodes.sort_unstable();
        let named = |(_, _, node): &(i32, u32, u32)| {
            Some((self.cluster.host(*node).spec.id.clone(), self.lack_of(shape, *node)?))
        };
        nodes.iter().filter_map(named).take(CLOSEST).collect()
    }

    fn workload_view(&self, job: &Job) -> WorkloadView {
        let confirmed = job.seats().all(|(_, seat)| seat.confirmed);
        let task = |(task, seat): (u32, &crate::task::Seat)| TaskView {
            task,
            node: self.cluster.host(seat.node).spec.id.clone(),
            gpus: self.gpus(seat),
        };
        WorkloadView {
            workload: (*job.spec).clone(),
            state: match job.state {
                State::Waiting | State::Preempting => WorkloadState::Waiting,
                State::Placed if confirmed => WorkloadState::Running,
                State::Placed => WorkloadState::Placed,
                State::Stopping => WorkloadState::Stopping,
            },
            submitted: job.submitted,
            placed_at: job.placed_at,
            tasks: job.seats().map(task).collect(),
        }
    }

    fn node_view(&self, node: u32) -> NodeView {
        let (host, room) = (self.cluster.host(node), self.cluster.room(node));
        let gpu = |(gpu, device): (&crate::node::Gpu, &crate::cluster::room::Device)| GpuView {
            id: gpu.id.clone(),
            milli_free: device.milli,
            memory_free: device.mib,
            users: device.users,
            health: host.health.get(&gpu.id).copied().unwrap_or_default(),
            utilization: host.busy.get(&gpu.id).copied().unwrap_or_default(),
        };
        NodeView {
            node: (*host.spec).clone(),
            up: host.reach == crate::cluster::Reach::Up,
            open: host.is_open(),
            cpu_free: room.free[0],
            memory_free: room.free[1],
            gpus: host.spec.gpus.iter().zip(&room.devices).map(gpu).collect(),
            tasks: host.tasks.len() as u32,
            overcommitted: room.overcommitted(),
        }
    }
}

/// The largest value from 1 to `most` that passes, given that smaller ones pass more easily.
fn largest(most: u32, mut passes: impl FnMut(u32) -> bool) -> Option<u32> {
    let (mut good, mut bad) = (0, most + 1);
    while bad - good > 1 {
        let middle = u32::midpoint(good, bad);
        if passes(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    (good > 0).then_some(good)
}
