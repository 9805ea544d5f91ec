//! Jobs: lists from the state of the scheduler; everything else with the reader's own token.

use agentaflow_api::event::Event;
use agentaflow_api::explain::Explanation;
use agentaflow_api::ids::{EventSeq, JobId};
use agentaflow_api::job::Job;
use agentaflow_kube_client::LogQuery;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;

use super::cluster::{MOST, TOTAL};
use crate::answer::Problem;
use crate::person::Person;
use crate::router::App;
use crate::sight::Sight;

/// Header with the `before` of the next page.
const NEXT: &str = "x-next-before";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    limit: Option<usize>,
    before: Option<i64>,
    /// Statuses with commas between them.
    status: Option<String>,
    /// Part of the name.
    name: Option<String>,
}

impl Filter {
    fn selects(&self, job: &Job) -> bool {
        let status = job.status.as_str();
        let wanted = self.status.as_deref();
        let name = job.k8s_job_name.as_deref().unwrap_or_default();
        wanted.is_none_or(|wanted| wanted.split(',').any(|one| one == status))
            && self.name.as_deref().is_none_or(|part| name.contains(part))
    }
}

/// Newest first.
pub(crate) async fn list(
    State(app): State<App>,
    person: Person,
    Query(filter): Query<Filter>,
) -> Result<Response, Problem> {
    let rows = app.board.rows().await?;
    let sight = Sight::of(&app.rights, &person.user, &rows.namespaces).await?;
    let seen = rows.jobs.values().rev().filter(|row| sight.shows(row)).map(|row| &row.job);
    let selected: Vec<&Job> = seen.filter(|job| filter.selects(job)).collect();
    let before = |job: &&&Job| filter.before.is_none_or(|before| job.id.0 < before);
    let limit = filter.limit.unwrap_or(100).clamp(1, MOST);
    let page: Vec<&Job> = selected.iter().filter(before).take(limit).copied().collect();
    let oldest = selected.last().map(|job| job.id);
    let last = page.last().map(|job| job.id);
    let mut response = ([(TOTAL, selected.len().to_string())], Json(&page)).into_response();
    if let Some(last) = last.filter(|last| Some(*last) != oldest) {
        response.headers_mut().insert(NEXT, last.0.into());
    }
    Ok(response)
}

pub(crate) async fn show(
    State(app): State<App>,
    person: Person,
    Path(id): Path<i64>,
) -> Result<Json<Job>, Problem> {
    Ok(Json(job(&app, &person, id).await?))
}

pub(crate) async fn cancel(
    State(app): State<App>,
    person: Person,
    Path(id): Path<i64>,
) -> Result<Json<Job>, Problem> {
    let job = job(&app, &person, id).await?;
    let cancelled = person.cluster(&app)?.cancel(&handle(&job)).await?;
    Ok(Json(Job { id: job.id, username: job.username, ..cancelled }))
}

/// The API server decides if the reader may ask the scheduler, whose answer names work of all namespaces.
pub(crate) async fn explain(
    State(app): State<App>,
    person: Person,
    Path(id): Path<i64>,
) -> Result<Json<Explanation>, Problem> {
    let job = job(&app, &person, id).await?;
    Ok(Json(person.cluster(&app)?.explain(&handle(&job)).await?))
}

/// Events that Kubernetes keeps about the job.
pub(crate) async fn events(
    State(app): State<App>,
    person: Person,
    Path(id): Path<i64>,
) -> Result<Json<Vec<Event>>, Problem> {
    let job = job(&app, &person, id).await?;
    let events = person.cluster(&app)?.events(Some(&handle(&job))).await?;
    let numbered = (1..).zip(events);
    let told = |(seq, event)| Event { seq: EventSeq(seq), job_id: Some(job.id), ..event };
    Ok(Json(numbered.map(told).collect()))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Output {
    follow: bool,
    tail: Option<u64>,
    task: u32,
    /// Position at which an interrupted stream continues.
    offset: Option<u64>,
}

/// Output of a task. Kubernetes cannot continue output at a byte: an interrupted stream continues with new lines.
pub(crate) async fn logs(
    State(app): State<App>,
    person: Person,
    Path(id): Path<i64>,
    Query(wanted): Query<Output>,
) -> Result<Response, Problem> {
    let job = job(&app, &person, id).await?;
    let continues = wanted.offset.is_some_and(|offset| offset > 0);
    if continues && job.status.is_final() {
        return Ok(text(Body::empty()));
    }
    let tail = if continues { Some(0) } else { wanted.tail };
    let place = app.streams.clone().try_acquire_owned();
    let place = place.map_err(|_| Problem::unavailable("Too many streams are open"))?;
    let query = LogQuery { follow: wanted.follow, tail, task: wanted.task };
    let pieces = person.cluster(&app)?.logs(&handle(&job), &query).await?;
    let pieces = pieces.take_until(app.stopping.clone().cancelled_owned()).map(move |piece| {
        let _held = &place;
        piece.map_err(|failure| std::io::Error::other(failure.to_string()))
    });
    Ok(text(Body::from_stream(pieces)))
}

fn text(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response()
}

/// A job that the reader may list; to all other readers it does not exist.
async fn job(app: &App, person: &Person, id: i64) -> Result<Job, Problem> {
    let rows = app.board.rows().await?;
    let missing = || Problem::not_found(format!("Job {id} not found"));
    let row = rows.jobs.get(&JobId(id)).ok_or_else(missing)?;
    let namespaces = [row.origin.namespace().to_owned()].into();
    let sight = Sight::of(&app.rights, &person.user, &namespaces).await?;
    Some(row).filter(|row| sight.shows(row)).map(|row| row.job.clone()).ok_or_else(missing)
}

/// Name of the job for the client of the cluster, with its namespace.
fn handle(job: &Job) -> String {
    job.k8s_job_name.clone().unwrap_or_default()
}
