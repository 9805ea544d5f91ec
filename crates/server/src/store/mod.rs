//! The store: records that survive a restart.
//!
//! One trait, two databases. Only the core writes ([`Store::commit`]), one transaction at a time, with all changes since
//! the previous one. Reads need no permission of the core. A record is JSON, beside the few columns that queries filter by.

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
use agentaflow_api::ids::{AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, NodeId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::units::Stamp;

use crate::settings::Settings;

pub use postgres::open_postgres;
pub use records::{
    AccountRow, AgentRow, CredentialKind, CredentialRow, GpuAccount, HeartbeatRow, IdempotencyRow,
    JobRow, JobState, NodeOverrides, NodeRow, QueueRow, TaskAssignment, UserRow,
};
pub use sqlite::open_sqlite;

/// Opens the database of the settings. Fails if another server uses it.
pub async fn open(settings: &Settings) -> Result<Arc<dyn Store>, StoreError> {
    match &settings.database {
        Some(url) => open_postgres(url).await,
        None => open_sqlite(&settings.data_dir).await,
    }
}

#[derive(Debug, Error)]
pub enum StoreError {
    /// Another server uses this database.
    #[error("{0}")]
    InUse(String),
    /// Another server has taken over the database; this one must stop.
    #[error("another server has taken over this database")]
    Fenced,
    #[error("cannot open {what}")]
    Open {
        /// Address without the password.
        what: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the database failed while it was asked to {what}")]
    Failed { what: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

/// A write. A list of writes is one transaction.
#[derive(Clone, Debug)]
pub enum Change {
    User(Box<UserRow>),
    /// A key, token, session or invitation, new or changed.
    Credential(Box<CredentialRow>),
    CredentialGone(CredentialId),
    Node(Box<NodeRow>),
    NodeGone(NodeId),
    /// Last heartbeats of several nodes.
    Heartbeats(Vec<HeartbeatRow>),
    Agent(Box<AgentRow>),
    AgentGone(AgentId),
    NewJob(Box<JobRow>),
    /// New state of a job.
    Job(JobId, Box<JobState>),
    Queue(Box<QueueRow>),
    QueueGone(String),
    /// The core numbers events.
    Event(Box<Event>),
    /// The core numbers ledger entries.
    Ledger {
        entry: Box<LedgerEntry>,
        /// Day in UTC to whose month the entry belongs.
        day: String,
    },
    /// Idempotency key of a submission.
    Idempotency(Box<IdempotencyRow>),
    /// Deletes idempotency keys from before this time.
    IdempotencyBefore(Stamp),
    /// Moves the times of all idempotency keys by this number of milliseconds.
    IdempotencyMoved(i64),
    /// Deletes ended jobs with their events and idempotency keys. Ledger entries stay.
    JobsGone(Vec<JobId>),
    /// Deletes events without a job from before this time. `last` is the highest number of an event.
    EventsBefore {
        at: Stamp,
        last: EventSeq,
    },
    Meta(&'static str, String),
}

/// State that the core loads at start.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub users: Vec<UserRow>,
    /// Valid and revoked credentials; not the expired ones that are used once.
    pub credentials: Vec<CredentialRow>,
    pub nodes: Vec<NodeRow>,
    pub agents: Vec<AgentRow>,
    /// Live jobs, oldest first.
    pub jobs: Vec<JobRow>,
    pub queues: Vec<QueueRow>,
    /// Values by name.
    pub meta: std::collections::BTreeMap<String, String>,
    /// Accounts of all users with an entry in the ledger.
    pub accounts: Vec<AccountRow>,
    pub last: LastIds,
}

/// Highest ids ever used; 0 without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LastIds {
    pub user: UserId,
    pub credential: CredentialId,
    pub node: NodeId,
    pub agent: AgentId,
    pub job: JobId,
    pub event: EventSeq,
    pub ledger: LedgerEntryId,
}

/// Filter of a list of jobs, newest first.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Only jobs of this user.
    pub user: Option<UserId>,
    /// Only in these states; empty means all.
    pub status: Vec<JobStatus>,
    /// Only of this queue.
    pub queue: Option<String>,
    /// Only with this text in the name; case does not matter.
    pub name: Option<String>,
    /// Only with a smaller number (a cursor).
    pub before: Option<JobId>,
    pub skip: u64,
    pub limit: u64,
}

/// Filter of a list of ended jobs, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct EndedFilter {
    /// Only created before this time.
    pub created_before: Stamp,
    /// Only with a higher number (a cursor).
    pub after: JobId,
    pub limit: u64,
}

/// Bytes that the records of a user occupy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBytes {
    pub user: UserId,
    pub bytes: u64,
}

/// Filter of a list of events, oldest first.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of this node.
    pub node: Option<String>,
    /// Only of jobs of this user.
    pub user: Option<UserId>,
    /// Only with a higher number (a cursor).
    pub after: EventSeq,
    pub limit: u64,
    /// Takes the newest `limit` events instead of the oldest.
    pub newest: bool,
}

/// Filter of a list of ledger entries, newest first.
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
    pub before: Option<LedgerEntryId>,
    pub skip: u64,
    pub limit: u64,
}

/// Filter of the ended jobs whose use of GPUs was measured, by number.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredFilter {
    /// Only of this user.
    pub user: Option<UserId>,
    /// Only ended from this time on.
    pub from: Stamp,
    /// Only ended before this time.
    pub to: Stamp,
    /// Only with a higher number (a cursor).
    pub after: JobId,
    pub limit: u64,
}

/// A job whose use of GPUs was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredJob {
    pub id: JobId,
    pub user: UserId,
    pub queue: String,
    pub name: Option<String>,
    pub account: GpuAccount,
}

/// Key by which usage is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageBy {
    User,
    Queue,
    /// `gpu-…` name.
    Node,
    /// Day in UTC.
    Day,
    Job,
}

#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Writes all changes in one durable transaction, in order. A duplicate id or name, or the state of an unknown job,
    /// fails the transaction.
    async fn commit(&self, changes: &[Change]) -> Result<(), StoreError>;
    /// State that the core loads at start. `month` is the current one, like `2026-11`.
    async fn load(&self, month: &str) -> Result<Loaded, StoreError>;
    /// A job, live or ended.
    async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError>;
    /// Jobs, newest first.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, StoreError>;
    /// Number of matching jobs, without paging.
    async fn count_jobs(&self, filter: &JobFilter) -> Result<u64, StoreError>;
    /// Ended jobs, oldest first.
    async fn ended_jobs(&self, filter: &EndedFilter) -> Result<Vec<JobRow>, StoreError>;
    /// Ended jobs of a user, oldest first, with the size of their records and events.
    async fn ended_bytes(
        &self,
        user: UserId,
        after: JobId,
        limit: u64,
    ) -> Result<Vec<(JobId, u64)>, StoreError>;
    /// Owners of these jobs; unknown jobs are left out.
    async fn owners(&self, jobs: &[JobId]) -> Result<Vec<(JobId, UserId)>, StoreError>;
    /// Size of the jobs and events of each user.
    async fn stored_bytes(&self) -> Result<Vec<StoredBytes>, StoreError>;
    /// Events, oldest first.
    async fn events(&self, filter: &EventFilter) -> Result<Vec<Event>, StoreError>;
    /// Ledger entries, newest first.
    async fn ledger(&self, filter: &LedgerFilter) -> Result<Vec<LedgerEntry>, StoreError>;
    /// Sums of usage by key. Only entries of kind `usage` and `correction`; an entry without a queue or node has an empty
    /// key. The page of the filter is ignored.
    async fn usage(&self, by: UsageBy, filter: &LedgerFilter) -> Result<Vec<UsageRow>, StoreError>;
    /// Ended jobs whose use of GPUs was measured, by number.
    async fn measured_jobs(&self, filter: &MeasuredFilter) -> Result<Vec<MeasuredJob>, StoreError>;
    /// Submission that used this idempotency key.
    async fn idempotency(
        &self,
        user: UserId,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError>;
    /// Returns true if no other server can take over the database while this one runs.
    fn is_exclusive(&self) -> bool;
    async fn ping(&self) -> Result<(), StoreError>;
    /// Finishes open statements and closes the database.
    async fn close(&self);
}
