//! Spans of one ended pod.
//!
//! `pod` is the root; `wait` (with the reasons as events), `decision`, `dispatch` (until the kubelet has the pod), `start`
//! (image and sandbox), `run` and `exit` are below it. Times of the kubelet are whole seconds, so a span may have no length.

use agentaflow_api::trace::{TraceContext, TraceId};
use agentaflow_api::units::Stamp;
use agentaflow_kube_core::names::{POD_WORKLOAD, TRACEPARENT};
use agentaflow_otlp::{Attribute, Span, SpanEvent, SpanStatus};
use agentaflow_units::hash64;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A decision of this scheduler about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Pending { at: Stamp, reason: &'static str, message: String },
    Bound { at: Stamp, node: String },
}

/// Spans of a pod that ended at `observed` at the latest; none if the pod has no valid uid.
pub(super) fn pod_spans(pod: &Pod, moments: &[Moment], observed: Stamp) -> Vec<Span> {
    let Some(trace) = trace_of(pod) else { return Vec::new() };
    let number = hash64(pod.metadata.uid.as_deref().unwrap_or_default().as_bytes());
    let created = pod.metadata.creation_timestamp.as_ref().map_or(observed, stamp);
    let mut times = Times { at: created };
    let bound = times.next(bound_at(pod, moments));
    let accepted =
        times.next(pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(stamp));
    let ends = terminations(pod);
    let started =
        times.next(ends.iter().filter_map(|end| end.started_at.as_ref()).map(stamp).min());
    let finished =
        times.next(ends.iter().filter_map(|end| end.finished_at.as_ref()).map(stamp).max());
    let ended = times.next(Some(observed)).unwrap_or(created);
    let mut root = root(pod, trace.trace_id, number, created, ended);
    root.parent = trace.parent;
    let step = |name, from: Option<Stamp>, to: Option<Stamp>| {
        let span = Span::new(trace.trace_id, name, number, from?, to?);
        Some(span.child_of(root.span_id))
    };
    let mut wait = step("wait", Some(created), bound.or(Some(ended)));
    if let Some(wait) = &mut wait {
        wait.events = moments.iter().filter_map(pending).collect();
    }
    let decision = step("decision", bound, bound).map(|span| decision(span, moments));
    let mut run = step("run", started, finished);
    if let Some(run) = &mut run {
        run.status = root.status.clone();
    }
    let steps = [
        wait,
        decision,
        step("dispatch", bound, accepted),
        step("start", accepted, started),
        run,
        step("exit", finished, Some(ended)),
    ];
    std::iter::once(root.clone()).chain(steps.into_iter().flatten()).collect()
}

/// Keeps times in order: clocks of kubelet, API server and scheduler differ, and some times are rounded down.
struct Times {
    at: Stamp,
}

impl Times {
    fn next(&mut self, at: Option<Stamp>) -> Option<Stamp> {
        let at = at?.max(self.at);
        self.at = at;
        Some(at)
    }
}

/// Trace of the annotation, else one with the id of the nearest object that a user created: the workload or the job of the
/// pod, or the pod itself.
fn trace_of(pod: &Pod) -> Option<TraceContext> {
    let annotations = pod.metadata.annotations.as_ref();
    let given = annotations.and_then(|all| all.get(TRACEPARENT)?.parse().ok());
    given.or_else(|| {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true)).map(|owner| &*owner.uid);
        let trace_id = trace_id(owner.or(pod.metadata.uid.as_deref())?)?;
        Some(TraceContext { trace_id, parent: None })
    })
}

/// A uid has as many bits as the id of a trace.
fn trace_id(uid: &str) -> Option<TraceId> {
    uid.replace('-', "").to_ascii_lowercase().parse().ok()
}

fn bound_at(pod: &Pod, moments: &[Moment]) -> Option<Stamp> {
    let decided = moments.iter().rev().find_map(|moment| match moment {
        Moment::Bound { at, .. } => Some(*at),
        Moment::Pending { .. } => None,
    });
    decided.or_else(|| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let scheduled = conditions
            .iter()
            .find(|condition| condition.type_ == "PodScheduled" && condition.status == "True")?;
        scheduled.last_transition_time.as_ref().map(stamp)
    })
}

fn terminations(pod: &Pod) -> Vec<&ContainerStateTerminated> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter_map(|container| container.state.as_ref()?.terminated.as_ref()).collect()
}

fn pending(moment: &Moment) -> Option<SpanEvent> {
    let Moment::Pending { at, reason, message } = moment else { return None };
    let attributes = vec![
        Attribute::new("agentaflow.pending.reason", *reason),
        Attribute::new("message", message.as_str()),
    ];
    Some(SpanEvent { at: *at, name: "Pending".to_owned(), attributes })
}

fn decision(span: Span, moments: &[Moment]) -> Span {
    let node = moments.iter().rev().find_map(|moment| match moment {
        Moment::Bound { node, .. } => Some(node.as_str()),
        Moment::Pending { .. } => None,
    });
    match node {
        Some(node) => span.with("k8s.node.name", node),
        None => span,
    }
}

fn root(pod: &Pod, trace: TraceId, number: u64, start: Stamp, end: Stamp) -> Span {
    let mut span = Span::new(trace, "pod", number, start, end);
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let labels = pod.metadata.labels.as_ref();
    let texts = [
        ("k8s.namespace.name", pod.metadata.namespace.as_deref()),
        ("k8s.pod.name", pod.metadata.name.as_deref()),
        ("k8s.pod.uid", pod.metadata.uid.as_deref()),
        ("k8s.node.name", pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref())),
        ("k8s.pod.phase", phase),
        (
            "agentaflow.workload",
            labels.and_then(|labels| labels.get(POD_WORKLOAD)).map(String::as_str),
        ),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            span = span.with(name, text);
        }
    }
    let failed = terminations(pod).into_iter().find(|end| end.exit_code != 0);
    if let Some(end) = failed.or_else(|| terminations(pod).into_iter().next()) {
        span = span.with("process.exit.code", i64::from(end.exit_code));
    }
    span.status = match phase {
        Some("Succeeded") => SpanStatus::Ok,
        Some("Failed") => SpanStatus::Error(failure(pod, failed)),
        _ => SpanStatus::Unset,
    };
    span
}

fn failure(pod: &Pod, failed: Option<&ContainerStateTerminated>) -> String {
    let status = pod.status.as_ref();
    let of_pod = status.and_then(|status| status.message.clone().or_else(|| status.reason.clone()));
    of_pod
        .or_else(|| failed.and_then(|end| end.message.clone().or_else(|| end.reason.clone())))
        .unwrap_or_default()
}

fn stamp(time: &Time) -> Stamp {
    Stamp(time.0.as_millisecond())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736";

    fn ended(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "train-0", "namespace": "team", "uid": "00000000-0000-4000-8000-000000000001",
                "creationTimestamp": "2026-11-19T10:00:00Z",
                "ownerReferences": [{"apiVersion": "agentaflow.io/v1", "kind": "GPUWorkload",
                    "name": "train", "uid": UID, "controller": true}],
            },
            "spec": {"nodeName": "gpu-1", "containers": []},
            "status": status,
        }))
        .unwrap()
    }

    fn seconds(spans: &[Span]) -> Vec<(&'static str, i64, i64)> {
        let start = spans[0].start.0;
        let since = |at: Stamp| (at.0 - start) / 1000;
        spans.iter().map(|span| (span.name, since(span.start), since(span.end))).collect()
    }

    #[test]
    fn a_pod_has_the_steps_of_its_life_in_the_trace_of_its_workload() {
        let pod = ended(&json!({
            "phase": "Failed",
            "startTime": "2026-11-19T10:00:05Z",
            "containerStatuses": [{"name": "main", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                "state": {"terminated": {"exitCode": 3, "reason": "Error",
                    "startedAt": "2026-11-19T10:00:09Z", "finishedAt": "2026-11-19T10:00:29Z"}}}],
        }));
        let created = stamp(pod.metadata.creation_timestamp.as_ref().unwrap());
        let after = |seconds: i64| Stamp(created.0 + seconds * 1000);
        let moments = [
            Moment::Pending {
                at: after(1),
                reason: "Unschedulable",
                message: "0/1 nodes fit".to_owned(),
            },
            Moment::Bound { at: after(4), node: "gpu-1".to_owned() },
        ];
        let spans = pod_spans(&pod, &moments, after(30));
        assert_eq!(
            seconds(&spans),
            [
                ("pod", 0, 30),
                ("wait", 0, 4),
                ("decision", 4, 4),
                ("dispatch", 4, 5),
                ("start", 5, 9),
                ("run", 9, 29),
                ("exit", 29, 30),
            ]
        );
        assert_eq!(spans[0].trace_id.to_string(), UID.replace('-', ""));
        assert_eq!(spans[0].status, SpanStatus::Error("Error".to_owned()));
        assert_eq!(spans[1].events.len(), 1);
        assert!(spans[1..].iter().all(|span| span.parent == Some(spans[0].span_id)));
    }

    #[test]
    fn an_annotation_continues_another_trace() {
        let mut pod = ended(&json!({"phase": "Succeeded"}));
        let parent = "00-aaf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        pod.metadata.annotations = Some([(TRACEPARENT.to_owned(), parent.to_owned())].into());
        let spans = pod_spans(&pod, &[], Stamp(0));
        assert_eq!(spans[0].trace_id.to_string(), "aaf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(spans[0].parent.unwrap().to_string(), "00f067aa0ba902b7");
    }
}
