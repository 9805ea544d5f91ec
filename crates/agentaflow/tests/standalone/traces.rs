//! Traces of jobs and metrics of GPUs, as a receiver of OTLP gets them.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};
use crate::receiver::{Received, Receiver};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn attribute<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    let list = object["attributes"].as_array()?;
    list.iter().find(|pair| pair["key"] == name)?["value"].as_object()?.values().next()
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found = spans.iter().find(|span| span["name"] == name);
    found.unwrap_or_else(|| panic!("no span `{name}` in {spans:#?}"))
}

fn nanoseconds(span: &Value, field: &str) -> u64 {
    span[field].as_str().unwrap().parse().unwrap()
}

/// Spans that the receiver accepted, each id once.
fn accepted_spans(receiver: &Receiver) -> Vec<Value> {
    let mut spans: Vec<Value> = Vec::new();
    let accepted = |one: &Received| one.path == "/v1/traces" && one.status == Some(200);
    for export in receiver.received().into_iter().filter(accepted) {
        let list = &export.body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        for span in list.as_array().expect("spans") {
            if spans.iter().all(|known| known["spanId"] != span["spanId"]) {
                spans.push(span.clone());
            }
        }
    }
    spans
}

/// Spans of the job with this number, once they have been exported.
fn spans_of(receiver: &Receiver, job: i64) -> Vec<Value> {
    eventually("the trace", SOON, || {
        let spans = accepted_spans(receiver);
        let root = spans
            .iter()
            .find(|span| attribute(span, "agentaflow.job.id") == Some(&json!(job.to_string())))?;
        let (trace, root_id) = (root["traceId"].clone(), root["spanId"].clone());
        let belongs = |span: &&Value| {
            span["traceId"] == trace
                && (span["spanId"] == root_id || span["parentSpanId"] == root_id)
        };
        Some(spans.iter().filter(belongs).cloned().collect())
    })
}

#[test]
fn a_trace_shows_each_step_of_a_job_from_submission_to_exit() {
    let receiver = Receiver::start(Some(200));
    let cluster = Cluster::up(&["--otlp-endpoint", &receiver.url("")]);
    // Holds both GPUs, so that the next job waits.
    let first = cluster.submit("sleep 1", json!({"gpu_count": 2}));
    let mut command = cluster.cli(&["submit", "--gpus", "2", "--", "sh", "-c"]);
    command.arg("echo parent=$TRACEPARENT; exit 3");
    command.env("TRACEPARENT", format!("00-{TRACE}-{CALLER}-01"));
    let submitted = command.output().unwrap();
    assert!(submitted.status.success(), "{submitted:?}");
    let job = first + 1;
    cluster.wait_for_status(job, "failed");
    let spans = spans_of(&receiver, job);
    let root = named(&spans, "job");
    assert_eq!((&root["traceId"], &root["parentSpanId"]), (&json!(TRACE), &json!(CALLER)));
    assert_eq!(root["status"]["code"], 2);
    assert_eq!(attribute(root, "process.exit.code"), Some(&json!("3")));
    assert_eq!(attribute(root, "agentaflow.user"), Some(&json!("admin")));
    let mut end = nanoseconds(root, "startTimeUnixNano");
    for name in ["submit", "wait", "decision", "dispatch", "run", "exit"] {
        let span = named(&spans, name);
        assert_eq!(span["parentSpanId"], root["spanId"], "{name}");
        assert!(nanoseconds(span, "startTimeUnixNano") >= end, "{name} begins before {end}");
        end = nanoseconds(span, "endTimeUnixNano");
    }
    assert!(nanoseconds(root, "endTimeUnixNano") >= end);
    let wait = named(&spans, "wait");
    let reasons = wait["events"].as_array().unwrap();
    assert!(reasons.iter().any(|event| event["name"] == "Waiting"), "{wait:#}");
    assert!(attribute(&reasons[0], "agentaflow.pending.reason").is_some(), "{wait:#}");
    // The process continues the trace below its run, and the API names the trace.
    let run = named(&spans, "run")["spanId"].as_str().unwrap();
    let expected = format!("parent=00-{TRACE}-{run}-01");
    assert!(cluster.logs(job).contains(&expected), "{} lacks {expected}", cluster.logs(job));
    assert_eq!(cluster.job(job)["trace_id"], TRACE);
    assert_ne!(cluster.job(first)["trace_id"], TRACE);
}

#[test]
fn a_trace_survives_kills_of_the_server_and_outages_of_the_receiver() {
    let receiver = Receiver::start(Some(200));
    receiver.answer_with(503);
    let mut cluster = Cluster::up(&["--otlp-endpoint", &receiver.url("")]);
    let job = cluster.submit("true", json!({}));
    cluster.wait_for_status(job, "completed");
    cluster.server.signal(Signal::KILL);
    cluster.server.wait(SOON);
    cluster.restart_server();
    assert!(accepted_spans(&receiver).is_empty());
    receiver.answer_with(200);
    let spans = spans_of(&receiver, job);
    assert_eq!(named(&spans, "job")["status"]["code"], 1);
}

#[test]
fn logs_of_server_and_agent_name_the_trace_of_the_job() {
    let environment = vec![("LOG_LEVEL".to_owned(), "debug".to_owned())];
    let cluster = Cluster::up_with(&["--log-format", "json"], environment);
    let job = cluster.submit("true", json!({}));
    cluster.wait_for_status(job, "completed");
    let trace = cluster.job(job)["trace_id"].clone();
    let line_with = |message: &str, pointer: &str| {
        let output = cluster.server.output();
        let lines = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut found = lines.filter(|line| line["fields"]["message"] == message);
        found.any(|line| line.pointer(pointer) == Some(&trace)).then_some(())
    };
    eventually("the agent's line", SOON, || line_with("task ended", "/span/trace_id"));
    for message in ["job submitted", "job ended"] {
        eventually(message, SOON, || line_with(message, "/fields/trace_id"));
    }
}

#[test]
fn gpu_metrics_have_the_names_of_opentelemetry() {
    let receiver = Receiver::start(Some(200));
    let environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), receiver.url("")),
        ("OTEL_EXPORTER_OTLP_HEADERS".to_owned(), "authorization=Bearer hidden".to_owned()),
    ];
    let cluster = Cluster::up_with(&[], environment);
    let export = eventually("metrics", SOON, || {
        receiver.received().into_iter().find(|export| export.path == "/v1/metrics")
    });
    assert!(export.head.contains("authorization: bearer hidden"), "{}", export.head);
    let resource = &export.body["resourceMetrics"][0];
    assert_eq!(attribute(&resource["resource"], "service.name"), Some(&json!("agentaflow-agent")));
    let metrics = resource["scopeMetrics"][0]["metrics"].as_array().unwrap();
    for name in ["hw.gpu.utilization", "hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.status"] {
        let metric = metrics.iter().find(|metric| metric["name"] == name);
        let metric = metric.unwrap_or_else(|| panic!("no {name} in {metrics:#?}"));
        let data = metric.get("gauge").or(metric.get("sum")).unwrap();
        let points = data["dataPoints"].as_array().unwrap();
        assert_eq!(attribute(&points[0], "hw.type"), Some(&json!("gpu")), "{name}");
    }
    assert!(!cluster.server.output().contains("hidden"));
}
