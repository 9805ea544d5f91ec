//! From the store to memory: what is running is a fact and never decided anew, what waits keeps its age.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use agentaflow_api::job::{JobStatus, OnNodeLost};
use agentaflow_engine::{
    Gate, GpuId, MiB, MilliCpu, NodeId, NodeSnapshot, Policy, Queue, QueueSnapshot, Quota,
    Scheduler, Snapshot, TaskSnapshot, Time, WorkloadPhase, WorkloadSnapshot,
};

use agentaflow_api::queue::{QueueSpec, QuotaSpec};

use super::batch::Batch;
use super::clock::Clock;
use super::describe::{closed_gpus, engine_node};
use super::handle::Ids;
use super::jobs::{weight, workload};
use super::money::Account;
use super::state::{LiveNode, State, Told};
use crate::directory::Directory;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::{JobRow, Loaded, QueueRow, SeatState};

/// The name under which the engine's own memory (cursor, decayed use) is kept in the store.
pub(crate) const ENGINE_MEMORY: &str = "engine";
/// The name under which the strategy is kept.
pub(crate) const STRATEGY: &str = "strategy";

impl State {
    /// A state from what the store holds. `before` keeps what is only known while things live.
    pub(crate) fn load(
        settings: Arc<Settings>,
        secrets: Arc<Keyring>,
        loaded: Loaded,
        before: Option<&Self>,
    ) -> Self {
        let clock = before.map_or_else(Clock::new, |before| before.clock);
        let mut state = Self {
            clock,
            engine: Scheduler::default(),
            directory: Directory::new(loaded.users, loaded.credentials),
            jobs: loaded.jobs.into_iter().map(|job| (job.id, job)).collect(),
            nodes: loaded.nodes.into_iter().map(|row| (row.id, LiveNode::new(row))).collect(),
            agents: loaded.agents.into_iter().map(|agent| (agent.id, agent)).collect(),
            queues: loaded.queues.into_iter().map(|row| (row.spec.name.clone(), row)).collect(),
            accounts: accounts(&loaded.accounts),
            recent_keys: FxHashMap::default(),
            ids: Ids(loaded.last),
            batch: Batch::default(),
            dirty: true,
            money_moved: true,
            wake: None,
            writing: None,
            held: FxHashMap::default(),
            closed: None,
            settings,
            secrets,
        };
        state.keep_alive(before);
        state.seat_jobs();
        state.weigh_jobs();
        let strategy = loaded.meta.get(STRATEGY);
        let strategy = strategy.and_then(|name| name.parse().ok());
        let mut policy = state.settings.policy.clone();
        policy.strategy = strategy.unwrap_or(policy.strategy);
        state.engine = state.restored(policy, loaded.meta.get(ENGINE_MEMORY));
        state.reseal();
        state
    }

    /// Takes over what is not in the store: signs of life, streams, readings.
    fn keep_alive(&mut self, before: Option<&Self>) {
        for (id, node) in &mut self.nodes {
            let Some(old) = before.and_then(|before| before.nodes.get(id)) else { continue };
            let row = std::mem::take(&mut node.row);
            // Whether it is lost and which GPUs are sick is found out again: the engine starts anew.
            *node = LiveNode {
                row,
                jobs: BTreeSet::new(),
                sick: BTreeSet::new(),
                told: None,
                lost: false,
                ..old.clone()
            };
        }
        let nodes: Vec<i64> = self.nodes.keys().copied().collect();
        for node in nodes {
            self.set_interval(node);
        }
    }

    /// Counts what each user holds.
    fn weigh_jobs(&mut self) {
        for job in self.jobs.values() {
            let held = self.held.entry(job.user_id).or_default();
            (held.0, held.1) = (held.0 + 1, held.1 + weight(&job.spec));
        }
    }

    /// Notes on the nodes which jobs they have.
    fn seat_jobs(&mut self) {
        for job in self.jobs.values() {
            for seat in job.state.seats.iter().filter(|_| job.state.status != JobStatus::Pending) {
                if let Some(node) =
                    self.nodes.get_mut(&seat.node).filter(|_| seat.state != SeatState::Ended)
                {
                    node.jobs.insert(job.id);
                }
            }
        }
    }

    /// The engine as it was, from facts. Facts that contradict each other cost the jobs that they are about, never
    /// the others.
    fn restored(&mut self, policy: Policy, memory: Option<&String>) -> Scheduler {
        let now = self.clock.now();
        let memory: Snapshot =
            memory.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let queues = queue_facts(self.queues.values(), &memory);
        let nodes = self.node_facts();
        let mut workloads = Vec::new();
        for job in self.jobs.values() {
            match workload(job) {
                Ok(workload) => workloads.push(facts(job, workload, self, now)),
                Err(error) => tracing::error!(job = job.id, %error, "a stored job cannot be read"),
            }
        }
        let mut snapshot = Snapshot {
            now,
            policy: policy.clone(),
            queues,
            nodes,
            workloads,
            cursor: memory.cursor,
            ..Snapshot::default()
        };
        let workloads = std::mem::take(&mut snapshot.workloads);
        let Ok(empty) = Scheduler::restore(snapshot.clone()) else {
            tracing::error!(
                "the nodes and queues in the store contradict each other; they are told anew"
            );
            self.nodes.values_mut().for_each(|node| node.told = None);
            return Scheduler::new(policy);
        };
        add_what_fits(&snapshot, &mut Vec::new(), workloads).unwrap_or(empty)
    }

    /// Nodes that have, or had, an agent. They are closed until work can reach them again.
    fn node_facts(&mut self) -> Vec<NodeSnapshot> {
        let with_agents: BTreeSet<i64> = self.agents.values().map(|agent| agent.node_id).collect();
        let mut facts = Vec::new();
        for (id, node) in &mut self.nodes {
            if !with_agents.contains(id) && node.jobs.is_empty() && !node.reachable() {
                continue;
            }
            let description = engine_node(&node.row, &node.runtimes(), &BTreeMap::new());
            node.told = Some(Told {
                node: description.clone(),
                foreign: agentaflow_engine::ForeignUse::default(),
                cordoned: true,
                draining: node.row.draining,
                closed: closed_gpus(&node.row.overrides),
            });
            let known = |id: &GpuId| description.gpus.iter().any(|gpu| gpu.id == *id);
            let mut health = closed_gpus(&node.row.overrides);
            health.retain(|id, _| known(id));
            facts.push(NodeSnapshot {
                node: description,
                lost: node.lost,
                cordoned: true,
                draining: node.row.draining,
                reclaimed: None,
                health,
                utilization: BTreeMap::new(),
                foreign: BTreeMap::new(),
            });
        }
        facts
    }

    /// What the engine remembers and no record holds.
    pub(crate) fn engine_memory(&self) -> String {
        serde_json::to_string(&self.engine.usage_history()).unwrap_or_default()
    }
}

/// Restores as many of these workloads as possible on top of those that are known to fit: all at once if it
/// works, which is the rule; otherwise by halves, until the ones at fault stand alone.
fn add_what_fits(
    base: &Snapshot,
    good: &mut Vec<WorkloadSnapshot>,
    more: Vec<WorkloadSnapshot>,
) -> Option<Scheduler> {
    let workloads: Vec<WorkloadSnapshot> = good.iter().chain(&more).cloned().collect();
    match Scheduler::restore(Snapshot { workloads, ..base.clone() }) {
        Ok(engine) => {
            good.extend(more);
            Some(engine)
        }
        Err(rejected) if more.len() < 2 => {
            let id = more.first().map(|facts| facts.workload.id.to_string());
            tracing::error!(?id, %rejected, "a job in the store contradicts the rest; it is planned again when it ends");
            None
        }
        Err(_) => {
            let mut first = more;
            let second = first.split_off(first.len() / 2);
            let one = add_what_fits(base, good, first);
            let two = add_what_fits(base, good, second);
            two.or(one)
        }
    }
}

fn accounts(rows: &[(i64, i64, i64)]) -> FxHashMap<i64, Account> {
    let month = agentaflow_api::units::Stamp::now().month();
    let account = |&(user, balance, spent): &(i64, i64, i64)| {
        (user, Account { balance, spent, month: month.clone() })
    };
    rows.iter().map(account).collect()
}

fn facts(
    job: &JobRow,
    mut workload: agentaflow_engine::Workload,
    state: &State,
    now: Time,
) -> WorkloadSnapshot {
    let job_state = &job.state;
    workload.gate = job_state.gate.clone().map(Gate::Budget);
    let name = |id: i64| state.nodes.get(&id).map(|node| NodeId::from(node.row.node_id.as_str()));
    let kept = job.spec.on_node_lost.unwrap_or_default() == OnNodeLost::Wait;
    let placed = job_state.status != JobStatus::Pending;
    let live =
        job_state.seats.iter().filter(|seat| placed && (kept || seat.state != SeatState::Ended));
    let seats: Vec<TaskSnapshot> = live
        .filter(|seat| seat.state != SeatState::Ended)
        .filter_map(|seat| {
            Some(TaskSnapshot {
                task: seat.task,
                node: name(seat.node)?,
                gpus: known_parts(state, seat),
                confirmed: seat.state != SeatState::Assigned,
                // Since when is not kept: it may take as long again.
                terminating_since: job_state.stopping.map(|_| now),
                devices_known: false,
            })
        })
        .collect();
    let ended = |seat: &&crate::store::Seat| placed && seat.state == SeatState::Ended;
    let finished = job_state.seats.iter().filter(ended).map(|seat| seat.task).collect();
    WorkloadSnapshot {
        phase: match (seats.is_empty(), job_state.stopping) {
            (true, _) => WorkloadPhase::Pending,
            (false, Some(_)) => WorkloadPhase::Stopping,
            (false, None) => WorkloadPhase::Placed,
        },
        placed_at: job_state.scheduled_at.map_or(Time(0), |at| Time(at.0.max(0) as u64)),
        finished: if seats.is_empty() { BTreeSet::new() } else { finished },
        tasks: seats,
        refusals: 0,
        not_before: Time(0),
        avoid: None,
        reported_class: None,
        workload,
    }
}

/// The devices of a seat that its node still has: one that fell off the bus must not stop everything.
fn known_parts(state: &State, seat: &crate::store::Seat) -> Vec<agentaflow_engine::GpuAllocation> {
    let told = state.nodes.get(&seat.node).and_then(|node| node.told.as_ref());
    let has = |part: &&agentaflow_engine::GpuAllocation| {
        told.is_some_and(|told| told.node.gpus.iter().any(|gpu| gpu.id == part.gpu))
    };
    seat.gpus.iter().filter(has).cloned().collect()
}

/// The queues, parents first, with the use that the engine remembered of them.
fn queue_facts<'a>(
    rows: impl Iterator<Item = &'a QueueRow>,
    memory: &Snapshot,
) -> Vec<QueueSnapshot> {
    let mut waiting: Vec<Queue> = rows.map(|row| engine_queue(&row.spec)).collect();
    let mut facts: Vec<QueueSnapshot> = Vec::new();
    let root = memory.queues.iter().find(|known| known.queue.id.as_str() == "root");
    facts.extend(root.cloned());
    let known = |facts: &[QueueSnapshot], parent: &Queue| {
        parent.parent.as_str() == "root"
            || facts.iter().any(|known| known.queue.id == parent.parent)
    };
    while let Some(at) = waiting.iter().position(|queue| known(&facts, queue)) {
        let queue = waiting.remove(at);
        let past = memory.queues.iter().find(|known| known.queue.id == queue.id);
        facts.push(QueueSnapshot {
            past: past.map_or_else(Default::default, |past| past.past),
            as_of: past.map_or_else(Default::default, |past| past.as_of),
            queue,
        });
    }
    facts
}

/// A queue as the engine wants it.
pub(crate) fn engine_queue(spec: &QueueSpec) -> Queue {
    let mut queue = Queue::new(spec.name.as_str());
    queue.parent = spec.parent.as_deref().unwrap_or("root").into();
    queue.weight = spec.weight.unwrap_or(100);
    queue.guaranteed = quota(&spec.guaranteed);
    queue.limit = quota(&spec.limit);
    queue.borrow = spec.borrow.unwrap_or(true);
    queue.max_priority = spec.max_priority.map_or(10, |most| most.min(10) as u8);
    queue
}

fn quota(spec: &QuotaSpec) -> Quota {
    Quota {
        cpu: spec.cpu_cores.map(|cores| MilliCpu(cores.0).0),
        memory: spec.memory.map(|memory| MiB(memory).0),
        gpu: spec.gpus.map(|gpus| gpus.0),
        models: spec
            .gpu_types
            .iter()
            .map(|(model, gpus)| (model.as_str().into(), gpus.0))
            .collect(),
        ..Quota::default()
    }
}
