//! Events: lists and streams.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::{Stream, StreamExt as _};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use agentaflow_api::event::Event;
use agentaflow_api::ids::EventSeq;

use crate::api_error::ApiError;
use crate::http::app::App;
use crate::http::caller::{User, sees_all};
use crate::http::limits;
use crate::http::params::{EventList, EventStream, EventsPast};
use crate::http::read::{QueryParams, Segments};
use crate::http::routes::jobs::visible_job;
use crate::http::streams::Counted;
use crate::store::EventFilter;

/// Interval of keep-alive messages on a silent stream.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum duration of a stream; the client reconnects and authenticates again.
const LONGEST: Duration = Duration::from_hours(1);

/// Events of a job, oldest first.
#[utoipa::path(get, path = "/gpu-workers/jobs/{job_id}/events", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number"), EventList),
    responses((status = 200, description = "Events; `seq` of the last is the next `after`", body = [Event])))]
pub(crate) async fn of_job(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
    query: QueryParams,
) -> Result<Answer<Vec<Event>>, ApiError> {
    let (_, limit) = query.page()?;
    let after = query.cursor("after")?.unwrap_or_default();
    let job = visible_job(&app, &caller, path.number("job_id")?).await?.id;
    let filter = EventFilter { job: Some(job), after, limit, ..EventFilter::default() };
    Ok(Answer(app.core.store().events(&filter).await?))
}

/// Latest events, oldest first: of the caller's own jobs; admins and viewers see all.
#[utoipa::path(get, path = "/events/past", tag = "events", security(("user" = [])), params(EventsPast),
    responses((status = 200, description = "Latest events", body = [Event])))]
pub(crate) async fn past(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
) -> Result<Answer<Vec<Event>>, ApiError> {
    let (_, limit) = query.page()?;
    let filter = EventFilter {
        user: (!sees_all(&caller)).then_some(caller.user.id),
        after: query.cursor("after")?.unwrap_or_default(),
        limit,
        newest: true,
        ..EventFilter::default()
    };
    Ok(Answer(app.core.store().events(&filter).await?))
}

/// Server-sent events of the caller's own jobs; admins and viewers see all. `id` is the number of the event, so that a
/// client that reconnects misses no event.
#[utoipa::path(get, path = "/events", tag = "events", security(("user" = [])),
    params(EventStream, ("Last-Event-ID" = Option<i64>, Header, description = "Number of the last event received")),
    responses((status = 200, description = "A stream of events", body = Event, content_type = "text/event-stream")))]
pub(crate) async fn stream(
    State(app): State<App>,
    User(caller): User,
    query: QueryParams,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let filter = EventFilter {
        job: query.cursor("job_id")?,
        user: (!sees_all(&caller)).then_some(caller.user.id),
        limit: limits::PAGE_MOST,
        ..EventFilter::default()
    };
    let after = match last_event_id(&headers)? {
        Some(id) => Some(id),
        None => query.cursor("after")?,
    };
    let counted = app.streams.open(caller.user.id)?;
    let news =
        follow(app.clone(), counted, filter, after).map(|event| Ok::<_, Infallible>(frame(&event)));
    let news = news
        .take_until(app.stopping.clone().cancelled_owned())
        .take_until(Box::pin(tokio::time::sleep(LONGEST)));
    Ok(Sse::new(news).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("still here")))
}

struct Follower {
    app: App,
    _counted: Counted,
    filter: EventFilter,
    live: Receiver<Arc<Event>>,
    waiting: VecDeque<Arc<Event>>,
    /// True if the store may have older events that were not read yet.
    behind: bool,
}

/// Stored events after `after`, then live ones; without `after`, live ones only.
fn follow(
    app: App,
    counted: Counted,
    filter: EventFilter,
    after: Option<EventSeq>,
) -> impl Stream<Item = Arc<Event>> {
    let live = app.core.subscribe();
    let filter = EventFilter { after: after.unwrap_or_default(), ..filter };
    let follower = Follower {
        app,
        _counted: counted,
        filter,
        live,
        waiting: VecDeque::new(),
        behind: after.is_some(),
    };
    futures_util::stream::unfold(follower, |mut follower| async move {
        follower.next().await.map(|event| (event, follower))
    })
}

impl Follower {
    async fn next(&mut self) -> Option<Arc<Event>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                self.filter.after = event.seq;
                return Some(event);
            }
            if self.behind {
                let events = self.app.core.store().events(&self.filter).await.ok()?;
                self.behind = events.len() as u64 >= self.filter.limit;
                self.waiting.extend(events.into_iter().map(Arc::new));
                continue;
            }
            match self.live.recv().await {
                Ok(event) if self.wants(&event) => self.waiting.push_back(event),
                Ok(event) => self.filter.after = self.filter.after.max(event.seq),
                // Too slow for the live channel: the store has the missed events.
                Err(RecvError::Lagged(_)) => self.behind = self.filter.after > EventSeq::default(),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    fn wants(&self, event: &Event) -> bool {
        event.seq > self.filter.after
            && self.filter.job.is_none_or(|job| event.job_id == Some(job))
            && self.filter.user.is_none_or(|user| event.user_id == Some(user))
    }
}

fn frame(event: &Event) -> sse::Event {
    let plain = || sse::Event::default().id(event.seq.to_string());
    plain().json_data(event).unwrap_or_else(|_| plain())
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<EventSeq>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().unwrap_or("?").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse().ok().filter(|number| *number >= EventSeq::default());
    number.map(Some).ok_or_else(|| {
        ApiError::malformed("the Last-Event-ID header must be the number of an event")
    })
}
