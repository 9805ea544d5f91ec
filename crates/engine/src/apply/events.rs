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
use crate::state::workloads::{Job, JobIdx, RoleShape, Slot, State};

impl Scheduler {
    /// Tells the engine what happened, and when. Times never run backwards inside: an event from
    /// the past counts as happening now.
    pub fn apply(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
        self.advance(at);
        match event {
            Event::NodeUpdated(node) => self.see_node(*node),
            Event::NodeLost(node) => self.node_number(&node).map(|node| self.lose_node(node)),
            Event::NodeRemoved(node) => self.node_number(&node).map(|node| self.remove_node(node)),
            Event::Cordon { node, on } => self.node_number(&node).map(|node| {
                self.cluster.host_mut(node).cordoned = on;
                self.refresh_state(node);
                self.replan_reservation_on(node);
            }),
            Event::Drain { node, on } => self.node_number(&node).map(|node| self.drain(node, on)),
            Event::SpotReclaim { node, at } => {
                self.node_number(&node).map(|node| self.reclaim_spot(node, at))
            }
            Event::GpuHealth { node, gpu, health } => {
                let number = self.node_number(&node)?;
                self.gpu_number(number, &gpu)?;
                self.set_health(number, &gpu, health);
                Ok(())
            }
            Event::Utilization { node, readings } => self.read_utilization(&node, readings),
            Event::ForeignUseUpdated { node, id, usage: uses } => {
                self.see_foreign(&node, id, *uses)
            }
            Event::ForeignUseRemoved { node, id } => self.lose_foreign(&node, id),
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
                self.improved = true;
                Ok(())
            }
            Event::BudgetRemoved(id) => {
                self.budgets.remove(&id).ok_or(Rejected::UnknownBudget(id))?;
                self.improved = true;
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
                let job = self.job_number(&workload)?;
                self.set_gate(job, gate);
                Ok(())
            }
            Event::Cancelled(workload) | Event::Finished(workload) => {
                let job = self.job_number(&workload)?;
                self.finish(job);
                Ok(())
            }
            Event::Requeued(workload) => {
                let job = self.job_number(&workload)?;
                if self.jobs.get(job).seats().next().is_none() {
                    return Err(Rejected::NotPlaced { workload, task: 0 });
                }
                self.requeue(job);
                Ok(())
            }
            Event::TaskFinished { workload, task } => {
                let job = self.seated(&workload, task)?;
                self.finish_task(job, task);
                Ok(())
            }
            Event::PlacementConfirmed { workload, task } => {
                let job = self.seated(&workload, task)?;
                let job = self.jobs.get_mut(job);
                if let Some(seat) = job.tasks[task as usize].seat.as_mut() {
                    seat.confirmed = true;
                }
                if job.seats().all(|(_, seat)| seat.confirmed) {
                    (job.refusals, job.avoid) = (0, None);
                }
                Ok(())
            }
            Event::PlacementRefused { workload, task } => {
                self.seated(&workload, task).map(|job| self.refuse(job, task))
            }
            Event::DevicesReported { workload, task, gpus } => {
                let job = self.seated(&workload, task)?;
                self.set_devices(job, task, &gpus)
            }
            Event::TaskTerminating { workload, task } => {
                let job = self.seated(&workload, task)?;
                self.begin_to_stop(job, task);
                self.stoppable.remove(&job);
                Ok(())
            }
            Event::Nominated { workload, nodes } => self.nominate(&workload, &nodes),
            Event::WorkloadBudgetsUpdated { workload, budgets } => {
                let job = self.job_number(&workload)?;
                Arc::make_mut(&mut self.jobs.get_mut(job).spec).budgets = budgets;
                self.improved = true;
                Ok(())
            }
            Event::TaskStopped { workload, task } => {
                self.seated(&workload, task).map(|job| self.task_gone(job, task))
            }
            _ => unreachable!("events about nodes, queues and policy are handled above"),
        }
    }

    fn submit(&mut self, workload: Box<Workload>) -> Result<JobIdx, Rejected> {
        workload.validate()?;
        if self.jobs.find(&workload.id).is_some() {
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
    fn admit(&mut self, workload: Box<Workload>) -> JobIdx {
        self.learn_from(&workload);
        let index = self.take_in(workload);
        if self.jobs.get(index).spec.gate.is_some() {
            self.tell_gate(index);
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
    pub(crate) fn take_in(&mut self, workload: Box<Workload>) -> JobIdx {
        let workload: Arc<Workload> = workload.into();
        let queue = self.queues.find(&workload.queue).unwrap_or(crate::quota::queues::ROOT);
        let shape = self.cluster.intern(&workload.request, Vec::new());
        self.cluster.use_shape(shape);
        let more: Option<Arc<[RoleShape]>> = (!workload.roles.is_empty()).then(|| {
            let roles = workload.roles.iter();
            roles.map(|role| self.part_of(role)).collect()
        });
        self.watch_terms(&workload);
        self.queues.get_mut(queue).members += 1;
        self.serial += 1;
        let job = Job {
            shape,
            facet: None,
            more,
            queue,
            state: State::Waiting,
            tasks: SmallVec::from_elem(Slot::default(), workload.task_count() as usize),
            submitted: workload.submitted.unwrap_or(self.now),
            serial: self.serial,
            placed_at: Time(0),
            refusals: 0,
            not_before: Time(0),
            avoid: None,
            told: None,
            spec: workload,
        };
        let index = self.jobs.insert(job);
        self.regroup();
        index
    }

    fn part_of(&mut self, role: &Role) -> RoleShape {
        let shape = self.cluster.intern(&role.request, Vec::new());
        self.cluster.use_shape(shape);
        RoleShape { tasks: role.tasks, shape, facet: None }
    }

    fn watch_terms(&mut self, workload: &Workload) {
        for (_, request) in workload.each_role().filter(|(_, request)| has_terms(request)) {
            self.watch_terms_of(request);
        }
    }

    fn watch_terms_of(&mut self, request: &Request) {
        let (jobs, cluster) = (&self.jobs, &self.cluster);
        self.terms.watch(request, || {
            let ours = jobs.iter().flat_map(|(_, job)| {
                let labels = |task| &job.spec.request_of(task).labels;
                job.seats()
                    .map(move |(task, seat)| (seat.node, labels(task), seat.leaving.is_some()))
            });
            let hosts = cluster
                .hosts
                .iter()
                .enumerate()
                .filter_map(|(node, host)| Some((node, host.as_ref()?)));
            let foreign = hosts.flat_map(|(node, host)| {
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
            self.jobs.iter().map(|(_, job)| (job.serial, job.spec.clone())).collect();
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

    fn set_gate(&mut self, job: JobIdx, gate: Option<Gate>) {
        let closes = gate.is_some();
        if closes && self.jobs.get(job).state == State::Preempting {
            self.end_hold(job);
        }
        let waiting = self.jobs.get(job).state == State::Waiting;
        if closes && self.is_queued(job) {
            self.dequeue(job);
            if self.holds.reserved == Some(job) {
                self.drop_hold(job);
            }
        }
        let was_gated = self.jobs.get(job).spec.gate.is_some();
        Arc::make_mut(&mut self.jobs.get_mut(job).spec).gate = gate;
        if closes && waiting {
            self.tell_gate(job);
        } else if was_gated && waiting && !self.is_backing_off(job) {
            self.enqueue(job);
        }
    }

    /// Whether it is in its queue, and not waiting somewhere else.
    pub(crate) fn is_queued(&self, job: JobIdx) -> bool {
        let waits =
            self.jobs.get(job).state == State::Waiting && self.jobs.get(job).spec.gate.is_none();
        waits && !self.is_backing_off(job)
    }

    fn is_backing_off(&self, job: JobIdx) -> bool {
        self.backoffs.contains(&(self.jobs.get(job).not_before, job))
    }

    /// A workload is over, however far it had come.
    fn finish(&mut self, job: JobIdx) {
        self.withdraw(job);
        self.drop_hold(job);
        for task in 0..self.jobs.get(job).count() {
            self.improved |= self.unseat(job, task).is_some();
        }
        self.holds.victim_gone(job);
        self.forget(job);
    }

    /// Takes a workload out of whatever it waits in or runs in.
    pub(crate) fn withdraw(&mut self, job: JobIdx) {
        match self.jobs.get(job).state {
            State::Waiting => {
                let not_before = self.jobs.get(job).not_before;
                if !self.backoffs.remove(&(not_before, job))
                    && self.jobs.get(job).spec.gate.is_none()
                {
                    self.dequeue(job);
                }
            }
            State::Placed => self.unmark_placed(job),
            State::Preempting | State::Stopping => {}
        }
    }

    /// The opposite of [`take_in`](Self::take_in), for one that has no place any more.
    pub(crate) fn forget(&mut self, job: JobIdx) -> Job {
        let gone = self.jobs.remove(job);
        for (shape, _) in gone.shapes() {
            self.cluster.unuse_shape(shape);
        }
        self.queues.get_mut(gone.queue).members -= 1;
        for (_, request) in gone.spec.each_role().filter(|(_, request)| has_terms(request)) {
            self.terms.unwatch(request);
        }
        self.regroup();
        gone
    }

    fn finish_task(&mut self, job: JobIdx, task: u32) {
        self.unseat(job, task);
        self.improved = true;
        let slots = &mut self.jobs.get_mut(job).tasks;
        slots[task as usize].finished = true;
        if slots.iter().all(|slot| slot.finished) {
            self.finish(job);
        } else {
            self.wait_again_when_gone(job);
        }
    }

    fn requeue(&mut self, job: JobIdx) {
        if self.jobs.get(job).state == State::Placed {
            self.stop(job);
        }
        for task in 0..self.jobs.get(job).count() {
            self.unseat(job, task);
        }
        self.wait_again_when_gone(job);
    }

    /// A task is gone. If nobody had asked for that, its gang is broken.
    fn task_gone(&mut self, job: JobIdx, task: u32) {
        self.unseat(job, task);
        self.improved = true;
        if self.jobs.get(job).state == State::Placed {
            self.stop(job);
            self.gang_broken(job, task);
        }
        self.wait_again_when_gone(job);
    }

    fn set_queue(&mut self, queue: Queue) -> Result<(), Rejected> {
        queue.validate()?;
        let id = queue.id.clone();
        self.queues.set(queue).map_err(|why| Rejected::Queue { queue: id, why })?;
        self.improved = true;
        Ok(())
    }

    pub(crate) fn node_number(&self, node: &NodeId) -> Result<NodeIdx, Rejected> {
        self.cluster.node(node).ok_or_else(|| Rejected::UnknownNode(node.clone()))
    }

    pub(crate) fn job_number(&self, workload: &WorkloadId) -> Result<JobIdx, Rejected> {
        self.jobs.find(workload).ok_or_else(|| Rejected::UnknownWorkload(workload.clone()))
    }

    /// The workload's number, if that task of it is placed.
    fn seated(&self, workload: &WorkloadId, task: u32) -> Result<JobIdx, Rejected> {
        let index = self.job_number(workload)?;
        let job = self.jobs.get(index);
        let slot = job.tasks.get(task as usize).ok_or_else(|| Rejected::UnknownTask {
            workload: workload.clone(),
            task,
            tasks: job.count(),
        })?;
        let placed = slot.seat.is_some();
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
