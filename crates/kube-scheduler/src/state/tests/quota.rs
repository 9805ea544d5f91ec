//! Gangs under a quota of their namespace.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fake_server::{Kind, uid};
use super::harness::{Harness, SPACE};
use super::objects::{node, pod, workload};
use crate::state::{Action, Key};

fn gangs(quota: usize, sizes: &[u32]) -> Harness {
    let mut harness = Harness::new();
    harness.server.quota = Some(quota);
    harness.put(Kind::Node, node("n", 64));
    for (number, size) in sizes.iter().enumerate() {
        harness.put(Kind::Workload, workload(&format!("w{number}"), *size, 0));
    }
    harness
}

fn running(harness: &Harness, gangs: usize) -> Vec<String> {
    let name = |number: usize| format!("w{number}");
    let phase = |name: &String| {
        let found = harness.server.get(Kind::Workload, &Key::new("ns", name));
        found.and_then(|found| found["status"]["phase"].as_str().map(str::to_owned))
    };
    let placed = |name: &String| matches!(phase(name).as_deref(), Some("Scheduled" | "Running"));
    (0..gangs).map(name).filter(placed).collect()
}

/// Ends the pods of a gang.
fn finish(harness: &mut Harness, name: &str) {
    let owned = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == name;
    let pods: Vec<Key> =
        harness.server.all(Kind::Pod).filter(owned).map(super::fake_server::key).collect();
    for pod in pods {
        harness.end(&pod.name, "Succeeded");
    }
}

#[test]
fn of_two_gangs_with_quota_for_one_each_runs_in_turn() {
    let mut harness = gangs(6, &[6, 6]);
    share_quota(&mut harness);
    for _ in 0..10 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 2), ["w0"], "the older gang by name");
    finish(&mut harness, "w0");
    for _ in 0..10 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 2), ["w1"]);
}

/// Both gangs create pods at once, and each gets a part of the quota.
fn share_quota(harness: &mut Harness) {
    harness.tell_all();
    harness.step();
    let creates = std::mem::take(&mut harness.acts).into_iter();
    let (mut first, mut second): (Vec<_>, Vec<_>) = creates
        .partition(|act| matches!(act, Action::Create { workload, .. } if *workload.name == *"w0"));
    while !(first.is_empty() && second.is_empty()) {
        harness.acts.extend(first.pop());
        harness.acts.extend(second.pop());
    }
    while harness.carry_out() {}
    assert_eq!(harness.server.all(Kind::Pod).count(), 6);
    while harness.answer() {}
}

#[test]
fn the_last_pod_given_back_starts_the_gang_whose_turn_it_is() {
    let mut harness = gangs(6, &[6, 6]);
    share_quota(&mut harness);
    let mut late = Vec::new();
    for _ in 0..10 {
        harness.tell_all();
        harness.step();
        let acts = std::mem::take(&mut harness.acts).into_iter();
        let (deletions, acts): (Vec<_>, Vec<_>) =
            acts.partition(|act| matches!(act, Action::Delete { .. }));
        late.extend(deletions);
        harness.acts.extend(acts);
        while harness.carry_out() {}
        while harness.answer() {}
        harness.pass(1000);
    }
    assert!(!late.is_empty(), "the second gang gives its pods back");
    harness.acts.extend(late);
    harness.settle();
    assert_eq!(running(&harness, 2), ["w0"]);
}

#[test]
fn a_gang_larger_than_the_quota_does_not_block_other_gangs() {
    let mut harness = gangs(6, &[8, 4, 2]);
    for _ in 0..120 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 3), ["w1", "w2"]);
    let object = harness.server.get(Kind::Workload, &Key::new("ns", "w0")).expect("w0");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let reason =
        conditions.iter().find(|one| one["type"] == "Schedulable").map(|one| &one["reason"]);
    assert_eq!(reason, Some(&json!("WaitingForQuota")));
    assert_eq!(harness.server.all(Kind::Pod).count(), 6, "the large gang keeps no pods");
}

#[test]
fn a_policy_that_denies_pods_takes_no_pods_from_other_gangs() {
    let mut harness = gangs(8, &[4, 4]);
    harness.server.denied.insert("w0".to_owned());
    for _ in 0..20 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 2), ["w1"]);
    assert!(!harness.take_actions().iter().any(|action| action.starts_with("delete")));
}

#[test]
fn a_pod_that_does_not_end_keeps_no_gang_waiting() {
    let mut harness = gangs(6, &[6, 6]);
    share_quota(&mut harness);
    // A finalizer of another controller keeps one pod, which the quota does not count any more.
    harness.server.finalized.insert(Key::new("ns", "w1-5"));
    for _ in 0..60 {
        harness.settle();
        harness.pass(1000);
    }
    assert!(harness.server.get(Kind::Pod, &Key::new("ns", "w1-5")).is_some());
    assert_eq!(running(&harness, 2), ["w0"]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_gang_within_the_quota_runs_in_the_end(
        quota in 2..8_usize, sizes in prop::collection::vec(1..9_u32, 1..5),
    ) {
        let mut harness = gangs(quota, &sizes);
        let wanted = sizes.iter().filter(|size| **size as usize <= quota).count();
        let mut done: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
        for _ in 0..1500 {
            harness.settle();
            for name in running(&harness, sizes.len()) {
                finish(&mut harness, &name);
                done.insert(name);
            }
            if done.len() == wanted {
                break;
            }
            harness.pass(1000);
        }
        prop_assert_eq!(done.len(), wanted, "{:?}", done);
    }
}

/// A Job with pods of one GPU each.
fn job(name: &str, pods: u32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": SPACE, "annotations": {}},
        "spec": {"suspend": true, "parallelism": pods, "completions": pods,
            "template": {"spec": pod("", 1)["spec"]}},
    })
}

fn jobs(quota: usize, sizes: &[u32]) -> Harness {
    let mut harness = Harness::new();
    harness.units = true;
    harness.crash();
    harness.server.quota = Some(quota);
    harness.put(Kind::Node, node("n", 64));
    for (number, size) in sizes.iter().enumerate() {
        harness.put(Kind::Job, job(&format!("j{number}"), *size));
    }
    harness
}

/// The Job controller deletes the pods of suspended jobs, and creates those of resumed jobs in turn while the quota lasts.
fn control_jobs(harness: &mut Harness) {
    let jobs: Vec<Value> = harness.server.all(Kind::Job).cloned().collect();
    for number in 0..8 {
        for job in &jobs {
            let name = job["metadata"]["name"].as_str().expect("a name");
            let key = Key::new(SPACE, &format!("{name}-{number}"));
            let exists = harness.server.get(Kind::Pod, &key).is_some();
            let wanted = number < job["spec"]["parallelism"].as_u64().unwrap_or(0)
                && job["status"]["conditions"].is_null();
            match (job["spec"]["suspend"] == true, exists) {
                (true, true) => harness.delete(&key.name),
                (false, false) if wanted && !harness.server.is_full() => {
                    let mut made = json!({"metadata": {"labels": {}, "annotations": {}}});
                    made["spec"] = job["spec"]["template"]["spec"].clone();
                    made["metadata"]["name"] = json!(&*key.name);
                    made["metadata"]["namespace"] = json!(SPACE);
                    made["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1",
                        "kind": "Job", "name": name, "uid": uid(job), "controller": true}]);
                    harness.put(Kind::Pod, made);
                }
                _ => {}
            }
        }
    }
}

/// Ends the jobs whose pods all have a node; returns their names.
fn finish_running_jobs(harness: &mut Harness) -> Vec<String> {
    let jobs: Vec<Value> = harness.server.all(Kind::Job).cloned().collect();
    let mut ended = Vec::new();
    for job in jobs.iter().filter(|job| job["status"]["conditions"].is_null()) {
        let name = job["metadata"]["name"].as_str().expect("a name");
        let pods = (0..job["spec"]["parallelism"].as_u64().unwrap_or(0))
            .map(|pod| format!("{name}-{pod}"));
        let pods: Vec<String> = pods.collect();
        if pods.iter().all(|pod| harness.node_of(pod).is_some()) {
            for pod in &pods {
                harness.end(pod, "Succeeded");
            }
            harness.server.change(Kind::Job, &Key::new(SPACE, name), |job| {
                job["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
            });
            ended.push(name.to_owned());
        }
    }
    ended
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_job_within_the_quota_runs_in_the_end(
        quota in 2..8_usize, sizes in prop::collection::vec(1..9_u32, 1..5),
    ) {
        let mut harness = jobs(quota, &sizes);
        let wanted = sizes.iter().filter(|size| **size as usize <= quota).count();
        let mut done = 0;
        for _ in 0..600 {
            harness.settle();
            control_jobs(&mut harness);
            harness.settle();
            harness.kubelets();
            done += finish_running_jobs(&mut harness).len();
            if done == wanted {
                break;
            }
            harness.pass(5000);
        }
        prop_assert_eq!(done, wanted);
    }
}
