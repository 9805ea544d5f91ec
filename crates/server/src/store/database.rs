//! The store on any database with a [`Backend`].

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, Pool};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use agentaflow_api::billing::{LedgerEntry, UsageRow};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, NodeId, UserId};
use agentaflow_api::units::Stamp;

use super::driver::{Driver, run_all};
use super::read::{self, Cause, Cells};
use super::records::{IdempotencyRow, JobRow};
use super::sql::{Dialect, Sql};
use super::{
    Change, EndedFilter, EventFilter, JobFilter, LastIds, LedgerFilter, Loaded, MeasuredFilter,
    MeasuredJob, Store, StoreError, StoredBytes, UsageBy, write,
};

/// A database with one connection for writes and a pool for reads.
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    const DIALECT: Dialect;
    /// No other server can take over the database while this one runs.
    const EXCLUSIVE: bool;
    type Database: sqlx::Database<Connection = Self::Connection>;
    type Connection: Driver<Database = Self::Database>;

    fn writer(&self) -> &Slot<Self::Connection>;
    fn readers(&self) -> &Pool<Self::Database>;
    /// Reconnects for writes.
    async fn connect(&self, what: &'static str) -> Result<Self::Connection, StoreError>;
    /// Begins a write transaction; fails if another server has taken over.
    async fn begin(
        &self,
        connection: &mut Self::Connection,
        what: &'static str,
    ) -> Result<(), StoreError>;
    /// Releases the lock of the database.
    async fn release(&self);
}

/// Holds the write connection.
#[derive(Debug)]
pub(super) struct Slot<C>(Mutex<Slotted<C>>);

#[derive(Debug)]
pub(super) enum Slotted<C> {
    Idle(C),
    /// The last connection failed, or its user was cancelled.
    Empty,
    /// The store is closed.
    Closed,
}

impl<C> Slot<C> {
    pub(super) fn new(connection: C) -> Self {
        Self(Mutex::new(Slotted::Idle(connection)))
    }

    pub(super) async fn lock(&self) -> MutexGuard<'_, Slotted<C>> {
        self.0.lock().await
    }
}

type Rows<B> = Vec<<<B as Backend>::Connection as Driver>::Row>;

#[derive(Debug)]
pub(super) struct Database<B>(pub(super) B);

/// Adds the operation to an error.
pub(super) fn failed<E: Into<Cause>>(what: &'static str) -> impl Fn(E) -> StoreError {
    move |source| StoreError::Failed { what, source: source.into() }
}

/// Timeout of a transaction.
const PATIENCE: Duration = Duration::from_mins(1);

impl<B: Backend> Database<B> {
    /// Runs all statements in one transaction and returns the rows of each. After an error nothing is written, unless the
    /// connection was lost during the commit.
    async fn alone(
        &self,
        what: &'static str,
        statements: Vec<Sql>,
    ) -> Result<Vec<Rows<B>>, StoreError> {
        let mut slot = self.0.writer().lock().await;
        // Taken out, so that a cancellation drops the connection, which rolls the transaction back.
        let mut connection = match std::mem::replace(&mut *slot, Slotted::Empty) {
            Slotted::Idle(connection) => connection,
            Slotted::Empty => self.0.connect(what).await?,
            Slotted::Closed => {
                *slot = Slotted::Closed;
                return Err(failed(what)("the store is closed"));
            }
        };
        let done = timeout(PATIENCE, self.transaction(&mut connection, what, statements)).await;
        let Ok(done) = done else { return Err(failed(what)("it took more than a minute")) };
        if done.is_ok() || undone::<B>(&mut connection).await {
            *slot = Slotted::Idle(connection);
        } else {
            // The connection is broken; an error while closing it does not matter.
            let _ = timeout(Duration::from_secs(5), connection.close_hard()).await;
        }
        done
    }

    async fn transaction(
        &self,
        connection: &mut B::Connection,
        what: &'static str,
        statements: Vec<Sql>,
    ) -> Result<Vec<Rows<B>>, StoreError> {
        self.0.begin(connection, what).await?;
        let answers = run_all(connection, statements).await.map_err(failed(what))?;
        connection.fetch(Sql::new(B::DIALECT, "COMMIT")).await.map_err(failed(what))?;
        Ok(answers)
    }

    async fn read(&self, what: &'static str, sql: Sql) -> Result<Rows<B>, StoreError> {
        let mut connection = self.0.readers().acquire().await.map_err(failed(what))?;
        connection.fetch(sql).await.map_err(failed(what))
    }

    async fn rows<T>(
        &self,
        what: &'static str,
        sql: Sql,
        parse: impl Fn(&<B::Connection as Driver>::Row) -> Result<T, Cause> + Send,
    ) -> Result<Vec<T>, StoreError> {
        parsed(what, &self.read(what, sql).await?, parse)
    }
}

/// Rolls a failed transaction back; true if the connection can be used again.
async fn undone<B: Backend>(connection: &mut B::Connection) -> bool {
    let rollback = connection.fetch(Sql::new(B::DIALECT, "ROLLBACK"));
    matches!(timeout(Duration::from_secs(5), rollback).await, Ok(Ok(_)))
}

fn parsed<R, T>(
    what: &'static str,
    rows: &[R],
    parse: impl Fn(&R) -> Result<T, Cause>,
) -> Result<Vec<T>, StoreError> {
    rows.iter().map(parse).collect::<Result<_, _>>().map_err(failed(what))
}

const LOAD: &str = "load the state";

/// Queries of [`Store::load`], in the order of [`loaded`].
fn load_questions(dialect: Dialect, month: &str) -> Vec<Sql> {
    vec![
        read::documents(dialect, "users", "id"),
        read::credentials(dialect, Stamp::now()),
        read::nodes(dialect),
        read::documents(dialect, "agents", "id"),
        read::live_jobs(dialect),
        read::documents(dialect, "queues", "name"),
        read::meta(dialect),
        read::accounts(dialect, month),
        read::last_ids(dialect),
    ]
}

fn loaded<R: Cells>(answers: Vec<Vec<R>>) -> Result<Loaded, StoreError> {
    let [users, credentials, nodes, agents, jobs, queues, meta, accounts, last] =
        <[Vec<R>; 9]>::try_from(answers).map_err(|_| failed(LOAD)("a result is missing"))?;
    Ok(Loaded {
        users: parsed(LOAD, &users, |row| row.json(0))?,
        credentials: parsed(LOAD, &credentials, |row| row.json(0))?,
        nodes: parsed(LOAD, &nodes, read::node_row)?,
        agents: parsed(LOAD, &agents, |row| row.json(0))?,
        jobs: parsed(LOAD, &jobs, read::job_row)?,
        queues: parsed(LOAD, &queues, |row| row.json(0))?,
        meta: parsed(LOAD, &meta, |row| Ok((row.text(0)?, row.text(1)?)))?.into_iter().collect(),
        accounts: parsed(LOAD, &accounts, read::account_row)?,
        last: parsed(LOAD, &last, last_ids)?.pop().unwrap_or_default(),
    })
}

fn last_ids(row: &impl Cells) -> Result<LastIds, Cause> {
    let id = |column| row.maybe_int(column).map(Option::unwrap_or_default);
    Ok(LastIds {
        user: UserId(id(0)?),
        credential: CredentialId(id(1)?),
        node: NodeId(id(2)?),
        agent: AgentId(id(3)?),
        job: JobId(id(4)?),
        event: EventSeq(id(5)?),
        ledger: LedgerEntryId(id(6)?),
    })
}

#[async_trait]
impl<B: Backend> Store for Database<B> {
    async fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        let what = "write changes";
        let statements = write::statements(B::DIALECT, changes).map_err(failed(what))?;
        if !statements.is_empty() {
            self.alone(what, statements).await?;
        }
        Ok(())
    }

    // On the write connection, so that a commit with an unknown outcome has ended.
    async fn load(&self, month: &str) -> Result<Loaded, StoreError> {
        loaded(self.alone(LOAD, load_questions(B::DIALECT, month)).await?)
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        Ok(self.rows("read a job", read::job(B::DIALECT, id), read::job_row).await?.pop())
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, StoreError> {
        self.rows("list jobs", read::jobs(B::DIALECT, filter), read::job_row).await
    }

    async fn count_jobs(&self, filter: &JobFilter) -> Result<u64, StoreError> {
        let sql = read::count_jobs(B::DIALECT, filter);
        let counts = self.rows("count jobs", sql, |row| row.int(0)).await?;
        Ok(counts.first().map_or(0, |count| count.unsigned_abs()))
    }

    async fn ended_jobs(&self, filter: &EndedFilter) -> Result<Vec<JobRow>, StoreError> {
        self.rows("list ended jobs", read::ended_jobs(B::DIALECT, filter), read::job_row).await
    }

    async fn ended_bytes(
        &self,
        user: UserId,
        after: JobId,
        limit: u64,
    ) -> Result<Vec<(JobId, u64)>, StoreError> {
        let sized = |row: &<B::Connection as Driver>::Row| {
            Ok((JobId(row.int(0)?), row.int(1)?.unsigned_abs()))
        };
        let sql = read::ended_bytes(B::DIALECT, user, after, limit);
        self.rows("measure ended jobs", sql, sized).await
    }

    async fn owners(&self, jobs: &[JobId]) -> Result<Vec<(JobId, UserId)>, StoreError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let owner =
            |row: &<B::Connection as Driver>::Row| Ok((JobId(row.int(0)?), UserId(row.int(1)?)));
        self.rows("look up owners", read::owners(B::DIALECT, jobs), owner).await
    }

    async fn stored_bytes(&self) -> Result<Vec<StoredBytes>, StoreError> {
        let stored = |row: &<B::Connection as Driver>::Row| {
            let bytes = row.int(1)?.unsigned_abs();
            Ok(StoredBytes { user: UserId(row.int(0)?), bytes })
        };
        self.rows("measure records", read::stored_bytes(B::DIALECT), stored).await
    }

    async fn events(&self, filter: &EventFilter) -> Result<Vec<Event>, StoreError> {
        let sql = read::events(B::DIALECT, filter);
        let mut events = self.rows("list events", sql, read::event_row).await?;
        events.sort_by_key(|event| event.seq);
        Ok(events)
    }

    async fn ledger(&self, filter: &LedgerFilter) -> Result<Vec<LedgerEntry>, StoreError> {
        self.rows("list the ledger", read::ledger(B::DIALECT, filter), read::ledger_row).await
    }

    async fn usage(&self, by: UsageBy, filter: &LedgerFilter) -> Result<Vec<UsageRow>, StoreError> {
        let sql = read::usage(B::DIALECT, by, filter);
        let mut rows = self.rows("sum up usage", sql, read::usage_row).await?;
        // Databases sort text by different collations.
        let number =
            |row: &UsageRow| (by == UsageBy::Job).then(|| row.key.parse::<i64>().ok()).flatten();
        rows.sort_by(|one, other| (number(one), &one.key).cmp(&(number(other), &other.key)));
        Ok(rows)
    }

    async fn measured_jobs(&self, filter: &MeasuredFilter) -> Result<Vec<MeasuredJob>, StoreError> {
        let sql = read::measured_jobs(B::DIALECT, filter);
        self.rows("list measured jobs", sql, read::measured_job).await
    }

    async fn idempotency(
        &self,
        user: UserId,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        let sql = read::idempotency(B::DIALECT, user, key);
        Ok(self.rows("look up a key", sql, read::idempotency_row).await?.pop())
    }

    fn is_exclusive(&self) -> bool {
        B::EXCLUSIVE
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read("answer", Sql::new(B::DIALECT, "SELECT 1")).await.map(drop)
    }

    async fn close(&self) {
        let mut slot = self.0.writer().lock().await;
        if let Slotted::Idle(connection) = std::mem::replace(&mut *slot, Slotted::Closed) {
            let _ = timeout(Duration::from_secs(5), connection.close()).await;
        }
        let _ = timeout(Duration::from_secs(5), self.0.readers().close()).await;
        self.0.release().await;
    }
}
