//! A driver that plays a history to the engine and maintains the ledger.

use agentaflow_engine::{
    AdoptedLoss, AdoptedTask, AdoptedWorkload, Decision, Demand, Event, GpuHealth, GpuId,
    GpuRequest, MilliCpu, Node, NodeId, Percent, Plan, Rejected, Request, Scheduler, Snapshot,
    Time, Violation, Workload, WorkloadId, WorkloadState,
};

use crate::cluster::{other_gpus, other_labels, rename};
use crate::history::{History, Step};
use crate::invalid_event::invalid_event;
use crate::ledger::Ledger;
use crate::request::gate;

/// Inputs of the engine in order, sufficient for a replay.
#[derive(Clone, Debug)]
pub enum Input {
    Apply(Time, Event),
    Decide(Time),
}

/// The engine, the ledger, and the recorded inputs and plans.
pub struct TestDriver {
    pub engine: Scheduler,
    pub ledger: Ledger,
    pub log: Vec<Input>,
    pub plans: Vec<Plan>,
    pub now: Time,
    submitted_count: u32,
}

impl TestDriver {
    pub fn new(history: &History) -> Self {
        let mut driver = Self {
            engine: Scheduler::new(history.policy.clone()),
            ledger: Ledger::new(history.policy.clone()),
            log: Vec::new(),
            plans: Vec::new(),
            now: Time(0),
            submitted_count: 0,
        };
        for queue in &history.queues {
            driver.tell(Event::QueueUpdated(Box::new(queue.clone()))).ok();
        }
        for node in &history.nodes {
            driver.tell(Event::NodeUpdated(Box::new(node.clone()))).expect("a good node");
        }
        driver
    }

    pub fn play(history: &History) -> Self {
        let mut driver = Self::new(history);
        for step in &history.steps {
            driver.step(step);
        }
        driver
    }

    /// Applies an event at the current time.
    pub fn tell(&mut self, event: Event) -> Result<(), Rejected> {
        self.tell_at(self.now, event)
    }

    fn tell_at(&mut self, at: Time, event: Event) -> Result<(), Rejected> {
        let before = cfg!(debug_assertions).then(|| self.engine.snapshot());
        let answer = self.engine.apply(at, event.clone());
        if answer.is_ok() {
            self.ledger.note(&event, &self.engine);
        } else {
            // A rejected event advances the time and changes nothing else.
            let after = Snapshot { now: Time(0), ..self.engine.snapshot() };
            let unchanged =
                before.is_none_or(|before| Snapshot { now: Time(0), ..before } == after);
            assert!(unchanged, "a refused event changed something: {event:?}");
        }
        self.log.push(Input::Apply(at, event));
        self.check();
        answer
    }

    fn check(&self) {
        let mut found = self.engine.lint();
        // The next pass accepts a lowered limit.
        found.retain(|violation| !matches!(violation, Violation::OverLimit(_)));
        assert_eq!(found, Vec::new());
        self.ledger.agrees_with(&self.engine);
    }

    /// One pass with all checks.
    pub fn decide(&mut self) -> Plan {
        self.log.push(Input::Decide(self.now));
        let plan = self.engine.decide(self.now);
        self.ledger.carry_out(self.now, &plan);
        assert_eq!(self.engine.lint(), Vec::new());
        self.ledger.agrees_with(&self.engine);
        self.plans.push(plan.clone());
        plan
    }

    /// Runs passes until the engine has no further decision; settling is a property.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let plan = self.decide();
            if plan.wake_at.is_none_or(|wake| wake > self.now) {
                return;
            }
        }
        panic!("the engine does not settle");
    }

    pub fn confirm_all(&mut self) {
        for (workload, task) in self.tasks(|state| state == WorkloadState::Placed) {
            self.tell(Event::PlacementConfirmed { workload, task })
                .expect("a placed task can be confirmed");
        }
    }

    /// Reports all terminating tasks as stopped.
    pub fn all_gone(&mut self) {
        for (workload, task) in self.tasks(|state| state == WorkloadState::Stopping) {
            self.tell(Event::TaskStopped { workload, task }).expect("a stopped task can go");
        }
    }

    fn tasks(&self, which: impl Fn(WorkloadState) -> bool) -> Vec<(WorkloadId, u32)> {
        let mut tasks = Vec::new();
        for view in self.engine.workloads().into_iter().filter(|view| which(view.state)) {
            tasks.extend(view.tasks.into_iter().map(|task| (view.workload.id.clone(), task.task)));
        }
        tasks
    }

    fn task(&self, pick: u8) -> (WorkloadId, u32) {
        let tasks = self.tasks(|_| true);
        choose(&tasks, pick).unwrap_or(("nobody".into(), 0))
    }

    fn lost_task(&self, pick: u8) -> (WorkloadId, u32) {
        let views = self.engine.workloads();
        let lost = views
            .iter()
            .flat_map(|view| view.lost.iter().map(|lost| (view.workload.id.clone(), lost.task)));
        choose(&lost.collect::<Vec<_>>(), pick).unwrap_or(("nobody".into(), 0))
    }

    fn workload(&self, pick: u8, which: impl Fn(WorkloadState) -> bool) -> WorkloadId {
        let views = self.engine.workloads().into_iter().filter(|view| which(view.state));
        let ids: Vec<WorkloadId> = views.map(|view| view.workload.id).collect();
        choose(&ids, pick).unwrap_or("nobody".into())
    }

    fn node(&self, pick: u8) -> NodeId {
        let ids: Vec<NodeId> = self.ledger.nodes.keys().cloned().collect();
        choose(&ids, pick).unwrap_or("nowhere".into())
    }

    fn gpu(&self, node: &NodeId, pick: u8) -> GpuId {
        let gpus =
            self.ledger.nodes.get(node).map(|host| host.spec.gpus.as_slice()).unwrap_or_default();
        choose(gpus, pick).map_or("none".into(), |gpu| gpu.id)
    }

    fn spec(&self, pick: u8) -> Option<Node> {
        self.ledger.nodes.get(&self.node(pick)).map(|host| host.spec.clone())
    }

    /// Submits a workload with a new name, to an existing queue.
    pub fn submit(&mut self, workload: &Workload) -> Result<WorkloadId, Rejected> {
        let mut workload = workload.clone();
        workload.id = format!("w{}", self.submitted_count).into();
        self.submitted_count += 1;
        if !self.ledger.queues.contains_key(&workload.queue) {
            workload.queue = "root".into();
        }
        let id = workload.id.clone();
        self.tell(Event::Submitted(Box::new(workload))).map(|()| id)
    }

    /// Adopts a new or pending workload with random nodes, GPUs and finished tasks, valid or not.
    fn adopt(&mut self, workload: &Workload, [node, gpu, kind]: [u8; 3]) {
        let mut workload = workload.clone();
        workload.id = format!("w{}", self.submitted_count).into();
        self.submitted_count += 1;
        if !self.ledger.queues.contains_key(&workload.queue) {
            workload.queue = "root".into();
        }
        let waiting = self.workload(gpu, |state| state == WorkloadState::Pending);
        if let Some(waiting) = self.ledger.workloads.get(&waiting) {
            let few = kind % 3 == 0 && waiting.task_count() <= 8;
            workload = if few { waiting.clone() } else { workload };
        }
        let finished = (0..workload.task_count())
            .filter(|task| workload.task_count() > 1 && gpu >> (task % 8) & 1 == 1);
        let finished: std::collections::BTreeSet<u32> = finished.collect();
        let adopt = |task: u32| {
            let node = self.node(node.wrapping_add(task as u8));
            let count = workload.request_of(task).gpu_count() as u8;
            let gpus = (0..count).map(|at| self.gpu(&node, gpu.wrapping_add(at)));
            AdoptedTask {
                task,
                devices: (kind & 8 == 0).then(|| gpus.collect()),
                node,
                confirmed: kind & 16 == 0,
                terminating: kind % 5 == 0,
            }
        };
        let is_lost = |task: u32| workload.task_count() > 1 && kind & 32 != 0 && task % 3 == 1;
        let left = || (0..workload.task_count()).filter(|task| !finished.contains(task));
        let tasks = left().filter(|task| !is_lost(*task)).map(adopt).collect();
        let adopted = |task: u32| AdoptedLoss {
            task,
            node: (kind & 64 == 0).then(|| self.node(node.wrapping_add(task as u8))),
            until: (kind & 128 == 0).then(|| Time(self.now.0 + u64::from(gpu) * 1000)),
        };
        let lost = left().filter(|task| is_lost(*task)).map(adopted).collect();
        let placed_at = Time(self.now.0.saturating_sub(u64::from(node) * 1000));
        self.tell(Event::Adopted(Box::new(AdoptedWorkload {
            workload,
            tasks,
            finished,
            lost,
            placed_at,
        })))
        .ok();
    }

    /// Executes one step; the engine may reject it.
    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Decide => {
                self.decide();
            }
            Step::Pass(seconds) => self.now = Time(self.now.0 + u64::from(*seconds) * 1000),
            Step::Submit(workload) => {
                self.submit(workload).ok();
            }
            Step::Adopt(workload, picks) => self.adopt(workload, *picks),
            Step::ConfirmAll => self.confirm_all(),
            Step::AllGone => self.all_gone(),
            Step::Restore => {
                let text = serde_json::to_string(&self.engine.snapshot())
                    .expect("a snapshot is plain data");
                let read: Snapshot = serde_json::from_str(&text).expect("a snapshot can be read");
                self.engine = Scheduler::restore(read).expect("a snapshot of ours is right");
                self.check();
            }
            Step::Look(pick) => self.look(*pick),
            Step::PastTime(seconds) => {
                let past = Time(self.now.0.saturating_sub(u64::from(*seconds) * 1000));
                self.tell_at(past, Event::BudgetUpdated { id: "b0".into(), allowed: 3 })
                    .expect("late news are news");
            }
            other => {
                if let Some(event) = self.event(other) {
                    self.tell(event).ok();
                }
            }
        }
    }

    fn event(&self, step: &Step) -> Option<Event> {
        let running = |state| matches!(state, WorkloadState::Running | WorkloadState::Placed);
        let task = |pick: &u8| self.task(*pick);
        Some(match step {
            Step::Confirm(pick) => {
                let (workload, task) = task(pick);
                Event::PlacementConfirmed { workload, task }
            }
            Step::Refuse(pick) => {
                let (workload, task) = task(pick);
                Event::PlacementRefused { workload, task }
            }
            Step::Finish(pick) => Event::Finished(self.workload(*pick, running)),
            Step::FinishTask(pick) => {
                let (workload, task) = task(pick);
                Event::TaskFinished { workload, task }
            }
            Step::Cancel(pick) => Event::Cancelled(self.workload(*pick, |_| true)),
            Step::Requeue(pick) => Event::Requeued(self.workload(*pick, running)),
            Step::Terminate(pick) => {
                let (workload, task) = task(pick);
                Event::TaskTerminating { workload, task }
            }
            Step::Gone(pick) => {
                let (workload, task) = task(pick);
                Event::TaskStopped { workload, task }
            }
            Step::LoseTask(pick) => {
                let (workload, task) = task(pick);
                Event::TaskLost { workload, task }
            }
            Step::ReplaceTask(pick) => {
                let (workload, task) = self.lost_task(*pick);
                Event::TaskReplaced { workload, task }
            }
            Step::Devices(pick, gpu) => {
                let (workload, task) = task(pick);
                let allocation = self.ledger.allocations.get(&(workload.clone(), task))?;
                let gpus = &self.ledger.nodes[&allocation.node].spec.gpus;
                let count = self.ledger.workloads[&workload].request_of(task).gpu_count() as usize;
                let chosen = (0..count).filter_map(|at| choose(gpus, gpu.wrapping_add(at as u8)));
                Event::DevicesReported { workload, task, gpus: chosen.map(|gpu| gpu.id).collect() }
            }
            Step::Gate(pick, kind) => Event::GateChanged {
                workload: self.workload(*pick, |_| true),
                gate: kind.map(gate),
            },
            Step::Queue(queue) => Event::QueueUpdated(queue.clone()),
            Step::RemoveQueue(pick) => {
                let ids: Vec<_> = self.ledger.queues.keys().cloned().collect();
                Event::QueueRemoved(choose(&ids, *pick)?)
            }
            Step::Policy(policy) => Event::PolicyUpdated(policy.clone()),
            Step::Choice(strategy) => Event::StrategyUpdated(*strategy),
            Step::Budget(id, Some(allowed)) => {
                Event::BudgetUpdated { id: format!("b{id}").into(), allowed: *allowed }
            }
            Step::Budget(id, None) => Event::BudgetRemoved(format!("b{id}").into()),
            Step::Demand(0..64) => Event::DemandUpdated(None),
            Step::Demand(pick) => Event::DemandUpdated(Some(vec![
                Demand {
                    cpu: MilliCpu(4000),
                    gpu: GpuRequest::Whole(u32::from(pick % 4) + 1),
                    models: vec![],
                    count: 10,
                },
                Demand {
                    cpu: MilliCpu(1000),
                    gpu: GpuRequest::None,
                    models: vec![],
                    count: u64::from(*pick),
                },
            ])),
            Step::InvalidEvent(kind, pick) => {
                invalid_event(*kind, *pick, self.workload(*pick, |_| true))
            }
            other => return self.node_event(other),
        })
    }

    fn node_event(&self, step: &Step) -> Option<Event> {
        Some(match step {
            Step::Node(node) => Event::NodeUpdated(node.clone()),
            Step::Relabel(pick, label) => {
                let mut spec = self.spec(*pick)?;
                spec.labels = other_labels(&spec, *label);
                spec.rank = u32::from(label % 3);
                Event::NodeUpdated(Box::new(spec))
            }
            Step::Shrink(pick, how) => {
                let mut spec = self.spec(*pick)?;
                match how % 6 {
                    0 => drop(spec.gpus.pop()),
                    1 => spec.cpu = MilliCpu(spec.cpu.0 / 2),
                    2 => spec.gpus.reverse(),
                    3 => spec.gpus.iter_mut().for_each(rename),
                    _ => spec.gpus = other_gpus(&spec),
                }
                Event::NodeUpdated(Box::new(spec))
            }
            Step::Lose(pick) => Event::NodeLost(self.node(*pick)),
            Step::Remove(pick) => Event::NodeRemoved(self.node(*pick)),
            Step::Return(pick) => Event::NodeUpdated(Box::new(self.spec(*pick)?)),
            Step::Cordon(pick, on) => Event::Cordon { node: self.node(*pick), on: *on },
            Step::Drain(pick, on) => Event::Drain { node: self.node(*pick), on: *on },
            Step::Spot(pick) => {
                Event::SpotReclaim { node: self.node(*pick), at: Time(self.now.0 + 120_000) }
            }
            Step::Health(pick, gpu, health) => {
                let node = self.node(*pick);
                let gpu = self.gpu(&node, *gpu);
                let health = match health {
                    0 => GpuHealth::Failed,
                    1 => GpuHealth::Cordoned,
                    2 => GpuHealth::Draining,
                    _ => GpuHealth::Healthy,
                };
                Event::GpuHealth { node, gpu, health }
            }
            Step::Busy(pick, gpu, busy) => {
                let node = self.node(*pick);
                let readings = vec![(self.gpu(&node, *gpu), Percent::new(f64::from(*busy)).ok()?)];
                Event::Utilization { node, readings }
            }
            Step::Foreign(pick, id, uses) => Event::ForeignUseUpdated {
                node: self.node(*pick),
                id: format!("f{id}").into(),
                usage: uses.clone(),
            },
            Step::ForeignPending(id, demand) => {
                Event::ForeignDemandUpdated { id: format!("p{id}").into(), demand: demand.clone() }
            }
            Step::ForeignGone(pick, id) => {
                Event::ForeignUseRemoved { node: self.node(*pick), id: format!("f{id}").into() }
            }
            _ => return None,
        })
    }

    /// Questions change nothing, and every pending workload has a reason.
    fn look(&mut self, pick: u8) {
        let before = self.engine.snapshot();
        let id = self.workload(pick, |_| true);
        self.engine.explain(self.now, &id);
        self.engine.etas(self.now);
        let guest =
            Request { gpu: GpuRequest::Whole(u32::from(pick % 4) + 1), ..Request::default() };
        let asked = self.engine.what_if(self.now, Workload::new("guest", guest));
        assert!(asked.is_ok(), "a good question gets an answer");
        self.engine.nodes();
        self.engine.queues();
        assert_eq!(before, self.engine.snapshot(), "a question changed something");
    }
}

/// Replays the inputs on another engine; returns the plans.
pub fn replay(engine: &mut Scheduler, log: &[Input]) -> Vec<Plan> {
    let mut plans = Vec::new();
    for input in log {
        match input {
            Input::Apply(at, event) => drop(engine.apply(*at, event.clone())),
            Input::Decide(at) => plans.push(engine.decide(*at)),
        }
    }
    plans
}

/// Workloads that a plan starts.
pub fn started(plan: &Plan) -> Vec<WorkloadId> {
    let placed = plan.decisions.iter().filter_map(|decision| match decision {
        Decision::Place(placement) => Some(placement.workload.clone()),
        _ => None,
    });
    let mut ids: Vec<WorkloadId> = placed.collect();
    ids.dedup();
    ids
}

fn choose<T: Clone>(among: &[T], pick: u8) -> Option<T> {
    among.get(usize::from(pick) % among.len().max(1)).cloned()
}
