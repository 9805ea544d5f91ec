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
fn what_a_pod_says_before_it_runs_is_waited_for_or_told_as_whose_fault_it_is() {
    let waits = |reason: &str| {
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
        (json!({"phase": "Pending"}), "waits"),
        (waits("ContainerCreating"), "waits"),
        (waits("ErrImagePull"), "waits"),
        (unscheduled, "no room: 0/1 nodes"),
        (
            waits("ImagePullBackOff"),
            "job ImagePull: The image `a/b:1` could not be pulled: because",
        ),
        (
            waits("InvalidImageName"),
            "job ImagePull: The image `a/b:1` could not be pulled: because",
        ),
        (
            waits("CreateContainerError"),
            "job StartFailed: The container could not be started: because",
        ),
        (
            refused,
            "node: its pod failed before it ran (OutOfnvidia.com/gpu): Node didn't have enough",
        ),
        (start, "job StartFailed: The container could not be started: no x"),
        (running, "began 1794736800000"),
        (
            terminated("Succeeded", &json!({"exitCode": 0, "startedAt": "2026-11-15T10:00:00Z"})),
            "began 1794736800000",
        ),
    ];
    for (status, expected) in table {
        let told = match stage(None, Some(&pod(&status))) {
            Stage::Waits(_) => "waits".to_owned(),
            Stage::NoRoom(why) => format!("no room: {why}"),
            Stage::Failed(StartError::Job(failure)) => {
                format!("job {}: {}", failure.reason, failure.detail)
            }
            Stage::Failed(StartError::Node(why)) => format!("node: {why}"),
            Stage::Began(at) => format!("began {}", at.0),
        };
        assert_eq!(told, expected, "{status}");
    }
}

#[test]
fn how_a_container_ended_is_told_as_of_any_other_runtime() {
    let end = |code: i32, reason: &str| {
        let times = ("2026-11-15T10:00:00Z", "2026-11-15T10:00:42Z");
        let end = json!({"exitCode": code, "reason": reason, "startedAt": times.0, "finishedAt": times.1});
        exit(&pod(&terminated("Failed", &end)), None).unwrap()
    };
    let fine = end(0, "Completed");
    assert_eq!((fine.code, fine.signal, fine.ran), (Some(0), None, Duration::from_secs(42)));
    assert_eq!(fine.started_at, Some(Stamp(1_794_736_800_000)));
    let killed = end(137, "OOMKilled");
    assert_eq!((killed.code, killed.signal, killed.out_of_memory), (Some(137), Some(9), true));
    assert_eq!((end(3, "Error").code, end(255, "Error").signal), (Some(3), None));
    assert_eq!(exit(&pod(&json!({"phase": "Running"})), None), None);
    let signal = exit(&pod(&terminated("Failed", &json!({"exitCode": 0, "signal": 15}))), None);
    assert_eq!(signal.unwrap().code, Some(143));
}

#[test]
fn what_kubernetes_took_away_runs_again_and_what_ended_well_before_does_not() {
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
fn a_pod_that_somebody_deletes_runs_again_and_one_that_we_deleted_does_not() {
    let end = json!({"exitCode": 143, "reason": "Error", "finishedAt": "2126-01-01T00:00:00Z"});
    let mut deleted = pod(&terminated("Failed", &end));
    deleted.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(exit(&deleted, None).unwrap().stopped, Some(StopCause::Drained));
    let stopped = Stopped::now(StopCause::Cancelled, Duration::ZERO);
    assert_eq!(exit(&deleted, Some(stopped)).unwrap().stopped, Some(StopCause::Cancelled));
}

#[test]
fn a_stop_that_came_after_the_end_did_not_stop_it() {
    let stopped = Stopped::now(StopCause::Cancelled, Duration::ZERO);
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
fn a_result_is_what_the_container_left_and_not_what_the_kubelet_says_of_it() {
    let said = |reason: &str| {
        let end = json!({"exitCode": 0, "reason": reason, "message": "{\"loss\": 1}"});
        result(&pod(&terminated("Succeeded", &end))).map(str::to_owned)
    };
    assert_eq!(said("Completed").as_deref(), Some("{\"loss\": 1}"));
    assert_eq!(said("StartError"), None);
}
