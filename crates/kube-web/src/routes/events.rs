//! Events: lists and streams.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use agentaflow_api::event::Event;
use agentaflow_api::ids::EventSeq;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use axum::response::sse::{self, KeepAlive, Sse};
use futures_util::{Stream, StreamExt as _};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use crate::answer::Problem;
use crate::board::FRESH;
use crate::diff::RowEvent;
use crate::person::Person;
use crate::router::App;
use crate::sight::Sight;

/// Interval of keep-alive messages on a silent stream.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Maximum duration of a stream; the client reconnects.
const LONGEST: Duration = Duration::from_hours(1);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Wanted {
    after: Option<i64>,
    limit: Option<usize>,
}

/// Latest events, oldest first.
pub(crate) async fn past(
    State(app): State<App>,
    person: Person,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Vec<Event>>, Problem> {
    let events = seen(&app, &person, EventSeq(wanted.after.unwrap_or(0))).await?;
    let limit = wanted.limit.unwrap_or(usize::MAX);
    let excess = events.len().saturating_sub(limit);
    Ok(Json(events.iter().skip(excess).map(|news| news.event.clone()).collect()))
}

/// Server-sent events. The token and the rights are checked again while the stream is open.
pub(crate) async fn stream(
    State(app): State<App>,
    person: Person,
    Query(wanted): Query<Wanted>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    // Changes from now on are events.
    app.board.rows().await?;
    let after = match last.or(wanted.after) {
        Some(after) => EventSeq(after),
        None => app.board.newest(),
    };
    let place = app.streams.clone().try_acquire_owned();
    let place = place.map_err(|_| Problem::unavailable("Too many streams are open"))?;
    let stopping = app.stopping.clone();
    let news = follow(Follower { app, person, after, waiting: VecDeque::new(), _place: place });
    let news = news
        .take_until(stopping.cancelled_owned())
        .take_until(Box::pin(tokio::time::sleep(LONGEST)));
    Ok(Sse::new(news).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("still here")))
}

struct Follower {
    app: App,
    person: Person,
    after: EventSeq,
    waiting: VecDeque<Arc<RowEvent>>,
    _place: OwnedSemaphorePermit,
}

fn follow(follower: Follower) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    futures_util::stream::unfold(follower, |mut follower| async move {
        let news = follower.next().await?;
        let frame = sse::Event::default().id(news.event.seq.to_string());
        let frame = frame.json_data(&news.event).unwrap_or_default();
        Some((Ok(frame), follower))
    })
}

impl Follower {
    /// The next event; none when the reader may not follow any more.
    async fn next(&mut self) -> Option<Arc<RowEvent>> {
        loop {
            if let Some(news) = self.waiting.pop_front() {
                self.after = news.event.seq;
                return Some(news);
            }
            tokio::time::sleep(FRESH).await;
            let user = self.app.sessions.user(&self.person.token).await.ok()??;
            self.person.user = user;
            self.waiting.extend(seen(&self.app, &self.person, self.after).await.ok()?);
        }
    }
}

/// Events that the reader may see, with a higher number.
async fn seen(app: &App, person: &Person, after: EventSeq) -> Result<Vec<Arc<RowEvent>>, Problem> {
    let rows = app.board.rows().await?;
    let mut news = app.board.after(after);
    if news.is_empty() {
        return Ok(news);
    }
    let mut namespaces = rows.namespaces.clone();
    namespaces.extend(news.iter().map(|news| news.origin.namespace().to_owned()));
    let sight = Sight::of(&app.rights, &person.user, &namespaces).await?;
    news.retain(|news| sight.contains(&news.origin));
    Ok(news)
}
