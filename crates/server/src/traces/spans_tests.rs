use agentaflow_api::end::EndReason;
use agentaflow_api::ids::{EventSeq, JobId};
use serde_json::json;

use super::*;
use crate::store::{JobState, TaskAssignment};

const START: i64 = 1_000_000;

fn row(state: JobState) -> JobRow {
    let trace: TraceContext =
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    JobRow {
        id: JobId(7),
        created_at: Stamp(START),
        trace: Some(trace),
        state,
        ..JobRow::default()
    }
}

fn event(ms: i64, kind: EventKind) -> Event {
    let message = kind.as_str().to_owned();
    Event { seq: EventSeq(ms), at: Stamp(START + ms), kind, message, ..Event::default() }
}

/// Name, start and end of each span, from the submission in milliseconds.
fn times(spans: &[Span]) -> Vec<(&'static str, i64, i64)> {
    spans.iter().map(|span| (span.name, span.start.0 - START, span.end.0 - START)).collect()
}

fn ran(ms: u64) -> TaskAssignment {
    TaskAssignment { ran_ms: ms, ..TaskAssignment::default() }
}

#[test]
fn each_step_of_a_job_is_a_span_below_one_root() {
    let state = JobState {
        status: JobStatus::Completed,
        epoch: 1,
        tasks: vec![ran(400)],
        end_reason: Some(EndReason::Exited),
        exit_code: Some(0),
        ..JobState::default()
    };
    let mut waiting = event(10, EventKind::Waiting);
    waiting.data.insert("reason".to_owned(), json!("insufficient_gpus"));
    let events = [
        event(2, EventKind::Submitted),
        waiting,
        event(100, EventKind::Scheduled),
        event(110, EventKind::Pulling),
        event(150, EventKind::Pulled),
        event(200, EventKind::Started),
        event(610, EventKind::Completed),
    ];
    let spans = job_spans(&row(state), Some("ada"), &events);
    assert_eq!(
        times(&spans),
        [
            ("job", 0, 610),
            ("submit", 0, 2),
            ("wait", 2, 100),
            ("decision", 100, 100),
            ("dispatch", 100, 110),
            ("pull", 110, 150),
            ("start", 150, 200),
            ("run", 200, 600),
            ("exit", 600, 610),
        ]
    );
    let root = &spans[0];
    assert_eq!(root.parent.unwrap().to_string(), "00f067aa0ba902b7");
    assert_eq!(root.status, SpanStatus::Ok);
    assert!(spans[1..].iter().all(|span| span.parent == Some(root.span_id)));
    assert_eq!(spans[2].events[0].name, "Waiting");
    let reason = Attribute::new("agentaflow.pending.reason", "insufficient_gpus");
    assert!(spans[2].events[0].attributes.contains(&reason));
}

#[test]
fn the_processes_of_a_job_continue_its_trace_below_the_run() {
    let state = JobState { epoch: 1, status: JobStatus::Completed, ..JobState::default() };
    let row = row(state);
    let events = [
        event(0, EventKind::Submitted),
        event(1, EventKind::Scheduled),
        event(2, EventKind::Started),
        event(9, EventKind::Completed),
    ];
    let spans = job_spans(&row, None, &events);
    let run = spans.iter().find(|span| span.name == "run").unwrap();
    let parent: TraceContext = traceparent(&row).unwrap().parse().unwrap();
    assert_eq!((parent.trace_id, parent.parent), (run.trace_id, Some(run.span_id)));
}

#[test]
fn each_attempt_has_spans_of_its_own() {
    let state = JobState { epoch: 2, status: JobStatus::Failed, ..JobState::default() };
    let events = [
        event(0, EventKind::Submitted),
        event(10, EventKind::Scheduled),
        event(20, EventKind::Started),
        event(50, EventKind::NodeLost),
        event(60, EventKind::Requeued),
        event(90, EventKind::Scheduled),
        event(95, EventKind::Started),
        event(99, EventKind::Failed),
    ];
    let spans = job_spans(&row(state), None, &events);
    let runs: Vec<_> = spans.iter().filter(|span| span.name == "run").collect();
    assert_eq!(runs.len(), 2);
    assert_ne!(runs[0].span_id, runs[1].span_id);
    assert_eq!((runs[0].start.0, runs[0].end.0), (START + 20, START + 60));
    assert_eq!(runs[0].events[0].name, "NodeLost");
    assert_eq!(runs[0].status, SpanStatus::Unset);
    assert!(matches!(runs[1].status, SpanStatus::Error(_)));
    let waits: Vec<_> = spans.iter().filter(|span| span.name == "wait").collect();
    assert_eq!((waits[1].start.0, waits[1].end.0), (START + 60, START + 90));
    assert_ne!(waits[0].span_id, waits[1].span_id);
}

#[test]
fn a_job_that_reports_only_its_end_has_a_run() {
    let state = JobState {
        epoch: 1,
        status: JobStatus::Completed,
        started_at: Some(Stamp(START + 12)),
        tasks: vec![ran(3)],
        ..JobState::default()
    };
    let events = [
        event(0, EventKind::Submitted),
        event(10, EventKind::Scheduled),
        event(20, EventKind::Completed),
    ];
    let spans = job_spans(&row(state), None, &events);
    assert_eq!(times(&spans)[4..], [("dispatch", 10, 12), ("run", 12, 15), ("exit", 15, 20)]);
}

#[test]
fn a_cancelled_pending_job_has_a_wait_and_no_run() {
    let state = JobState { status: JobStatus::Cancelled, ..JobState::default() };
    let events = [
        event(1, EventKind::Submitted),
        event(5, EventKind::Waiting),
        event(30, EventKind::CancelRequested),
        event(31, EventKind::Cancelled),
    ];
    let spans = job_spans(&row(state), None, &events);
    assert_eq!(
        times(&spans),
        [("job", 0, 31), ("submit", 0, 1), ("wait", 1, 31), ("exit", 31, 31)]
    );
    assert_eq!(spans[2].events.len(), 2);
    let without = JobRow { trace: None, ..row(JobState::default()) };
    assert_eq!(job_spans(&without, None, &events), Vec::new());
}
