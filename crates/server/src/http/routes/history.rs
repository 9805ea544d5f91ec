//! History: readings of the cluster, of GPUs and of jobs.

use std::io;
use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;

use agentaflow_api::history::Curves;
use agentaflow_api::units::Stamp;
use agentaflow_history::History;

use crate::api_error::ApiError;
use crate::history::{self, Period};
use crate::http::app::App;
use crate::http::caller::{User, sees_all};
use crate::http::params::HistoryQuery;
use crate::http::read::{QueryParams, Segments};
use crate::http::routes::jobs::visible_job;
use crate::http::routes::nodes::node_ref;

/// Time that curves cover by default.
const HOUR_MS: i64 = 3_600_000;
const POINTS: u64 = 240;
const POINTS_MOST: u64 = 2_000;

/// History of the cluster. Jobs and costs are for admins and viewers.
#[utoipa::path(get, path = "/history/cluster", tag = "history", security(("user" = [])), params(HistoryQuery),
    responses((status = 200, description = "Curves; no series if the server keeps no history", body = Curves)))]
pub(crate) async fn cluster(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Answer<Curves>, ApiError> {
    let period = period(&app, &query, None)?;
    let all = sees_all(&caller);
    read(&app, move |history| history::cluster(history, period, all)).await
}

/// History of the GPUs of a node. A node with many GPUs gets fewer points.
#[utoipa::path(get, path = "/history/nodes/{node_id}", tag = "history", security(("user" = [])),
    params(("node_id" = String, Path, description = "Node name (`gpu-…`) or number"), HistoryQuery),
    responses((status = 200, description = "Curves of each GPU; no series if the server keeps no history", body = Curves)))]
pub(crate) async fn node(
    State(app): State<App>,
    _: User,
    path: Segments,
    query: QueryParams,
) -> Result<Answer<Curves>, ApiError> {
    let node = app.core.node(&node_ref(&path)?)?;
    let gpus = app.core.gpu_names(&node);
    let period = period(&app, &query, None)?;
    read(&app, move |history| history::node(history, period, &node.node_id, &gpus)).await
}

/// History of a job, from its start by default: CPU, memory and GPUs of all tasks together.
#[utoipa::path(get, path = "/history/jobs/{job_id}", tag = "history", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number"), HistoryQuery),
    responses((status = 200, description = "Curves; no series if the server keeps no history", body = Curves)))]
pub(crate) async fn job(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
    query: QueryParams,
) -> Result<Answer<Curves>, ApiError> {
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    let mut period = period(&app, &query, Some(row.created_at))?;
    // Readings of another job with this number, from before a backup was restored.
    period.from = period.from.max(row.created_at);
    if let Some(end) = row.state.completed_at {
        period.to = period.to.min(Stamp(end.0 + 15_000));
    }
    read(&app, move |history| history::job(history, period, row.id)).await
}

fn period(app: &App, query: &QueryParams, default: Option<Stamp>) -> Result<Period, ApiError> {
    let now = app.core.now();
    let to = query.moment("to")?.unwrap_or(now);
    let from = query.moment("from")?.or(default).unwrap_or(Stamp(to.0.saturating_sub(HOUR_MS)));
    if from > to {
        return Err(ApiError::invalid("to", "`to` is before `from`"));
    }
    let points = query.whole("points")?.unwrap_or(POINTS);
    if !(1..=POINTS_MOST).contains(&points) {
        return Err(ApiError::invalid("points", format!("`points` must be 1 to {POINTS_MOST}")));
    }
    Ok(Period { from, to, points, now })
}

async fn read(
    app: &App,
    read: impl FnOnce(&History) -> io::Result<Curves> + Send + 'static,
) -> Result<Answer<Curves>, ApiError> {
    let Some(history) = app.history.as_ref().map(Arc::clone) else {
        return Ok(Answer(Curves::default()));
    };
    let curves = tokio::task::spawn_blocking(move || read(&history)).await;
    let curves = curves.map_err(|_| io::Error::other("the read was cancelled"));
    curves.and_then(|curves| curves).map(Answer).map_err(|error| {
        tracing::error!(%error, "Cannot read the history");
        ApiError::unavailable("the server cannot read its history now; try again in a moment")
    })
}
