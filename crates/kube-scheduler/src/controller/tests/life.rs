//! Phases, conditions and events of a workload.

use agentaflow_kube_core::crd::WorkloadPhase::{Failed, Pending, Running, Scheduled, Succeeded};
use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::{Cluster, exit};

#[test]
fn the_first_look_makes_the_pods_and_sets_every_condition() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.step();
    assert_eq!(cluster.workload.metadata.finalizers.as_deref(), Some(&[][..]));
    assert_eq!(cluster.names(), ["train-0", "train-1"]);
    assert_eq!(cluster.phase(), Some(Pending));
    assert_eq!(cluster.status_of("Schedulable"), "Unknown/Pending");
    assert_eq!(cluster.status_of("Assigned"), "False/Pending");
    assert_eq!(cluster.status_of("Ready"), "False/Pending");
    assert_eq!(cluster.condition("Ready").observed_generation, Some(1));
    assert_eq!(cluster.workload.status.observed_generation, Some(1));
    cluster.settle();
    assert_eq!(cluster.told, ["Created"]);
    assert_eq!(cluster.made, 2, "and they are made once");
}

#[test]
fn a_workload_goes_from_pending_to_succeeded() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Pending), "one of two has a place");
    cluster.bind("train-1", "node-b");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Scheduled));
    assert_eq!(cluster.status_of("Schedulable"), "True/Scheduled");
    assert_eq!(cluster.status_of("Ready"), "False/Starting");
    cluster.run("train-0");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Scheduled), "one of two runs");
    cluster.run("train-1");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
    assert_eq!(cluster.status_of("Ready"), "True/Running");
    let started = cluster.workload.status.start_time.clone();
    assert!(started.is_some());
    cluster.succeed("train-0");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running), "the other still runs");
    cluster.pass(60);
    cluster.succeed("train-1");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Succeeded));
    assert_eq!(cluster.status_of("Ready"), "False/Succeeded");
    assert_eq!(cluster.message(), "All 2 tasks completed.");
    assert_eq!(cluster.workload.status.start_time, started);
    assert!(cluster.workload.status.completion_time.is_some());
    assert_eq!(cluster.names(), ["train-0", "train-1"], "pods stay for their logs");
    assert_eq!(cluster.told, ["Created", "Scheduled", "Started", "Succeeded"]);
}

#[test]
fn the_failure_message_names_the_end_of_the_container() {
    let ended = |terminated: Value| json!({ "containerStatuses": [{ "name": "main", "state": { "terminated": terminated } }] });
    let table = [
        (exit(1), "The workload failed: container `main` exited with code 1."),
        (
            ended(json!({ "exitCode": 137, "reason": "OOMKilled" })),
            "The workload failed: container `main` ran out of memory (OOMKilled, exit code 137).",
        ),
        (
            ended(json!({ "exitCode": 139, "reason": "Error" })),
            "The workload failed: container `main` was ended by signal 11 (exit code 139).",
        ),
        (
            ended(json!({ "exitCode": 2, "reason": "Error", "message": "no data\n" })),
            "The workload failed: container `main` exited with code 2: no data.",
        ),
        (
            ended(json!({ "exitCode": 128, "reason": "StartError", "message": "exec" })),
            "The workload failed: container `main` exited with code 128, StartError: exec.",
        ),
        (
            json!({ "reason": "DeadlineExceeded" }),
            "The workload failed: ran longer than its activeDeadlineSeconds.",
        ),
        (json!({}), "The workload failed: ended without saying why."),
    ];
    for (status, message) in table {
        let mut cluster = Cluster::new(json!({}));
        cluster.settle();
        cluster.run("train-0");
        cluster.settle();
        cluster.fail("train-0", status);
        cluster.settle();
        assert_eq!(cluster.phase(), Some(Failed));
        assert_eq!(cluster.message(), message);
        assert_eq!(cluster.status_of("Ready"), "False/Failed");
        assert_eq!(cluster.names(), ["train-0"], "the pod stays for its logs");
    }
}

#[test]
fn a_failed_gang_holds_nothing_any_more() {
    let mut cluster = Cluster::new(json!({ "gangSize": 3 }));
    cluster.settle();
    (0..3).for_each(|task| cluster.run(&format!("train-{task}")));
    cluster.settle();
    cluster.crash("train-1");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Failed));
    assert_eq!(cluster.message(), "Task 1 failed: container `main` exited with code 1.");
    let stopping =
        |name: &str, cluster: &mut Cluster| cluster.pod(name).metadata.deletion_timestamp.is_some();
    assert!(stopping("train-0", &mut cluster) && stopping("train-2", &mut cluster));
    assert!(!stopping("train-1", &mut cluster));
}

#[test]
fn the_schedulers_word_is_the_condition_and_its_sentence_is_written_once() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.waits("NoRoom", "0 of 3 nodes have room.");
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "False/NoRoom");
    assert_eq!(cluster.message(), "0 of 3 nodes have room.");
    let since = cluster.condition("Schedulable").last_transition_time.clone();
    cluster.pass(60);
    cluster.waits("NoRoom", "0 of 4 nodes have room.");
    assert_eq!(cluster.look().status, None, "the same word is not worth a write");
    cluster.waits("QuotaExceeded", "The queue is full.");
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "False/QuotaExceeded");
    assert_eq!(cluster.message(), "The queue is full.");
    assert_eq!(cluster.condition("Schedulable").last_transition_time, since, "still False");
    cluster.view.reason = None;
    assert_eq!(cluster.look().status, None, "no news leaves the old news in place");
    cluster.bind("train-0", "node-a");
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "True/Scheduled");
    assert_ne!(cluster.condition("Schedulable").last_transition_time, since);
}

#[test]
fn a_container_that_cannot_start_is_reported_and_does_not_flap() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.bind("train-0", "node-a");
    let mut pull = |reason: &str, message: &str| {
        let waiting = json!({ "waiting": { "reason": reason, "message": message } });
        let status = json!({ "phase": "Pending", "containerStatuses": [{ "name": "main", "state": waiting }] });
        cluster.pod("train-0").status = serde_json::from_value(status).expect("a status");
        let wrote = cluster.look().status.is_some();
        cluster.settle();
        (wrote, cluster.status_of("Ready"), cluster.message().to_owned())
    };
    assert_eq!(pull("ContainerCreating", "").1, "False/Starting");
    let (_, says, message) = pull("ErrImagePull", "not found");
    assert_eq!(says, "False/ImagePullBackOff");
    assert_eq!(message, "Container `main` cannot start: not found");
    assert!(!pull("ImagePullBackOff", "backing off").0);
    assert_eq!(pull("not a / word", "").1, "False/Starting", "only words reach a condition");
}

#[test]
fn an_unreadable_spec_gets_a_condition_and_no_pods() {
    let table = [
        (json!({ "priority": "high" }), "InvalidSpec", "Cannot read"),
        (
            json!({ "gpuMemoryRequired": 1, "podTemplate": {}, "gangSize": 0 }),
            "InvalidSpec",
            "gangSize",
        ),
        (
            json!({ "gpuMemoryRequired": 1, "podTemplate": {} }),
            "InvalidTemplate",
            "podTemplate.spec.containers",
        ),
    ];
    for (spec, reason, part) in table {
        let mut cluster = Cluster::raw(&spec);
        cluster.settle();
        assert_eq!(cluster.status_of("Schedulable"), format!("False/{reason}"));
        assert!(cluster.message().contains(part), "{}", cluster.message());
        assert_eq!(cluster.phase(), Some(Pending));
        assert_eq!(cluster.workload.status.conditions.len(), 3);
        assert_eq!((cluster.made, cluster.told.as_slice()), (0, [reason].as_slice()));
    }
}

#[test]
fn a_corrected_workload_starts_and_a_later_invalid_spec_does_not_stop_it() {
    let mut cluster = Cluster::raw(&json!({ "gpuMemoryRequired": 1, "podTemplate": {} }));
    cluster.settle();
    cluster.workload.spec = Cluster::new(json!({})).workload.spec;
    cluster.workload.metadata.generation = Some(2);
    cluster.settle();
    assert_eq!(cluster.names(), ["train-0"]);
    assert_eq!(cluster.status_of("Schedulable"), "Unknown/Pending");
    cluster.run("train-0");
    cluster.settle();
    cluster.workload.spec = Cluster::raw(&json!({})).workload.spec;
    cluster.workload.metadata.generation = Some(3);
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
    assert_eq!(cluster.status_of("Schedulable"), "False/InvalidSpec");
    assert_eq!(cluster.names(), ["train-0"]);
}

#[test]
fn a_refused_pod_is_reported_and_retried_with_backoff() {
    let mut cluster = Cluster::new(json!({}));
    let mut waits = Vec::new();
    cluster.step();
    cluster.vanish("train-0");
    cluster.view.rejected = Some("exceeded quota".to_owned());
    for _ in 0..12 {
        let before = cluster.now;
        cluster.now = cluster.look().wake.expect("a time to try again");
        waits.push(cluster.now.duration_since(before).as_secs());
        let said = cluster.step();
        assert_eq!(said.create.len(), 1, "tried again");
        cluster.vanish("train-0");
        cluster.settle();
    }
    assert_eq!(cluster.status_of("Schedulable"), "False/PodRejected");
    assert!(cluster.message().ends_with("exceeded quota"), "{}", cluster.message());
    assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    assert_eq!(waits.last(), Some(&300));
    assert_eq!(cluster.told, ["Created", "PodRejected"]);
    cluster.workload.metadata.generation = Some(2);
    assert_eq!(cluster.look().create.len(), 1, "a changed workload is tried at once");
    cluster.view.rejected = None;
    cluster.wait();
    assert_eq!(cluster.status_of("Schedulable"), "Unknown/Pending");
}

#[test]
fn an_invalid_template_is_reported_once_even_after_a_refused_pod() {
    let mut cluster = Cluster::new(json!({}));
    cluster.step();
    cluster.vanish("train-0");
    cluster.view.rejected = Some("exceeded quota".to_owned());
    cluster.settle();
    cluster.workload.spec =
        Cluster::raw(&json!({ "gpuMemoryRequired": 1, "podTemplate": {} })).workload.spec;
    cluster.workload.metadata.generation = Some(2);
    cluster.pass(10);
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "False/InvalidTemplate");
    assert_eq!(cluster.told, ["Created", "PodRejected", "InvalidTemplate"]);
}

#[test]
fn the_finalizer_of_earlier_versions_is_removed_and_no_other_one() {
    let mut cluster = Cluster::new(json!({}));
    let both = vec!["example.com/keep".to_owned(), names::FINALIZER.to_owned()];
    cluster.workload.metadata.finalizers = Some(both);
    cluster.settle();
    let kept = cluster.workload.metadata.finalizers.as_deref();
    assert_eq!(kept, Some(&["example.com/keep".to_owned()][..]));
    assert_eq!(cluster.names(), ["train-0"], "its pods stay");
}

#[test]
fn a_workload_that_another_finalizer_keeps_stops_its_pods() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.settle();
    cluster.run("train-0");
    cluster.settle();
    cluster.workload.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(cluster.now));
    let said = cluster.step();
    assert_eq!(said.delete.len(), 2);
    assert_eq!((said.delete[0].why, said.delete[0].grace), ("WorkloadDeleted", None));
    assert_eq!(cluster.names(), ["train-0"], "it has its grace");
    let said = cluster.step();
    assert_eq!(said.delete.len(), 0);
    cluster.vanish("train-0");
    cluster.settle();
    assert_eq!(cluster.made, 2, "nothing is made again");
}

#[test]
fn deletion_needs_no_spec_that_can_be_read_and_takes_finished_pods_too() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.succeed("train-0");
    cluster.settle();
    cluster.workload.spec = Cluster::raw(&json!({})).workload.spec;
    cluster.workload.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(cluster.now));
    cluster.step();
    assert!(cluster.pods.is_empty());
}

#[test]
fn a_finished_workload_stays_finished() {
    for good in [true, false] {
        let mut cluster = Cluster::new(json!({}));
        cluster.settle();
        if good {
            cluster.succeed("train-0");
        } else {
            cluster.crash("train-0");
        }
        cluster.settle();
        let phase = cluster.phase();
        cluster.vanish("train-0");
        cluster.pass(10_000);
        cluster.settle();
        assert_eq!(cluster.phase(), phase);
        assert!(cluster.pods.is_empty(), "nothing is made again");
        cluster.workload.metadata.generation = Some(2);
        assert_eq!(cluster.look().status, None);
    }
}

#[test]
fn pods_of_other_owners_do_not_count_and_pods_of_a_deleted_namesake_end_first() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.workload.metadata.uid = Some("w-2".to_owned());
    cluster.workload.status = agentaflow_kube_core::crd::GpuWorkloadStatus::default();
    let said = cluster.look();
    assert_eq!((said.create.len(), said.delete.len()), (0, 0));
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "False/PredecessorEnding");
    let owner = cluster.pod("train-0").metadata.owner_references.as_mut().expect("an owner");
    owner[0].kind = "Job".to_owned();
    let said = cluster.look();
    assert_eq!((said.create.len(), said.delete.len()), (1, 0));
}

#[test]
fn pods_beyond_the_gang_or_without_a_task_are_removed() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.settle();
    let odd = cluster.pod("train-1");
    odd.metadata.labels.get_or_insert_default().insert(names::POD_TASK.to_owned(), "9".to_owned());
    let said = cluster.look();
    assert_eq!(
        said.delete.iter().map(|one| (one.name.as_str(), one.why)).collect::<Vec<_>>(),
        [("train-1", "Surplus")]
    );
}

#[test]
fn a_workload_that_is_completed_by_hand_succeeds_and_its_pods_stop() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.settle();
    (0..2).for_each(|task| cluster.run(&format!("train-{task}")));
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
    cluster.pass(60);
    complete(&mut cluster, "true");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Succeeded));
    assert_eq!(cluster.message(), "Completed by the user.");
    assert_eq!(cluster.status_of("Ready"), "False/Completed");
    let status = &cluster.workload.status;
    assert!(status.completion_time > status.start_time);
    for task in 0..2 {
        let pod = cluster.pod(&format!("train-{task}"));
        assert!(pod.metadata.deletion_timestamp.is_some(), "task {task}");
    }
    assert_eq!(cluster.told.last(), Some(&"Completed"));
}

#[test]
fn a_waiting_workload_that_is_completed_by_hand_leaves_no_pods() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    complete(&mut cluster, "yes, please");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Pending), "only `true` counts");
    complete(&mut cluster, "true");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Succeeded));
    assert_eq!(cluster.status_of("Schedulable"), "False/Completed");
    assert!(cluster.names().is_empty());
}

#[test]
fn a_failed_workload_stays_failed_when_the_user_completes_it() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    cluster.run("train-0");
    cluster.crash("train-0");
    cluster.settle();
    complete(&mut cluster, "true");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Failed));
}

fn complete(cluster: &mut Cluster, said: &str) {
    let annotations = cluster.workload.metadata.annotations.get_or_insert_default();
    annotations.insert(names::COMPLETE.to_owned(), said.to_owned());
}

#[test]
fn a_suspended_workload_gives_up_its_pods_and_goes_on_later() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2, "retries": 0 }));
    cluster.settle();
    assert_eq!(cluster.pods.len(), 2);
    let suspend = |cluster: &mut Cluster, on: bool| {
        if let Ok(spec) = &mut cluster.workload.spec.0 {
            spec.suspend = on;
        }
        *cluster.workload.metadata.generation.get_or_insert(0) += 1;
    };
    suspend(&mut cluster, true);
    cluster.step();
    cluster.pods.clear();
    cluster.settle();
    let status = &cluster.workload.status;
    assert_eq!(status.phase, Some(Pending));
    let suspended = |cluster: &Cluster| {
        let mut conditions = cluster.workload.status.conditions.iter();
        conditions.find(|one| one.type_ == "Suspended").map(|one| one.status.clone())
    };
    assert_eq!(suspended(&cluster).as_deref(), Some("True"));
    cluster.pass(3600);
    cluster.settle();
    assert!(cluster.pods.is_empty());
    suspend(&mut cluster, false);
    cluster.settle();
    assert_eq!(cluster.pods.len(), 2);
    assert_eq!(suspended(&cluster).as_deref(), Some("False"));
    assert_eq!(cluster.workload.status.retries, 0);
}

#[test]
fn a_finished_workload_is_deleted_after_its_time() {
    let mut cluster = Cluster::new(json!({ "ttlSecondsAfterFinished": 60 }));
    cluster.workload.status.phase = Some(Failed);
    let ended = cluster.now;
    cluster.workload.status.completion_time =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(ended));
    let seen = cluster.look();
    assert!(!seen.expired);
    assert_eq!(seen.wake.map(|wake| wake.duration_since(ended).as_secs()), Some(60));
    cluster.pass(61);
    assert!(cluster.look().expired);
    let mut kept = Cluster::new(json!({}));
    kept.workload.status.phase = Some(Succeeded);
    kept.workload.status.completion_time = cluster.workload.status.completion_time.clone();
    kept.pass(1_000_000);
    assert!(!kept.look().expired);
}

#[test]
fn the_service_of_a_gang_is_requested_with_its_pods() {
    let gang = Cluster::new(json!({ "gangSize": 2 }));
    let seen = gang.look();
    assert_eq!(seen.create.len(), 2);
    assert_eq!(seen.service.expect("a service")["metadata"]["ownerReferences"][0]["uid"], "w-1");
    assert_eq!(Cluster::new(json!({})).look().service, None);
}
