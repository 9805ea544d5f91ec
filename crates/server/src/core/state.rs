//! Everything that changes, in memory: a cache of the store, plus what is only true while things are alive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::node::GpuInstance;
use agentaflow_api::units::Stamp;
use agentaflow_engine::{GpuHealth, GpuId, Scheduler, Strategy, WorkloadId};

use super::batch::Batch;
use super::clock::Clock;
use super::describe::KUBERNETES;
use super::handle::Ids;
use super::money::Account;
use crate::directory::Directory;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::{AgentRow, Change, JobRow, NodeRow, QueueRow};

/// The interval of agents that do not say theirs.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
/// A node is lost after so many missed intervals, plus the time its jobs may take to stop.
pub(crate) const MISSED_INTERVALS: u32 = 3;
/// Seconds between TERM and KILL when a job does not say.
pub(crate) const DEFAULT_GRACE: u32 = 10;

/// All state of the core.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Arc<Settings>,
    pub(crate) secrets: Arc<Keyring>,
    pub(crate) clock: Clock,
    pub(crate) engine: Scheduler,
    pub(crate) directory: Directory,
    /// Jobs that are not over.
    pub(crate) jobs: BTreeMap<i64, JobRow>,
    pub(crate) nodes: BTreeMap<i64, LiveNode>,
    pub(crate) agents: BTreeMap<i64, AgentRow>,
    pub(crate) queues: BTreeMap<String, QueueRow>,
    pub(crate) accounts: FxHashMap<i64, Account>,
    /// Submissions with a key in the last minutes: older ones are looked up in the store.
    pub(crate) recent_keys: FxHashMap<(i64, String), (String, i64, Instant)>,
    pub(crate) ids: Ids,
    /// What is not durable yet.
    pub(crate) batch: Batch,
    /// The engine heard something and should be asked.
    pub(crate) dirty: bool,
    /// Money changed hands or was promised: gates are to be looked at.
    pub(crate) money_moved: bool,
    /// When the engine wants to be asked again.
    pub(crate) wake: Option<agentaflow_engine::Time>,
    /// A transaction is being written, since then: what memory says is not all durable yet.
    pub(crate) writing: Option<Instant>,
    /// Live jobs of each user, and the bytes that they hold.
    pub(crate) held: FxHashMap<i64, (u32, usize)>,
    /// Set when memory and store may differ, or the server stops: nothing is taken.
    pub(crate) closed: Option<&'static str>,
}

/// A node: its record, and what is known only while it lives.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct LiveNode {
    pub(crate) row: NodeRow,
    /// The last sign of life, or the start of the server.
    pub(crate) beat: Instant,
    /// A sign of life came since the server started.
    pub(crate) heard: bool,
    /// When the last heartbeat came, and whether that is written down.
    pub(crate) beat_at: Option<Stamp>,
    pub(crate) beat_flushed: bool,
    pub(crate) interval: Duration,
    /// The engine was told that it is lost.
    pub(crate) lost: bool,
    /// The agent that has a stream (or polls).
    pub(crate) stream: Option<i64>,
    /// Its push endpoint answered last time.
    pub(crate) push_answers: bool,
    /// It is being emptied because the server stops.
    pub(crate) evacuating: bool,
    /// Jobs with a live task on it.
    pub(crate) jobs: BTreeSet<i64>,
    /// Last readings of its GPUs.
    pub(crate) readings: Vec<GpuInstance>,
    /// What its last heartbeat said is free: GPU memory, CPU thousandths, memory, storage.
    pub(crate) said_free: [Option<u64>; 4],
    /// The engine is to be told everything again: it was told that the node is lost.
    pub(crate) retell: bool,
    /// Sick GPUs, by engine name.
    pub(crate) sick: BTreeSet<String>,
    /// What the engine was told last.
    pub(crate) told: Option<Told>,
}

/// What the engine was told about a node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) node: agentaflow_engine::Node,
    pub(crate) foreign: agentaflow_engine::ForeignUse,
    pub(crate) cordoned: bool,
    pub(crate) draining: bool,
    /// GPUs that take no new work by an admin's wish.
    pub(crate) closed: BTreeMap<GpuId, GpuHealth>,
}

impl LiveNode {
    pub(crate) fn new(row: NodeRow) -> Self {
        Self {
            beat_at: row.last_heartbeat,
            row,
            beat: Instant::now(),
            heard: false,
            beat_flushed: true,
            interval: DEFAULT_INTERVAL,
            lost: false,
            stream: None,
            push_answers: false,
            evacuating: false,
            jobs: BTreeSet::new(),
            readings: Vec::new(),
            said_free: [None; 4],
            retell: false,
            sick: BTreeSet::new(),
            told: None,
        }
    }

    /// Work can reach it.
    pub(crate) fn reachable(&self) -> bool {
        self.stream.is_some() || self.push_answers
    }

    /// It was heard of within three intervals.
    pub(crate) fn alive(&self) -> bool {
        self.heard && self.beat.elapsed() < self.interval * MISSED_INTERVALS
    }

    /// How it can run work.
    pub(crate) fn runtimes(&self) -> Vec<&str> {
        if self.is_push() {
            return vec!["push"];
        }
        self.row.spec.runtimes.iter().map(String::as_str).collect()
    }

    /// It is a node of a Kubernetes cluster. Its heartbeats say what the pods of others leave, jobs of ours included.
    pub(crate) fn is_kubernetes(&self) -> bool {
        self.row.spec.runtimes.iter().any(|runtime| runtime == KUBERNETES)
    }

    /// Its agent is pushed to, in the way of the documents.
    pub(crate) fn is_push(&self) -> bool {
        self.stream.is_none() && self.row.spec.api_endpoint.is_some()
    }
}

impl State {
    /// The next number of a kind.
    pub(crate) fn next_job(&mut self) -> i64 {
        self.ids.0.job += 1;
        self.ids.0.job
    }

    /// Records that something happened; it becomes durable with what caused it.
    pub(crate) fn event(&mut self, kind: EventKind, message: impl Into<String>, about: About<'_>) {
        self.ids.0.event += 1;
        let event = Event {
            seq: self.ids.0.event,
            at: Stamp::now(),
            kind,
            message: message.into(),
            job_id: about.job,
            job: None,
            node_id: about.node.map(str::to_owned),
            user_id: about.user,
            data: about.data,
        };
        self.batch.events.push(Arc::new(event.clone()));
        self.batch.changes.push(Change::Event(Box::new(event)));
    }

    /// The same, about a job.
    pub(crate) fn job_event(&mut self, job: i64, kind: EventKind, message: impl Into<String>) {
        let user = self.row(job).map(|row| row.user_id);
        self.event(kind, message, About { job: Some(job), user, ..About::default() });
    }

    /// The same, about a node.
    pub(crate) fn node_event(&mut self, node: i64, kind: EventKind, message: impl Into<String>) {
        let Some(name) = self.nodes.get(&node).map(|node| node.row.node_id.clone()) else { return };
        self.event(kind, message, About { node: Some(&name), ..About::default() });
    }

    /// A job, live or over since the last transaction.
    pub(crate) fn row(&self, job: i64) -> Option<&JobRow> {
        self.jobs.get(&job).or_else(|| self.batch.finished.get(&job))
    }

    /// Marks a job as changed.
    pub(crate) fn touch(&mut self, job: i64) {
        if let Some(row) = self.jobs.get_mut(&job) {
            row.state.updated_at = Stamp::now();
            self.batch.touched.insert(job);
        }
    }

    /// Tells the engine something that it must accept; if it does not, that is logged and nothing else happens:
    /// the engine's own checks keep its state whole.
    pub(crate) fn tell(&mut self, event: agentaflow_engine::Event) {
        let now = self.clock.now();
        self.dirty = true;
        if let Err(rejected) = self.engine.apply(now, event) {
            tracing::warn!(%rejected, "the scheduler did not accept an event");
        }
    }

    /// The default strategy.
    pub(crate) fn strategy(&self) -> Strategy {
        self.engine.policy().strategy
    }
}

/// What an event is about.
#[derive(Debug, Default)]
pub(crate) struct About<'a> {
    pub(crate) job: Option<i64>,
    pub(crate) user: Option<i64>,
    pub(crate) node: Option<&'a str>,
    pub(crate) data: Map<String, Value>,
}

/// The engine's name of a job.
pub(crate) fn workload_id(job: i64) -> WorkloadId {
    WorkloadId::from(format!("job-{job}"))
}

/// The job behind an engine's name.
pub(crate) fn job_of(workload: &WorkloadId) -> Option<i64> {
    workload.as_str().strip_prefix("job-")?.parse().ok()
}
