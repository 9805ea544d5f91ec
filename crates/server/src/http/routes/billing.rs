//! Billing: usage, cost and the ledger.

use axum::Json as Answer;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use agentaflow_api::billing::{LedgerEntry, UsageRow, WasteRow};
use agentaflow_api::ids::{JobId, MicroUsd, UserId};
use agentaflow_api::units::Stamp;

use crate::api_error::ApiError;
use crate::core::{Caller, WasteBy, WasteJob, report};
use crate::http::answer::{Listed, csv};
use crate::http::app::App;
use crate::http::caller::{User, sees_all};
use crate::http::limits;
use crate::http::params::{LedgerQuery, UsageQuery, WasteQuery};
use crate::http::read::QueryParams;
use crate::store::{LedgerFilter, MeasuredFilter, MeasuredJob, UsageBy};

/// Maximum number of ledger entries in one table.
const CSV_MOST: usize = 100_000;
/// Maximum number of ended jobs in a waste report, the oldest first.
const WASTE_MOST: usize = 200_000;
/// Default period of a waste report: 30 days.
const WASTE_DAYS_MS: i64 = 30 * 86_400_000;

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

/// Allocated GPU time without use: the caller's own; admins and viewers see all users. The most expensive waste comes first.
#[utoipa::path(get, path = "/billing/waste", tag = "billing", security(("user" = [])), params(WasteQuery),
    responses((status = 200, description = "Rows as JSON or CSV; `X-Total-Count` is their number", body = [WasteRow])))]
pub(crate) async fn waste(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Response, ApiError> {
    let by = match query.text("by")?.unwrap_or("user") {
        "user" => WasteBy::User,
        "queue" => WasteBy::Queue,
        "job" => WasteBy::Job,
        _ => return Err(ApiError::invalid("by", "`by` must be `user`, `queue` or `job`")),
    };
    let table = wants_csv(&query)?;
    let LedgerFilter { user, from, to, skip, limit, .. } = filter(&caller, &query)?;
    let until = to.unwrap_or(Stamp(app.core.now().0 + 1));
    let from = from.unwrap_or(Stamp(until.0.saturating_sub(WASTE_DAYS_MS)));
    let mut jobs = ended_measured_jobs(&app, user, from, until).await?;
    if to.is_none() && from < until {
        jobs.extend(app.core.running_measured_jobs(user).into_iter().map(|job| (job, true)));
    }
    let jobs: Vec<WasteJob> = app.core.directory(|directory| {
        let name = |id| directory.users.get(&id).map(|user| user.username.clone());
        let job = |(job, running): (MeasuredJob, bool)| WasteJob {
            id: job.id,
            user: name(job.user).unwrap_or_else(|| format!("user {}", job.user)),
            queue: job.queue,
            name: job.name,
            running,
            account: job.account,
        };
        jobs.into_iter().map(job).collect()
    });
    let page = Listed::page(report(&jobs, by), (skip, limit));
    Ok(if table { csv("waste", &waste_table(&page.rows)) } else { page.into_response() })
}

/// Jobs that ended in a period, none of which runs.
async fn ended_measured_jobs(
    app: &App,
    user: Option<UserId>,
    from: Stamp,
    to: Stamp,
) -> Result<Vec<(MeasuredJob, bool)>, ApiError> {
    let store = app.core.store();
    let mut filter =
        MeasuredFilter { user, from, to, after: JobId::default(), limit: limits::PAGE_MOST };
    let mut jobs = Vec::new();
    loop {
        let part = store.measured_jobs(&filter).await?;
        let last = part.len() < filter.limit as usize;
        filter.after = part.last().map_or(filter.after, |job| job.id);
        jobs.extend(part.into_iter().map(|job| (job, false)));
        if last || jobs.len() >= WASTE_MOST {
            return Ok(jobs);
        }
    }
}

fn waste_table(rows: &[WasteRow]) -> Vec<Vec<String>> {
    let head = [
        "key",
        "name",
        "user",
        "jobs",
        "running",
        "gpu_hours",
        "gpu_hours_used",
        "gpu_hours_wasted",
        "gpu_memory_gb_hours",
        "gpu_memory_gb_hours_used",
        "cost",
        "lost",
        "arithmetic",
        "smaller_gpu_count",
        "smaller_gpu_fraction",
        "smaller_saved",
        "smaller_arithmetic",
    ];
    let lines = rows.iter().map(|row| {
        let smaller = row.smaller.clone().unwrap_or_default();
        let saved = row.smaller.as_ref().map(|smaller| dollars(MicroUsd(smaller.saved.0)));
        vec![
            row.key.clone(),
            row.name.clone().unwrap_or_default(),
            row.user.clone().unwrap_or_default(),
            row.jobs.to_string(),
            row.running.to_string(),
            row.gpu_hours.to_string(),
            row.gpu_hours_used.to_string(),
            row.gpu_hours_wasted.to_string(),
            row.gpu_memory_gb_hours.to_string(),
            row.gpu_memory_gb_hours_used.to_string(),
            dollars(row.micros),
            dollars(row.lost_micros),
            row.arithmetic.clone(),
            smaller.gpu_count.map(|count| count.to_string()).unwrap_or_default(),
            smaller.gpu_fraction.map(|share| share.to_string()).unwrap_or_default(),
            saved.unwrap_or_default(),
            smaller.arithmetic,
        ]
    });
    std::iter::once(head.map(str::to_owned).to_vec()).chain(lines).collect()
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
