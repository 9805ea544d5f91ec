//! Explanations: wait reason, queue position, alternatives and ETA of a workload.

use serde::{Deserialize, Serialize};

use crate::explain::forecast::Eta;
use crate::model::name::{GpuModel, NodeId, WorkloadId};
use crate::model::request::{GpuRequest, Request};
use crate::model::units::{MiB, MilliCpu, MilliGpu, Time};
use crate::model::wait::{Shortfall, WaitReason};
use crate::pass::place::Obstacle;
use crate::state::cluster::fit::{self, Eligibility};
use crate::state::cluster::unavailable;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{WorkloadIdx, WorkloadPhase};

/// Limit of [`Explanation::closest`].
const CLOSEST: usize = 3;

/// Complete explanation of a workload's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// `None` when the workload is placed, or would start in the next pass.
    pub reason: Option<WaitReason>,
    /// Position in the order of scheduling, from 1; `None` outside the queue.
    pub position: Option<u32>,
    /// Number of pending workloads.
    pub waiting: u32,
    /// Changed requests that would start now.
    pub alternatives: Vec<Alternative>,
    /// The nodes with the smallest shortfall.
    pub closest: Vec<(NodeId, Shortfall)>,
    pub eta: Eta,
}

/// A change of the request that would let the workload start now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alternative {
    /// Fewer GPUs.
    GpuCount(u32),
    /// A smaller share of one GPU.
    GpuFraction(MilliGpu),
    /// Less GPU memory.
    GpuMemory(MiB),
    /// A smaller minimum GPU size.
    MinGpuMemory(MiB),
    /// Other GPU models.
    Models(Vec<GpuModel>),
    /// A smaller gang.
    Tasks(u32),
    Cpu(MilliCpu),
    /// Less host memory.
    Memory(MiB),
    /// GPUs without `NVLink`.
    WithoutNvlink,
    /// GPUs without exclusive access.
    Shared,
}

impl Scheduler {
    /// Explains a workload without any change of the state.
    pub fn explain(&self, now: Time, id: &WorkloadId) -> Option<Explanation> {
        let workload = self.workloads.find(id)?;
        let mut copy = self.clone();
        copy.advance(now);
        let reason = copy.current_reason(workload);
        let unplaced = matches!(
            self.workloads.get(workload).phase,
            WorkloadPhase::Pending | WorkloadPhase::Preempting
        );
        let no_room = reason.as_ref().is_some_and(WaitReason::resolved_by_nodes);
        let too_much = no_room || matches!(reason, Some(WaitReason::Quota { .. }));
        let alternatives = if too_much { copy.alternatives(workload) } else { Vec::new() };
        let closest = if no_room { copy.closest(workload) } else { Vec::new() };
        Some(Explanation {
            // Computed last, because it changes the copy.
            position: copy.position(workload),
            waiting: self.pending.len() as u32,
            alternatives,
            closest,
            eta: if unplaced { self.eta(now, id) } else { Eta::Now },
            reason,
        })
    }

    /// The wait reason with current numbers.
    pub(crate) fn current_reason(&mut self, workload: WorkloadIdx) -> Option<WaitReason> {
        let this = self.workloads.get(workload);
        match this.phase {
            WorkloadPhase::Placed | WorkloadPhase::Stopping => return None,
            WorkloadPhase::Preempting => {
                let hold = self.holds.get(workload)?;
                let crate::hold::holds::HoldPurpose::Preemption { victims, until } = &hold.purpose
                else {
                    return None;
                };
                return Some(self.preempting_reason(victims, *until));
            }
            WorkloadPhase::Pending => {}
        }
        if let Some(gate) = &this.spec.gate {
            return Some(WaitReason::Gated(gate.clone()));
        }
        if this.not_before > self.now {
            return Some(WaitReason::BackingOff {
                until: this.not_before,
                refusals: this.refusals,
            });
        }
        self.cluster.sort();
        if self.holds.reserved == Some(workload) {
            self.suspend_hold(workload);
        }
        self.suspend_savings(workload);
        match self.place_workload(workload) {
            Err(obstacle @ Obstacle::Quota(_)) => Some(self.wait_reason(workload, &obstacle)),
            Err(obstacle) => Some(match self.blocking_holder(workload) {
                Some(by) => self.reserved_reason(by),
                None => self.wait_reason(workload, &obstacle),
            }),
            // The workload would start in the next pass,
            Ok(()) => {
                for task in 0..self.workloads.get(workload).count() {
                    self.release_task(workload, task);
                }
                // unless the queue order alone blocks it.
                let group = self
                    .pending
                    .find(&self.group_key(workload))
                    .filter(|_| !self.policy.backfill)?;
                self.pending.group(group).blocked.as_deref().cloned()
            }
        }
    }

    /// Position in the order of scheduling, as if all workloads ahead were started.
    fn position(&mut self, workload: WorkloadIdx) -> Option<u32> {
        let group = self.pending.find(&self.group_key(workload))?;
        self.pending.group(group).members.get(&self.rank(workload))?;
        self.pending.unblock_all(&mut self.queues);
        for position in 1.. {
            let (_, next) = self.next_candidate()?;
            if next == workload {
                return Some(position);
            }
            let charge = self.charge_of(next);
            let queue = self.workloads.get(next).queue;
            self.dequeue(next);
            self.queues.charge(queue, &charge, 1, self.now, self.policy.half_life);
        }
        None
    }

    /// Changes of the request that would let it start now, least intrusive first.
    fn alternatives(&mut self, workload: WorkloadIdx) -> Vec<Alternative> {
        let spec = self.workloads.get(workload).spec.clone();
        if !spec.roles.is_empty() {
            // A single change among several requests is not meaningful.
            return Vec::new();
        }
        let request: &Request = &spec.request;
        let tasks = spec.tasks;
        let mut found = Vec::new();
        let mut offer = |this: &mut Self, changed: Request, nearby: Alternative| {
            if this.fits_now(workload, &changed, tasks) {
                found.push(nearby);
            }
        };
        if request.nvlink {
            offer(self, Request { nvlink: false, ..request.clone() }, Alternative::WithoutNvlink);
        }
        if request.exclusive && !matches!(request.gpu, GpuRequest::Whole(_)) {
            offer(self, Request { exclusive: false, ..request.clone() }, Alternative::Shared);
        }
        if !request.models.is_empty() {
            let any = Request { models: Vec::new(), ..request.clone() };
            let models: Vec<GpuModel> = self.cluster.models.clone();
            let fits = |model: &GpuModel| Request { models: vec![model.clone()], ..any.clone() };
            let usable: Vec<_> =
                models.into_iter().filter(|m| self.fits_now(workload, &fits(m), tasks)).collect();
            if !usable.is_empty() {
                offer(self, any, Alternative::Models(usable));
            }
        }
        found.extend(self.smaller(workload, request, tasks));
        if tasks > 1 {
            let fewer = largest(tasks - 1, |fewer| self.fits_now(workload, request, fewer));
            found.extend(fewer.map(Alternative::Tasks));
        }
        found
    }

    /// Changes with a smaller amount of one resource.
    fn smaller(
        &mut self,
        workload: WorkloadIdx,
        request: &Request,
        tasks: u32,
    ) -> Vec<Alternative> {
        let mut found = Vec::new();
        let with = |gpu: GpuRequest| Request { gpu, ..request.clone() };
        match request.gpu {
            GpuRequest::Whole(count) => {
                let fewer = largest(count - 1, |n| {
                    self.fits_now(workload, &with(GpuRequest::Whole(n)), tasks)
                });
                found.extend(fewer.map(Alternative::GpuCount));
            }
            GpuRequest::Fraction(share) => {
                let fits = |m| {
                    MilliGpu::new(m).is_ok_and(|m| {
                        self.fits_now(workload, &with(GpuRequest::Fraction(m)), tasks)
                    })
                };
                let less = largest(share.get() - 1, fits);
                found.extend(
                    less.and_then(|milli| MilliGpu::new(milli).ok()).map(Alternative::GpuFraction),
                );
            }
            GpuRequest::Memory(mib) => {
                let fits = |m: u32| {
                    self.fits_now(workload, &with(GpuRequest::Memory(MiB(m.into()))), tasks)
                };
                let less = largest(mib.0 as u32 - 1, fits);
                found.extend(less.map(|mib| Alternative::GpuMemory(MiB(mib.into()))));
            }
            GpuRequest::None | GpuRequest::Mig { .. } => {}
        }
        if request.min_gpu_memory.0 > 0 {
            let with = |m: u32| Request { min_gpu_memory: MiB(m.into()), ..request.clone() };
            let less = largest(request.min_gpu_memory.0 as u32 - 1, |m| {
                self.fits_now(workload, &with(m), tasks)
            });
            found.extend(less.map(|mib| Alternative::MinGpuMemory(MiB(mib.into()))));
        }
        let most = u64::from(u32::MAX);
        if (1..most).contains(&request.cpu.0) {
            let with = |cpu: u32| Request { cpu: MilliCpu(cpu.into()), ..request.clone() };
            let less =
                largest(request.cpu.0 as u32 - 1, |cpu| self.fits_now(workload, &with(cpu), tasks));
            found.extend(less.map(|cpu| Alternative::Cpu(MilliCpu(cpu.into()))));
        }
        if (1..most).contains(&request.memory.0) {
            let with = |memory: u32| Request { memory: MiB(memory.into()), ..request.clone() };
            let less = largest(request.memory.0 as u32 - 1, |memory| {
                self.fits_now(workload, &with(memory), tasks)
            });
            found.extend(less.map(|memory| Alternative::Memory(MiB(memory.into()))));
        }
        found
    }

    /// A trial placement with a changed request; topology, terms and quotas apply as in a pass.
    fn fits_now(&mut self, workload: WorkloadIdx, request: &Request, tasks: u32) -> bool {
        let shape = self.cluster.intern(&std::sync::Arc::new(request.clone()), Vec::new());
        let this = self.workloads.get_mut(workload);
        let (spec_before, shape_before, tasks_before) =
            (this.spec.clone(), this.shape, this.tasks.clone());
        let spec = std::sync::Arc::make_mut(&mut this.spec);
        spec.request = std::sync::Arc::new(request.clone());
        spec.tasks = tasks;
        this.shape = shape;
        this.tasks = smallvec::SmallVec::from_elem(
            crate::state::workloads::TaskState::default(),
            tasks as usize,
        );
        let fits = self.place_workload(workload).is_ok();
        if fits {
            for task in 0..tasks {
                self.release_task(workload, task);
            }
        }
        let this = self.workloads.get_mut(workload);
        this.spec = spec_before;
        this.shape = shape_before;
        this.tasks = tasks_before;
        fits
    }

    /// Nodes with the smallest shortfall: first nodes that only need an uncordon, then eligible nodes with
    /// the most free GPU. Without an eligible node, nodes with unsuitable GPUs.
    fn closest(&self, workload: WorkloadIdx) -> Vec<(NodeId, Shortfall)> {
        let shape =
            self.workloads.get(workload).shape_of(self.batches_hardest_first(workload)[0].tasks[0]);
        let (mut nodes, mut others): (Vec<(bool, i32, u32, u32)>, Vec<_>) =
            (Vec::new(), Vec::new());
        for node in &self.cluster.order {
            let (node_state, room) = (self.cluster.node_state(*node), self.cluster.room(*node));
            let asked = self.cluster.shape(shape);
            let opening_helps = unavailable::blocking_gpus(asked, room).is_some()
                || unavailable::is_blocked_by_cordon(asked, node_state, room);
            let place = self.cluster.place[*node as usize];
            let key = (!opening_helps, -room.free_milli, place, *node);
            match fit::eligibility(asked, &node_state.spec, room) {
                Eligibility::Eligible(_) if room.open || opening_helps => nodes.push(key),
                Eligibility::Excluded(code) if room.open && code.is_about_gpus() => {
                    others.push(key);
                }
                Eligibility::Eligible(_) | Eligibility::Excluded(_) => {}
            }
        }
        if nodes.is_empty() {
            nodes = others;
        }
        nodes.sort_unstable();
        let named = |(_, _, _, node): &(bool, i32, u32, u32)| {
            Some((
                self.cluster.node_state(*node).spec.id.clone(),
                self.node_shortfall(shape, *node)?,
            ))
        };
        nodes.iter().filter_map(named).take(CLOSEST).collect()
    }
}

/// The largest value from 1 to `most` that passes; bisection, since smaller values pass more easily.
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
