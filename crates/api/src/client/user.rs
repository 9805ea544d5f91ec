//! Calls of users: jobs, nodes, events, explanations.

use std::time::Duration;

use super::{Bytes, Client, ClientError, Lines, segment};
use crate::event::Event;
use crate::explain::Explanation;
use crate::ids::{EventSeq, JobId};
use crate::job::{Job, JobCreate, JobStatus};
use crate::node::{Node, NodeUpdate};
use crate::queue::Queue;
use crate::trace::{TRACEPARENT, TraceContext};
use crate::{BASE, PAGE_MOST};

/// Selected part of a job's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Continue until the job ends.
    pub follow: bool,
    /// Number of lines from the end.
    pub tail: Option<u64>,
    /// Task; default is the first one.
    pub task: Option<u32>,
    /// Offset of the first byte.
    pub offset: Option<u64>,
}

/// Filter of a list of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// Only with one of these statuses; empty means all.
    pub status: Vec<JobStatus>,
    /// Number of rows to skip.
    pub skip: Option<u64>,
    /// Maximum number of rows.
    pub limit: Option<u64>,
}

#[derive(Debug)]
pub struct Events {
    lines: Lines,
    url: String,
}

impl Events {
    /// Returns the next event; none when the server ended the stream.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        while let Some(line) = self.lines.next().await? {
            // Event names, ids and pings add nothing to the data.
            let Some(data) = line.strip_prefix(b"data:") else { continue };
            return serde_json::from_slice(data).map(Some).map_err(|error| ClientError::Garbled {
                url: self.url.clone(),
                cause: format!("an event that cannot be read: {error}"),
            });
        }
        Ok(None)
    }
}

impl Client {
    /// Submits a job. The same key with the same job again returns the first job.
    pub async fn submit(&self, job: &JobCreate, key: Option<&str>) -> Result<Job, ClientError> {
        let mut call = self.post(&format!("{BASE}/jobs/")).body(job);
        if let Some(key) = key {
            call = call.header("Idempotency-Key", key);
        }
        if let Some(TraceContext { trace_id, parent: Some(parent) }) = job.trace {
            call = call.header(TRACEPARENT, TraceContext::traceparent(trace_id, parent));
        }
        call.json().await
    }

    /// Forecast for a job that is not submitted.
    pub async fn what_if(&self, job: &JobCreate) -> Result<Explanation, ClientError> {
        self.post(&format!("{BASE}/jobs/what-if")).body(job).json().await
    }

    pub async fn job(&self, id: JobId) -> Result<Job, ClientError> {
        self.get(&format!("{BASE}/jobs/{id}")).json().await
    }

    /// Jobs, newest first. Fetches the following pages if the server ends a page early because of its size.
    pub async fn jobs(&self, query: &JobQuery) -> Result<Vec<Job>, ClientError> {
        let words: Vec<_> = query.status.iter().map(|status| status.as_str()).collect();
        let words = (!words.is_empty()).then(|| words.join(","));
        let mut jobs: Vec<Job> = Vec::new();
        let (mut skip, mut before) = (query.skip, None);
        loop {
            let left = query.limit.map(|limit| limit.saturating_sub(jobs.len() as u64));
            let left = left.map(|left| left.min(PAGE_MOST));
            let call = self
                .get(&format!("{BASE}/jobs/"))
                .maybe("status", words.clone())
                .maybe("skip", skip)
                .maybe("before", before)
                .maybe("limit", left);
            let (page, next) = call.json_and::<Vec<Job>>("x-next-before").await?;
            let got = page.len();
            jobs.extend(page);
            let enough = query.limit.is_none_or(|limit| jobs.len() as u64 >= limit);
            match next {
                Some(next) if got > 0 && !enough => (skip, before) = (None, Some(next)),
                _ => return Ok(jobs),
            }
        }
    }

    pub async fn cancel(&self, id: JobId) -> Result<Job, ClientError> {
        self.post(&format!("{BASE}/jobs/{id}/cancel")).json().await
    }

    /// Stops a job and marks it as completed.
    pub async fn complete(&self, id: JobId) -> Result<Job, ClientError> {
        self.post(&format!("{BASE}/jobs/{id}/complete")).json().await
    }

    /// Pending reason and expected start of a job.
    pub async fn explain(&self, id: JobId) -> Result<Explanation, ClientError> {
        self.get(&format!("{BASE}/jobs/{id}/explain")).json().await
    }

    /// Metrics in Prometheus text, for admins and viewers.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        self.get("/metrics").text().await
    }

    /// Output of a job, as a stream.
    pub async fn logs(&self, id: JobId, query: &LogQuery) -> Result<Bytes, ClientError> {
        self.get(&format!("{BASE}/jobs/{id}/logs"))
            .maybe("follow", query.follow.then_some(true))
            .maybe("tail", query.tail)
            .maybe("task", query.task)
            .maybe("offset", query.offset)
            .bytes(None)
            .await
    }

    /// Events of a job after this sequence number, oldest first.
    pub async fn job_events(&self, id: JobId, after: EventSeq) -> Result<Vec<Event>, ClientError> {
        let call = self.get(&format!("{BASE}/jobs/{id}/events"));
        call.query("after", after).query("limit", 1000).json().await
    }

    /// Latest events visible to the caller, oldest first.
    pub async fn past_events(&self) -> Result<Vec<Event>, ClientError> {
        self.get("/events/past").query("limit", 1000).json().await
    }

    /// Stream of events after this sequence number or from now on, optionally of one job.
    pub async fn events(
        &self,
        after: Option<EventSeq>,
        job: Option<JobId>,
    ) -> Result<Events, ClientError> {
        let call = self
            .get("/events")
            .header("Accept", "text/event-stream")
            .maybe("after", after)
            .maybe("job_id", job);
        let url = call.url().path().to_owned();
        Ok(Events { lines: call.lines(Some(Duration::from_mins(1))).await?, url })
    }

    pub async fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.get(&format!("{BASE}/nodes/")).query("limit", 1000).json().await
    }

    /// A node, by its `gpu-…` name or its number.
    pub async fn node(&self, node: &str) -> Result<Node, ClientError> {
        self.get(&format!("{BASE}/nodes/{}", segment(node))).json().await
    }

    pub async fn update_node(&self, node: &str, update: &NodeUpdate) -> Result<Node, ClientError> {
        self.put(&format!("{BASE}/nodes/{}", segment(node))).body(update).json().await
    }

    pub async fn queues(&self) -> Result<Vec<Queue>, ClientError> {
        self.get("/queues").json().await
    }
}
