//! Output of jobs: reads from any offset, and streams.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use agentaflow_api::error::ResourceKind;
use agentaflow_api::event::Event;
use agentaflow_api::ids::JobId;

use crate::api_error::ApiError;
use crate::http::answer::text;
use crate::http::app::App;
use crate::http::caller::User;
use crate::http::params::LogPart;
use crate::http::read::{QueryParams, Segments};
use crate::http::routes::jobs::visible_job;
use crate::http::streams::Counted;
use crate::logs::LogError;

/// Header with the offset of the first byte of the response.
const OFFSET: HeaderName = HeaderName::from_static("x-log-offset");
/// Bytes sent at a time.
const PIECE: usize = 256 << 10;
/// Interval at which a follower reads without a notification.
const LOOK: Duration = Duration::from_secs(2);
/// Maximum duration of a stream; the client reconnects with `offset` and authenticates again.
const LONGEST: Duration = Duration::from_hours(1);

/// Lines and bytes at the end of a failed job's output that are searched for the cause.
const TAIL_LINES: u64 = 50;
const LAST_BYTES: usize = 32 << 10;

/// Last output of a task.
pub(crate) async fn log_tail(app: &App, job: JobId, task: u32) -> String {
    let from = app.logs.tail(job, task, TAIL_LINES).await.unwrap_or(0);
    let output = app.logs.read(job, task, from, LAST_BYTES).await.unwrap_or_default().bytes;
    String::from_utf8_lossy(&output).into_owned()
}

/// Output of a job, all attempts in order. With `follow`, the stream continues until the job has ended and all output
/// is sent, for at most one hour; `offset` resumes it.
#[utoipa::path(get, path = "/gpu-workers/jobs/{job_id}/logs", tag = "jobs", security(("user" = [])),
    params(("job_id" = i64, Path, description = "Job number"), LogPart),
    responses((status = 200, description = "Output; `X-Log-Offset` is the offset of its first byte",
        body = String, content_type = "text/plain")))]
pub(crate) async fn logs(
    State(app): State<App>,
    User(caller): User,
    path: Segments,
    query: QueryParams,
) -> Result<Response, ApiError> {
    let follow = query.flag("follow")?;
    let (tail, offset) = (query.whole("tail")?, query.whole("offset")?);
    let task = query.whole("task")?.unwrap_or(0);
    let row = visible_job(&app, &caller, path.number("job_id")?).await?;
    let tasks = u64::from(row.spec.replicas.unwrap_or(1).max(1));
    let index = u32::try_from(task).ok().filter(|task| u64::from(*task) < tasks);
    let task =
        index.ok_or_else(|| ApiError::not_found(ResourceKind::Task, task).limit(tasks - 1))?;
    let from_tail = match tail {
        Some(lines) => app.logs.tail(row.id, task, lines).await.map_err(|error| failed(&error))?,
        None => 0,
    };
    let start = from_tail.max(offset.unwrap_or(0));
    let reader = Reader {
        log: app.logs.subscribe(row.id),
        events: app.core.subscribe(),
        job: row.id,
        task,
        offset: start,
        follow,
        over: row.state.status.is_final(),
        until: Instant::now() + LONGEST,
        _counted: app.streams.open(caller.user.id)?,
        app: app.clone(),
    };
    let pieces = reader.pieces().take_until(app.stopping.clone().cancelled_owned());
    let mut response = text(Body::from_stream(pieces));
    response.headers_mut().insert(OFFSET, HeaderValue::from(start));
    Ok(response)
}

struct Reader {
    app: App,
    _counted: Counted,
    job: JobId,
    task: u32,
    offset: u64,
    follow: bool,
    /// True if the job has ended and writes no more output.
    over: bool,
    /// End of the stream of a follower.
    until: Instant,
    log: watch::Receiver<u64>,
    events: broadcast::Receiver<Arc<Event>>,
}

impl Reader {
    fn pieces(self) -> impl Stream<Item = Result<Bytes, LogError>> {
        futures_util::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            match reader.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(reader))),
                Ok(None) => None,
                // An aborted connection shows the client that output is missing.
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, LogError> {
        loop {
            if self.follow && Instant::now() >= self.until {
                return Ok(None);
            }
            let over = self.over;
            self.log.borrow_and_update();
            let piece = self.app.logs.read(self.job, self.task, self.offset, PIECE).await?;
            if !piece.bytes.is_empty() {
                self.offset += piece.bytes.len() as u64;
                return Ok(Some(Bytes::from(piece.bytes)));
            }
            // The job had ended before this read, so all output is read.
            if over || !self.follow {
                return Ok(None);
            }
            self.wait().await;
        }
    }

    /// Waits until output was written or the job changed.
    async fn wait(&mut self) {
        let changed = tokio::select! {
            _ = self.log.changed() => false,
            () = of_job(&mut self.events, self.job) => true,
            () = tokio::time::sleep_until(self.until.min(Instant::now() + LOOK)) => true,
        };
        if changed && let Ok(row) = self.app.core.store().job(self.job).await {
            self.over = row.is_none_or(|row| row.state.status.is_final());
        }
    }
}

/// Waits for an event of this job, or until an event may have been missed.
async fn of_job(events: &mut broadcast::Receiver<Arc<Event>>, job: JobId) {
    loop {
        match events.recv().await {
            Ok(event) if event.job_id == Some(job) => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn failed(error: &LogError) -> ApiError {
    tracing::error!(error = error as &dyn std::error::Error, "Cannot read a log");
    ApiError::unavailable("the log cannot be read now; try again")
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::UserId;

    use super::*;
    use crate::auth::{Auth, JwtKeys, Site};
    use crate::core::Caller;
    use crate::http::routes::jobs::read_job;
    use crate::serve;
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_follower_is_sent_away_in_good_order_while_the_job_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings::new("127.0.0.1:0".parse().unwrap(), folder.path().join("data"));
        let running = serve::start(settings.clone()).await.unwrap();
        let site = Site { listen: running.addr, public_hosts: Vec::new(), certificates: None };
        let auth = Auth::new(JwtKeys::new(&[7; 64]), (1, 1));
        let app = App::new(
            running.core.clone(),
            running.logs.clone(),
            auth,
            Arc::new(settings),
            site,
            None,
        );
        let admin = app.core.directory(|directory| directory.users[&UserId(1)].clone());
        let caller = Caller { user: Arc::new(admin), by_cookie: false };
        let job = read_job(br#"{"docker_image": "x"}"#).unwrap();
        let (job, _) = app.core.submit(&caller, job, None, None).await.unwrap();
        let reader = Reader {
            log: app.logs.subscribe(job.id),
            events: app.core.subscribe(),
            job: job.id,
            task: 0,
            offset: 0,
            follow: true,
            over: false,
            until: Instant::now() + Duration::from_millis(100),
            _counted: app.streams.open(UserId(1)).unwrap(),
            app: app.clone(),
        };
        let all = reader.pieces().collect::<Vec<_>>();
        let all = tokio::time::timeout(Duration::from_secs(2), all).await.unwrap();
        assert!(all.is_empty());
        running.stop().await;
    }
}
