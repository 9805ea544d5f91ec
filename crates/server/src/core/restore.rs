//! State from the store. Placements that are live are facts and not decided again; pending jobs keep their age.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_api::ids::NodeId;
use agentaflow_api::job::{JobStatus, TaskState};
use agentaflow_api::units::Stamp;
use agentaflow_engine::{
    Gate, GpuAllocation, NodeSnapshot, Policy, Queue, QueueSnapshot, Scheduler, Snapshot,
    TaskSnapshot, Time, Workload, WorkloadPhase, WorkloadSnapshot,
};

use super::alerts::ALERTS;
use super::budget_book::BudgetBook;
use super::clock::{Clock, ClockAnchor};
use super::engine_link::EngineLink;
use super::handle::Ids;
use super::job::JobTable;
use super::job::workload::workload;
use super::journal::Journal;
use super::ledger::Ledger;
use super::node::{LeaseTerms, LiveNode, NodeTable, TaskBooking, TaskRef};
use super::queue_table::{QueueTable, ROOT, engine_queue};
use super::sealed::SealedJobs;
use super::state::State;
use crate::directory::{Directory, SharedDirectory};
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::storage::Storage;
use crate::store::{Change, HeartbeatRow, JobRow, JobState, Loaded, QueueRow, TaskAssignment};

/// Key of the engine's own memory (cursor, decayed usage) in the store.
pub(super) const ENGINE_MEMORY: &str = "engine";
/// Key of the longest lease that may be valid, in milliseconds, in the store.
pub(super) const LEASE: &str = "lease_ms";
/// Key of the step of the wall clock during the last run, in the store. Only a run after a boot of the machine reads it.
pub(super) const CLOCK_STEP: &str = "clock_step";
/// Key of the [`ClockAnchor`] of the last run, in the store.
const CLOCK_ANCHOR: &str = "clock_anchor";
/// Key of the last event whose job has been exported as a trace, in the store.
pub(super) const TRACED_UNTIL: &str = "traced_until";
/// Steps of the wall clock below this size move no times.
pub(super) const LEAST_STEP_MS: u64 = 1_000;
/// Key of the strategy in the store.
pub(super) const STRATEGY: &str = "strategy";

impl State {
    /// Builds the state from the store. `before` provides the liveness of nodes after a reload.
    pub(super) fn load(
        settings: Arc<Settings>,
        secrets: Arc<Keyring>,
        directory: SharedDirectory,
        mut loaded: Loaded,
        clock: Clock,
        before: Option<&Self>,
    ) -> Self {
        let last = loaded.last;
        let step = if before.is_none() { clock_step(&loaded, clock) } else { 0 };
        shift_times(&mut loaded, step);
        directory.replace(Directory::new(loaded.users, loaded.credentials));
        let jobs = JobTable::new(loaded.jobs, last.job);
        let queues = QueueTable::new(loaded.queues, &directory.read());
        let lease = match before {
            Some(before) => before.nodes.lease(),
            None => lease_terms(&settings, &loaded.meta),
        };
        let mut nodes = NodeTable::new(loaded.nodes, loaded.agents, last.node, last.agent, lease);
        nodes.keep_liveness(before.map(|before| &before.nodes));
        book_tasks(&jobs, &mut nodes);
        let mut policy = settings.policy.clone();
        let strategy = loaded.meta.get(STRATEGY).and_then(|name| name.parse().ok());
        policy.strategy = strategy.unwrap_or(policy.strategy);
        let memory =
            loaded.meta.get(ENGINE_MEMORY).and_then(|text| serde_json::from_str(text).ok());
        let scheduler =
            restore_engine(&jobs, &mut nodes, &queues, policy, memory.unwrap_or_default(), clock);
        let mut state = Self {
            incarnation: before.map_or_else(incarnation, |before| before.incarnation),
            storage: before.map_or_else(
                || Arc::new(Storage::new(settings.retention.account_bytes)),
                |before| before.storage.clone(),
            ),
            // Without earlier exports, traces begin with this start.
            traced_until: loaded
                .meta
                .get(TRACED_UNTIL)
                .and_then(|seq| seq.parse().ok())
                .unwrap_or(last.event),
            ids: Ids(last),
            ledger: Ledger::new(loaded.accounts, last.ledger, clock),
            journal: Journal::new(last.event, clock),
            engine: EngineLink::new(
                scheduler,
                clock,
                before.map(|before| before.engine.changes().clone()).unwrap_or_default(),
            ),
            settings,
            secrets,
            directory,
            jobs,
            nodes,
            queues,
            budgets: BudgetBook::default(),
            sealed: SealedJobs::default(),
            activity: before.map(|before| before.activity.clone()).unwrap_or_default(),
            alerts: loaded.meta.remove(ALERTS),
        };
        state.reseal_secrets();
        if before.is_none() {
            state.save_clock(step);
        }
        state
    }

    /// Writes the clock of this run, and with the same transaction the times that moved by a step of the wall clock.
    fn save_clock(&mut self, step: i64) {
        let anchor = serde_json::to_string(&self.engine.clock().anchor()).unwrap_or_default();
        self.journal.write(Change::Meta(CLOCK_ANCHOR, anchor));
        self.journal.write(Change::Meta(CLOCK_STEP, "0".to_owned()));
        if step == 0 {
            return;
        }
        for id in self.jobs.iter().map(|job| job.id).collect::<Vec<_>>() {
            self.jobs.update(id, |_| ());
        }
        let heard = self
            .nodes
            .iter()
            .filter_map(|node| Some(HeartbeatRow { node: node.id(), at: node.last_heartbeat()? }));
        self.journal.write(Change::Heartbeats(heard.collect()));
        self.journal.write(Change::IdempotencyMoved(step));
    }
}

/// Clock of the last run.
pub(super) fn clock_anchor(meta: &BTreeMap<String, String>) -> Option<ClockAnchor> {
    meta.get(CLOCK_ANCHOR).and_then(|text| serde_json::from_str(text).ok())
}

/// Milliseconds by which the wall clock was set forward since the last run began. After a boot of the machine only the
/// step that the last run saw is known.
fn clock_step(loaded: &Loaded, clock: Clock) -> i64 {
    let measured = clock_anchor(&loaded.meta).and_then(|anchor| anchor.step_to(&clock.anchor()));
    let seen = || loaded.meta.get(CLOCK_STEP).and_then(|step| step.parse().ok()).unwrap_or(0);
    let step = measured.unwrap_or_else(seen);
    if step.unsigned_abs() < LEAST_STEP_MS { 0 } else { step }
}

/// Moves the times from which live jobs are billed by a step of the wall clock: this run counts from the wall clock as
/// it is now.
fn shift_times(loaded: &mut Loaded, step: i64) {
    let shift = |at: &mut Option<Stamp>| *at = at.map(|at| Stamp(at.0.saturating_add(step)));
    for JobRow { state, .. } in &mut loaded.jobs {
        let JobState { scheduled_at, started_at, warned_at, failed_at, tasks, .. } = state;
        [scheduled_at, started_at, warned_at, failed_at].into_iter().for_each(shift);
        for task in tasks {
            shift(&mut task.started_at);
        }
    }
    loaded.nodes.iter_mut().for_each(|node| shift(&mut node.last_heartbeat));
}

fn lease_terms(settings: &Settings, meta: &BTreeMap<String, String>) -> LeaseTerms {
    let earlier = meta.get(LEASE).and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
    LeaseTerms::new(settings.lease, earlier, Instant::now())
}

/// A random number. Without randomness the time is as good: two starts are never in the same millisecond.
fn incarnation() -> u32 {
    getrandom::u32().unwrap_or_else(|_| Stamp::now().0 as u32)
}

/// Books the live tasks of all jobs on their nodes.
fn book_tasks(jobs: &JobTable, nodes: &mut NodeTable) {
    for job in jobs.iter().filter(|job| job.state.status != JobStatus::Pending) {
        for task in job.state.tasks.iter().filter(|task| task.state != TaskState::Ended) {
            let key = TaskRef { job: job.id, task: task.task };
            nodes.update(task.node, |node| node.add_task(key, TaskBooking::new(job, task)));
        }
    }
}

/// Restores the engine from facts. Inconsistent facts exclude only the jobs that they belong to.
fn restore_engine(
    jobs: &JobTable,
    nodes: &mut NodeTable,
    queues: &QueueTable,
    policy: Policy,
    memory: Snapshot,
    clock: Clock,
) -> Scheduler {
    let now = clock.now();
    let snapshot = Snapshot {
        now,
        policy: policy.clone(),
        queues: queue_facts(queues.iter(), &memory),
        nodes: node_facts(nodes),
        cursor: memory.cursor,
        ..Snapshot::default()
    };
    let mut workloads = Vec::new();
    for job in jobs.iter() {
        match workload(job) {
            Ok(workload) => workloads.push(workload_facts(job, workload, nodes, now)),
            Err(error) => tracing::error!(job = %job.id, %error, "Cannot read a stored job"),
        }
    }
    let Ok(empty) = Scheduler::restore(snapshot.clone()) else {
        tracing::error!(
            "Stored nodes and queues are inconsistent; the engine starts without nodes"
        );
        for id in nodes.ids() {
            nodes.update(id, LiveNode::clear_report);
        }
        return Scheduler::new(policy);
    };
    restore_consistent(&snapshot, &mut Vec::new(), workloads).unwrap_or(empty)
}

/// Nodes that have or had an agent, cordoned until work can reach them.
fn node_facts(nodes: &mut NodeTable) -> Vec<NodeSnapshot> {
    let with_agents: BTreeSet<NodeId> = nodes.agents().map(|agent| agent.node_id).collect();
    let relevant = |node: &&LiveNode| {
        with_agents.contains(&node.id()) || node.has_tasks() || node.is_reachable()
    };
    let relevant: Vec<NodeId> = nodes.iter().filter(relevant).map(LiveNode::id).collect();
    let mut facts = Vec::new();
    for id in relevant {
        let Some(restored) = nodes.update(id, LiveNode::report_restored) else { continue };
        let mut health = restored.closed_gpus;
        health.retain(|id, _| restored.node.gpus.iter().any(|gpu| gpu.id == *id));
        facts.push(NodeSnapshot {
            node: restored.node,
            lost: restored.lost,
            cordoned: true,
            draining: restored.draining,
            reclaimed: None,
            health,
            utilization: BTreeMap::new(),
            foreign: BTreeMap::new(),
        });
    }
    facts
}

/// Restores as many workloads as possible in addition to `good`: all at once as a rule; by halves if the engine rejects
/// them, until each inconsistent workload is alone.
fn restore_consistent(
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
            tracing::error!(?id, %rejected, "Stored job is inconsistent with the others; the engine plans it again when it ends");
            None
        }
        Err(_) => {
            let mut first = more;
            let second = first.split_off(first.len() / 2);
            let one = restore_consistent(base, good, first);
            let two = restore_consistent(base, good, second);
            two.or(one)
        }
    }
}

fn workload_facts(
    job: &JobRow,
    mut workload: Workload,
    nodes: &NodeTable,
    now: Time,
) -> WorkloadSnapshot {
    let state = &job.state;
    workload.gate = state.gate.as_ref().map(|short| Gate::Budget(short.owner.clone()));
    let placed = state.status != JobStatus::Pending;
    let stored = || state.tasks.iter().filter(|_| placed);
    let live = stored().filter(|task| task.state != TaskState::Ended);
    let tasks: Vec<TaskSnapshot> = live
        .filter_map(|task| {
            let node = nodes.get(task.node)?;
            Some(TaskSnapshot {
                task: task.task,
                node: node.row().node_id.as_str().into(),
                gpus: known_gpus(node, task),
                confirmed: task.state != TaskState::Scheduled,
                // The start of the stop is not stored: the task may take the whole grace again.
                terminating_since: state.stopping.map(|_| now),
                devices_known: false,
            })
        })
        .collect();
    let ended = stored().filter(|task| task.state == TaskState::Ended).map(|task| task.task);
    WorkloadSnapshot {
        phase: match (tasks.is_empty(), state.stopping) {
            (true, _) => WorkloadPhase::Pending,
            (false, Some(_)) => WorkloadPhase::Stopping,
            (false, None) => WorkloadPhase::Placed,
        },
        placed_at: state.scheduled_at.map_or(Time(0), |at| Time(at.0.max(0) as u64)),
        finished: if tasks.is_empty() { BTreeSet::new() } else { ended.collect() },
        lost: Vec::new(),
        tasks,
        refusals: 0,
        not_before: Time(0),
        avoid: None,
        reported_class: None,
        workload,
    }
}

/// GPUs of a task that its node still has: a GPU that disappeared must not fail the restore.
fn known_gpus(node: &LiveNode, task: &TaskAssignment) -> Vec<GpuAllocation> {
    task.gpus.iter().filter(|part| node.has_reported_gpu(&part.gpu)).cloned().collect()
}

/// Queues, parents first, with the usage that the engine remembered.
fn queue_facts<'a>(
    rows: impl Iterator<Item = &'a QueueRow>,
    memory: &Snapshot,
) -> Vec<QueueSnapshot> {
    let mut remaining: Vec<Queue> = rows.map(|row| engine_queue(&row.spec)).collect();
    let mut facts: Vec<QueueSnapshot> = Vec::new();
    let root = memory.queues.iter().find(|known| known.queue.id.as_str() == ROOT);
    facts.extend(root.cloned());
    let known = |facts: &[QueueSnapshot], parent: &Queue| {
        parent.parent.as_str() == ROOT || facts.iter().any(|known| known.queue.id == parent.parent)
    };
    while let Some(at) = remaining.iter().position(|queue| known(&facts, queue)) {
        let queue = remaining.remove(at);
        let past = memory.queues.iter().find(|known| known.queue.id == queue.id);
        facts.push(QueueSnapshot {
            past: past.map_or_else(Default::default, |past| past.past),
            as_of: past.map_or_else(Default::default, |past| past.as_of),
            queue,
        });
    }
    facts
}
