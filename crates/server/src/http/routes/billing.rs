//! Billing: usage, cost and the ledger.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use agentaflow_api::billing::{LedgerEntry, UsageRow};
use agentaflow_api::ids::MicroUsd;

use crate::api_error::ApiError;
use crate::core::Caller;
use crate::http::answer::csv;
use crate::http::app::App;
use crate::http::caller::{User, sees_all};
use crate::http::limits;
use crate::http::params::{LedgerQuery, UsageQuery};
use crate::http::read::QueryParams;
use crate::store::{LedgerFilter, UsageBy};

/// Maximum number of ledger entries in one table.
const CSV_MOST: usize = 100_000;

/// Summed usage: the caller's own; admins and viewers see all users.
#[utoipa::path(get, path = "/billing/usage", tag = "billing", security(("user" = [])), params(UsageQuery),
    responses((status = 200, description = "Usage as JSON or CSV", body = [UsageRow])))]
pub(crate) async fn usage(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Response, ApiError> {
    let by = match query.text("by")?.unwrap_or("day") {
        "user" => UsageBy::User,
        "queue" => UsageBy::Queue,
        "node" => UsageBy::Node,
        "day" => UsageBy::Day,
        "job" => UsageBy::Job,
        _ => {
            let detail = "`by` must be `user`, `queue`, `node`, `day` or `job`";
            return Err(ApiError::invalid("by", detail));
        }
    };
    let table = wants_csv(&query)?;
    let filter = filter(&caller, &query)?;
    let rows = app.core.store().usage(by, &filter).await?;
    Ok(if table { csv("usage", &usage_table(&rows)) } else { Answer(rows).into_response() })
}

/// Ledger, newest first: the caller's own entries; admins and viewers see all.
#[utoipa::path(get, path = "/billing/ledger", tag = "billing", security(("user" = [])), params(LedgerQuery),
    responses((status = 200, description = "Entries as JSON or CSV; the last `id` is the next `before`", body = [LedgerEntry])))]
pub(crate) async fn ledger(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Response, ApiError> {
    let filter = filter(&caller, &query)?;
    let store = app.core.store();
    if !wants_csv(&query)? {
        return Ok(Answer(store.ledger(&filter).await?).into_response());
    }
    let mut rows: Vec<LedgerEntry> = Vec::new();
    let mut part = LedgerFilter { limit: limits::PAGE_MOST, ..filter };
    loop {
        let more = store.ledger(&part).await?;
        let last = more.len() < part.limit as usize;
        part.before = more.last().map(|line| line.id);
        part.skip = 0;
        rows.extend(more);
        if last || rows.len() >= CSV_MOST {
            return Ok(csv("ledger", &ledger_table(&rows)));
        }
    }
}

fn filter(caller: &Caller, query: &QueryParams) -> Result<LedgerFilter, ApiError> {
    let (skip, limit) = query.page()?;
    let (from, to) = (query.moment("from")?, query.moment("to")?);
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        return Err(ApiError::invalid("to", "`to` is before `from`"));
    }
    let asked = query.cursor("user_id")?;
    let user = if sees_all(caller) { asked } else { Some(caller.user.id) };
    let (job, before) = (query.cursor("job_id")?, query.cursor("before")?);
    Ok(LedgerFilter { user, job, from, to, before, skip, limit })
}

fn wants_csv(query: &QueryParams) -> Result<bool, ApiError> {
    match query.text("format")? {
        Some("csv") => Ok(true),
        None | Some("json") => Ok(false),
        Some(_) => Err(ApiError::invalid("format", "`format` must be `csv` or `json`")),
    }
}

fn usage_table(rows: &[UsageRow]) -> Vec<Vec<String>> {
    let head = ["key", "jobs", "gpu_hours", "cpu_hours", "memory_gb_hours", "cost"];
    let lines = rows.iter().map(|row| {
        vec![
            row.key.clone(),
            row.jobs.to_string(),
            row.gpu_hours.to_string(),
            row.cpu_hours.to_string(),
            row.memory_gb_hours.to_string(),
            dollars(row.micros),
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec()).chain(lines).collect()
}

fn ledger_table(rows: &[LedgerEntry]) -> Vec<Vec<String>> {
    let head = [
        "id",
        "at",
        "kind",
        "user_id",
        "job_id",
        "attempt",
        "task",
        "queue",
        "node_id",
        "gpus",
        "cpu_cores",
        "memory",
        "duration_ms",
        "amount",
        "note",
    ];
    let text = |value: Option<String>| value.unwrap_or_default();
    let lines = rows.iter().map(|row| {
        vec![
            row.id.to_string(),
            row.at.to_string(),
            row.kind.as_str().to_owned(),
            row.user_id.to_string(),
            text(row.job_id.map(|id| id.to_string())),
            text(row.attempt.map(|attempt| attempt.to_string())),
            text(row.task.map(|task| task.to_string())),
            text(row.queue.clone()),
            text(row.node_id.clone()),
            thousandths(row.gpus.0),
            thousandths(row.cpu_cores.0),
            row.memory.to_string(),
            row.duration_ms.to_string(),
            dollars(row.micros),
            text(row.note.clone()),
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec()).chain(lines).collect()
}

/// Exact amount in dollars with six decimals, because spreadsheets add up these values.
fn dollars(MicroUsd(micros): MicroUsd) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.unsigned_abs();
    format!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

fn thousandths(milli: u64) -> String {
    format!("{}.{:03}", milli / 1000, milli % 1000)
}
