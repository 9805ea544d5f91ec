//! Tests of the conversion of workloads and pods.

use agentaflow_api::end::EndReason;
use agentaflow_api::job::JobStatus;
use agentaflow_api::{Dollars, Stamp};
use serde_json::{Value, json};

use super::{Pod, View, cost};

const NOW: &str = "2026-01-01T02:00:00Z";

fn view(everywhere: bool) -> View {
    let now: jiff::Timestamp = NOW.parse().unwrap();
    View { everywhere, now: Stamp(now.as_millisecond()) }
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn workload(status: Value) -> Value {
    json!({
        "metadata": {"name": "train", "namespace": "ml", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "gpuMemoryRequired": 8192,
            "gpuRequirements": {"gpuCount": 2},
            "priority": 7,
            "queue": "research",
            "gangSize": 2,
            "podTemplate": {"spec": {"containers": [
                {"name": "side", "image": "side"},
                {"name": "main", "image": "lab/train:v2", "command": ["python"], "args": ["train.py"],
                 "resources": {"limits": {"nvidia.com/gpu": "2"}}},
            ]}},
        },
        "status": status,
    })
}

#[expect(clippy::needless_pass_by_value, reason = "values are written where they are used")]
fn pod(task: u32, attempt: u32, status: Value) -> Value {
    json!({
        "metadata": {
            "name": format!("train-{task}-r{attempt}"),
            "labels": {"agentaflow.gpu/task": task.to_string(), "agentaflow.gpu/attempt": attempt.to_string()},
            "annotations": {"agentaflow.gpu/assigned-gpu": "n1/GPU-1,n1/GPU-2"},
        },
        "spec": {"nodeName": "n1"},
        "status": status,
    })
}

fn show(workload: Value, pods: Vec<Value>, everywhere: bool) -> agentaflow_api::job::Job {
    let workload = serde_json::from_value(workload).unwrap();
    let pods: Vec<Pod> = pods.into_iter().map(|pod| serde_json::from_value(pod).unwrap()).collect();
    view(everywhere).workload(&workload, &pods)
}

#[test]
fn phases_become_statuses() {
    for (phase, status) in [
        (json!(null), JobStatus::Pending),
        (json!("Pending"), JobStatus::Pending),
        (json!("Scheduled"), JobStatus::Scheduled),
        (json!("Running"), JobStatus::Running),
        (json!("Succeeded"), JobStatus::Completed),
        (json!("Failed"), JobStatus::Failed),
    ] {
        let job = show(workload(json!({"phase": phase})), vec![], false);
        assert_eq!(job.status, status, "{phase}");
        assert_eq!(job.handle(), "train");
    }
}

#[test]
fn a_running_workload_shows_its_image_node_and_cost() {
    let status = json!({
        "phase": "Running",
        "startTime": "2026-01-01T00:30:00Z",
        "pricePerHour": "4.00",
        "assignedNode": "n1",
        "assignedGPU": "n1/GPU-1,n1/GPU-2",
    });
    let old = pod(0, 0, json!({"phase": "Failed"}));
    let pods =
        vec![pod(0, 1, json!({"phase": "Running"})), old, pod(1, 1, json!({"phase": "Running"}))];
    let job = show(workload(status), pods, true);
    assert_eq!(job.handle(), "ml/train");
    assert_eq!(job.k8s_namespace.as_deref(), Some("ml"));
    assert_eq!(job.k8s_pod_name.as_deref(), Some("train-0-r1"));
    assert_eq!(job.spec.docker_image.as_deref(), Some("lab/train"));
    assert_eq!(job.spec.docker_tag.as_deref(), Some("v2"));
    assert_eq!(job.spec.command.as_ref().unwrap(), &["python", "train.py"]);
    assert_eq!((job.spec.gpu_count, job.spec.replicas), (Some(2), Some(2)));
    assert_eq!((job.spec.priority, job.spec.queue.as_deref()), (Some(7), Some("research")));
    assert_eq!(job.spec.gpu_memory_required, Some(8192));
    assert_eq!((job.tasks.len(), job.tasks[0].state.as_str()), (2, "running"));
    assert_eq!(job.tasks[0].gpus, ["GPU-1", "GPU-2"]);
    assert_eq!(job.duration_seconds, Some(5400.0));
    assert_eq!((job.price_per_hour, job.cost), (Some(Dollars(4_000_000)), Dollars(6_000_000)));
    assert_eq!((job.attempt, job.exit_code, job.end_reason), (2, None, None));
}

#[test]
fn a_waiting_workload_says_why_and_has_no_place() {
    let status = json!({"phase": "Pending", "conditions": [
        {"type": "Schedulable", "status": "False", "reason": "NoRoom", "message": "0/3 nodes fit",
         "lastTransitionTime": "2026-01-01T00:00:05Z"},
    ]});
    let mut object = workload(status);
    object["metadata"]["deletionTimestamp"] = json!(NOW);
    let job = show(object, vec![], false);
    assert_eq!(job.wait_reason.as_deref(), Some("0/3 nodes fit"));
    assert!(job.tasks.is_empty() && job.cancel_requested);
    assert_eq!((job.duration_seconds, job.cost), (None, Dollars(0)));
}

#[test]
fn a_failed_workload_shows_the_cause() {
    let status = json!({
        "phase": "Failed",
        "message": "It failed: container `main` ran out of memory.",
        "startTime": "2026-01-01T00:00:00Z",
        "completionTime": "2026-01-01T00:01:00Z",
    });
    let end = json!({"phase": "Failed", "containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    let job = show(workload(status), vec![pod(0, 0, end)], false);
    assert_eq!((job.exit_code, job.end_reason), (Some(137), Some(EndReason::OutOfMemory)));
    assert_eq!(
        job.error_message.as_deref(),
        Some("It failed: container `main` ran out of memory.")
    );
    assert_eq!((job.duration_seconds, job.tasks[0].exit_code), (Some(60.0), Some(137)));
}

#[test]
fn an_object_that_cannot_be_read_is_shown_by_its_name() {
    let job =
        show(json!({"metadata": {"name": "odd", "namespace": "ml"}, "spec": 7}), vec![], false);
    assert_eq!((job.handle().as_str(), job.status), ("odd", JobStatus::Pending));
}

#[test]
fn a_pod_of_its_own_is_a_job_too() {
    let whole = json!({
        "metadata": {
            "name": "one", "namespace": "ml", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"agentaflow.gpu/price-per-hour": "2.50"},
        },
        "spec": {"nodeName": "n1", "priority": -2, "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]},
        "status": {"phase": "Succeeded", "startTime": "2026-01-01T01:00:00Z", "containerStatuses": [
            {"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T01:30:00Z"}}}]},
    });
    let slim = serde_json::from_value(whole.clone()).unwrap();
    let job = view(false).pod(&slim, &whole["spec"]);
    assert_eq!((job.handle().as_str(), job.status), ("pod/one", JobStatus::Completed));
    assert_eq!(job.spec.mig_profile.as_deref(), Some("1g.5gb"));
    assert_eq!((job.spec.priority, job.exit_code), (Some(-2), Some(0)));
    assert_eq!((job.duration_seconds, job.cost), (Some(1800.0), Dollars(1_250_000)));
    let waits = json!({
        "metadata": {"name": "two"}, "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "no room"}]},
    });
    let slim = serde_json::from_value(waits.clone()).unwrap();
    let job = view(true).pod(&slim, &waits["spec"]);
    assert_eq!((job.status, job.wait_reason.as_deref()), (JobStatus::Pending, Some("no room")));
}

#[test]
fn costs_are_rounded_half_to_even() {
    for (price, ms, expected) in [
        (1, 1_800_000, 0),
        (3, 1_800_000, 2),
        (2_000_000, 3_600_000, 2_000_000),
        (i64::MAX, i64::MAX, i64::MAX),
    ] {
        assert_eq!(cost(Dollars(price), ms), Dollars(expected), "{price} {ms}");
    }
}
