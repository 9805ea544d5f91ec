//! A second set of books, kept only from events and decisions: it knows nothing of how the engine
//! counts, and panics at the first placement that must not be.

use std::collections::{BTreeMap, BTreeSet};

use agentaflow_engine::labels::{first_untolerated, node_matches};
use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{
    BudgetId, Chooser, Decision, Event, ForeignGpu, ForeignId, ForeignUse, GpuAsk, GpuHealth,
    GpuId, GpuPart, Gpus, MigMode, Node, NodeId, OnFault, Part, Placement, Plan, Policy, Queue,
    QueueId, Scheduler, Time, Topology, Workload, WorkloadId,
};

/// One node as the body knows it.
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

/// Where a task is.
#[derive(Clone, Debug)]
pub struct Seat {
    pub node: NodeId,
    pub gpus: Gpus,
    pub since: Time,
}

/// The second set of books.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub nodes: BTreeMap<NodeId, Host>,
    pub queues: BTreeMap<QueueId, Queue>,
    pub workloads: BTreeMap<WorkloadId, Workload>,
    pub seats: BTreeMap<(WorkloadId, u32), Seat>,
    pub budgets: BTreeMap<BudgetId, u32>,
    pub stopping: BTreeSet<WorkloadId>,
    pub policy: Policy,
}

impl Ledger {
    pub fn new(policy: Policy) -> Self {
        let root = Queue::new("root");
        Self { queues: [(root.id.clone(), root)].into(), policy, ..Self::default() }
    }

    /// Takes note of an event that the engine accepted.
    pub fn note(&mut self, event: &Event, engine: &Scheduler) {
        match event {
            Event::Node(node) => self.note_node(node, engine),
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
            Event::Foreign { node, id, uses } => {
                self.host(node).foreign.insert(id.clone(), (**uses).clone());
            }
            Event::ForeignGone { node, id } => {
                self.host(node).foreign.remove(id);
            }
            Event::Queue(queue) => {
                self.queues.insert(queue.id.clone(), (**queue).clone());
            }
            Event::QueueRemoved(queue) => {
                self.queues.remove(queue);
            }
            Event::Budget { id, allowed } => {
                self.budgets.insert(id.clone(), *allowed);
            }
            Event::BudgetRemoved(id) => {
                self.budgets.remove(id);
            }
            Event::Policy(policy) => self.policy = (**policy).clone(),
            Event::Strategy(strategy) => self.policy.strategy = *strategy,
            other => self.note_workload(other, engine),
        }
        self.stopping.retain(|id| self.seats.keys().any(|(seated, _)| seated == id));
    }

    fn note_workload(&mut self, event: &Event, engine: &Scheduler) {
        match event {
            Event::Submit(workload) => {
                self.workloads.insert(workload.id.clone(), (**workload).clone());
            }
            Event::Gate { workload, gate } => {
                self.workloads.get_mut(workload).expect("a known workload").gate.clone_from(gate);
            }
            Event::Cancelled(id) | Event::Finished(id) => {
                self.workloads.remove(id);
                self.seats.retain(|(seated, _), _| seated != id);
            }
            Event::Requeued(id) => self.seats.retain(|(seated, _), _| seated != id),
            Event::TaskFinished { workload, task } => {
                self.seats.remove(&(workload.clone(), *task));
                if engine.workload(workload).is_none() {
                    self.workloads.remove(workload);
                }
            }
            Event::Refused { workload, task } | Event::Gone { workload, task } => {
                self.seats.remove(&(workload.clone(), *task));
            }
            Event::Devices { workload, task, .. } => {
                self.reload(engine, |id, number, _| id == workload && number == *task)
            }
            _ => {}
        }
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
            // Where slices lie after a change is the engine's to say.
            self.reload(engine, |_, _, seat| seat.node == node.id);
        }
    }

    fn reload(&mut self, engine: &Scheduler, which: impl Fn(&WorkloadId, u32, &Seat) -> bool) {
        for ((id, task), seat) in &mut self.seats {
            if which(id, *task, seat) {
                let view = engine.workload(id).expect("a placed workload is known");
                let found = view
                    .tasks
                    .into_iter()
                    .find(|view| view.task == *task)
                    .expect("a placed task is known");
                seat.gpus = found.gpus;
            }
        }
    }

    fn host(&mut self, node: &NodeId) -> &mut Host {
        self.nodes.get_mut(node).expect("an accepted event names a known node")
    }

    /// Whoever is on this node and has to go is gone there, and on every other node that is lost.
    fn forget_on(&mut self, node: &NodeId, which: impl Fn(&Workload) -> bool) {
        let here = self.seats.iter().filter(|(_, seat)| seat.node == *node);
        let going: BTreeSet<WorkloadId> =
            here.map(|((id, _), _)| id.clone()).filter(|id| which(&self.workloads[id])).collect();
        let lost = |at: &NodeId| at == node || self.nodes[at].lost;
        self.seats.retain(|(id, _), seat| !going.contains(id) || !lost(&seat.node));
    }

    /// Both books name the same tasks on the same nodes.
    pub fn agrees_with(&self, engine: &Scheduler) {
        let mut theirs = BTreeMap::new();
        for view in engine.workloads() {
            for task in view.tasks {
                theirs.insert((view.workload.id.clone(), task.task), task.node);
            }
        }
        let ours: BTreeMap<_, _> =
            self.seats.iter().map(|(key, seat)| (key.clone(), seat.node.clone())).collect();
        assert_eq!(ours, theirs, "the engine and the world disagree about what is where");
    }

    /// Carries a plan out in the books, checking every step.
    pub fn carry_out(&mut self, now: Time, plan: &Plan) {
        let mut gangs: BTreeMap<WorkloadId, BTreeSet<u32>> = BTreeMap::new();
        for decision in &plan.decisions {
            match decision {
                Decision::Place(placement) => {
                    let first = gangs.entry(placement.workload.clone()).or_default();
                    if first.is_empty() {
                        let held = self.seats.keys().any(|(id, _)| *id == placement.workload);
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
                    assert!(*until > now || now.0 == u64::MAX, "the hold has lapsed already");
                    self.preempt(now, victims, beneficiary);
                }
                Decision::Displace { workload, action: OnFault::Requeue, .. } => {
                    // It may have been on a lost node only, and be on its way already.
                    if self.seats.keys().any(|(id, _)| id == workload) {
                        self.stopping.insert(workload.clone());
                    }
                }
                Decision::Displace { .. } | Decision::Wait { .. } => {}
            }
        }
        for (id, tasks) in gangs {
            let whole: BTreeSet<u32> = (0..self.workloads[&id].tasks).collect();
            assert_eq!(tasks, whole, "the gang {id} is not whole");
            if self.workloads[&id].tasks > 1 {
                self.check_topology(&id);
            }
        }
        self.stopping.retain(|id| self.seats.keys().any(|(seated, _)| seated == id));
    }

    fn place(&mut self, now: Time, placement: &Placement) {
        let workload = self
            .workloads
            .get(&placement.workload)
            .expect("only known workloads are placed")
            .clone();
        assert!(workload.gate.is_none(), "{} is placed through its gate", workload.id);
        let host = self.nodes.get(&placement.node).expect("only known nodes are used").clone();
        let open = !(host.lost || host.cordoned || host.draining || host.reclaimed);
        assert!(open, "{} is placed on the closed node {}", workload.id, host.spec.id);
        check_node(&workload, &host.spec);
        crate::terms::check(self, &workload, &placement.node);
        let seat = Seat { node: placement.node.clone(), gpus: placement.gpus.clone(), since: now };
        self.seats.insert((workload.id.clone(), placement.task), seat);
        self.check_amounts(&workload, &host);
        self.check_devices(&workload, &host, &placement.gpus);
        self.check_quotas(&workload, placement);
    }

    fn on<'a>(&'a self, node: &'a NodeId) -> impl Iterator<Item = (&'a Workload, &'a Seat)> {
        self.seats
            .iter()
            .filter(|(_, seat)| seat.node == *node)
            .map(|((id, _), seat)| (&self.workloads[id], seat))
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
        if let Some(most) = node.max_jobs {
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

    fn check_devices(&self, workload: &Workload, host: &Host, gpus: &Gpus) {
        let request = &workload.request;
        match gpus {
            Gpus::Count(count) => {
                assert_eq!(*count, request.gpu_count(), "the number of GPUs is wrong");
                assert_eq!(
                    host.spec.chooser,
                    Chooser::Node,
                    "only a node that chooses gets a count"
                );
                if matches!(request.gpu, GpuAsk::Whole(_)) {
                    self.check_count(host);
                }
            }
            Gpus::Chosen(parts) => {
                assert_eq!(
                    parts.len(),
                    request.gpu_count() as usize,
                    "the number of GPUs is wrong"
                );
                let named: BTreeSet<_> = parts.iter().map(|part| &part.gpu).collect();
                let whole = parts.iter().all(|part| part.part == Part::Whole);
                assert!(!whole || named.len() == parts.len(), "a whole GPU is named twice");
                for part in parts {
                    self.check_device(workload, host, part);
                }
                let link = |part: &GpuPart| {
                    host.spec.gpus.iter().find(|gpu| gpu.id == part.gpu).and_then(|g| g.nvlink)
                };
                if request.nvlink && parts.len() > 1 && whole {
                    let links: BTreeSet<_> = parts.iter().map(link).collect();
                    assert!(links.len() == 1 && !links.contains(&None), "the GPUs are not joined");
                }
            }
        }
    }

    /// On a node that chooses by itself, the number of taken GPUs is what counts.
    fn check_count(&self, host: &Host) {
        let ours: u32 =
            self.on(&host.spec.id).map(|(workload, _)| workload.request.gpu_count()).sum();
        let shares = self
            .on(&host.spec.id)
            .any(|(workload, _)| !matches!(workload.request.gpu, GpuAsk::Whole(_) | GpuAsk::None));
        let unnamed: u32 = host.foreign.values().map(|uses| uses.gpu_count).sum();
        let named: BTreeSet<_> = host.foreign.values().flat_map(|uses| uses.gpus.keys()).collect();
        // Shares sit together on a GPU, and a named GPU may be one that the node gave to us.
        if !shares && named.is_empty() {
            let taken = ours + unnamed.min(host.spec.gpus.len() as u32);
            assert!(
                taken as usize <= host.spec.gpus.len(),
                "{taken} GPUs of {} are taken",
                host.spec.id
            );
        }
    }

    fn check_device(&self, workload: &Workload, host: &Host, chosen: &GpuPart) {
        let node = &host.spec;
        let gpu = node.gpus.iter().find(|gpu| gpu.id == chosen.gpu).expect("the GPU exists");
        let request = &workload.request;
        assert_eq!(
            host.health.get(&gpu.id).copied().unwrap_or_default(),
            GpuHealth::Healthy,
            "the GPU is not well"
        );
        assert!(gpu.memory >= request.min_gpu_memory, "the GPU is too small");
        let wanted =
            request.models.is_empty() || request.models.iter().any(|model| gpu.model.serves(model));
        assert!(wanted, "another model was asked for");
        let (mut milli, mut mib, mut users, mut alone) = (0_u64, 0_u64, 0, 0);
        let mut slots = BTreeSet::new();
        for (other, seat) in self.on(&node.id) {
            let Gpus::Chosen(parts) = &seat.gpus else { continue };
            for part in parts.iter().filter(|part| part.gpu == gpu.id) {
                let (share, memory) = amounts(part.part, gpu.model.as_str(), gpu.memory.0);
                (milli, mib, users) = (milli + share, mib + memory, users + 1);
                alone += u32::from(other.request.exclusive || part.part == Part::Whole);
                if let Part::Slice { profile, start } = part.part {
                    let geometry = Geometry::for_gpu(gpu.model.as_str(), gpu.memory.0)
                        .expect("slices have rules");
                    let found = geometry
                        .get(geometry.profile(profile.as_str()).expect("known"))
                        .expect("known");
                    assert!(found.starts.contains(&start), "no slice begins there");
                    for slot in start..start + found.slots {
                        assert!(
                            slots.insert(slot),
                            "two slices share slot {slot} of {} on {}",
                            gpu.id,
                            node.id
                        );
                    }
                }
            }
        }
        for uses in host.foreign.values().filter_map(|uses| uses.gpus.get(&gpu.id)) {
            let (share, memory) = match uses {
                ForeignGpu::Whole => (1000, gpu.memory.0),
                ForeignGpu::Share(share) => {
                    (share.get().into(), gpu.memory.0 * u64::from(share.get()) / 1000)
                }
                ForeignGpu::Memory(mib) => (mib.0 * 1000 / gpu.memory.0, mib.0),
            };
            (milli, mib, users) = (milli + share, mib + memory, users + 1);
            alone += u32::from(*uses == ForeignGpu::Whole);
        }
        assert!(milli <= 1000, "{milli} thousandths of {} on {} are booked", gpu.id, node.id);
        assert!(mib <= gpu.memory.0, "{mib} MiB of {} on {} are booked", gpu.id, node.id);
        let mine = workload.request.gpu_count();
        assert!(
            alone == 0 || users == 1 || (alone == mine && users == mine),
            "{} on {} is not exclusive",
            gpu.id,
            node.id
        );
        check_kind(request.gpu, chosen.part, gpu);
    }

    fn check_topology(&self, id: &WorkloadId) {
        if let Some(Topology::Same(key)) = &self.workloads[id].topology {
            let seats = self.seats.iter().filter(|((seated, _), _)| seated == id);
            let domains: BTreeSet<_> =
                seats.map(|(_, seat)| self.domain(&seat.node, key)).collect();
            assert!(
                domains.len() == 1 && !domains.contains(&None),
                "{id} is not together: {domains:?}"
            );
        }
    }

    /// The domain of a node under a topology key.
    pub fn domain(&self, node: &NodeId, key: &str) -> Option<String> {
        let spec = &self.nodes.get(node)?.spec;
        if key == "node" {
            Some(spec.id.to_string())
        } else {
            spec.labels.get(key).map(ToString::to_string)
        }
    }
}

/// Thousandths and memory of a part.
pub fn amounts(part: Part, model: &str, memory: u64) -> (u64, u64) {
    match part {
        Part::Whole => (1000, memory),
        Part::Share { milli, mib } => (milli.into(), mib.0),
        Part::Slice { profile, .. } => {
            let geometry = Geometry::for_gpu(model, memory).expect("slices have rules");
            let found =
                geometry.get(geometry.profile(profile.as_str()).expect("known")).expect("known");
            (u64::from(found.compute) * 1000 / u64::from(geometry.compute_slices), found.memory_mib)
        }
    }
}

/// The part is what was asked for.
fn check_kind(asked: GpuAsk, part: Part, gpu: &agentaflow_engine::Gpu) {
    let right = match (asked, part) {
        (GpuAsk::Whole(_), Part::Whole) => gpu.mig == MigMode::Off,
        (GpuAsk::Fraction(share), Part::Whole) => share.get() == 1000 && gpu.mig == MigMode::Off,
        (GpuAsk::Fraction(share), Part::Share { milli, .. }) => {
            share.get() == milli && gpu.mig == MigMode::Off
        }
        (GpuAsk::Memory(asked), Part::Share { mib, .. }) => asked == mib && gpu.mig == MigMode::Off,
        (GpuAsk::Memory(asked), Part::Whole) => asked >= gpu.memory && gpu.mig == MigMode::Off,
        (GpuAsk::Mig { profile, .. }, Part::Slice { profile: given, start }) => {
            let made = match &gpu.mig {
                MigMode::Off => false,
                MigMode::Free => true,
                MigMode::Fixed(layout) => layout.contains(&(profile, start)),
            };
            profile == given && made
        }
        _ => false,
    };
    assert!(right, "{asked:?} got {part:?} of {gpu:?}");
}

/// Node, labels and taints allow it.
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
