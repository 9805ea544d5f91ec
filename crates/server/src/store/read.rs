//! Queries, and conversion of rows to records.

use agentaflow_api::billing::{LedgerEntry, LedgerKind, UsageRow};
use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::ids::{EventSeq, JobId, LedgerEntryId, MicroUsd, UserId};
use agentaflow_api::units::{Cores, Dollars, GpuAmount, Stamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::records::{AccountRow, IdempotencyRow, JobRow, NodeRow};
use super::sql::{Dialect, Sql, Value, like};
use super::{EndedFilter, EventFilter, JobFilter, LedgerFilter, UsageBy};

/// Cause of a failed read.
pub(super) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Row of a result, by column number.
pub(super) trait Cells {
    fn maybe_int(&self, column: usize) -> Result<Option<i64>, Cause>;
    fn maybe_text(&self, column: usize) -> Result<Option<String>, Cause>;

    fn int(&self, column: usize) -> Result<i64, Cause> {
        self.maybe_int(column)?.ok_or_else(|| format!("column {column} is empty").into())
    }

    fn text(&self, column: usize) -> Result<String, Cause> {
        self.maybe_text(column)?.ok_or_else(|| format!("column {column} is empty").into())
    }

    fn json<T: DeserializeOwned>(&self, column: usize) -> Result<T, Cause> {
        Ok(serde_json::from_str(&self.text(column)?)?)
    }
}

/// JSON word of an enum value.
pub(super) fn word(value: impl Serialize) -> Result<String, serde_json::Error> {
    let value = serde_json::to_value(value)?;
    Ok(value.as_str().unwrap_or_default().to_owned())
}

const JOB_COLUMNS: &str = "CAST(spec AS TEXT), CAST(state AS TEXT)";

/// A job from [`JOB_COLUMNS`].
pub(super) fn job_row(row: &impl Cells) -> Result<JobRow, Cause> {
    let head: JobRow = row.json(0)?;
    Ok(JobRow { state: row.json(1)?, ..head })
}

pub(super) fn job(dialect: Dialect, id: JobId) -> Sql {
    let mut sql = Sql::new(dialect, &format!("SELECT {JOB_COLUMNS} FROM jobs"));
    sql.and("id = ").bind(id);
    sql
}

/// Live jobs, oldest first.
pub(super) fn live_jobs(dialect: Dialect) -> Sql {
    let text = format!(
        "SELECT {JOB_COLUMNS} FROM jobs \
         WHERE status IN ('pending', 'scheduled', 'running') ORDER BY id"
    );
    Sql::new(dialect, &text)
}

/// Jobs, newest first.
pub(super) fn jobs(dialect: Dialect, filter: &JobFilter) -> Sql {
    let mut sql = Sql::new(dialect, &format!("SELECT {JOB_COLUMNS} FROM jobs"));
    job_conditions(&mut sql, filter);
    sql.and_if_some("id < ", filter.before);
    page(&mut sql, filter.skip, filter.limit);
    sql
}

pub(super) fn count_jobs(dialect: Dialect, filter: &JobFilter) -> Sql {
    let mut sql = Sql::new(dialect, "SELECT COUNT(*) FROM jobs");
    job_conditions(&mut sql, filter);
    sql
}

const ENDED: &str = "status NOT IN ('pending', 'scheduled', 'running')";
const JOB_BYTES: &str = "LENGTH(CAST(spec AS TEXT)) + LENGTH(CAST(state AS TEXT))";
const EVENT_BYTES: &str = "LENGTH(message) + LENGTH(CAST(data AS TEXT))";

/// Ended jobs, oldest first.
pub(super) fn ended_jobs(dialect: Dialect, filter: &EndedFilter) -> Sql {
    let mut sql = Sql::new(dialect, &format!("SELECT {JOB_COLUMNS} FROM jobs"));
    sql.and("id > ").bind(filter.after);
    sql.and("created_at < ").bind(filter.created_before);
    sql.and(ENDED);
    sql.push(" ORDER BY id LIMIT ").bind(filter.limit);
    sql
}

/// Number and bytes of the oldest ended jobs of a user, with their events.
pub(super) fn ended_bytes(dialect: Dialect, user: UserId, after: JobId, limit: u64) -> Sql {
    let text = format!(
        "SELECT id, CAST({JOB_BYTES} + COALESCE((SELECT SUM({EVENT_BYTES}) FROM events \
         WHERE events.job_id = jobs.id), 0) AS BIGINT) FROM jobs"
    );
    let mut sql = Sql::new(dialect, &text);
    sql.and("user_id = ").bind(user);
    sql.and("id > ").bind(after);
    sql.and(ENDED);
    sql.push(" ORDER BY id LIMIT ").bind(limit);
    sql
}

/// Number and owner of these jobs.
pub(super) fn owners(dialect: Dialect, jobs: &[JobId]) -> Sql {
    let mut sql = Sql::new(dialect, "SELECT id, user_id FROM jobs");
    sql.and("id IN ").bind_row(jobs.iter().map(|id| Value::from(*id)));
    sql
}

/// User and bytes.
pub(super) fn stored_bytes(dialect: Dialect) -> Sql {
    let text = format!(
        "SELECT user_id, CAST(SUM(bytes) AS BIGINT) FROM ( \
         SELECT user_id, {JOB_BYTES} AS bytes FROM jobs UNION ALL \
         SELECT user_id, {EVENT_BYTES} AS bytes FROM events WHERE user_id IS NOT NULL \
         ) AS records GROUP BY user_id"
    );
    Sql::new(dialect, &text)
}

fn job_conditions(sql: &mut Sql, filter: &JobFilter) {
    sql.and_if_some("user_id = ", filter.user);
    sql.and_if_some("queue = ", filter.queue.as_deref());
    if !filter.status.is_empty() {
        let words = filter.status.iter().map(|status| Value::from(status.as_str()));
        sql.and("status IN ").bind_row(words);
    }
    if let Some(name) = filter.name.as_deref() {
        sql.and("name LIKE ").bind(&like(name)).push(" ESCAPE '\\'");
    }
}

fn page(sql: &mut Sql, skip: u64, limit: u64) {
    sql.push(" ORDER BY id DESC LIMIT ").bind(limit).push(" OFFSET ").bind(skip);
}

/// Events, oldest first.
pub(super) fn events(dialect: Dialect, filter: &EventFilter) -> Sql {
    let mut sql = Sql::new(
        dialect,
        "SELECT seq, at, kind, message, job_id, node_id, user_id, CAST(data AS TEXT) FROM events",
    );
    sql.and("seq > ").bind(filter.after);
    sql.and_if_some("job_id = ", filter.job);
    sql.and_if_some("node_id = ", filter.node.as_deref());
    sql.and_if_some("user_id = ", filter.user);
    let order = if filter.newest { " ORDER BY seq DESC LIMIT " } else { " ORDER BY seq LIMIT " };
    sql.push(order).bind(filter.limit);
    sql
}

/// An event from [`events`].
pub(super) fn event_row(row: &impl Cells) -> Result<Event, Cause> {
    Ok(Event {
        seq: EventSeq(row.int(0)?),
        at: Stamp(row.int(1)?),
        kind: EventKind::from_word(&row.text(2)?),
        message: row.text(3)?,
        job_id: row.maybe_int(4)?.map(JobId),
        job: None,
        node_id: row.maybe_text(5)?,
        user_id: row.maybe_int(6)?.map(UserId),
        data: row.json(7)?,
    })
}

/// Ledger entries, newest first.
pub(super) fn ledger(dialect: Dialect, filter: &LedgerFilter) -> Sql {
    let mut sql = Sql::new(
        dialect,
        "SELECT id, at, kind, user_id, job_id, attempt, task, queue, node_id, gpu_milli, cpu_milli, \
         memory, duration_ms, micros, note FROM ledger",
    );
    ledger_conditions(&mut sql, filter);
    sql.and_if_some("id < ", filter.before);
    page(&mut sql, filter.skip, filter.limit);
    sql
}

fn ledger_conditions(sql: &mut Sql, filter: &LedgerFilter) {
    sql.and_if_some("ledger.user_id = ", filter.user);
    sql.and_if_some("job_id = ", filter.job);
    sql.and_if_some("at >= ", filter.from);
    sql.and_if_some("at < ", filter.to);
}

/// An entry from [`ledger`].
pub(super) fn ledger_row(row: &impl Cells) -> Result<LedgerEntry, Cause> {
    let small = |column| -> Result<Option<u32>, Cause> {
        Ok(row.maybe_int(column)?.map(u32::try_from).transpose()?)
    };
    let micros = row.int(13)?;
    Ok(LedgerEntry {
        id: LedgerEntryId(row.int(0)?),
        at: Stamp(row.int(1)?),
        kind: LedgerKind::from_word(&row.text(2)?),
        user_id: UserId(row.int(3)?),
        job_id: row.maybe_int(4)?.map(JobId),
        attempt: small(5)?,
        task: small(6)?,
        queue: row.maybe_text(7)?,
        node_id: row.maybe_text(8)?,
        gpus: GpuAmount(row.int(9)?.unsigned_abs()),
        cpu_cores: Cores(row.int(10)?.unsigned_abs()),
        memory: row.int(11)?.unsigned_abs(),
        duration_ms: row.int(12)?.unsigned_abs(),
        micros: MicroUsd(micros),
        amount: Dollars(micros),
        note: row.maybe_text(14)?,
    })
}

/// Kinds of ledger entries that count as usage.
const USAGE_KINDS: &str = "kind IN ('usage', 'correction')";

pub(super) fn usage(dialect: Dialect, by: UsageBy, filter: &LedgerFilter) -> Sql {
    let key = match by {
        UsageBy::User => "COALESCE(users.username, 'user ' || ledger.user_id)",
        UsageBy::Queue => "COALESCE(queue, '')",
        UsageBy::Node => "COALESCE(node_id, '')",
        UsageBy::Day => "day",
        UsageBy::Job => "COALESCE(CAST(job_id AS TEXT), '')",
    };
    let name = match by {
        UsageBy::Job => {
            "(SELECT spec -> 'spec' ->> 'job_name' FROM jobs WHERE jobs.id = ledger.job_id)"
        }
        _ => "CAST(NULL AS TEXT)",
    };
    let [gpu, cpu, memory] = ["gpu_milli", "cpu_milli", "memory"].map(partial_sums);
    let mut sql = Sql::new(
        dialect,
        &format!(
            "SELECT {key}, COUNT(DISTINCT job_id), CAST(SUM(micros) AS BIGINT), {gpu}, {cpu}, {memory}, {name} FROM ledger"
        ),
    );
    if by == UsageBy::User {
        sql.push(" LEFT JOIN users ON users.id = ledger.user_id");
    }
    sql.and(USAGE_KINDS);
    ledger_conditions(&mut sql, filter);
    sql.push(if by == UsageBy::Job { " GROUP BY 1, job_id" } else { " GROUP BY 1" });
    sql
}

/// Exact sum of amount × milliseconds: four partial sums of 16-bit parts, each of which stays within 64 bits.
fn partial_sums(amount: &str) -> String {
    let part = |of_amount: &str, of_time: &str| {
        format!("CAST(SUM(({amount} {of_amount}) * (duration_ms {of_time})) AS BIGINT)")
    };
    let (high, low) = (">> 16", "& 65535");
    [part(high, high), part(high, low), part(low, high), part(low, low)].join(", ")
}

/// A sum from [`usage`].
pub(super) fn usage_row(row: &impl Cells) -> Result<UsageRow, Cause> {
    let micros = row.int(2)?;
    let hours = |first: usize, unit: i128| -> Result<f64, Cause> {
        let part = |at: usize| row.int(first + at).map(i128::from);
        let total = (part(0)? << 32) + ((part(1)? + part(2)?) << 16) + part(3)?;
        let hour = unit * 3_600_000;
        Ok((total / hour) as f64 + (total % hour) as f64 / hour as f64)
    };
    Ok(UsageRow {
        key: row.text(0)?,
        name: row.maybe_text(15)?,
        jobs: row.int(1)?.unsigned_abs(),
        gpu_hours: hours(3, 1000)?,
        cpu_hours: hours(7, 1000)?,
        memory_gb_hours: hours(11, 1024)?,
        micros: MicroUsd(micros),
        cost: Dollars(micros),
    })
}

/// Balance and spending of the month of each user.
pub(super) fn accounts(dialect: Dialect, month: &str) -> Sql {
    let mut sql = Sql::new(dialect, "SELECT user_id, CAST(-SUM(micros) AS BIGINT), ");
    sql.push("CAST(SUM(CASE WHEN substr(day, 1, 7) = ").bind(month);
    sql.push(&format!(" AND {USAGE_KINDS} THEN micros ELSE 0 END) AS BIGINT)"));
    sql.push(" FROM ledger GROUP BY user_id ORDER BY user_id");
    sql
}

/// An account from [`accounts`].
pub(super) fn account_row(row: &impl Cells) -> Result<AccountRow, Cause> {
    Ok(AccountRow {
        user: UserId(row.int(0)?),
        balance: MicroUsd(row.int(1)?),
        spent: MicroUsd(row.int(2)?),
    })
}

/// Time for which expired one-time credentials are loaded.
const REMEMBERED_MS: i64 = 24 * 3600 * 1000;

/// Credentials without one-time credentials that expired long ago.
pub(super) fn credentials(dialect: Dialect, now: Stamp) -> Sql {
    let mut sql = Sql::new(dialect, "SELECT CAST(doc AS TEXT) FROM credentials");
    sql.and("(kind NOT IN ('refresh', 'invite', 'browser_link') OR expires_at IS NULL");
    sql.push(" OR expires_at >= ").bind(Stamp(now.0.saturating_sub(REMEMBERED_MS)));
    sql.push(") ORDER BY id");
    sql
}

/// All records of a table.
pub(super) fn documents(dialect: Dialect, table: &str, key: &str) -> Sql {
    Sql::new(dialect, &format!("SELECT CAST(doc AS TEXT) FROM {table} ORDER BY {key}"))
}

/// All nodes with the last heartbeat, which is newer than the record.
pub(super) fn nodes(dialect: Dialect) -> Sql {
    Sql::new(dialect, "SELECT CAST(doc AS TEXT), last_heartbeat FROM nodes ORDER BY id")
}

/// A node from [`nodes`].
pub(super) fn node_row(row: &impl Cells) -> Result<NodeRow, Cause> {
    let node: NodeRow = row.json(0)?;
    Ok(NodeRow { last_heartbeat: row.maybe_int(1)?.map(Stamp), ..node })
}

/// Highest ids ever used, in the order of [`super::LastIds`].
pub(super) fn last_ids(dialect: Dialect) -> Sql {
    let highest = |(table, column): (&str, &str)| {
        format!(
            "(SELECT MAX(n) FROM (SELECT MAX({column}) AS n FROM {table} UNION ALL \
             SELECT id FROM gone WHERE name = '{table}') AS all_{table})"
        )
    };
    let tables = [
        ("users", "id"),
        ("credentials", "id"),
        ("nodes", "id"),
        ("agents", "id"),
        ("jobs", "id"),
        ("events", "seq"),
        ("ledger", "id"),
    ];
    Sql::new(dialect, &format!("SELECT {}", tables.map(highest).join(", ")))
}

pub(super) fn meta(dialect: Dialect) -> Sql {
    Sql::new(dialect, "SELECT name, value FROM meta")
}

/// Submission that used an idempotency key.
pub(super) fn idempotency(dialect: Dialect, user: UserId, key: &str) -> Sql {
    let mut sql = Sql::new(dialect, "SELECT user_id, key, body, job_id, at FROM idempotency");
    sql.and("user_id = ").bind(user);
    sql.and("key = ").bind(key);
    sql
}

/// A submission from [`idempotency`].
pub(super) fn idempotency_row(row: &impl Cells) -> Result<IdempotencyRow, Cause> {
    Ok(IdempotencyRow {
        user_id: UserId(row.int(0)?),
        key: row.text(1)?,
        body: row.text(2)?,
        job_id: JobId(row.int(3)?),
        at: Stamp(row.int(4)?),
    })
}
