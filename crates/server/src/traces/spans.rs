//! Spans of one job, from its record and its events.
//!
//! `job` is the root. Each attempt adds `wait` (with the reasons as events), `decision`, `dispatch`, `pull` for containers,
//! `start` and `run`; `submit` and `exit` frame them.

use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::job::JobStatus;
use agentaflow_api::trace::{SpanId, TraceContext, TraceId};
use agentaflow_api::units::Stamp;
use agentaflow_otlp::span::span_id;
use agentaflow_otlp::{Attribute, Span, SpanEvent, SpanStatus};

use crate::store::JobRow;

const ROOT: &str = "job";
const RUN: &str = "run";
/// Events of one span; a job may wait for many reasons.
const MOST_EVENTS: usize = 128;

/// Value of `TRACEPARENT` for the processes of the current attempt.
pub(crate) fn traceparent(row: &JobRow) -> Option<String> {
    let trace_id = row.trace?.trace_id;
    let span = span_id(trace_id, RUN, number(row, row.state.epoch));
    Some(TraceContext::traceparent(trace_id, span))
}

/// Tells spans of equal name apart: several jobs may share a trace, and a job may have several attempts.
fn number(row: &JobRow, attempt: u32) -> u64 {
    (row.id.0 as u64) << 16 | u64::from(attempt & 0xffff)
}

/// Spans of an ended job; none if the job has no trace.
pub(super) fn job_spans(row: &JobRow, user: Option<&str>, events: &[Event]) -> Vec<Span> {
    let Some(trace) = row.trace else { return Vec::new() };
    let mut steps = Steps::new(row, trace.trace_id);
    for event in events {
        steps.take(event);
    }
    steps.finish(trace.parent, user)
}

/// A position in the life of a job; the stamps are the begin of the step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Waiting(Stamp),
    Dispatching(Stamp),
    Pulling(Stamp),
    Starting(Stamp),
    Running(Stamp),
    Ended(Stamp),
}

struct Steps<'a> {
    row: &'a JobRow,
    trace: TraceId,
    root: SpanId,
    attempt: u32,
    step: Step,
    /// Moments of the present step.
    moments: Vec<SpanEvent>,
    spans: Vec<Span>,
}

impl<'a> Steps<'a> {
    fn new(row: &'a JobRow, trace: TraceId) -> Self {
        let root = span_id(trace, ROOT, number(row, 0));
        let step = Step::Waiting(row.created_at);
        Self { row, trace, root, attempt: 0, step, moments: Vec::new(), spans: Vec::new() }
    }

    fn take(&mut self, event: &Event) {
        let at = event.at;
        match &event.kind {
            EventKind::Submitted => {
                self.add("submit", self.row.created_at, at);
                self.step = Step::Waiting(at);
            }
            EventKind::Scheduled => self.placed(event),
            EventKind::Pulling => {
                if let Step::Dispatching(since) = self.step {
                    self.add("dispatch", since, at);
                    self.step = Step::Pulling(at);
                }
            }
            EventKind::Pulled => {
                if let Step::Pulling(since) = self.step {
                    self.add("pull", since, at);
                    self.step = Step::Starting(at);
                }
            }
            EventKind::Starting => {
                if let Step::Dispatching(since) = self.step {
                    self.add("dispatch", since, at);
                    self.step = Step::Starting(at);
                }
            }
            EventKind::Started => self.started(at),
            EventKind::Requeued => {
                self.close(at, &SpanStatus::Unset);
                self.step = Step::Waiting(at);
            }
            EventKind::Completed | EventKind::Failed | EventKind::Cancelled => self.ended(event),
            _ => self.note(event),
        }
    }

    /// Records a moment of the present step: a pending reason, a warning, a preemption.
    fn note(&mut self, event: &Event) {
        if self.moments.len() >= MOST_EVENTS {
            return;
        }
        let mut attributes = vec![Attribute::new("message", event.message.as_str())];
        if let Some(reason) = event.data.get("reason").and_then(|reason| reason.as_str()) {
            attributes.push(Attribute::new("agentaflow.pending.reason", reason));
        }
        let name = event.kind.as_str().to_owned();
        self.moments.push(SpanEvent { at: event.at, name, attributes });
    }

    fn placed(&mut self, event: &Event) {
        let at = event.at;
        if let Step::Waiting(since) = self.step {
            self.add("wait", since, at);
        }
        self.attempt += 1;
        let mut decision = self.span("decision", at, at).with("message", event.message.as_str());
        if let Some(node) = &event.node_id {
            decision = decision.with("agentaflow.node.id", node.as_str());
        }
        self.spans.push(decision);
        self.step = Step::Dispatching(at);
    }

    fn started(&mut self, at: Stamp) {
        match self.step {
            Step::Dispatching(since) => self.add("dispatch", since, at),
            Step::Pulling(since) => self.add("pull", since, at),
            Step::Starting(since) => self.add("start", since, at),
            Step::Waiting(_) | Step::Running(_) | Step::Ended(_) => return,
        }
        self.step = Step::Running(at);
    }

    /// Closes the present step, which the attempt or the job does not leave by its usual end.
    fn close(&mut self, at: Stamp, status: &SpanStatus) {
        let (name, since) = match self.step {
            Step::Waiting(since) => ("wait", since),
            Step::Dispatching(since) => ("dispatch", since),
            Step::Pulling(since) => ("pull", since),
            Step::Starting(since) => ("start", since),
            Step::Running(since) => (RUN, since),
            Step::Ended(_) => return,
        };
        self.add(name, since, at);
        if let Some(span) = self.spans.last_mut() {
            span.status = status.clone();
        }
    }

    fn ended(&mut self, event: &Event) {
        let status = self.status();
        // A short job reports its end only.
        if let (Step::Dispatching(since), Some(started)) = (self.step, self.row.state.started_at) {
            self.started(started.clamp(since, event.at));
        }
        let mut run_end = event.at;
        if let Step::Running(since) = self.step {
            let tasks = self.row.state.tasks.iter();
            let ran = tasks.map(|task| task.ran_ms).max().filter(|ran| *ran > 0);
            let measured = ran.map(|ran| Stamp(since.0.saturating_add(ran as i64)));
            run_end = measured.map_or(event.at, |end| end.min(event.at));
        }
        self.close(run_end, &status);
        let mut exit = self.span("exit", run_end, event.at);
        exit.status = status;
        self.spans.push(exit);
        self.step = Step::Ended(event.at);
    }

    fn status(&self) -> SpanStatus {
        let state = &self.row.state;
        match state.status {
            JobStatus::Completed => SpanStatus::Ok,
            JobStatus::Failed => SpanStatus::Error(state.error_message.clone().unwrap_or_default()),
            _ => SpanStatus::Unset,
        }
    }

    fn span(&self, name: &'static str, start: Stamp, end: Stamp) -> Span {
        // A wait belongs to the attempt that ends it.
        let attempt = if name == "wait" { self.attempt + 1 } else { self.attempt };
        let number = number(self.row, attempt);
        let span = Span::new(self.trace, name, number, start, end).child_of(self.root);
        if attempt == 0 { span } else { span.with("agentaflow.attempt", attempt) }
    }

    /// Adds a span with the moments of the step that it describes.
    fn add(&mut self, name: &'static str, start: Stamp, end: Stamp) {
        let mut span = self.span(name, start, end);
        span.events = std::mem::take(&mut self.moments);
        self.spans.push(span);
    }

    fn finish(self, parent: Option<SpanId>, user: Option<&str>) -> Vec<Span> {
        let status = self.status();
        let Self { row, trace, step, mut spans, .. } = self;
        let JobRow { id, queue, spec, created_at, state, .. } = row;
        let end = match step {
            Step::Ended(at) => at,
            _ => state.completed_at.unwrap_or(state.updated_at),
        };
        let mut root = Span::new(trace, ROOT, number(row, 0), *created_at, end)
            .with("agentaflow.job.id", id.0)
            .with("agentaflow.job.status", state.status.as_str())
            .with("agentaflow.queue", queue.as_str())
            .with("agentaflow.attempts", state.epoch)
            .with("agentaflow.cost.micro_usd", state.cost.0);
        let texts = [
            ("agentaflow.job.name", spec.job_name.as_deref()),
            ("agentaflow.user", user),
            ("container.image.name", spec.docker_image.as_deref()),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                root = root.with(name, text);
            }
        }
        if let Some(reason) = state.end_reason {
            root = root.with("agentaflow.end.reason", reason.as_str());
        }
        if let Some(code) = state.exit_code {
            root = root.with("process.exit.code", i64::from(code));
        }
        root.parent = parent;
        root.status = status;
        spans.insert(0, root);
        spans
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
