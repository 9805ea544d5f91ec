//! Query parameters for the OpenAPI document. `read.rs` parses them by hand, for better error messages.
#![allow(dead_code, reason = "these types only describe")]

use utoipa::IntoParams;

use agentaflow_api::ids::{EventSeq, JobId, LedgerEntryId, UserId};
use agentaflow_api::units::Stamp;

/// Page of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// Number of rows to skip; default 0.
    skip: Option<u64>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
}

/// Filter of a list of nodes.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NodeList {
    /// Only with this status: `pending`, `active`, `inactive`, `error`, `maintenance`.
    status: Option<String>,
    /// Number of rows to skip; default 0.
    skip: Option<u64>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
}

/// Filter of a list of jobs.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobList {
    /// Only with one of these statuses, separated by commas.
    status: Option<String>,
    /// Only of this queue.
    queue: Option<String>,
    /// Only with this text in the name; case does not matter.
    name: Option<String>,
    /// Only of this user (admins and viewers).
    user_id: Option<UserId>,
    /// Only with a smaller number: the cursor for the next page, newest first.
    before: Option<JobId>,
    /// Number of rows to skip; default 0.
    skip: Option<u64>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
}

/// Required resources of a node.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Room {
    /// GPU memory in MiB, on one GPU.
    gpu_memory_required: Option<u64>,
    /// CPU cores.
    cpu_cores_required: Option<f64>,
}

/// Part of a log.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogPart {
    /// Continue until the job has ended and all output is sent, for at most one hour.
    follow: Option<bool>,
    /// Number of lines from the end.
    tail: Option<u64>,
    /// Offset of the first byte. To resume a stream, add the bytes received to `X-Log-Offset`.
    offset: Option<u64>,
    /// Task of a gang; default 0.
    task: Option<u32>,
}

/// Filter of the events of a job.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventList {
    /// Only with a higher number: the cursor, oldest first.
    after: Option<EventSeq>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
}

/// Filter of the latest events.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsPast {
    /// Only with a higher number.
    after: Option<EventSeq>,
    /// Maximum number of rows, of which the newest are returned; default 100, at most 1000.
    limit: Option<u64>,
}

/// Filter of a stream of events.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventStream {
    /// Start after this number, like the header `Last-Event-ID`. Default: new events only.
    after: Option<EventSeq>,
    /// Only of this job.
    job_id: Option<JobId>,
}

/// Filter of usage.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// Grouping: `user`, `queue`, `node`, `day` or `job`; default `day`.
    by: Option<String>,
    /// From this day or time on.
    from: Option<Stamp>,
    /// Before this day or time.
    to: Option<Stamp>,
    /// Only of this user (admins and viewers).
    user_id: Option<UserId>,
    /// `csv` for a table; default `json`.
    format: Option<String>,
}

/// Filter of ledger entries.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LedgerQuery {
    /// From this day or time on.
    from: Option<Stamp>,
    /// Before this day or time.
    to: Option<Stamp>,
    /// Only of this job.
    job_id: Option<JobId>,
    /// Only of this user (admins and viewers).
    user_id: Option<UserId>,
    /// Only with a smaller number: the cursor for the next page, newest first.
    before: Option<LedgerEntryId>,
    /// Number of rows to skip; default 0.
    skip: Option<u64>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
    /// `csv` for a table of all rows; default `json`.
    format: Option<String>,
}

/// Filter of the waste report.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WasteQuery {
    /// Grouping: `user`, `queue` or `job`; default `user`.
    by: Option<String>,
    /// Jobs that ended from this day or time on; default 30 days ago.
    from: Option<Stamp>,
    /// Jobs that ended before this day or time. Without it, running jobs are included.
    to: Option<Stamp>,
    /// Only of this user (admins and viewers).
    user_id: Option<UserId>,
    /// Number of rows to skip; default 0.
    skip: Option<u64>,
    /// Maximum number of rows; default 100, at most 1000.
    limit: Option<u64>,
    /// `csv` for a table; default `json`.
    format: Option<String>,
}

/// Time and resolution of curves.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// From this day or time on; default one hour before `to`.
    from: Option<Stamp>,
    /// Before this day or time; default now.
    to: Option<Stamp>,
    /// Maximum number of readings in a column; default 240, at most 2000.
    points: Option<u64>,
}

/// Position in an agent's stream.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamPosition {
    /// Session of the last message received.
    session: Option<String>,
    /// Number of the last message received.
    after: Option<u64>,
}

/// Position and wait of a poll.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PollPosition {
    /// Session of the last message received.
    session: Option<String>,
    /// Number of the last message received.
    after: Option<u64>,
    /// Maximum wait in milliseconds; default 25000, at most 60000.
    wait_ms: Option<u64>,
}
