//! Gangs under a quota of their namespace.

use agentaflow_kube_core::names;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::fake_server::{Kind, uid};
use super::harness::{Harness, SPACE};
use super::objects::{group, node, pod, with, workload};
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

/// Reason of the condition `Schedulable`.
fn reason_of(harness: &Harness, name: &str) -> Value {
    let object = harness.server.get(Kind::Workload, &Key::new("ns", name)).expect("the workload");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut schedulable = conditions.into_iter().filter(|one| one["type"] == "Schedulable");
    schedulable.next().map(|one| one["reason"].clone()).unwrap_or_default()
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

#[test]
fn the_gang_with_the_highest_priority_class_has_the_first_turn() {
    let class = json!({"metadata": {"name": "production"}, "value": 100_000});
    for pods_exist in [true, false] {
        let mut harness = Harness::new();
        harness.server.quota = Some(6);
        harness.put(Kind::Node, node("n", 64));
        harness.put(Kind::Priority, class.clone());
        harness.put(Kind::Workload, with(workload("w0", 6, 0), "spec|priority", json!(10)));
        let pointer = "spec|podTemplate|spec|priorityClassName";
        harness.put(Kind::Workload, with(workload("w1", 6, 0), pointer, json!("production")));
        if pods_exist {
            share_quota(&mut harness);
        } else {
            // Another pod uses the quota up before either gang has pods.
            harness.server.quota = Some(0);
            harness.settle();
            harness.server.quota = Some(6);
        }
        for _ in 0..20 {
            harness.settle();
            harness.pass(1000);
        }
        assert_eq!(running(&harness, 2), ["w1"], "pods exist: {pods_exist}");
    }
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
    assert_eq!(reason_of(&harness, "w0"), "WaitingForQuota");
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

/// The Job controller deletes the pods of suspended jobs, and creates pods of resumed jobs in turn while the quota lasts.
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
                    let labels = job["spec"]["template"]["metadata"]["labels"].clone();
                    let labels = if labels.is_null() { json!({}) } else { labels };
                    let mut made = json!({"metadata": {"labels": labels, "annotations": {}}});
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

/// A Job that is not suspended, whose pods belong to a pod group.
fn put_grouped_job(harness: &mut Harness, name: &str, pods: u32) {
    harness.put(Kind::PodGroup, group(name, pods));
    let job = with(job(name, pods), "spec|suspend", json!(false));
    let labels = json!({names::POD_GROUP: name});
    harness.put(Kind::Job, with(job, "spec|template|metadata", json!({"labels": labels})));
}

fn is_suspended(harness: &Harness, name: &str) -> bool {
    let job = harness.server.get(Kind::Job, &Key::new(SPACE, name)).expect("the job");
    job["spec"]["suspend"] == true
}

#[test]
fn of_two_jobs_of_pod_groups_with_quota_for_one_each_runs_in_turn() {
    let mut harness = jobs(6, &[]);
    for name in ["j0", "j1"] {
        put_grouped_job(&mut harness, name, 6);
    }
    let mut order = Vec::new();
    for second in 0..600 {
        harness.settle();
        control_jobs(&mut harness);
        harness.settle();
        harness.kubelets();
        if second == 50 {
            assert_eq!(harness.server.all(Kind::Pod).count(), 6, "each job has a part");
            assert!(!is_suspended(&harness, "j0") && !is_suspended(&harness, "j1"));
        }
        order.extend(finish_running_jobs(&mut harness));
        harness.pass(1000);
    }
    assert_eq!(order.len(), 2, "{order:?}");
}

#[test]
fn a_job_of_a_pod_group_that_waits_for_its_user_is_not_suspended() {
    let mut harness = jobs(3, &[]);
    put_grouped_job(&mut harness, "j0", 6);
    for _ in 0..30 {
        harness.settle();
        control_jobs(&mut harness);
        harness.pass(10_000);
    }
    assert!(!is_suspended(&harness, "j0"), "no other gang lacks pods");
}

#[test]
fn a_new_leader_resumes_a_job_that_waits_for_its_turn() {
    let mut harness = jobs(6, &[]);
    for name in ["j0", "j1"] {
        put_grouped_job(&mut harness, name, 6);
    }
    for _ in 0..70 {
        harness.settle();
        control_jobs(&mut harness);
        harness.pass(1000);
    }
    let waits: Vec<&str> =
        ["j0", "j1"].into_iter().filter(|name| is_suspended(&harness, name)).collect();
    assert!(!waits.is_empty());
    harness.crash();
    harness.server.quota = None;
    for _ in 0..5 {
        harness.settle();
        control_jobs(&mut harness);
        harness.pass(1000);
    }
    assert!(!waits.into_iter().any(|name| is_suspended(&harness, name)));
}

#[test]
fn a_gang_and_a_job_with_quota_for_one_run_in_turn() {
    let mut harness = jobs(6, &[6]);
    harness.server.quota = Some(3);
    harness.settle();
    // The quota admits the first three pods of the job, and then three pods of the gang.
    control_jobs(&mut harness);
    harness.server.quota = Some(6);
    harness.put(Kind::Workload, workload("w0", 6, 0));
    for _ in 0..5 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(harness.server.all(Kind::Pod).count(), 3, "the gang gives its pods back");
    assert_eq!(reason_of(&harness, "w0"), "WaitingForQuota");
    control_jobs(&mut harness);
    harness.settle();
    assert_eq!(finish_running_jobs(&mut harness), ["j0"]);
    for _ in 0..5 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 1), ["w0"]);
}

#[test]
fn a_job_is_not_resumed_in_the_turn_of_a_gang() {
    let mut harness = jobs(6, &[]);
    harness.put(Kind::Pod, pod("uses-quota", 1));
    harness.put(Kind::Workload, workload("w0", 6, 0));
    for _ in 0..2 {
        harness.settle();
        harness.pass(500);
    }
    harness.put(Kind::Job, job("j0", 6));
    harness.settle();
    assert!(is_suspended(&harness, "j0"));
    harness.end("uses-quota", "Succeeded");
    for _ in 0..5 {
        harness.settle();
        harness.pass(1000);
    }
    assert_eq!(running(&harness, 1), ["w0"]);
    assert!(!is_suspended(&harness, "j0"), "no gang needs a turn any more");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_job_and_gang_within_the_quota_runs_in_the_end(
        quota in 2..8_usize,
        job_sizes in prop::collection::vec(1..9_u32, 1..4),
        gang_sizes in prop::collection::vec(1..9_u32, 0..3),
        group_sizes in prop::collection::vec(2..9_u32, 0..3),
    ) {
        let mut harness = jobs(quota, &job_sizes);
        for (number, size) in group_sizes.iter().enumerate() {
            put_grouped_job(&mut harness, &format!("g{number}"), *size);
        }
        for (number, size) in gang_sizes.iter().enumerate() {
            harness.put(Kind::Workload, workload(&format!("w{number}"), *size, 0));
        }
        let sizes = job_sizes.iter().chain(&gang_sizes).chain(&group_sizes);
        let wanted = sizes.filter(|size| **size as usize <= quota).count();
        let (mut jobs_done, mut gangs_done) = (0, std::collections::BTreeSet::new());
        for _ in 0..1200 {
            harness.settle();
            control_jobs(&mut harness);
            harness.settle();
            harness.kubelets();
            jobs_done += finish_running_jobs(&mut harness).len();
            for name in running(&harness, gang_sizes.len()) {
                finish(&mut harness, &name);
                gangs_done.insert(name);
            }
            if jobs_done + gangs_done.len() == wanted {
                break;
            }
            harness.pass(3000);
        }
        prop_assert_eq!(jobs_done + gangs_done.len(), wanted, "{} {:?}", jobs_done, gangs_done);
    }

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
