//! Traces of jobs: spans from the submission to the end, exported once a job has ended.
//!
//! The spans are made from the events of the job, which are durable. The exporter stores the number of the last event
//! that it has exported, so a restart of the server or of the receiver loses no trace, and may repeat one.

mod spans;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use agentaflow_api::event::Event;
use agentaflow_api::ids::JobId;
use agentaflow_otlp::{Collector, Exporter, Resource, Span};

use crate::core::Core;
use crate::store::{EventFilter, StoreError};
pub(crate) use spans::traceparent;

/// Interval of looks for ended jobs.
const INTERVAL: Duration = Duration::from_secs(1);
/// Events read at once.
const PAGE: u64 = 500;
/// Events of one job that enter its trace.
const MOST_EVENTS: u64 = 1_000;
/// Spans of one request.
const MOST_SPANS: usize = 500;

/// Exports the traces of ended jobs until the server stops.
pub(crate) async fn run(core: Core, collector: Collector, stopping: CancellationToken) {
    let instance = core.settings().listen.to_string();
    let resource = Resource { service: "agentaflow-server", instance };
    let exporter = match Exporter::new(collector, resource) {
        Ok(exporter) => exporter,
        Err(error) => {
            return warn(&error, "Cannot export traces");
        }
    };
    let exports = async {
        // From now on a restart continues here.
        while core.set_traced_until(core.traced_until()).await.is_err() {
            tokio::time::sleep(INTERVAL).await;
        }
        loop {
            match export_page(&core, &exporter).await {
                Ok(true) => {}
                Ok(false) => tokio::time::sleep(INTERVAL).await,
                Err(error) => {
                    warn(&error, "Cannot read events for traces; retrying");
                    tokio::time::sleep(INTERVAL).await;
                }
            }
        }
    };
    stopping.run_until_cancelled(exports).await;
}

/// Exports the jobs that ended in the next page of events. False if there was no event.
async fn export_page(core: &Core, exporter: &Exporter) -> Result<bool, StoreError> {
    let after = core.traced_until();
    let filter = EventFilter { after, limit: PAGE, ..EventFilter::default() };
    let page = core.store().events(&filter).await?;
    let Some(last) = page.last().map(|event| event.seq) else { return Ok(false) };
    let mut spans = Vec::new();
    for job in page.iter().filter(|event| event.kind.ends_job()).filter_map(|event| event.job_id) {
        spans.extend(spans_of(core, job).await?);
        if spans.len() >= MOST_SPANS {
            exporter.deliver(&std::mem::take(&mut spans)).await;
        }
    }
    exporter.deliver(&spans).await;
    // A refused write means that the server stops or cannot write: the page is exported again later.
    if core.set_traced_until(last).await.is_err() {
        tokio::time::sleep(INTERVAL).await;
    }
    Ok(true)
}

/// Spans of a job; none if its record has been deleted.
async fn spans_of(core: &Core, job: JobId) -> Result<Vec<Span>, StoreError> {
    let Some(row) = core.store().job(job).await? else { return Ok(Vec::new()) };
    let filter = EventFilter { job: Some(job), limit: MOST_EVENTS, ..EventFilter::default() };
    let events: Vec<Event> = core.store().events(&filter).await?;
    let user = core
        .directory(|directory| directory.users.get(&row.user_id).map(|user| user.username.clone()));
    Ok(spans::job_spans(&row, user.as_deref(), &events))
}

/// Logs an error with its causes.
fn warn(error: &(dyn std::error::Error + 'static), message: &'static str) {
    tracing::warn!(error, "{message}");
}
