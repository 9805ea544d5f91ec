use std::time::Duration;

use serde_json::{Value, json};

use super::*;

fn pod(status: &Value) -> Pod {
    let spec = json!({"containers": [{"name": "worker", "image": "a/b:1"}]});
    serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
}

fn container(state: &Value) -> Value {
    json!([{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

fn terminated(phase: &str, end: &Value) -> Value {
    json!({"phase": phase, "containerStatuses": container(&json!({"terminated": end}))})
}

#[test]
fn the_start_state_distinguishes_pending_pods_and_faults_of_job_and_node() {
    let waiting = |reason: &str| {
        let state = json!({"waiting": {"reason": reason, "message": "because"}});
        json!({"phase": "Pending", "containerStatuses": container(&state)})
    };
    let unscheduled = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
    ]});
    let refused = json!({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough"});
    let start =
        terminated("Failed", &json!({"exitCode": 128, "reason": "StartError", "message": "no x"}));
    let running = json!({"running": {"startedAt": "2026-11-15T10:00:00Z"}});
    let running = json!({"phase": "Running", "containerStatuses": container(&running)});
    let table = [
        (json!({"phase": "Pending"}), "pending"),
        (waiting("ContainerCreating"), "pending"),
        (waiting("ErrImagePull"), "pending"),
        (unscheduled, "unschedulable: 0/1 nodes"),
        (waiting("ImagePullBackOff"), "job: ImagePull"),
        (waiting("InvalidImageName"), "job: ImagePull"),
        (waiting("CreateContainerError"), "job: StartFailed"),
        (refused, "node"),
        (start, "job: StartFailed"),
        (running, "started 1794736800000"),
        (
            terminated("Succeeded", &json!({"exitCode": 0, "startedAt": "2026-11-15T10:00:00Z"})),
            "started 1794736800000",
        ),
    ];
    for (status, expected) in table {
        let found = match start_state(None, Some(&pod(&status))) {
            StartState::Pending(_) => "pending".to_owned(),
            StartState::Unschedulable(message) => format!("unschedulable: {message}"),
            StartState::Failed(StartError::Job(failure)) => format!("job: {}", failure.reason),
            StartState::Failed(StartError::Node(_)) => "node".to_owned(),
            StartState::Started(at) => format!("started {}", at.0),
        };
        assert_eq!(found, expected, "{status}");
    }
}

#[test]
fn exit_code_signal_and_times_come_from_the_terminated_container() {
    let end = |code: i32, reason: &str| {
        let times = ("2026-11-15T10:00:00Z", "2026-11-15T10:00:42Z");
        let end = json!({"exitCode": code, "reason": reason, "startedAt": times.0, "finishedAt": times.1});
        exit(&pod(&terminated("Failed", &end)), None).unwrap()
    };
    let fine = end(0, "Completed");
    assert_eq!((fine.code, fine.signal, fine.ran), (Some(0), None, Some(Duration::from_secs(42))));
    assert_eq!(fine.started_at, Some(Stamp(1_794_736_800_000)));
    let back = json!({"exitCode": 0, "reason": "Completed", "startedAt": "2026-11-15T10:00:42Z",
        "finishedAt": "2026-11-15T10:00:00Z"});
    assert_eq!(exit(&pod(&terminated("Succeeded", &back)), None).unwrap().ran, None);
    let killed = end(137, "OOMKilled");
    assert_eq!((killed.code, killed.signal, killed.out_of_memory), (Some(137), Some(9), true));
    assert_eq!((end(3, "Error").code, end(255, "Error").signal), (Some(3), None));
    assert_eq!(exit(&pod(&json!({"phase": "Running"})), None), None);
    let signal = exit(&pod(&terminated("Failed", &json!({"exitCode": 0, "signal": 15}))), None);
    assert_eq!(signal.unwrap().code, Some(143));
}

#[test]
fn a_disrupted_pod_has_a_stop_cause_unless_it_succeeded() {
    let table = [
        (json!({"phase": "Failed", "reason": "Evicted"}), Some(StopCause::Drained)),
        (json!({"phase": "Failed", "reason": "NodeShutdown"}), Some(StopCause::LeaseLost)),
        (json!({"phase": "Failed", "reason": "Preempting"}), Some(StopCause::Preempted)),
        (json!({"phase": "Failed"}), Some(StopCause::LeaseLost)),
        (terminated("Failed", &json!({"exitCode": 1, "startedAt": "2026-11-15T10:00:00Z"})), None),
    ];
    for (status, cause) in table {
        assert_eq!(exit(&pod(&status), None).unwrap().stopped, cause, "{status}");
    }
    let target =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]);
    for (code, cause) in [(143, Some(StopCause::Drained)), (0, None)] {
        let mut status = terminated("Failed", &json!({"exitCode": code}));
        status["conditions"] = target.clone();
        assert_eq!(exit(&pod(&status), None).unwrap().stopped, cause, "{code}");
    }
}

#[test]
fn a_pod_deleted_by_a_user_counts_as_drained_and_a_pod_deleted_by_the_agent_does_not() {
    let end = json!({"exitCode": 143, "reason": "Error", "finishedAt": "2126-01-01T00:00:00Z"});
    let mut deleted = pod(&terminated("Failed", &end));
    deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(exit(&deleted, None).unwrap().stopped, Some(StopCause::Drained));
    let stopped = StopRecord::now(StopCause::Cancelled, Duration::ZERO);
    assert_eq!(exit(&deleted, Some(stopped)).unwrap().stopped, Some(StopCause::Cancelled));
}

#[test]
fn a_stop_after_the_end_does_not_count() {
    let stopped = StopRecord::now(StopCause::Cancelled, Duration::ZERO);
    let end = |finished: Stamp| {
        let finished = finished.to_string();
        let end =
            json!({"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": finished});
        exit(&pod(&terminated("Succeeded", &end)), Some(stopped)).unwrap().stopped
    };
    assert_eq!(end(Stamp(stopped.at.0 - 5000)), None);
    assert_eq!(end(Stamp(stopped.at.0 + 5000)), Some(StopCause::Cancelled));
}

#[test]
fn a_message_of_the_kubelet_is_not_a_result() {
    let result_with = |reason: &str| {
        let end = json!({"exitCode": 0, "reason": reason, "message": "{\"loss\": 1}"});
        result(&pod(&terminated("Succeeded", &end))).map(str::to_owned)
    };
    assert_eq!(result_with("Completed").as_deref(), Some("{\"loss\": 1}"));
    assert_eq!(result_with("StartError"), None);
}
