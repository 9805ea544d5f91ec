//! Retries, and pods lost by the cluster.

use agentaflow_kube_core::crd::WorkloadPhase::{Failed, Pending, Running, Succeeded};
use serde_json::{Value, json};

use super::{Cluster, exit};

fn running(more: Value, names: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(more);
    cluster.settle();
    for name in names {
        cluster.run(name);
    }
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
    cluster
}

#[test]
fn a_failed_pod_is_replaced_with_growing_backoff_until_the_retries_are_spent() {
    let mut cluster = running(json!({ "retries": 7 }), &["train-0"]);
    let mut waits = Vec::new();
    for retry in 1..=7 {
        let name = cluster.names().pop().expect("a pod");
        cluster.crash(&name);
        cluster.settle();
        assert_eq!(cluster.workload.status.retries, retry);
        assert_eq!(cluster.phase(), Some(Pending));
        assert_eq!(cluster.status_of("Ready"), "False/Retrying");
        assert_eq!(cluster.status_of("Schedulable"), "False/BackOff");
        let before = cluster.now;
        cluster.wait();
        waits.push(cluster.now.duration_since(before).as_secs());
        let next = format!("train-0-r{retry}");
        assert_eq!(cluster.names(), [name, next.clone()], "the last failed pod stays for its logs");
        cluster.run(&next);
        cluster.settle();
        assert_eq!(cluster.phase(), Some(Running));
    }
    let tens: Vec<i64> = waits.iter().map(|wait| wait - wait % 10).collect();
    assert_eq!(tens, [10, 20, 40, 80, 160, 300, 300]);
    cluster.crash("train-0-r7");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Failed));
    assert_eq!(
        cluster.message(),
        "The workload failed after 7 retries: container `main` exited with code 1."
    );
    assert_eq!(cluster.names(), ["train-0-r7"]);
    assert_eq!(cluster.told.iter().filter(|reason| **reason == "Retrying").count(), 7);
}

#[test]
fn success_after_a_retry_removes_the_failed_pod() {
    let mut cluster = running(json!({ "retries": 1 }), &["train-0"]);
    cluster.crash("train-0");
    cluster.settle();
    cluster.wait();
    cluster.succeed("train-0-r1");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Succeeded));
    assert_eq!(cluster.names(), ["train-0-r1"]);
}

#[test]
fn a_failed_member_restarts_the_whole_gang() {
    let mut cluster =
        running(json!({ "gangSize": 3, "retries": 1 }), &["train-0", "train-1", "train-2"]);
    cluster.succeed("train-2");
    cluster.settle();
    cluster.crash("train-1");
    cluster.settle();
    assert!(cluster.pod("train-0").metadata.deletion_timestamp.is_some(), "it is stopped");
    cluster.pass(15);
    cluster.settle();
    let begun = cluster.names().into_iter().any(|name| name.ends_with("-r1"));
    assert!(!begun, "not while a pod of the old round may run: {:?}", cluster.names());
    cluster.fail("train-0", exit(143));
    cluster.settle();
    cluster.vanish("train-0");
    cluster.settle();
    while cluster.look().wake.is_some() {
        cluster.wait();
    }
    assert_eq!(cluster.workload.status.retries, 1, "the others' ends are consequences");
    assert_eq!(cluster.names(), ["train-0-r1", "train-1", "train-1-r1", "train-2-r1"]);
    for name in ["train-0-r1", "train-1-r1", "train-2-r1"] {
        cluster.run(name);
    }
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
}

#[test]
fn pods_lost_through_no_fault_of_their_own_cost_no_retry() {
    let disrupted = json!({
        "conditions": [{ "type": "DisruptionTarget", "status": "True" }],
        "containerStatuses": exit(143)["containerStatuses"],
    });
    let evicted = "The node was low on resource: memory.";
    let full = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.";
    let mut ran = exit(137);
    ran["reason"] = "NodeLost".into();
    let mut odd = exit(1);
    odd["reason"] = "SomethingElse".into();
    let table = [
        (disrupted, true),
        (json!({ "reason": "Evicted", "message": evicted }), true),
        (json!({ "reason": "Evicted", "message": full }), false),
        (json!({ "reason": "Preempting" }), true),
        (json!({ "reason": "UnexpectedAdmissionError" }), true),
        (json!({ "reason": "OutOfcpu" }), true),
        (json!({ "reason": "OutOfnvidia.com/gpu" }), true),
        (json!({ "reason": "NodeAffinity" }), true),
        (json!({ "reason": "Terminated" }), true),
        (json!({ "reason": "SomeNewAdmissionPlugin" }), true),
        (ran, true),
        (odd, false),
        (json!({ "reason": "DeadlineExceeded" }), false),
        (json!({ "conditions": [{ "type": "DisruptionTarget", "status": "False" }] }), false),
        (exit(1), false),
    ];
    for (status, lost) in table {
        let mut cluster = running(json!({ "retries": 1 }), &["train-0"]);
        cluster.pass(5);
        cluster.fail("train-0", status.clone());
        cluster.settle();
        assert_eq!(cluster.workload.status.retries, u32::from(!lost), "{status}");
        if lost {
            assert_eq!(cluster.names(), ["train-0-r1"], "{status}");
            assert_eq!(cluster.told.last(), Some(&"Rescheduling"), "{status}");
            assert_eq!(cluster.phase(), Some(Pending));
        }
    }
}

#[test]
fn a_deleted_pod_is_replaced_when_it_is_gone() {
    let mut cluster = running(json!({}), &["train-0"]);
    cluster.pass(5);
    cluster.stop("train-0");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Pending));
    assert_eq!(cluster.status_of("Ready"), "False/Rescheduling");
    cluster.fail("train-0", exit(143));
    cluster.pod("train-0").metadata.deletion_timestamp.as_ref().expect("still being deleted");
    cluster.settle();
    assert_eq!(cluster.workload.status.retries, 0, "a stopped task is not a failure");
    cluster.vanish("train-0");
    cluster.settle();
    assert_eq!(
        cluster.pods.iter().filter(|pod| !crate::controller::task_pod::finished(pod)).count(),
        1
    );
}

#[test]
fn a_pod_on_a_node_that_never_answers_is_replaced_when_it_is_overdue() {
    let mut cluster = running(json!({ "gangSize": 2 }), &["train-0", "train-1"]);
    cluster.pass(60);
    cluster.stop("train-1");
    cluster.settle();
    assert_eq!(cluster.names(), ["train-0", "train-1"]);
    let before = cluster.now;
    cluster.wait();
    assert_eq!(cluster.now.duration_since(before).as_secs(), 60, "30 s of grace, 30 s overdue");
    assert_eq!(cluster.names(), ["train-0", "train-1", "train-1-r1"]);
    assert!(cluster.pod("train-0").metadata.deletion_timestamp.is_none(), "the rest runs on");
    cluster.run("train-1-r1");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Running));
}

#[test]
fn repeated_losses_are_replaced_with_backoff() {
    let mut cluster = Cluster::new(json!({}));
    cluster.settle();
    let mut waits = Vec::new();
    for _ in 0..12 {
        let name = cluster.names().pop().expect("a pod");
        cluster.fail(&name, json!({ "reason": "UnexpectedAdmissionError" }));
        cluster.settle();
        let before = cluster.now;
        cluster.wait();
        waits.push(cluster.now.duration_since(before).as_secs());
        assert_eq!(cluster.pods.len(), 1, "{:?}", cluster.names());
    }
    assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    assert_eq!((waits[0], waits[11]), (2, 300), "{waits:?}");
    assert_eq!(cluster.workload.status.retries, 0);
    let name = cluster.names().pop().expect("a pod");
    cluster.run(&name);
    cluster.pass(3_600);
    cluster.settle();
    cluster.fail(&name, json!({ "reason": "NodeLost" }));
    cluster.settle();
    assert_ne!(cluster.names(), [name], "what ran long is replaced at once");
    let until = &cluster.workload.status.back_off.as_ref().expect("a wait").until;
    assert!(until.0.duration_since(cluster.now).as_secs() < 5, "and starts over");
}

#[test]
fn a_backoff_written_by_a_clock_in_the_future_is_ignored() {
    const DAY: i64 = 86_400;
    let mut cluster = running(json!({ "retries": 1 }), &["train-0"]);
    cluster.pass(DAY);
    cluster.crash("train-0");
    cluster.settle();
    assert_eq!(cluster.status_of("Schedulable"), "False/BackOff");
    cluster.pass(-DAY);
    cluster.settle();
    assert_eq!(cluster.names(), ["train-0", "train-0-r1"]);
}

#[test]
fn a_pod_that_is_not_seen_yet_is_not_made_under_another_name() {
    let mut cluster = Cluster::new(json!({ "gangSize": 2 }));
    cluster.step();
    let unseen: Vec<_> = cluster.pods.drain(..).collect();
    assert!(cluster.look().create.is_empty(), "a moment's patience");
    cluster.pass(10);
    let names: Vec<String> = cluster.look().create.into_iter().map(|pod| pod.name).collect();
    assert_eq!(names, ["train-0", "train-1"], "the API server refuses what exists");
    cluster.pods = unseen;
    cluster.settle();
    assert_eq!(cluster.made, 2);
}

#[test]
fn of_two_pods_for_one_task_the_one_that_came_further_stays() {
    let mut cluster = running(json!({}), &["train-0"]);
    let mut double = cluster.pods[0].clone();
    double.metadata.name = Some("train-0-r1".to_owned());
    double.metadata.uid = Some("p-9".to_owned());
    double.status.phase = Some("Pending".to_owned());
    double
        .metadata
        .labels
        .get_or_insert_default()
        .insert(agentaflow_kube_core::names::POD_ATTEMPT.to_owned(), "1".to_owned());
    cluster.pods.push(double);
    let said = cluster.look();
    assert_eq!(
        said.delete.iter().map(|one| (one.name.as_str(), one.why)).collect::<Vec<_>>(),
        [("train-0-r1", "Duplicate")]
    );
}

#[test]
fn a_finished_member_of_a_gang_is_not_done_again_when_its_pod_is_cleaned_away() {
    let mut cluster = running(json!({ "gangSize": 3 }), &["train-0", "train-1", "train-2"]);
    cluster.succeed("train-0");
    cluster.succeed("train-1");
    cluster.settle();
    assert_eq!(cluster.workload.status.completed_tasks.as_deref(), Some("0-1"));
    cluster.vanish("train-0");
    cluster.pass(60);
    cluster.settle();
    assert_eq!(cluster.names(), ["train-1", "train-2"]);
    cluster.succeed("train-2");
    cluster.settle();
    assert_eq!(cluster.phase(), Some(Succeeded));
}

#[test]
fn a_status_that_was_never_written_spends_no_retry_twice() {
    let mut cluster = running(json!({ "retries": 3 }), &["train-0"]);
    cluster.crash("train-0");
    let before = cluster.workload.status.clone();
    cluster.settle();
    cluster.wait();
    cluster.workload.status = before;
    cluster.settle();
    assert_eq!(cluster.workload.status.retries, 1, "the pods remember");
    assert_eq!(cluster.names(), ["train-0", "train-0-r1"]);
}

#[test]
fn a_large_gang_is_created_in_batches_with_one_event() {
    let mut cluster = Cluster::new(json!({ "gangSize": 1_200 }));
    let said = cluster.step();
    assert_eq!(said.create.len(), 500);
    assert!(said.wake.is_some(), "the rest follows soon");
    cluster.settle();
    assert_eq!((cluster.made, cluster.pods.len()), (1_200, 1_200));
    assert_eq!(cluster.told, ["Created"]);
}

#[test]
fn pods_of_a_large_template_are_made_a_few_at_a_time() {
    let argument = "x".repeat(100 << 10);
    let template = json!({ "spec": { "containers": [{ "name": "main", "args": [argument] }] } });
    let mut cluster = Cluster::new(json!({ "gangSize": 100, "podTemplate": template }));
    assert_eq!(cluster.step().create.len(), 40, "four megabytes");
    cluster.settle();
    assert_eq!(cluster.pods.len(), 100);
}
