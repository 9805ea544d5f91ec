//! Events: how the world changes the engine's state. An event that is refused changes nothing.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::model::error::Rejected;
use crate::model::event::{Demand, Event};
use crate::model::name::{NodeId, WorkloadId};
use crate::model::policy::Queue;
use crate::model::request::{GpuRequest, Request};
use crate::model::units::Time;
use crate::model::workload::{Gate, Role, Workload};
use crate::state::cluster::NodeIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{RoleShape, TaskState, WorkloadEntry, WorkloadIdx, WorkloadPhase};

impl Scheduler {
    /// Tells the engine what happened, and when. Times never run backwards inside: an event from
    /// the past counts as happening now.
    pub fn apply(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
        self.advance(at);
        match event {
            Event::NodeUpdated(node) => self.update_node(*node),
            Event::NodeLost(node) => self.node_index(&node).map(|node| self.mark_node_lost(node)),
            Event::NodeRemoved(node) => self.node_index(&node).map(|node| self.remove_node(node)),
            Event::Cordon { node, on } => self.node_index(&node).map(|node| {
                self.cluster.node_state_mut(node).cordoned = on;
                self.refresh_state(node);
                self.replan_reservation_on(node);
            }),
            Event::Drain { node, on } => self.node_index(&node).map(|node| self.drain(node, on)),
            Event::SpotReclaim { node, at } => {
                self.node_index(&node).map(|node| self.reclaim_spot(node, at))
            }
            Event::GpuHealth { node, gpu, health } => {
                let number = self.node_index(&node)?;
                self.gpu_index(number, &gpu)?;
                self.set_health(number, &gpu, health);
                Ok(())
            }
            Event::Utilization { node, readings } => self.read_utilization(&node, readings),
            Event::ForeignUseUpdated { node, id, usage: uses } => {
                self.update_foreign_use(&node, id, *uses)
            }
            Event::ForeignUseRemoved { node, id } => self.remove_foreign_use(&node, id),
            Event::PolicyUpdated(policy) => {
                self.set_policy(*policy);
                Ok(())
            }
            Event::StrategyUpdated(strategy) => {
                let policy = crate::model::policy::Policy { strategy, ..self.policy.clone() };
                self.set_policy(policy);
                Ok(())
            }
            Event::QueueUpdated(queue) => self.set_queue(*queue),
            Event::QueueRemoved(queue) => {
                let number = self
                    .queues
                    .find(&queue)
                    .ok_or_else(|| Rejected::UnknownQueue(queue.clone()))?;
                self.queues.remove(number).map_err(|why| Rejected::Queue { queue, why })
            }
            Event::BudgetUpdated { id, allowed } => {
                self.budgets.insert(id, allowed);
                self.retry_blocked = true;
                Ok(())
            }
            Event::BudgetRemoved(id) => {
                self.budgets.remove(&id).ok_or(Rejected::UnknownBudget(id))?;
                self.retry_blocked = true;
                Ok(())
            }
            Event::DemandUpdated(demand) => {
                demand.iter().flatten().try_for_each(Demand::validate)?;
                self.expectation.pin(demand);
                Ok(())
            }
            other => self.apply_to_workload(other),
        }
    }

    fn apply_to_workload(&mut self, event: Event) -> Result<(), Rejected> {
        match event {
            Event::Submitted(workload) => self.submit(workload).map(|_| ()),
            Event::Adopted(adopted) => self.adopt(*adopted),
            Event::GateChanged { workload, gate } => {
                let job = self.workload_index(&workload)?;
                self.set_gate(job, gate);
                Ok(())
            }
            Event::Cancelled(workload) | Event::Finished(workload) => {
                let job = self.workload_index(&workload)?;
                self.finish(job);
                Ok(())
            }
            Event::Requeued(workload) => {
                let job = self.workload_index(&workload)?;
                if self.workloads.get(job).allocations().next().is_none() {
                    return Err(Rejected::NotPlaced { workload, task: 0 });
                }
                self.requeue(job);
                Ok(())
            }
            Event::TaskFinished { workload, task } => {
                let job = self.placed_workload(&workload, task)?;
                self.finish_task(job, task);
                Ok(())
            }
            Event::PlacementConfirmed { workload, task } => {
                let job = self.placed_workload(&workload, task)?;
                let job = self.workloads.get_mut(job);
                if let Some(seat) = job.tasks[task as usize].allocation.as_mut() {
                    seat.confirmed = true;
                }
                if job.allocations().all(|(_, seat)| seat.confirmed) {
                    (job.refusals, job.avoid) = (0, None);
                }
                Ok(())
            }
            Event::PlacementRefused { workload, task } => {
                self.placed_workload(&workload, task).map(|job| self.refuse_placement(job, task))
            }
            Event::DevicesReported { workload, task, gpus } => {
                let job = self.placed_workload(&workload, task)?;
                self.set_devices(job, task, &gpus)
            }
            Event::TaskTerminating { workload, task } => {
                let job = self.placed_workload(&workload, task)?;
                self.mark_terminating(job, task);
                self.preemptible.remove(&job);
                Ok(())
            }
            Event::Nominated { workload, nodes } => self.nominate(&workload, &nodes),
            Event::WorkloadBudgetsUpdated { workload, budgets } => {
                let job = self.workload_index(&workload)?;
                Arc::make_mut(&mut self.workloads.get_mut(job).spec).budgets = budgets;
                self.retry_blocked = true;
                Ok(())
            }
            Event::TaskStopped { workload, task } => {
                self.placed_workload(&workload, task).map(|job| self.task_stopped(job, task))
            }
            _ => unreachable!("events about nodes, queues and policy are handled above"),
        }
    }

    fn submit(&mut self, workload: Box<Workload>) -> Result<WorkloadIdx, Rejected> {
        workload.validate()?;
        if self.workloads.find(&workload.id).is_some() {
            return Err(Rejected::DuplicateWorkload(workload.id));
        }
        let queue = self
            .queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        if workload.priority > self.queues.get(queue).spec.max_priority {
            let why = "does not allow a priority that high";
            return Err(Rejected::Queue { queue: workload.queue, why });
        }
        Ok(self.admit(workload))
    }

    /// Lets a workload that is known to be right wait for its turn, or for its gate to open.
    fn admit(&mut self, workload: Box<Workload>) -> WorkloadIdx {
        self.learn_from(&workload);
        let index = self.insert_workload(workload);
        if self.workloads.get(index).spec.gate.is_some() {
            self.report_gate(index);
        } else {
            self.enqueue(index);
        }
        index
    }

    /// Remembers what kind of work is handed in here.
    pub(crate) fn learn_from(&mut self, workload: &Workload) {
        if self.expectation.learns {
            self.learn_tasks(workload);
        }
        self.expectation.wanted.extend(workload.strategy.filter(|strategy| strategy.looks_ahead()));
    }

    /// Takes in a workload that is known to be right; what becomes of it is the caller's business.
    pub(crate) fn insert_workload(&mut self, workload: Box<Workload>) -> WorkloadIdx {
        let workload: Arc<Workload> = workload.into();
        let queue = self.queues.find(&workload.queue).unwrap_or(crate::quota::queues::ROOT);
        let shape = self.cluster.intern(&workload.request, Vec::new());
        self.cluster.use_shape(shape);
        let more: Option<Arc<[RoleShape]>> = (!workload.roles.is_empty()).then(|| {
            let roles = workload.roles.iter();
            roles.map(|role| self.role_shape(role)).collect()
        });
        self.watch_terms(&workload);
        self.queues.get_mut(queue).members += 1;
        self.serial += 1;
        let job = WorkloadEntry {
            shape,
            term_labels: None,
            role_shapes: more,
            queue,
            phase: WorkloadPhase::Pending,
            tasks: SmallVec::from_elem(TaskState::default(), workload.task_count() as usize),
            submitted: workload.submitted.unwrap_or(self.now),
            serial: self.serial,
            placed_at: Time(0),
            refusals: 0,
            not_before: Time(0),
            avoid: None,
            reported_class: None,
            spec: workload,
        };
        let index = self.workloads.insert(job);
        self.regroup_by_labels();
        index
    }

    fn role_shape(&mut self, role: &Role) -> RoleShape {
        let shape = self.cluster.intern(&role.request, Vec::new());
        self.cluster.use_shape(shape);
        RoleShape { tasks: role.tasks, shape, term_labels: None }
    }

    fn watch_terms(&mut self, workload: &Workload) {
        for (_, request) in workload.each_role().filter(|(_, request)| has_terms(request)) {
            self.watch_terms_of(request);
        }
    }

    fn watch_terms_of(&mut self, request: &Request) {
        let (jobs, cluster) = (&self.workloads, &self.cluster);
        self.terms.watch(request, || {
            let ours = jobs.iter().flat_map(|(_, job)| {
                let labels = |task| &job.spec.request_of(task).labels;
                job.allocations().map(move |(task, seat)| {
                    (seat.node, labels(task), seat.terminating_since.is_some())
                })
            });
            let node_states = cluster
                .node_states
                .iter()
                .enumerate()
                .filter_map(|(node, host)| Some((node, host.as_ref()?)));
            let foreign = node_states.flat_map(|(node, host)| {
                let uses = host.foreign.values().map(|(uses, _)| uses);
                uses.map(move |uses| (node as NodeIdx, &uses.labels, uses.terminating))
            });
            Box::new(ours.chain(foreign))
        });
    }

    /// Begins to learn what to expect, from everything that is here.
    pub(crate) fn begin_to_learn(&mut self) {
        self.expectation.learns = true;
        let mut known: Vec<(u64, Arc<Workload>)> =
            self.workloads.iter().map(|(_, job)| (job.serial, job.spec.clone())).collect();
        known.sort_unstable_by_key(|(serial, _)| *serial);
        for (_, workload) in known {
            self.learn_tasks(&workload);
        }
    }

    fn learn_tasks(&mut self, workload: &Workload) {
        for (tasks, request) in workload.each_role() {
            let milli = self.typical_milli(request);
            self.expectation.learn(request, tasks, milli);
        }
    }

    /// Thousandths of a GPU that each GPU of the request means here.
    fn typical_milli(&self, request: &Request) -> u32 {
        match request.gpu {
            GpuRequest::None | GpuRequest::Mig { .. } => 0,
            GpuRequest::Whole(_) => 1000,
            GpuRequest::Fraction(share) => share.get(),
            GpuRequest::Memory(mib) => {
                let gpus = self.cluster.capacity[3] / 1000;
                let mean = (self.cluster.gpu_memory / gpus.max(1)).max(1) as u64;
                (mib.0 * 1000 / mean).clamp(1, 1000) as u32
            }
        }
    }

    fn set_gate(&mut self, job: WorkloadIdx, gate: Option<Gate>) {
        let closes = gate.is_some();
        if closes && self.workloads.get(job).phase == WorkloadPhase::Preempting {
            self.release_hold_and_requeue(job);
        }
        let waiting = self.workloads.get(job).phase == WorkloadPhase::Pending;
        if closes && self.is_queued(job) {
            self.dequeue(job);
            if self.holds.reserved == Some(job) {
                self.release_hold(job);
            }
        }
        let was_gated = self.workloads.get(job).spec.gate.is_some();
        Arc::make_mut(&mut self.workloads.get_mut(job).spec).gate = gate;
        if closes && waiting {
            self.report_gate(job);
        } else if was_gated && waiting && !self.is_backing_off(job) {
            self.enqueue(job);
        }
    }

    /// Whether it is in its queue, and not waiting somewhere else.
    pub(crate) fn is_queued(&self, job: WorkloadIdx) -> bool {
        let waits = self.workloads.get(job).phase == WorkloadPhase::Pending
            && self.workloads.get(job).spec.gate.is_none();
        waits && !self.is_backing_off(job)
    }

    fn is_backing_off(&self, job: WorkloadIdx) -> bool {
        self.backoffs.contains(&(self.workloads.get(job).not_before, job))
    }

    /// A workload is over, however far it had come.
    fn finish(&mut self, job: WorkloadIdx) {
        self.withdraw(job);
        self.release_hold(job);
        for task in 0..self.workloads.get(job).count() {
            self.retry_blocked |= self.release_task(job, task).is_some();
        }
        self.holds.remove_victim(job);
        self.remove_workload(job);
    }

    /// Takes a workload out of whatever it waits in or runs in.
    pub(crate) fn withdraw(&mut self, job: WorkloadIdx) {
        match self.workloads.get(job).phase {
            WorkloadPhase::Pending => {
                let not_before = self.workloads.get(job).not_before;
                if !self.backoffs.remove(&(not_before, job))
                    && self.workloads.get(job).spec.gate.is_none()
                {
                    self.dequeue(job);
                }
            }
            WorkloadPhase::Placed => self.unmark_placed(job),
            WorkloadPhase::Preempting | WorkloadPhase::Stopping => {}
        }
    }

    /// The opposite of [`insert_workload`](Self::insert_workload), for one that has no place any more.
    pub(crate) fn remove_workload(&mut self, job: WorkloadIdx) -> WorkloadEntry {
        let gone = self.workloads.remove(job);
        for (shape, _) in gone.shapes() {
            self.cluster.unuse_shape(shape);
        }
        self.queues.get_mut(gone.queue).members -= 1;
        for (_, request) in gone.spec.each_role().filter(|(_, request)| has_terms(request)) {
            self.terms.unwatch(request);
        }
        self.regroup_by_labels();
        gone
    }

    fn finish_task(&mut self, job: WorkloadIdx, task: u32) {
        self.release_task(job, task);
        self.retry_blocked = true;
        let slots = &mut self.workloads.get_mut(job).tasks;
        slots[task as usize].finished = true;
        if slots.iter().all(|slot| slot.finished) {
            self.finish(job);
        } else {
            self.requeue_when_stopped(job);
        }
    }

    fn requeue(&mut self, job: WorkloadIdx) {
        if self.workloads.get(job).phase == WorkloadPhase::Placed {
            self.stop_workload(job);
        }
        for task in 0..self.workloads.get(job).count() {
            self.release_task(job, task);
        }
        self.requeue_when_stopped(job);
    }

    /// A task is gone. If nobody had asked for that, its gang is broken.
    fn task_stopped(&mut self, job: WorkloadIdx, task: u32) {
        self.release_task(job, task);
        self.retry_blocked = true;
        if self.workloads.get(job).phase == WorkloadPhase::Placed {
            self.stop_workload(job);
            self.notify_gang_broken(job, task);
        }
        self.requeue_when_stopped(job);
    }

    fn set_queue(&mut self, queue: Queue) -> Result<(), Rejected> {
        queue.validate()?;
        let id = queue.id.clone();
        self.queues.set(queue).map_err(|why| Rejected::Queue { queue: id, why })?;
        self.retry_blocked = true;
        Ok(())
    }

    pub(crate) fn node_index(&self, node: &NodeId) -> Result<NodeIdx, Rejected> {
        self.cluster.find_node(node).ok_or_else(|| Rejected::UnknownNode(node.clone()))
    }

    pub(crate) fn workload_index(&self, workload: &WorkloadId) -> Result<WorkloadIdx, Rejected> {
        self.workloads.find(workload).ok_or_else(|| Rejected::UnknownWorkload(workload.clone()))
    }

    /// The workload's number, if that task of it is placed.
    fn placed_workload(&self, workload: &WorkloadId, task: u32) -> Result<WorkloadIdx, Rejected> {
        let index = self.workload_index(workload)?;
        let job = self.workloads.get(index);
        let slot = job.tasks.get(task as usize).ok_or_else(|| Rejected::UnknownTask {
            workload: workload.clone(),
            task,
            tasks: job.count(),
        })?;
        let placed = slot.allocation.is_some();
        if placed {
            Ok(index)
        } else {
            Err(Rejected::NotPlaced { workload: workload.clone(), task })
        }
    }
}

fn has_terms(request: &Request) -> bool {
    !request.affinity.is_empty() || !request.spread.is_empty()
}
