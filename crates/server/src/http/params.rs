//! Parameters of queries, as the OpenAPI document shows them. Read by hand, in words that help; see `read.rs`.
#![allow(dead_code, reason = "these types only describe")]

use utoipa::IntoParams;

use agentaflow_api::units::Stamp;

/// A part of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Paging {
    /// Leave out so many; 0 when absent.
    skip: Option<u64>,
    /// At most so many; 100 when absent, at most 1000.
    limit: Option<u64>,
}

/// Which nodes.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct NodeList {
    /// Only with this status: `pending`, `active`, `inactive`, `error`, `maintenance`.
    status: Option<String>,
    /// Leave out so many; 0 when absent.
    skip: Option<u64>,
    /// At most so many; 100 when absent, at most 1000.
    limit: Option<u64>,
}

/// Which jobs.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct JobList {
    /// Only with one of these statuses, separated by commas.
    status: Option<String>,
    /// Only of this queue.
    queue: Option<String>,
    /// Only with this in the name, whatever the case.
    name: Option<String>,
    /// Only of this user (admins and viewers).
    user_id: Option<i64>,
    /// Only with a smaller number: the cursor for the next page, newest first.
    before: Option<i64>,
    /// Leave out so many; 0 when absent.
    skip: Option<u64>,
    /// At most so many; 100 when absent, at most 1000.
    limit: Option<u64>,
}

/// Which nodes have room.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Room {
    /// MiB on one GPU.
    gpu_memory_required: Option<u64>,
    /// CPU cores.
    cpu_cores_required: Option<f64>,
}

/// Which part of a log.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogPart {
    /// Go on until the job is over and everything was sent, for an hour at most.
    follow: Option<bool>,
    /// Only the last so many lines.
    tail: Option<u64>,
    /// Begin at this byte; the answer's `X-Log-Offset` plus what was read resumes a cut stream.
    offset: Option<u64>,
    /// Of this task of a gang; 0 when absent.
    task: Option<u32>,
}

/// Which events.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventList {
    /// Only with a higher number: the cursor, oldest first.
    after: Option<i64>,
    /// At most so many; 100 when absent, at most 1000.
    limit: Option<u64>,
}

/// Which events of all.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsPast {
    /// Only with a higher number.
    after: Option<i64>,
    /// At most so many, the newest of them; 100 when absent, at most 1000.
    limit: Option<u64>,
}

/// Which events to stream.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventStream {
    /// Begin after this number; the header `Last-Event-ID` does the same. Absent: only what comes.
    after: Option<i64>,
    /// Only of this job.
    job_id: Option<i64>,
}

/// Which usage.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct UsageQuery {
    /// What to sum up by: `user`, `queue`, `node`, `day` or `job`; `day` when absent.
    by: Option<String>,
    /// From this day or time on.
    from: Option<Stamp>,
    /// Before this day or time.
    to: Option<Stamp>,
    /// Only of this user (admins and viewers).
    user_id: Option<i64>,
    /// `csv` for a table, `json` when absent.
    format: Option<String>,
}

/// Which lines of the ledger.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LedgerQuery {
    /// From this day or time on.
    from: Option<Stamp>,
    /// Before this day or time.
    to: Option<Stamp>,
    /// Only of this job.
    job_id: Option<i64>,
    /// Only of this user (admins and viewers).
    user_id: Option<i64>,
    /// Only with a smaller number: the cursor for the next page, newest first.
    before: Option<i64>,
    /// Leave out so many; 0 when absent.
    skip: Option<u64>,
    /// At most so many; 100 when absent, at most 1000.
    limit: Option<u64>,
    /// `csv` for a table of everything, `json` when absent.
    format: Option<String>,
}

/// Where an agent's stream goes on.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamPlace {
    /// The session of the last message seen.
    session: Option<String>,
    /// The number of the last message seen.
    after: Option<u64>,
}

/// The same for one look.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PollPlace {
    /// The session of the last message seen.
    session: Option<String>,
    /// The number of the last message seen.
    after: Option<u64>,
    /// Wait at most so long for news; 25000 when absent, at most 60000.
    wait_ms: Option<u64>,
}
