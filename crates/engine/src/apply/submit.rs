//! Adds workloads to the state and removes them.

use smallvec::SmallVec;
use std::sync::Arc;

use crate::model::error::Rejected;
use crate::model::request::{GpuRequest, Request};
use crate::model::units::Time;
use crate::model::workload::{Role, Workload};
use crate::quota::queues::GPU;
use crate::state::cluster::NodeIdx;
use crate::state::scheduler::Scheduler;
use crate::state::workloads::{RoleShape, TaskState, WorkloadEntry, WorkloadIdx, WorkloadPhase};

impl Scheduler {
    pub(crate) fn submit(&mut self, workload: Box<Workload>) -> Result<WorkloadIdx, Rejected> {
        workload.validate()?;
        if self.workloads.find(&workload.id).is_some() {
            return Err(Rejected::DuplicateWorkload(workload.id));
        }
        let queue = self
            .queues
            .find(&workload.queue)
            .ok_or_else(|| Rejected::UnknownQueue(workload.queue.clone()))?;
        if workload.priority > self.queues.get(queue).spec.max_priority {
            let why = "does not allow this priority";
            return Err(Rejected::Queue { queue: workload.queue, why });
        }
        Ok(self.admit(workload))
    }

    /// Enqueues a validated workload, or reports its gate.
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

    /// Counts the workload in the learned demand.
    pub(crate) fn learn_from(&mut self, workload: &Workload) {
        if self.expectation.learns {
            self.learn_tasks(workload);
        }
        self.expectation.wanted.extend(workload.strategy.filter(|strategy| strategy.looks_ahead()));
    }

    /// Adds a validated workload without enqueueing it.
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
        let entry = WorkloadEntry {
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
        let index = self.workloads.insert(entry);
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
        let (workloads, cluster) = (&self.workloads, &self.cluster);
        self.terms.watch(request, || {
            let ours = workloads.iter().flat_map(|(_, workload)| {
                let labels = |task| &workload.spec.request_of(task).labels;
                workload.allocations().map(move |(task, allocation)| {
                    (allocation.node, labels(task), allocation.terminating_since.is_some())
                })
            });
            let node_states = cluster
                .node_states
                .iter()
                .enumerate()
                .filter_map(|(node, node_state)| Some((node, node_state.as_ref()?)));
            let foreign = node_states.flat_map(|(node, node_state)| {
                let uses = node_state.foreign.values().map(|(uses, _)| uses);
                uses.map(move |uses| (node as NodeIdx, &uses.labels, uses.terminating))
            });
            Box::new(ours.chain(foreign))
        });
    }

    /// Starts learning with all current workloads.
    pub(crate) fn begin_to_learn(&mut self) {
        self.expectation.learns = true;
        let mut known: Vec<(u64, Arc<Workload>)> =
            self.workloads.iter().map(|(_, index)| (index.serial, index.spec.clone())).collect();
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

    /// Thousandths per GPU of the request; for memory requests, of an average GPU.
    fn typical_milli(&self, request: &Request) -> u32 {
        match request.gpu {
            GpuRequest::None | GpuRequest::Mig { .. } => 0,
            GpuRequest::Whole(_) => 1000,
            GpuRequest::Fraction(share) => share.get(),
            GpuRequest::Memory(mib) => {
                let gpus = self.cluster.capacity[GPU] / 1000;
                let mean = (self.cluster.gpu_memory / gpus.max(1)).max(1) as u64;
                (mib.0 * 1000 / mean).clamp(1, 1000) as u32
            }
        }
    }

    /// Undoes [`insert_workload`](Self::insert_workload) for a workload without placed tasks.
    pub(crate) fn remove_workload(&mut self, workload: WorkloadIdx) -> WorkloadEntry {
        let gone = self.workloads.remove(workload);
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
}

fn has_terms(request: &Request) -> bool {
    !request.affinity.is_empty() || !request.spread.is_empty()
}
