//! Agent link: the message stream, and the reports of agents.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;

use agentaflow_api::ids::AgentId;
use agentaflow_api::link::{
    Framed, LogPiece, Report, ReportBatch, ReportReply, TaskKey, TaskUpdate,
};

use crate::api_error::ApiError;
use crate::core::StreamItem;
use crate::http::app::App;
use crate::http::caller::WorkerAuth;
use crate::http::check::sanitize_report;
use crate::http::limits;
use crate::http::params::{PollPosition, StreamPosition};
use crate::http::read::{QueryParams, Segments, body};
use crate::http::routes::agents::own_agent;
use crate::http::routes::logs::log_tail;
use crate::logs::LogError;

/// Interval of pings on a silent stream.
const PING: Duration = Duration::from_secs(5);
/// Maximum wait of a poll, in milliseconds.
const WAIT_MOST: u64 = 60_000;

/// Message stream of an agent: one JSON object per line, an empty line as a ping.
#[utoipa::path(get, path = "/gpu-workers/agents/{agent_id}/stream", tag = "agent link",
    security(("worker" = [])), params(("agent_id" = String, Path, description = "Agent name or number"), StreamPosition),
    responses((status = 200, description = "Messages, one per line", body = Framed, content_type = "application/x-ndjson")))]
pub(crate) async fn stream(
    State(app): State<App>,
    WorkerAuth(worker): WorkerAuth,
    path: Segments,
    query: QueryParams,
) -> Result<Response, ApiError> {
    let agent = own_agent(&app, &worker, &path)?;
    let session = query.text("session")?.map(str::to_owned);
    let after = query.whole("after")?.unwrap_or(0);
    let items = app.core.open_stream(agent, session, after).await?;
    let lines = futures_util::stream::unfold(items, |mut items| async move {
        let line = match tokio::time::timeout(PING, items.recv()).await {
            Ok(None) => return None,
            Ok(Some(StreamItem::Message(message))) => line(&message),
            Ok(Some(StreamItem::Ping)) | Err(_) => Bytes::from_static(b"\n"),
        };
        Some((Ok::<_, Infallible>(line), items))
    });
    // The first ping confirms the open stream, even through a proxy that waits for a body.
    let hello = futures_util::stream::iter([Ok(Bytes::from_static(b"\n"))]);
    let lines = hello.chain(lines).take_until(app.stopping.clone().cancelled_owned());
    let kind = HeaderValue::from_static("application/x-ndjson");
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// Waits for messages, for networks that cut streams.
#[utoipa::path(get, path = "/gpu-workers/agents/{agent_id}/poll", tag = "agent link",
    security(("worker" = [])), params(("agent_id" = String, Path, description = "Agent name or number"), PollPosition),
    responses((status = 200, description = "Messages; empty if none arrived in time", body = [Framed])))]
pub(crate) async fn poll(
    State(app): State<App>,
    WorkerAuth(worker): WorkerAuth,
    path: Segments,
    query: QueryParams,
) -> Result<Answer<Vec<Arc<Framed>>>, ApiError> {
    let agent = own_agent(&app, &worker, &path)?;
    let session = query.text("session")?.map(str::to_owned);
    let after = query.whole("after")?.unwrap_or(0);
    let wait = query.whole("wait_ms")?.unwrap_or(25_000).min(WAIT_MOST);
    tokio::select! {
        () = app.stopping.cancelled() => Ok(Answer(Vec::new())),
        update = app.core.poll(agent, session, after, wait) => update.map(Answer),
    }
}

/// Accepts task updates and log chunks. Logs are stored before the updates are applied.
#[utoipa::path(post, path = "/gpu-workers/agents/{agent_id}/report", tag = "agent link",
    security(("worker" = [])), params(("agent_id" = String, Path, description = "Agent name or number")),
    request_body = ReportBatch, responses((status = 200, description = "Accepted and outdated reports", body = ReportReply)))]
pub(crate) async fn report(
    State(app): State<App>,
    WorkerAuth(worker): WorkerAuth,
    path: Segments,
    request: Request,
) -> Result<Answer<ReportReply>, ApiError> {
    let agent = own_agent(&app, &worker, &path)?;
    let batch = read_batch(&body(request, limits::REPORT).await?)?;
    let ReportBatch { logs, mut reports } = batch;
    reports.iter_mut().for_each(sanitize_report);
    let log_have = write_logs(&app, agent, logs).await?;
    for report in &mut reports {
        add_log_tail(&app, agent, report).await;
    }
    let reply = app.core.report(agent, ReportBatch { logs: Vec::new(), reports }).await?;
    Ok(Answer(ReportReply { log_have, ..reply }))
}

/// Adds the last output of a failed task to its update; the output is stored by now.
async fn add_log_tail(app: &App, agent: AgentId, report: &mut Report) {
    let Report { key, update: TaskUpdate::Ended(ended) } = report else { return };
    let failed = ended.stopped.is_none() && ended.exit_code.is_some_and(|code| code != 0);
    if failed && app.core.owns(agent, *key) {
        ended.log_tail = log_tail(app, key.job, key.task).await;
    }
}

/// Parses a batch in one pass: a batch can be large, so a detailed error message costs too much.
fn read_batch(bytes: &[u8]) -> Result<ReportBatch, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let batch: Result<ReportBatch, _> = serde_path_to_error::deserialize(&mut reader);
    let batch = batch.map_err(|error| {
        let field = error.path().to_string();
        let inner = error.inner();
        if inner.is_data() {
            ApiError::invalid(&field, format!("`{field}` does not have the shape of a report"))
        } else {
            ApiError::malformed("the body is not valid JSON")
        }
    })?;
    reader
        .end()
        .map_err(|_| ApiError::malformed("something follows the JSON object in the body"))?;
    if batch.logs.len() > limits::REPORTS || batch.reports.len() > limits::REPORTS {
        let detail = format!("a batch has at most {} reports and pieces of logs", limits::REPORTS);
        return Err(ApiError::invalid("reports", detail));
    }
    Ok(batch)
}

async fn write_logs(
    app: &App,
    agent: AgentId,
    pieces: Vec<LogPiece>,
) -> Result<Vec<(TaskKey, u64)>, ApiError> {
    let mut have: Vec<(TaskKey, u64)> = Vec::new();
    for piece in pieces {
        let Ok(bytes) = STANDARD.decode(piece.data.as_bytes()) else {
            return Err(ApiError::invalid("logs", "`data` of a piece of a log is not base64"));
        };
        let beyond = piece.offset.saturating_add(bytes.len() as u64);
        let end = if app.core.owns(agent, piece.key) {
            write_piece(app, piece.key, piece.offset, &bytes).await?.unwrap_or(beyond)
        } else {
            // Logs of another agent's task or a replaced task are dropped, and the sender continues.
            beyond
        };
        have.retain(|(key, _)| *key != piece.key);
        have.push((piece.key, end));
    }
    Ok(have)
}

/// Stored bytes of the attempt; none if a later attempt has begun.
pub(crate) async fn write_piece(
    app: &App,
    key: TaskKey,
    offset: u64,
    bytes: &[u8],
) -> Result<Option<u64>, ApiError> {
    let owner = app.core.storage_of(key.job);
    match app.logs.append(key, offset, bytes, owner.as_ref()).await {
        Ok(end) => Ok(Some(end)),
        Err(LogError::Stale) => Ok(None),
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "Cannot write a log");
            Err(ApiError::unavailable("the output could not be written; send it again later"))
        }
    }
}

fn line(message: &Framed) -> Bytes {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    Bytes::from(line)
}
