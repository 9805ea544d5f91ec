//! An independent ledger, built from events and decisions only. It panics at the first invalid placement.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_engine::labels::{first_untolerated, node_matches};
use agentaflow_engine::{
    AdoptedWorkload, BudgetId, Decision, Event, ForeignId, ForeignUse, GpuAssignment, GpuHealth,
    GpuId, Node, NodeId, OnFault, Placement, Plan, Policy, Queue, QueueId, Scheduler, Time,
    Topology, Workload, WorkloadId,
};

/// A node as the driver knows it.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug)]
pub struct Host {
    pub spec: Node,
    pub lost: bool,
    pub cordoned: bool,
    pub draining: bool,
    pub reclaimed: bool,
    pub health: BTreeMap<GpuId, GpuHealth>,
    pub foreign: BTreeMap<ForeignId, ForeignUse>,
}

/// Allocation of a task.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub node: NodeId,
    pub gpus: GpuAssignment,
    pub since: Time,
    /// The workload reduced to this task.
    pub of: Workload,
    pub going: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub nodes: BTreeMap<NodeId, Host>,
    pub queues: BTreeMap<QueueId, Queue>,
    pub workloads: BTreeMap<WorkloadId, Workload>,
    pub allocations: BTreeMap<(WorkloadId, u32), Allocation>,
    pub budgets: BTreeMap<BudgetId, u32>,
    pub stopping: BTreeSet<WorkloadId>,
    /// Tasks that wait for a replacement.
    pub lost: BTreeSet<(WorkloadId, u32)>,
    pub policy: Policy,
}

impl Ledger {
    pub fn new(policy: Policy) -> Self {
        let root = Queue::new("root");
        Self { queues: [(root.id.clone(), root)].into(), policy, ..Self::default() }
    }

    /// Applies an event that the engine accepted.
    pub fn note(&mut self, event: &Event, engine: &Scheduler) {
        match event {
            Event::NodeUpdated(node) => self.note_node(node, engine),
            Event::NodeLost(node) => {
                self.host(node).lost = true;
                self.forget_on(node, |workload| workload.on_fault == OnFault::Requeue);
            }
            Event::NodeRemoved(node) => {
                self.forget_on(node, |_| true);
                self.nodes.remove(node);
            }
            Event::Cordon { node, on } => self.host(node).cordoned = *on,
            Event::Drain { node, on } => self.host(node).draining = *on,
            Event::SpotReclaim { node, .. } => self.host(node).reclaimed = true,
            Event::GpuHealth { node, gpu, health } => {
                self.host(node).health.insert(gpu.clone(), *health);
            }
            Event::ForeignUseUpdated { node, id, usage: uses } => {
                self.host(node).foreign.insert(id.clone(), (**uses).clone());
            }
            Event::ForeignUseRemoved { node, id } => {
                self.host(node).foreign.remove(id);
            }
            Event::QueueUpdated(queue) => {
                self.queues.insert(queue.id.clone(), (**queue).clone());
            }
            Event::QueueRemoved(queue) => {
                self.queues.remove(queue);
            }
            Event::BudgetUpdated { id, allowed } => {
                self.budgets.insert(id.clone(), *allowed);
            }
            Event::BudgetRemoved(id) => {
                self.budgets.remove(id);
            }
            Event::PolicyUpdated(policy) => self.policy = (**policy).clone(),
            Event::StrategyUpdated(strategy) => self.policy.strategy = *strategy,
            other => self.note_workload(other, engine),
        }
        self.stopping.retain(|id| self.allocations.keys().any(|(holder, _)| holder == id));
        self.lost.retain(|(id, task)| {
            let view = engine.workload(id);
            view.is_some_and(|view| view.lost.iter().any(|lost| lost.task == *task))
        });
    }

    fn note_workload(&mut self, event: &Event, engine: &Scheduler) {
        match event {
            Event::Submitted(workload) => {
                self.workloads.insert(workload.id.clone(), (**workload).clone());
            }
            Event::Adopted(adopted) => self.note_adopted(adopted, engine),
            Event::GateChanged { workload, gate } => {
                self.workloads.get_mut(workload).expect("a known workload").gate.clone_from(gate);
            }
            Event::Cancelled(id) | Event::Finished(id) => {
                self.workloads.remove(id);
                self.allocations.retain(|(holder, _), _| holder != id);
            }
            Event::Requeued(id) => self.allocations.retain(|(holder, _), _| holder != id),
            Event::TaskFinished { workload, task } => {
                self.allocations.remove(&(workload.clone(), *task));
                if engine.workload(workload).is_none() {
                    self.workloads.remove(workload);
                }
            }
            Event::PlacementRefused { workload, task } | Event::TaskStopped { workload, task } => {
                self.allocations.remove(&(workload.clone(), *task));
            }
            Event::TaskLost { workload, task } => {
                let key = (workload.clone(), *task);
                self.allocations.remove(&key);
                self.lost.insert(key);
            }
            Event::TaskTerminating { workload, task } => {
                let allocation = self.allocations.get_mut(&(workload.clone(), *task));
                allocation.expect("only a placed task is stopped").going = true;
            }
            Event::DevicesReported { workload, task, .. } => {
                self.reload(engine, |id, number, _| id == workload && number == *task);
            }
            _ => {}
        }
    }

    fn note_adopted(&mut self, adopted: &AdoptedWorkload, engine: &Scheduler) {
        let id = &adopted.workload.id;
        self.workloads.insert(id.clone(), adopted.workload.clone());
        for task in &adopted.tasks {
            let allocation = Allocation {
                node: task.node.clone(),
                gpus: GpuAssignment::Count(0),
                since: adopted.placed_at,
                of: as_task(&adopted.workload, task.task),
                going: task.terminating,
            };
            self.allocations.insert((id.clone(), task.task), allocation);
        }
        self.lost.extend(adopted.lost.iter().map(|loss| (id.clone(), loss.task)));
        let mut lost: Vec<NodeId> = adopted.tasks.iter().map(|task| task.node.clone()).collect();
        lost.retain(|node| self.nodes[node].lost);
        for node in &lost {
            self.forget_on(node, |workload| {
                workload.id == *id && workload.on_fault == OnFault::Requeue
            });
        }
        self.reload(engine, |adopted, _, _| adopted == id);
    }

    fn note_node(&mut self, node: &Node, engine: &Scheduler) {
        let known = self.nodes.remove(&node.id);
        let changed = known.as_ref().is_some_and(|host| host.spec != *node);
        let (health, foreign, cordoned, draining) = known
            .map(|host| (host.health, host.foreign, host.cordoned, host.draining))
            .unwrap_or_default();
        let host = Host {
            spec: node.clone(),
            lost: false,
            cordoned,
            draining,
            reclaimed: false,
            health,
            foreign,
        };
        self.nodes.insert(node.id.clone(), host);
        if changed {
            // The engine decides the positions of moved slices.
            self.reload(engine, |_, _, allocation| allocation.node == node.id);
        }
    }

    fn reload(
        &mut self,
        engine: &Scheduler,
        which: impl Fn(&WorkloadId, u32, &Allocation) -> bool,
    ) {
        for ((id, task), allocation) in &mut self.allocations {
            if which(id, *task, allocation) {
                let view = engine.workload(id).expect("a placed workload is known");
                let found = view
                    .tasks
                    .into_iter()
                    .find(|view| view.task == *task)
                    .expect("a placed task is known");
                allocation.gpus = found.gpus;
            }
        }
    }

    fn host(&mut self, node: &NodeId) -> &mut Host {
        self.nodes.get_mut(node).expect("an accepted event names a known node")
    }

    /// Removes the requeued workloads of this node from all lost nodes.
    fn forget_on(&mut self, node: &NodeId, which: impl Fn(&Workload) -> bool) {
        let here = self.allocations.iter().filter(|(_, allocation)| allocation.node == *node);
        let going: BTreeSet<WorkloadId> =
            here.map(|((id, _), _)| id.clone()).filter(|id| which(&self.workloads[id])).collect();
        let lost = |at: &NodeId| at == node || self.nodes[at].lost;
        self.allocations
            .retain(|(id, _), allocation| !going.contains(id) || !lost(&allocation.node));
    }

    /// Ledger and engine have the same tasks on the same nodes.
    pub fn agrees_with(&self, engine: &Scheduler) {
        let mut theirs = BTreeMap::new();
        for view in engine.workloads() {
            for task in view.tasks {
                theirs.insert((view.workload.id.clone(), task.task), task.node);
            }
        }
        let ours: BTreeMap<_, _> = self
            .allocations
            .iter()
            .map(|(key, allocation)| (key.clone(), allocation.node.clone()))
            .collect();
        assert_eq!(ours, theirs, "the engine and the world disagree about what is where");
    }

    /// Executes a plan in the ledger and checks every decision.
    pub fn carry_out(&mut self, now: Time, plan: &Plan) {
        let mut gangs: BTreeMap<WorkloadId, BTreeSet<u32>> = BTreeMap::new();
        for decision in &plan.decisions {
            match decision {
                Decision::Place(placement)
                    if self.lost.contains(&(placement.workload.clone(), placement.task)) =>
                {
                    self.place(now, placement);
                }
                Decision::Place(placement) => {
                    let first = gangs.entry(placement.workload.clone()).or_default();
                    if first.is_empty() {
                        let held = self.allocations.keys().any(|(id, _)| *id == placement.workload);
                        assert!(
                            !held,
                            "{} is placed while it still has a place",
                            placement.workload
                        );
                    }
                    assert!(
                        first.insert(placement.task),
                        "task {} is placed twice",
                        placement.task
                    );
                    self.place(now, placement);
                }
                Decision::Preempt { victims, beneficiary, until } => {
                    for victim in victims {
                        self.lost.retain(|(id, _)| *id != victim.workload);
                    }
                    assert!(*until > now || now.0 == u64::MAX, "the hold has lapsed already");
                    self.preempt(now, victims, beneficiary);
                }
                Decision::Displace { workload, action: OnFault::Requeue, .. } => {
                    self.lost.retain(|(id, _)| id != workload);
                    // The workload may have been on lost nodes only.
                    if self.allocations.keys().any(|(id, _)| id == workload) {
                        self.stopping.insert(workload.clone());
                    }
                }
                Decision::AwaitReplacement { workload, task, node, until } => {
                    assert!(*until > now, "the reservation of {workload}/{task} is over");
                    assert!(
                        self.lost.contains(&(workload.clone(), *task)),
                        "{workload}/{task} runs"
                    );
                    if let Some(host) = node.as_ref().map(|node| &self.nodes[node]) {
                        let closed = host.lost || host.cordoned || host.draining || host.reclaimed;
                        assert!(!closed, "a place is reserved on the closed node {}", host.spec.id);
                    }
                }
                Decision::Displace { .. } | Decision::Wait { .. } => {}
            }
        }
        for (id, tasks) in gangs {
            let whole: BTreeSet<u32> = (0..self.workloads[&id].task_count()).collect();
            assert_eq!(tasks, whole, "the gang {id} is not whole");
            if self.workloads[&id].task_count() > 1 {
                self.check_topology(&id);
            }
        }
        self.stopping.retain(|id| self.allocations.keys().any(|(holder, _)| holder == id));
    }

    fn place(&mut self, now: Time, placement: &Placement) {
        let workload =
            self.workloads.get(&placement.workload).expect("only known workloads are placed");
        let workload = as_task(workload, placement.task);
        assert!(workload.gate.is_none(), "{} is placed through its gate", workload.id);
        let host = self.nodes.get(&placement.node).expect("only known nodes are used").clone();
        let open = !(host.lost || host.cordoned || host.draining || host.reclaimed);
        assert!(open, "{} is placed on the closed node {}", workload.id, host.spec.id);
        check_node(&workload, &host.spec);
        crate::terms::check(self, &workload, &placement.node);
        let allocation = Allocation {
            node: placement.node.clone(),
            gpus: placement.gpus.clone(),
            since: now,
            of: workload.clone(),
            going: false,
        };
        self.allocations.insert((workload.id.clone(), placement.task), allocation);
        self.check_amounts(&workload, &host);
        self.check_devices(&workload, &host, &placement.gpus);
        self.check_quotas(&workload, placement);
    }

    pub fn on<'a>(
        &'a self,
        node: &'a NodeId,
    ) -> impl Iterator<Item = (&'a Workload, &'a Allocation)> {
        self.allocations
            .iter()
            .filter(|(_, allocation)| allocation.node == *node)
            .map(|(_, allocation)| (&allocation.of, allocation))
    }

    fn check_amounts(&self, workload: &Workload, host: &Host) {
        let node = &host.spec;
        let sum = |of: &dyn Fn(&Workload) -> u64, others: &dyn Fn(&ForeignUse) -> u64| {
            let ours: u64 = self.on(&node.id).map(|(workload, _)| of(workload)).sum();
            ours + host.foreign.values().map(others).sum::<u64>()
        };
        let asked = &workload.request;
        let fits = |asked: u64, used: u64, total: u64, what: &str| {
            assert!(
                asked == 0 || used <= total,
                "{what} of {} is over-booked: {used} of {total}",
                node.id
            );
        };
        fits(asked.cpu.0, sum(&|w| w.request.cpu.0, &|f| f.cpu.0), node.cpu.0, "CPU");
        fits(
            asked.memory.0,
            sum(&|w| w.request.memory.0, &|f| f.memory.0),
            node.memory.0,
            "memory",
        );
        fits(
            asked.storage.0,
            sum(&|w| w.request.storage.0, &|f| f.storage.0),
            node.storage.0,
            "storage",
        );
        if let Some(most) = node.max_tasks {
            fits(1, sum(&|_| 1, &|_| 0), most.into(), "the number of tasks");
        }
        for (name, amount) in &asked.resources {
            let ours = |w: &Workload| w.request.resources.get(name).copied().unwrap_or(0);
            let others = |f: &ForeignUse| f.resources.get(name).copied().unwrap_or(0);
            fits(
                *amount,
                sum(&ours, &others),
                node.resources.get(name).copied().unwrap_or(0),
                name.as_str(),
            );
        }
    }

    fn check_topology(&self, id: &WorkloadId) {
        if let Some(Topology::Same(key)) = &self.workloads[id].topology {
            let allocations = self.allocations.iter().filter(|((holder, _), _)| holder == id);
            let domains: BTreeSet<_> =
                allocations.map(|(_, allocation)| self.domain(&allocation.node, key)).collect();
            assert!(
                domains.len() == 1 && !domains.contains(&None),
                "{id} is not together: {domains:?}"
            );
        }
    }

    pub fn domain(&self, node: &NodeId, key: &str) -> Option<String> {
        let spec = &self.nodes.get(node)?.spec;
        if key == "node" {
            Some(spec.id.to_string())
        } else {
            spec.labels.get(key).map(ToString::to_string)
        }
    }
}

/// The workload reduced to one of its tasks.
fn as_task(workload: &Workload, task: u32) -> Workload {
    Workload { request: workload.request_of(task).clone(), ..workload.clone() }
}

/// Node, labels and taints permit the task.
fn check_node(workload: &Workload, node: &Node) {
    let request = &workload.request;
    assert!(
        request.node.as_ref().is_none_or(|wanted| *wanted == node.id),
        "another node was asked for"
    );
    assert!(
        node_matches(&request.required_nodes, node.id.as_str(), &node.labels),
        "node affinity is broken"
    );
    assert!(
        first_untolerated(&node.taints, &request.tolerations).is_none(),
        "a taint is not tolerated"
    );
}
