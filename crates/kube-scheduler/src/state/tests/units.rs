//! Jobs as units.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::{Kind, uid};
use super::harness::{Harness, SPACE};
use super::objects::{node, pod, queue, with};
use crate::state::{Key, Settings};

/// A harness whose state watches jobs.
fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.units = true;
    harness.crash();
    harness
}

/// A Job with pods of two GPUs each.
fn job(name: &str, pods: u32) -> Value {
    let template = json!({"metadata": {"labels": {"job-name": name}}, "spec": pod("", 2)["spec"]});
    json!({
        "metadata": {"name": name, "namespace": SPACE, "annotations": {}},
        "spec": {"suspend": true, "parallelism": pods, "completions": pods, "template": template},
    })
}

fn weighted(name: &str, pods: u32, priority: u8) -> Value {
    let value = names::priority_class_value(priority);
    with(job(name, pods), "spec|template|spec|priority", json!(value))
}

fn is_suspended(harness: &Harness, name: &str) -> bool {
    let job = harness.server.get(Kind::Job, &Key::new(SPACE, name)).expect("a job");
    job["spec"]["suspend"] == true
}

fn pending_reason(harness: &Harness, name: &str) -> Option<String> {
    let job = harness.server.get(Kind::Job, &Key::new(SPACE, name)).expect("a job");
    job["metadata"]["annotations"][names::UNIT_REASON].as_str().map(str::to_owned)
}

/// The Job controller: creates the pods of resumed Jobs, deletes the pods of suspended Jobs.
fn controller(harness: &mut Harness) {
    let jobs: Vec<Value> = harness.server.all(Kind::Job).cloned().collect();
    for job in jobs {
        let name = job["metadata"]["name"].as_str().expect("a name").to_owned();
        for number in 0..job["spec"]["parallelism"].as_u64().unwrap_or(1) {
            let pod_name = format!("{name}-{number}");
            let exists = harness.server.get(Kind::Pod, &Key::new(SPACE, &pod_name)).is_some();
            match (job["spec"]["suspend"] == true, exists) {
                (false, false) => create(harness, &job, "Job", &pod_name),
                (true, true) => harness.delete(&pod_name),
                _ => {}
            }
        }
    }
}

fn create(harness: &mut Harness, owner: &Value, kind: &str, name: &str) {
    let mut made = owner["spec"]["template"].clone();
    made["metadata"]["name"] = json!(name);
    made["metadata"]["namespace"] = json!(SPACE);
    let plain = made["metadata"]["labels"]["plain"] == "true";
    made["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": kind,
        "name": owner["metadata"]["name"], "uid": uid(owner), "controller": true}]);
    if !plain {
        // Controllers add labels, admission adds tolerations.
        made["metadata"]["labels"]["index"] = json!(name);
        made["spec"]["tolerations"] = json!([{"key": names::GPU_RESOURCE, "operator": "Exists"}]);
    }
    harness.put(Kind::Pod, made);
}

/// Lets scheduler, Job controller and kubelets work until nothing changes.
fn run(harness: &mut Harness) {
    for _ in 0..6 {
        harness.settle();
        controller(harness);
        harness.kubelets();
    }
    harness.settle();
}

fn nodes_of<'a>(harness: &'a Harness, job: &str, pods: u32) -> Vec<Option<&'a str>> {
    (0..pods).map(|number| harness.node_of(&format!("{job}-{number}"))).collect()
}

fn complete(harness: &mut Harness, name: &str) {
    for number in 0..8 {
        harness.end(&format!("{name}-{number}"), "Succeeded");
    }
    harness.server.change(Kind::Job, &Key::new(SPACE, name), |job| {
        job["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    });
}

#[test]
fn a_suspended_job_is_resumed_when_all_its_pods_have_a_place() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    harness.check_settled(&["resume train"]);
    assert_eq!(harness.reason("train"), None);
    // Its places are kept for it, and no other job gets them.
    harness.put(Kind::Job, job("late", 1));
    harness.check_settled(&[]);
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
    assert!(is_suspended(&harness, "late"));
}

#[test]
fn of_two_jobs_one_runs_whole_and_the_other_stays_suspended_with_a_reason() {
    let mut harness = harness();
    for name in ["n", "m"] {
        harness.put(Kind::Node, node(name, 4));
    }
    harness.put(Kind::Job, job("a", 4));
    harness.pass(1000);
    harness.put(Kind::Job, job("b", 4));
    run(&mut harness);
    assert!(nodes_of(&harness, "a", 4).iter().all(Option::is_some));
    assert!(is_suspended(&harness, "b"));
    assert_eq!(harness.reason("b").as_deref(), Some("GangIncomplete"));
    assert!(pending_reason(&harness, "b").is_some_and(|text| text.contains("gang")));
    let told = |line: &&String| line.starts_with("Job b FailedScheduling");
    assert_eq!(harness.notes.iter().filter(told).count(), 1, "{:?}", harness.notes);
    complete(&mut harness, "a");
    run(&mut harness);
    assert!(nodes_of(&harness, "b", 4).iter().all(Option::is_some));
    assert_eq!(pending_reason(&harness, "b"), None);
}

#[test]
fn no_pod_is_bound_before_all_pods_exist() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 2));
    harness.settle();
    let owner = harness.server.get(Kind::Job, &Key::new(SPACE, "train")).expect("a job").clone();
    create(&mut harness, &owner, "Job", "train-0");
    harness.settle();
    assert_eq!(harness.node_of("train-0"), None);
    create(&mut harness, &owner, "Job", "train-1");
    harness.settle();
    assert_eq!(nodes_of(&harness, "train", 2), [Some("n"); 2]);
}

#[test]
fn a_job_that_can_never_fit_stays_suspended() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    let big = pod("", 16)["spec"].clone();
    for (name, pods, reason) in [("one", 1, "NeverFits"), ("two", 2, "GangIncomplete")] {
        harness.put(Kind::Job, with(job(name, pods), "spec|template|spec", big.clone()));
        run(&mut harness);
        assert!(is_suspended(&harness, name));
        assert_eq!(harness.reason(name).as_deref(), Some(reason));
        let told = harness.notes.iter().find(|note| note.starts_with(&format!("Job {name} ")));
        assert!(told.is_some_and(|note| note.contains("empty")), "{told:?}");
    }
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
}

#[test]
fn a_preempted_job_is_suspended_whole_and_starts_again_later() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, weighted("low", 4, 1));
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "low", 4), [Some("n"); 4]);
    harness.take_actions();
    harness.put(Kind::Job, weighted("high", 2, 9));
    run(&mut harness);
    let actions = harness.take_actions();
    assert!(actions.contains(&"suspend low".to_owned()), "{actions:?}");
    assert!(!actions.iter().any(|action| action.starts_with("evict")), "{actions:?}");
    assert!(is_suspended(&harness, "low"));
    assert_eq!(nodes_of(&harness, "high", 2), [Some("n"); 2]);
    assert_eq!(harness.reason("low").as_deref(), Some("GangIncomplete"));
    complete(&mut harness, "high");
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "low", 4), [Some("n"); 4]);
}

#[test]
fn places_of_a_job_without_all_its_pods_can_be_preempted() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Job, weighted("low", 2, 1));
    harness.check_settled(&["resume low"]);
    let owner = harness.server.get(Kind::Job, &Key::new(SPACE, "low")).expect("a job").clone();
    create(&mut harness, &owner, "Job", "low-0");
    harness.settle();
    harness.put(Kind::Job, weighted("high", 2, 9));
    run(&mut harness);
    assert!(is_suspended(&harness, "low"));
    assert_eq!(nodes_of(&harness, "high", 2), [Some("n"); 2]);
    complete(&mut harness, "high");
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "low", 2), [Some("n"); 2]);
}

#[test]
fn a_job_that_gives_up_an_index_runs_on_without_it() {
    for (limit, waits) in [(Value::Null, true), (json!(1), false)] {
        let mut harness = harness();
        harness.put(Kind::Node, node("n", 4));
        let mut sweep = job("sweep", 2);
        if !limit.is_null() {
            sweep["spec"]["backoffLimitPerIndex"] = limit;
        }
        harness.put(Kind::Job, sweep);
        run(&mut harness);
        harness.end("sweep-0", "Failed");
        harness.settle();
        // Nothing replaces the pod: a gang that waits for it restarts in the end.
        harness.pass(3_600_000);
        harness.settle();
        let actions = harness.take_actions();
        assert_eq!(actions.contains(&"suspend sweep".to_owned()), waits);
        assert!(!stops_pods(&actions), "{actions:?}");
    }
}

/// Deletes or evicts pods itself, which the controller of a job counts as their failure.
fn stops_pods(actions: &[String]) -> bool {
    actions.iter().any(|action| action.starts_with("delete") || action.starts_with("evict"))
}

fn cordon(harness: &mut Harness, node: &str, on: bool) {
    harness.server.change(Kind::Node, &Key::new("", node), |node| {
        node["spec"]["unschedulable"] = json!(on);
    });
    harness.settle();
}

#[test]
fn a_job_whose_lost_pod_finds_no_room_is_suspended_whole_and_starts_again() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    run(&mut harness);
    cordon(&mut harness, "n", true);
    harness.delete("train-0");
    run(&mut harness);
    assert_eq!(harness.node_of("train-0"), None);
    assert_eq!(harness.reason("train").as_deref(), Some("WaitingForReplacement"));
    harness.take_actions();
    harness.pass(301_000);
    run(&mut harness);
    let actions = harness.take_actions();
    assert!(actions.contains(&"suspend train".to_owned()), "{actions:?}");
    assert!(!stops_pods(&actions), "{actions:?}");
    assert!(harness.notes.iter().any(|note| note.starts_with("Job train GangRestarted")));
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
    assert!(is_suspended(&harness, "train"));
    cordon(&mut harness, "n", false);
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
}

#[test]
fn a_gang_whose_job_cannot_be_suspended_is_evicted() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Job, job("train", 2));
    run(&mut harness);
    cordon(&mut harness, "n", true);
    harness.delete("train-0");
    run(&mut harness);
    harness.server.guarded.insert(Key::new(SPACE, "train"));
    harness.take_actions();
    harness.pass(301_000);
    harness.settle();
    let actions = harness.take_actions();
    assert!(actions.contains(&"evict train-1".to_owned()), "{actions:?}");
}

#[test]
fn a_job_with_a_failed_binding_is_suspended_and_backs_off() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    harness.check_settled(&["resume train"]);
    controller(&mut harness);
    harness.tell_all();
    harness.step();
    while harness.answer() {}
    while !harness.acts.iter().any(|act| matches!(act, crate::state::Action::Bind(_))) {
        harness.carry_out();
        while harness.answer() {}
        harness.tell_all();
        harness.step();
    }
    harness.refuse();
    harness.settle();
    let actions = harness.take_actions();
    assert!(actions.contains(&"suspend train".to_owned()), "{actions:?}");
    assert!(!stops_pods(&actions), "{actions:?}");
    run(&mut harness);
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
    assert_eq!(harness.reason("train").as_deref(), Some("StartBackoff"));
    harness.pass(91_000);
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
}

#[test]
fn a_job_that_the_last_leader_bound_in_part_is_suspended_without_room_for_the_rest() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    harness.check_settled(&["resume train"]);
    controller(&mut harness);
    for bound in ["train-0", "train-1"] {
        harness.server.change(Kind::Pod, &Key::new(SPACE, bound), |pod| {
            pod["spec"]["nodeName"] = json!("n");
        });
    }
    cordon(&mut harness, "n", true);
    harness.crash();
    run(&mut harness);
    let actions = harness.take_actions();
    assert!(actions.contains(&"suspend train".to_owned()), "{actions:?}");
    assert!(!stops_pods(&actions), "{actions:?}");
    assert_eq!(harness.server.all(Kind::Pod).count(), 0);
    cordon(&mut harness, "n", false);
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
}

#[test]
fn a_disruption_budget_protects_a_job() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    harness.put(
        Kind::Budget,
        json!({"metadata": {"name": "b", "namespace": SPACE},
        "spec": {"selector": {"matchLabels": {"job-name": "low"}}},
        "status": {"disruptionsAllowed": 0}}),
    );
    let low = weighted("low", 2, 1);
    harness.put(Kind::Job, with(low, "spec|template|metadata|labels|plain", json!("true")));
    run(&mut harness);
    harness.put(Kind::Job, weighted("high", 2, 9));
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "low", 2), [Some("n"); 2]);
    assert!(is_suspended(&harness, "high"));
}

#[test]
fn pods_are_evicted_if_their_job_cannot_be_suspended() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Job, weighted("low", 1, 1));
    run(&mut harness);
    harness.server.guarded.insert(Key::new(SPACE, "low"));
    harness.take_actions();
    harness.put(Kind::Job, weighted("high", 1, 9));
    harness.settle();
    assert!(harness.take_actions().contains(&"evict low-0".to_owned()));
}

#[test]
fn a_job_whose_pods_do_not_come_is_suspended_again_and_backs_off() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("stuck", 4));
    harness.check_settled(&["resume stuck"]);
    // A quota of the namespace admits one of four pods.
    let owner = harness.server.get(Kind::Job, &Key::new(SPACE, "stuck")).expect("a job").clone();
    create(&mut harness, &owner, "Job", "stuck-0");
    harness.check_settled(&["look up stuck"]);
    harness.pass(61_000);
    harness.check_settled(&["suspend stuck"]);
    assert!(is_suspended(&harness, "stuck"));
    assert_eq!(harness.reason("stuck").as_deref(), Some("StartBackoff"));
    assert!(harness.notes.iter().any(|note| note.starts_with("Job stuck NotStarted: 1 of 4")));
    // Its places are free.
    harness.put(Kind::Job, job("next", 3));
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "next", 3), [Some("n"); 3]);
    harness.pass(91_000);
    harness.settle();
    assert!(is_suspended(&harness, "stuck"), "there is no room");
    complete(&mut harness, "next");
    harness.settle();
    assert!(!is_suspended(&harness, "stuck"), "the backoff is over");
}

#[test]
fn while_a_job_lacks_pods_one_job_of_its_namespace_starts_at_a_time() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 24));
    for name in ["a", "b"] {
        harness.put(Kind::Job, job(name, 6));
    }
    harness.check_settled(&["resume a", "resume b"]);
    // Neither gets all of its pods.
    harness.pass(61_000);
    harness.check_settled(&["suspend a", "suspend b"]);
    harness.pass(91_000);
    harness.settle();
    let resumed = |harness: &Harness| ["a", "b"].map(|name| !is_suspended(harness, name));
    assert_eq!(resumed(&harness).iter().filter(|resumed| **resumed).count(), 1);
    let (first, second) = if resumed(&harness)[0] { ("a", "b") } else { ("b", "a") };
    assert_eq!(harness.reason(second).as_deref(), Some("WaitingForQuota"));
    let owner = harness.server.get(Kind::Job, &Key::new(SPACE, first)).expect("a job").clone();
    for number in 0..6 {
        create(&mut harness, &owner, "Job", &format!("{first}-{number}"));
    }
    harness.settle();
    assert!(!is_suspended(&harness, second), "the first job has its pods");
}

#[test]
fn the_end_of_a_job_ends_the_backoff_of_other_jobs() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 24));
    harness.put(Kind::Job, job("runs", 6));
    run(&mut harness);
    harness.put(Kind::Job, job("waits", 6));
    harness.settle();
    harness.pass(61_000);
    harness.settle();
    assert_eq!(harness.reason("waits").as_deref(), Some("StartBackoff"));
    complete(&mut harness, "runs");
    harness.settle();
    assert!(!is_suspended(&harness, "waits"));
}

#[test]
fn a_restart_in_any_phase_is_an_ordinary_start() {
    for crash_at in 0..4 {
        let mut harness = harness();
        harness.put(Kind::Node, node("n", 8));
        harness.put(Kind::Job, job("train", 4));
        let mut phase = 0;
        let mut crash = |harness: &mut Harness| {
            if phase == crash_at {
                harness.crash();
            }
            phase += 1;
        };
        crash(&mut harness);
        harness.settle();
        // Resumed, and without pods.
        crash(&mut harness);
        harness.settle();
        controller(&mut harness);
        crash(&mut harness);
        harness.tell_all();
        harness.step();
        crash(&mut harness);
        run(&mut harness);
        assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4], "crash at {crash_at}");
        let pods = harness.server.all(Kind::Pod).count();
        assert_eq!((is_suspended(&harness, "train"), pods), (false, 4), "crash at {crash_at}");
    }
}

#[test]
fn a_restart_keeps_the_places_of_a_resumed_job_without_pods() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    harness.check_settled(&["resume train"]);
    harness.pass(1000);
    harness.put(Kind::Job, job("late", 4));
    harness.crash();
    harness.check_settled(&[]);
    assert!(is_suspended(&harness, "late"));
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
}

#[test]
fn a_job_that_runs_already_is_adopted_whole() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, weighted("old", 4, 1));
    run(&mut harness);
    harness.take_actions();
    harness.crash();
    harness.check_settled(&[]);
    harness.put(Kind::Job, weighted("high", 1, 9));
    harness.settle();
    assert!(harness.take_actions().contains(&"suspend old".to_owned()));
}

#[test]
fn a_new_leader_reserves_the_place_of_a_lost_pod_of_a_job() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Job, job("train", 4));
    run(&mut harness);
    harness.put(Kind::Job, job("late", 1));
    harness.settle();
    harness.server.remove(Kind::Pod, &Key::new(SPACE, "train-0"));
    harness.crash();
    harness.settle();
    assert!(is_suspended(&harness, "late"));
    assert_eq!(harness.reason("train").as_deref(), Some("WaitingForReplacement"));
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "train", 4), [Some("n"); 4]);
    assert_eq!(harness.reason("train"), None);
}

#[test]
fn a_job_that_was_never_suspended_starts_whole_or_is_suspended() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    for name in ["fits", "waits"] {
        harness.put(Kind::Job, with(job(name, 2), "spec|suspend", json!(false)));
        controller(&mut harness);
    }
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "fits", 2), [Some("n"); 2]);
    assert_eq!(nodes_of(&harness, "waits", 2), [None; 2]);
    harness.pass(61_000);
    run(&mut harness);
    assert!(is_suspended(&harness, "waits"));
    assert_eq!(nodes_of(&harness, "waits", 2), [None; 2]);
    complete(&mut harness, "fits");
    run(&mut harness);
    assert_eq!(nodes_of(&harness, "waits", 2), [Some("n"); 2]);
}

#[test]
fn pods_that_differ_from_their_template_are_placed_by_their_own_request() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::Job, job("grown", 1));
    harness.check_settled(&["resume grown"]);
    let mut owner = harness.server.get(Kind::Job, &Key::new(SPACE, "grown")).expect("it").clone();
    owner["spec"]["template"]["spec"] = pod("", 8)["spec"].clone();
    create(&mut harness, &owner, "Job", "grown-0");
    harness.settle();
    assert_eq!(harness.node_of("grown-0"), None);
    assert_eq!(harness.reason("grown").as_deref(), Some("NeverFits"));
}

#[test]
fn a_held_or_excepted_job_is_not_resumed() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    let hold = format!("metadata|annotations|{}", names::UNIT_HOLD);
    harness.put(Kind::Job, with(job("held", 1), &hold, json!("true")));
    let opt_out = format!("metadata|annotations|{}", names::UNIT);
    harness.put(Kind::Job, with(job("out", 1), &opt_out, json!("false")));
    harness.check_settled(&[]);
    harness.put(Kind::Job, job("held", 1));
    harness.check_settled(&["resume held"]);
    // Without the unit, the pods of a resumed Job are placed one by one.
    let mut out = harness.server.get(Kind::Job, &Key::new(SPACE, "out")).expect("it").clone();
    out["spec"]["parallelism"] = json!(2);
    harness.put(Kind::Job, out.clone());
    create(&mut harness, &out, "Job", "out-0");
    harness.settle();
    assert_eq!(harness.node_of("out-0"), Some("n"));
}

#[test]
fn a_job_waits_for_its_queue_like_a_pod() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(Kind::Queue, queue("q", 2));
    let asks = format!("metadata|annotations|{}", names::QUEUE);
    harness.put(Kind::Job, with(job("over", 2), &asks, json!("q")));
    harness.put(Kind::Job, with(job("lost", 1), &asks, json!("nowhere")));
    harness.check_settled(&[]);
    assert_eq!(harness.reason("over").as_deref(), Some("QuotaExceeded"));
    assert_eq!(harness.reason("lost").as_deref(), Some("QueueMissing"));
    harness.put(Kind::Queue, queue("q", 4));
    harness.check_settled(&["resume over"]);
}

#[test]
fn a_priority_class_of_the_template_orders_jobs() {
    let mut harness = harness();
    harness.put(Kind::Priority, json!({"metadata": {"name": "urgent"}, "value": 900_000}));
    harness.put(Kind::Job, job("a", 2));
    harness
        .put(Kind::Job, with(job("b", 2), "spec|template|spec|priorityClassName", json!("urgent")));
    harness.settle();
    harness.put(Kind::Node, node("n", 4));
    harness.check_settled(&["resume b"]);
}

#[test]
fn a_job_of_another_scheduler_is_never_suspended() {
    let mut harness = harness();
    harness.set_settings(Settings { admission: true, ..Settings::new(names::SCHEDULER_NAME) });
    harness.put(Kind::Node, node("n", 8));
    let labels = json!({names::NAMESPACE_OPT_IN: names::NAMESPACE_OPT_IN_VALUE});
    harness.put(Kind::Namespace, json!({"metadata": {"name": SPACE, "labels": labels}}));
    let annotation = format!("metadata|annotations|{}", names::PRIORITY);
    let other = with(job("a", 1), &annotation, json!("3"));
    let other = with(other, "spec|template|spec|schedulerName", json!(""));
    harness.put(Kind::Job, with(other, "spec|suspend", json!(false)));
    harness.settle();
    harness.pass(600_000);
    harness.check_settled(&[]);
}

#[test]
fn a_job_whose_pods_run_on_nodes_of_another_scheduler_is_not_suspended() {
    let mut harness = harness();
    let node_selector = crate::state::node_selector("ours").ok();
    harness.set_settings(Settings { node_selector, ..Settings::new(names::SCHEDULER_NAME) });
    harness.put(Kind::Node, node("elsewhere", 8));
    harness.put(Kind::Job, with(job("a", 1), "spec|suspend", json!(false)));
    controller(&mut harness);
    harness.server.change(Kind::Pod, &Key::new(SPACE, "a-0"), |pod| {
        pod["spec"]["nodeName"] = json!("elsewhere");
    });
    harness.settle();
    harness.take_actions();
    harness.pass(600_000);
    harness.settle();
    assert!(!harness.take_actions().contains(&"suspend a".to_owned()));
}

fn job_set(name: &str, workers: u32) -> Value {
    let template = |gpus: u32| json!({"spec": {"template": {"spec": pod("", gpus)["spec"]}}});
    json!({
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"suspend": true, "replicatedJobs": [
            {"name": "driver", "template": template(0)},
            {"name": "worker", "replicas": workers, "template": template(4)},
        ]},
    })
}

/// The `JobSet` controller and the Job controller: one Job and one pod for each replica.
fn job_set_pods(harness: &mut Harness, name: &str, job_is_late: bool) {
    let set = harness.server.get(Kind::JobSet, &Key::new(SPACE, name)).expect("it").clone();
    let suspended = set["spec"]["suspend"].clone();
    let replicas = set["spec"]["replicatedJobs"].as_array().expect("jobs").clone();
    for replicated in replicas {
        for number in 0..replicated["replicas"].as_u64().unwrap_or(1) {
            let part = replicated["name"].as_str().expect("a name");
            let name = format!("{name}-{part}-{number}");
            let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
                "name": set["metadata"]["name"], "uid": uid(&set), "controller": true}]);
            let meta = json!({"name": name, "namespace": SPACE, "ownerReferences": owner,
                "uid": format!("{name}-uid")});
            let mut job = json!({"metadata": meta, "spec": replicated["template"]["spec"]});
            job["spec"]["suspend"] = suspended.clone();
            if suspended != true {
                create(harness, &job, "Job", &format!("{name}-pod"));
            }
            if job_is_late {
                harness.tell_all();
                harness.step();
            }
            harness.put(Kind::Job, job);
        }
    }
}

#[test]
fn a_job_set_is_one_unit_and_its_jobs_are_none() {
    for job_is_late in [false, true] {
        let mut harness = harness();
        harness.put(Kind::Node, node("n", 4));
        harness.put(Kind::JobSet, job_set("s", 2));
        harness.settle();
        job_set_pods(&mut harness, "s", false);
        harness.check_settled(&[]);
        assert_eq!(harness.reason("s").as_deref(), Some("GangIncomplete"));
        harness.put(Kind::Node, node("m", 4));
        harness.check_settled(&["resume s"]);
        job_set_pods(&mut harness, "s", job_is_late);
        harness.settle();
        let pods = ["s-driver-0-pod", "s-worker-0-pod", "s-worker-1-pod"];
        assert!(pods.iter().all(|pod| harness.node_of(pod).is_some()), "late: {job_is_late}");
        assert_ne!(harness.node_of(pods[1]), harness.node_of(pods[2]));
    }
}

#[test]
fn the_end_of_a_part_changes_its_job_at_once() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    harness.put(
        Kind::TrainJob,
        json!({"metadata": {"name": "t", "namespace": SPACE}, "spec": {"suspend": true}}),
    );
    harness.settle();
    let parent = harness.server.get(Kind::TrainJob, &Key::new(SPACE, "t")).expect("it").clone();
    let owner = json!([{"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "name": "t", "uid": uid(&parent), "controller": true}]);
    harness.put(Kind::JobSet, with(job_set("t", 1), "metadata|ownerReferences", owner));
    harness.check_settled(&["resume t"]);
    harness.server.remove(Kind::JobSet, &Key::new(SPACE, "t"));
    // Its places are free.
    harness.put(Kind::Job, job("next", 4));
    harness.settle();
    assert!(!is_suspended(&harness, "next"));
}

#[test]
fn a_job_set_that_starts_its_jobs_in_order_is_named_and_left_alone() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 8));
    let order = json!({"startupPolicyOrder": "InOrder"});
    harness.put(Kind::JobSet, with(job_set("s", 1), "spec|startupPolicy", order));
    harness.check_settled(&[]);
    assert_eq!(harness.reason("s").as_deref(), Some("NotAUnit"));
    assert!(harness.notes.iter().any(|note| note.starts_with("JobSet s FailedScheduling")));
}

#[test]
fn each_group_of_a_leader_worker_set_starts_whole() {
    for (policy, gang) in [("LeaderCreated", true), ("LeaderReady", false)] {
        let mut harness = harness();
        harness.put(Kind::Node, node("n", 8));
        let template = json!({"size": 2});
        harness.put(
            Kind::WorkerSet,
            json!({"metadata": {"name": "s", "namespace": SPACE},
            "spec": {"startupPolicy": policy, "leaderWorkerTemplate": template}}),
        );
        let mut starts = |name: &str, group: &str| {
            let labels = json!({names::GROUP_SET: "s", names::GROUP_INDEX: group});
            harness.put(Kind::Pod, with(pod(name, 1), "metadata|labels", labels));
            harness.settle();
            harness.node_of(name).is_some()
        };
        assert_eq!(starts("s-0", "0"), !gang);
        assert_eq!(starts("s-1", "1"), !gang);
        assert!(starts("s-0-1", "0"));
        assert!(harness.node_of("s-0").is_some());
        assert_eq!(harness.node_of("s-1").is_some(), !gang);
    }
}

#[test]
fn deleting_a_job_releases_its_places() {
    let mut harness = harness();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Job, job("a", 1));
    harness.check_settled(&["resume a"]);
    harness.server.remove(Kind::Job, &Key::new(SPACE, "a"));
    harness.put(Kind::Job, job("b", 1));
    harness.check_settled(&["resume b"]);
}
