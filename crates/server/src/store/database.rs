//! The store on top of any database that can run statements.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Connection, Pool};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use agentaflow_api::billing::{LedgerEntry, UsageRow};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{AgentId, JobId, NodeId, UserId};
use agentaflow_api::units::Stamp;

use super::driver::{Driver, run_all};
use super::read::{self, Cause, Cells};
use super::records::{IdempotencyRow, JobRow};
use super::sql::{Dialect, Sql};
use super::{
    Change, EventFilter, JobFilter, LastIds, LedgerFilter, Loaded, Store, StoreError, UsageBy,
    write,
};

/// A database: one connection writes, others read.
#[async_trait]
pub(super) trait Backend: Send + Sync + 'static {
    /// What it speaks.
    const DIALECT: Dialect;
    /// What it is to the driver.
    type Database: sqlx::Database<Connection = Self::Connection>;
    /// A connection to it.
    type Connection: Driver<Database = Self::Database>;

    /// The connection that writes.
    fn writer(&self) -> &Slot<Self::Connection>;
    /// Those that read.
    fn readers(&self) -> &Pool<Self::Database>;
    /// Connects for writing again.
    async fn connect(&self, what: &'static str) -> Result<Self::Connection, StoreError>;
    /// Begins a transaction that writes, if this server still may.
    async fn begin(
        &self,
        connection: &mut Self::Connection,
        what: &'static str,
    ) -> Result<(), StoreError>;
    /// Lets others use the database.
    async fn release(&self);
}

/// The place of the connection that writes.
#[derive(Debug)]
pub(super) struct Slot<C>(Mutex<Slotted<C>>);

/// What is in the place.
#[derive(Debug)]
pub(super) enum Slotted<C> {
    /// A connection that waits for work.
    Idle(C),
    /// None: the last one failed, or its user was interrupted.
    Empty,
    /// None, and there will be none.
    Closed,
}

impl<C> Slot<C> {
    /// A place with a connection in it.
    pub(super) fn new(connection: C) -> Self {
        Self(Mutex::new(Slotted::Idle(connection)))
    }

    /// Waits until nobody else uses it.
    pub(super) async fn lock(&self) -> MutexGuard<'_, Slotted<C>> {
        self.0.lock().await
    }
}

type Rows<B> = Vec<<<B as Backend>::Connection as Driver>::Row>;

/// A store.
#[derive(Debug)]
pub(super) struct Database<B>(pub(super) B);

/// Says what the database was asked when it failed.
pub(super) fn failed<E: Into<Cause>>(what: &'static str) -> impl Fn(E) -> StoreError {
    move |source| StoreError::Failed { what, source: source.into() }
}

/// A transaction that takes longer will not end well.
const PATIENCE: Duration = Duration::from_mins(1);

impl<B: Backend> Database<B> {
    /// Runs all statements in one transaction, alone, and returns the rows of each. If it fails, nothing of it
    /// happened, or the database went away while it was making it durable.
    async fn alone(
        &self,
        what: &'static str,
        statements: Vec<Sql>,
    ) -> Result<Vec<Rows<B>>, StoreError> {
        let mut slot = self.0.writer().lock().await;
        // Taken out, so that whoever interrupts this also closes the connection, which undoes everything.
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
            // It is of no use any more; why does not matter.
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

/// Whether a failed transaction could be undone, so that the connection can be used again.
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

const LOAD: &str = "read everything that is live";

/// Every question of [`Store::load`], in the order in which [`loaded`] takes the answers.
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
        <[Vec<R>; 9]>::try_from(answers).map_err(|_| failed(LOAD)("an answer is missing"))?;
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
        credential: id(1)?,
        node: NodeId(id(2)?),
        agent: AgentId(id(3)?),
        job: JobId(id(4)?),
        event: id(5)?,
        ledger: id(6)?,
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

    // Read alone as well: after a commit whose outcome is unknown this waits until it is known.
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
        // Databases have opinions about the order of letters.
        let number =
            |row: &UsageRow| (by == UsageBy::Job).then(|| row.key.parse::<i64>().ok()).flatten();
        rows.sort_by(|one, other| (number(one), &one.key).cmp(&(number(other), &other.key)));
        Ok(rows)
    }

    async fn idempotency(
        &self,
        user: UserId,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        let sql = read::idempotency(B::DIALECT, user, key);
        Ok(self.rows("look up a key", sql, read::idempotency_row).await?.pop())
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
