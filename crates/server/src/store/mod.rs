//! The truth: what survives a restart, as plain records.
//!
//! One trait, two databases. Only the core writes ([`Store::commit`]), one transaction at a time, which
//! carries everything that happened since the last one; everybody may read. Records that are seldom searched by
//! their parts are kept as JSON beside the few columns that are.

mod database;
mod driver;
mod lock;
mod postgres;
mod read;
mod records;
mod sql;
mod sqlite;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use agentaflow_api::billing::{LedgerEntry, UsageRow};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{AgentId, JobId, NodeId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::units::Stamp;

use crate::settings::Settings;

pub use postgres::open_postgres;
pub use records::{
    AccountRow, AgentRow, CredentialKind, CredentialRow, HeartbeatRow, IdempotencyRow, JobRow,
    JobState, NodeOverrides, NodeRow, QueueRow, TaskAssignment, UserRow,
};
pub use sqlite::open_sqlite;

/// Opens the database that the settings name, and refuses one that another server works on.
pub async fn open(settings: &Settings) -> Result<Arc<dyn Store>, StoreError> {
    match &settings.database {
        Some(url) => open_postgres(url).await,
        None => open_sqlite(&settings.data_dir).await,
    }
}

/// Why the store could not do what was asked.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another server works on this database.
    #[error("{0}")]
    InUse(String),
    /// Another server took the database over; this one must stop.
    #[error("another server has taken over this database")]
    Fenced,
    /// The database cannot be opened.
    #[error("cannot open {what}")]
    Open {
        /// Which database; without a password.
        what: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database failed.
    #[error("the database failed while it was asked to {what}")]
    Failed {
        /// What it was to do.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One write. A list of them is one transaction.
#[derive(Clone, Debug)]
pub enum Change {
    /// A user, new or changed.
    User(Box<UserRow>),
    /// A key, token, session or invitation, new or changed.
    Credential(Box<CredentialRow>),
    /// A credential that is no longer worth remembering.
    CredentialGone(i64),
    /// A node, new or changed.
    Node(Box<NodeRow>),
    /// A node was removed.
    NodeGone(NodeId),
    /// Last heartbeats of several nodes.
    Heartbeats(Vec<HeartbeatRow>),
    /// An agent, new or changed.
    Agent(Box<AgentRow>),
    /// An agent was removed.
    AgentGone(AgentId),
    /// A job was accepted.
    NewJob(Box<JobRow>),
    /// A job's state changed.
    Job(JobId, Box<JobState>),
    /// A queue, new or changed.
    Queue(Box<QueueRow>),
    /// A queue was removed.
    QueueGone(String),
    /// Something happened. The core numbers events.
    Event(Box<Event>),
    /// A line of the ledger. The core numbers lines.
    Ledger(Box<LedgerEntry>),
    /// A key that makes a repeated submission safe.
    Idempotency(Box<IdempotencyRow>),
    /// Such keys from before are forgotten.
    IdempotencyBefore(Stamp),
    /// A small fact by name.
    Meta(&'static str, String),
}

/// Everything that the core keeps in memory.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// All users.
    pub users: Vec<UserRow>,
    /// All credentials that are not expired or revoked, and revoked ones for the lists.
    pub credentials: Vec<CredentialRow>,
    /// All nodes.
    pub nodes: Vec<NodeRow>,
    /// All agents.
    pub agents: Vec<AgentRow>,
    /// Jobs that are not over, oldest first.
    pub jobs: Vec<JobRow>,
    /// All queues.
    pub queues: Vec<QueueRow>,
    /// Small facts by name.
    pub meta: std::collections::BTreeMap<String, String>,
    /// Accounts of all users with an entry in the ledger.
    pub accounts: Vec<AccountRow>,
    /// The highest numbers in use: users, credentials, nodes, agents, jobs, events, ledger.
    pub last: LastIds,
}

/// The highest numbers in use; 0 when there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LastIds {
    pub user: UserId,
    pub credential: i64,
    pub node: NodeId,
    pub agent: AgentId,
    pub job: JobId,
    pub event: i64,
    pub ledger: i64,
}

/// Which jobs to list; newest first.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only jobs of this user.
    pub user: Option<UserId>,
    /// Only in these states; empty means all.
    pub status: Vec<JobStatus>,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only with this in the name (case-insensitive).
    pub name: Option<String>,
    /// Only with a smaller number (a cursor).
    pub before: Option<JobId>,
    /// Leave out so many.
    pub skip: u64,
    /// At most so many.
    pub limit: u64,
}

/// Which events to list; oldest first.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of this node.
    pub node: Option<String>,
    /// Only of jobs of this user.
    pub user: Option<UserId>,
    /// Only with a higher number (a cursor).
    pub after: i64,
    /// At most so many: the oldest of them.
    pub limit: u64,
    /// The newest instead.
    pub newest: bool,
}

/// Which lines of the ledger; newest first.
#[derive(Clone, Debug, Default)]
pub struct LedgerFilter {
    /// Only of this user.
    pub user: Option<UserId>,
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only from this time on.
    pub from: Option<Stamp>,
    /// Only before this time.
    pub to: Option<Stamp>,
    /// Only with a smaller number (a cursor).
    pub before: Option<i64>,
    /// Leave out so many.
    pub skip: u64,
    /// At most so many.
    pub limit: u64,
}

/// What usage is summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageBy {
    /// The user's name.
    User,
    /// The queue.
    Queue,
    /// The node's `gpu-…` name.
    Node,
    /// The day in UTC.
    Day,
    /// The job's number.
    Job,
}

/// A database.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Writes all changes in one durable transaction, in order. A number or name that is taken, or a state of a job
    /// that is not there, fails all of them.
    async fn commit(&self, changes: &[Change]) -> Result<(), StoreError>;
    /// Everything that the core keeps in memory. `month` is the current one, like `2026-11`.
    async fn load(&self, month: &str) -> Result<Loaded, StoreError>;
    /// A job, over or not.
    async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError>;
    /// Jobs, newest first.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, StoreError>;
    /// How many jobs match, paging aside.
    async fn count_jobs(&self, filter: &JobFilter) -> Result<u64, StoreError>;
    /// Events, oldest first.
    async fn events(&self, filter: &EventFilter) -> Result<Vec<Event>, StoreError>;
    /// Lines of the ledger, newest first.
    async fn ledger(&self, filter: &LedgerFilter) -> Result<Vec<LedgerEntry>, StoreError>;
    /// Usage, summed up, ordered by key. Only lines of kind `usage` and `correction`; those without a queue or
    /// node have an empty key. Pages do not count here.
    async fn usage(&self, by: UsageBy, filter: &LedgerFilter) -> Result<Vec<UsageRow>, StoreError>;
    /// What was answered to this key of this user.
    async fn idempotency(
        &self,
        user: UserId,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError>;
    /// Whether the database answers.
    async fn ping(&self) -> Result<(), StoreError>;
    /// Finishes what is under way and lets go of the database.
    async fn close(&self);
}
