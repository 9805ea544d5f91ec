//! Lists of jobs, in bounded memory. A job may hold megabytes, so a page ends early when it grows large, few pages are
//! built at the same time, and few large pages are sent at the same time.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use agentaflow_api::ids::JobId;
use agentaflow_api::job::Job;

use super::answer::TOTAL;
use super::limits;
use crate::api_error::ApiError;
use crate::core::Core;
use crate::store::JobFilter;

/// Header with the `before` of the next page, if there may be one.
pub(crate) const NEXT: HeaderName = HeaderName::from_static("x-next-before");
/// Pages built at the same time; further requests wait.
const AT_ONCE: usize = 2;
/// Rows read at a time, held in addition to the page.
const ROWS: u64 = 32;
/// Pages beyond this size are large.
const LARGE: usize = 1 << 20;
/// Large pages sent at the same time.
const LARGE_AT_ONCE: usize = 16;
/// Bytes passed to the connection at a time.
const PIECE: usize = 64 << 10;

/// Bounds the memory of job lists.
#[derive(Debug)]
pub(crate) struct Pages {
    making: Semaphore,
    large: Arc<Semaphore>,
}

impl Default for Pages {
    fn default() -> Self {
        Self { making: Semaphore::new(AT_ONCE), large: Arc::new(Semaphore::new(LARGE_AT_ONCE)) }
    }
}

/// A page of jobs, as JSON.
#[derive(Debug)]
pub(crate) struct JobPage {
    json: Vec<u8>,
    total: u64,
    next: Option<JobId>,
    /// Held until the last byte is sent.
    sending: Option<OwnedSemaphorePermit>,
}

impl Pages {
    /// Requested page, or its beginning if the page is large.
    pub(crate) async fn jobs(&self, core: &Core, filter: JobFilter) -> Result<JobPage, ApiError> {
        let stopping = |_| ApiError::unavailable("the server is stopping");
        let _making = self.making.acquire().await.map_err(stopping)?;
        let total = core.store().count_jobs(&JobFilter { before: None, ..filter.clone() }).await?;
        let mut page = gather(core, filter, limits::PAGE_BYTES).await?;
        page.total = total;
        if page.json.len() > LARGE {
            let place = self.large.clone().try_acquire_owned();
            page.sending = Some(place.map_err(|_| {
                let words =
                    "too many large lists are on their way; try again, or with a smaller `limit`";
                ApiError::too_many(words, 2)
            })?);
        }
        Ok(page)
    }
}

/// Reads jobs up to the requested number or `most` bytes.
async fn gather(core: &Core, filter: JobFilter, most: usize) -> Result<JobPage, ApiError> {
    let store = core.store();
    let mut page = JobPage { json: b"[".to_vec(), total: 0, next: None, sending: None };
    let mut left = filter.limit;
    let mut part = filter;
    while left > 0 {
        part.limit = left.min(ROWS);
        let rows = store.jobs(&part).await?;
        let last = (rows.len() as u64) < part.limit;
        left = left.saturating_sub(rows.len() as u64);
        for job in core.show_jobs(rows) {
            if page.json.len() >= most {
                return Ok(page.closed());
            }
            page.push(&job)?;
        }
        if last {
            page.next = None;
            break;
        }
        part.before = page.next;
        part.skip = 0;
    }
    Ok(page.closed())
}

impl JobPage {
    fn push(&mut self, job: &Job) -> Result<(), ApiError> {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        serde_json::to_writer(&mut self.json, job).map_err(|error| {
            tracing::error!(%error, job = job.id.0, "Cannot serialize a job");
            ApiError::unavailable("a job of the list cannot be shown")
        })?;
        self.next = Some(job.id);
        Ok(())
    }

    fn closed(mut self) -> Self {
        self.json.push(b']');
        self
    }
}

impl IntoResponse for JobPage {
    fn into_response(self) -> Response {
        let body = match self.sending {
            None => Body::from(self.json),
            Some(place) => sent_in_pieces(self.json.into(), place),
        };
        let kind = HeaderValue::from_static("application/json");
        let headers = [(header::CONTENT_TYPE, kind), (TOTAL, HeaderValue::from(self.total))];
        let mut response = (headers, body).into_response();
        if let Some(next) = self.next {
            response.headers_mut().insert(NEXT, HeaderValue::from(next.0));
        }
        response
    }
}

/// Body that releases its permit when it is dropped.
fn sent_in_pieces(json: Bytes, place: OwnedSemaphorePermit) -> Body {
    let pieces = futures_util::stream::unfold((json, place), |(mut json, place)| async move {
        let piece = json.split_to(json.len().min(PIECE));
        (!piece.is_empty()).then(|| (Ok::<_, std::convert::Infallible>(piece), (json, place)))
    });
    Body::from_stream(pieces.boxed())
}
