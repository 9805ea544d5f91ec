//! Single pods from creation to deletion.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{group, member, node, pod, weighted, with, workload};
use crate::state::{Action, ActionResult, BindResult, Key, Settings};

#[test]
fn a_pod_is_bound_runs_and_makes_room_for_the_next() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.check_settled(&["bind a n"]);
    harness.put(Kind::Pod, pod("b", 1));
    harness.check_settled(&["explain b Unschedulable"]);
    harness.end("a", "Succeeded");
    harness.check_settled(&["bind b n"]);
    assert_eq!(harness.node_of("b"), Some("n"));
}

#[test]
fn annotations_and_labels_are_written_with_the_binding() {
    let mut harness = Harness::new();
    let price = json!({names::NODE_PRICE: "1.25"});
    harness.put(Kind::Node, with(node("n", 2), "metadata|annotations", price));
    harness.put(Kind::Pod, pod("a", 2));
    harness.settle();
    let bound = &harness.server.objects[&(Kind::Pod, Key::new("ns", "a"))]["metadata"];
    assert_eq!(bound["annotations"][names::POD_ASSIGNED_NODE], "n");
    assert_eq!(bound["annotations"][names::POD_ASSIGNED_GPU], "n/0,n/1");
    assert_eq!(bound["annotations"][names::POD_PRICE], "2.50");
    assert_eq!(bound["labels"][names::POD_MANAGED], "true");
}

#[test]
fn pods_of_other_schedulers_are_left_alone_and_take_their_room() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    let theirs = with(pod("theirs", 2), "spec|schedulerName", json!("default-scheduler"));
    harness.put(Kind::Pod, theirs.clone());
    harness.check_settled(&[]);
    harness.put(Kind::Pod, with(theirs, "spec|nodeName", json!("n")));
    harness.put(Kind::Pod, pod("a", 1));
    harness.check_settled(&["explain a Unschedulable"]);
    harness.end("theirs", "Failed");
    harness.check_settled(&["bind a n"]);
}

#[test]
fn a_binding_that_is_refused_is_tried_again_later() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    harness.refuse();
    harness.answer();
    harness.settle();
    assert_eq!(harness.reason("a").as_deref(), Some("BackingOff"));
    harness.settle_for_long();
    assert_eq!(harness.node_of("a"), Some("n"));
}

#[test]
fn an_answer_to_an_older_plan_is_ignored() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    let Some(Action::Bind(bind)) =
        harness.acts.iter().find(|act| matches!(act, Action::Bind(_))).cloned()
    else {
        panic!("no binding")
    };
    let result = BindResult::Refused("late".to_owned());
    let answer = ActionResult::Bind { pod: bind.pod.clone(), plan: bind.plan + 7, result };
    harness.state.action_finished(harness.now, answer);
    harness.settle();
    harness.check(&["bind a n"]);
    assert_eq!(harness.node_of("a"), Some("n"));
}

#[test]
fn another_pod_of_the_same_name_is_another_pod() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    // The pod is deleted and created again before its binding is executed.
    harness.delete("a");
    harness.put(Kind::Pod, pod("a", 1));
    harness.settle();
    harness.check(&["bind a n", "bind a n"]);
    assert_eq!(harness.node_of("a"), Some("n"));
}

#[test]
fn a_pod_that_ends_or_goes_while_it_is_bound_frees_its_room() {
    for ending in ["Failed", "deleted"] {
        let mut harness = Harness::new();
        harness.put(Kind::Node, node("n", 1));
        harness.put(Kind::Pod, pod("a", 1));
        harness.put(Kind::Pod, pod("b", 1));
        harness.tell_all();
        harness.step();
        if ending == "deleted" {
            harness.delete("a");
        } else {
            harness.end("a", ending);
        }
        harness.settle();
        assert_eq!(harness.node_of("b"), Some("n"), "{ending}");
    }
}

#[test]
fn a_pod_bound_by_another_client_stays() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Node, node("m", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    let planned = harness.take_actions();
    let other = if planned == ["bind a n"] { "m" } else { "n" };
    harness.server.change(Kind::Pod, &Key::new("ns", "a"), |pod| {
        pod["spec"]["nodeName"] = json!(other);
    });
    // The response arrives before the watch event.
    harness.carry_out();
    harness.answer();
    harness.step();
    harness.settle();
    harness.put(Kind::Pod, pod("b", 1));
    harness.put(Kind::Pod, pod("c", 1));
    harness.settle();
    let free = if other == "m" { "n" } else { "m" };
    assert_eq!(harness.node_of("b"), Some(free));
    assert_eq!(harness.node_of("c"), None);
}

#[test]
fn pods_of_a_node_that_vanishes_are_deleted() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.check_settled(&["bind a n"]);
    harness.server.remove(Kind::Node, &Key::new("", "n"));
    harness.check_settled(&["delete orphan a"]);
    harness.put(Kind::Pod, pod("b", 1));
    harness.check_settled(&["explain b Unschedulable"]);
    harness.put(Kind::Node, node("n", 1));
    harness.check_settled(&["bind b n"]);
}

#[test]
fn a_node_that_vanishes_under_a_binding_does_not_keep_its_pod() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.tell_all();
    harness.step();
    harness.server.remove(Kind::Node, &Key::new("", "n"));
    harness.tell_all();
    harness.step();
    harness.settle();
    assert!(!harness.server.objects.contains_key(&(Kind::Pod, Key::new("ns", "a"))));
}

#[test]
fn owners_are_asked_before_their_pods_are_judged() {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "r",
        "controller": true}]);
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.server.owners.insert("r".to_owned(), json!({names::PRIORITY: "9"}));
    harness.put(Kind::Pod, with(pod("a", 1), "metadata|ownerReferences", owner.clone()));
    harness.put(Kind::Pod, with(pod("b", 1), "metadata|ownerReferences", owner));
    harness.check_settled(&["bind a n", "bind b n", "look up rs"]);
    let bound = &harness.server.objects[&(Kind::Pod, Key::new("ns", "a"))]["metadata"];
    assert_eq!(bound["annotations"][names::PRIORITY], "9");
}

#[test]
fn a_higher_priority_stops_a_lower_one_and_waits_for_its_place() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, weighted("low", 1, 1));
    harness.check_settled(&["bind low n"]);
    harness.put(Kind::Pod, weighted("high", 1, 9));
    harness.settle();
    let actions = harness.take_actions();
    assert!(actions.contains(&"evict low".to_owned()), "{actions:?}");
    assert!(actions.contains(&"nominate high n".to_owned()), "{actions:?}");
    assert_eq!(harness.node_of("high"), None);
    harness.put(Kind::Pod, weighted("middle", 1, 5));
    harness.kubelets();
    harness.settle();
    assert_eq!(harness.node_of("high"), Some("n"));
    assert_eq!(harness.node_of("middle"), None);
}

#[test]
fn foreign_and_non_preemptible_pods_are_no_victims() {
    let only_on = |name: &str| json!({"kubernetes.io/hostname": name});
    let mut harness = Harness::new();
    for name in ["a", "b", "c"] {
        harness.put(Kind::Node, node(name, 1));
    }
    let theirs = with(pod("theirs", 1), "spec|schedulerName", json!("default-scheduler"));
    harness.put(Kind::Pod, with(theirs, "spec|nodeName", json!("a")));
    let firm = with(weighted("firm", 1, 1), "spec|nodeSelector", only_on("b"));
    let annotation = format!("metadata|annotations|{}", names::PREEMPTIBLE);
    harness.put(Kind::Pod, with(firm, &annotation, json!("false")));
    let keep = with(workload("keep", 1, 0), "spec|priority", json!(0));
    let keep = with(keep, "spec|podTemplate|spec|nodeSelector", only_on("c"));
    harness.put(Kind::Workload, with(keep, "spec|preemptible", json!(false)));
    harness.settle_for_long();
    assert_eq!([harness.node_of("firm"), harness.node_of("keep-0")], [Some("b"), Some("c")]);
    harness.take_actions();
    for (name, priority) in [("high", 9), ("higher", 10)] {
        harness.put(Kind::Pod, weighted(name, 1, priority));
        harness.settle_for_long();
        assert_eq!(harness.reason(name).as_deref(), Some("NoRoom"), "{name}");
    }
    let actions = harness.take_actions();
    assert!(!actions.iter().any(|action| action.starts_with("evict")), "{actions:?}");
}

#[test]
fn an_unhealthy_gpu_is_not_used_until_it_recovers() {
    let monitored = |healthy: bool| {
        let device =
            |id: &str| json!({"id": id, "name": "NVIDIA A100-SXM4-80GB", "memoryTotal": 81_920});
        json!({
            "metadata": {"name": "n", "namespace": SPACE},
            "spec": {"nodeName": "n", "gpuDevices": [device("GPU-a"), device("GPU-b")]},
            "status": {"phase": "Active", "gpuStatus": [
                {"id": "GPU-a", "available": true}, {"id": "GPU-b", "available": healthy}]},
        })
    };
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::GpuNode, monitored(false));
    harness.put(Kind::Pod, pod("both", 2));
    harness.check_settled(&["explain both Unschedulable"]);
    harness.put(Kind::GpuNode, monitored(true));
    harness.check_settled(&["bind both n"]);
}

#[test]
fn pods_that_terminate_already_are_waited_for_without_an_eviction() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, weighted("low", 1, 1));
    let ending = with(pod("ending", 1), "spec|terminationGracePeriodSeconds", json!(30));
    harness.put(Kind::Pod, ending);
    harness.settle();
    harness.take_actions();
    harness.delete("ending");
    harness.put(Kind::Pod, weighted("high", 1, 9));
    harness.settle();
    let actions = harness.take_actions();
    assert!(!actions.iter().any(|action| action.starts_with("evict")), "{actions:?}");
    assert_eq!(harness.reason("high").as_deref(), Some("Preempting"));
    harness.kubelets();
    harness.settle();
    assert_eq!((harness.node_of("high"), harness.node_of("low")), (Some("n"), Some("n")));
}

#[test]
fn after_an_interrupted_watch_ghosts_are_gone() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.check_settled(&["bind a n"]);
    harness.server.remove(Kind::Pod, &Key::new("ns", "a"));
    harness.put(Kind::Pod, pod("b", 1));
    harness.list(Kind::Pod);
    harness.check_settled(&["bind b n"]);
}

#[test]
fn other_settings_lose_nothing() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, pod("a", 1));
    harness.put(Kind::Pod, pod("b", 1));
    harness.settle();
    let mut settings = Settings::new(names::SCHEDULER_NAME);
    settings.policy.strategy = crate::state::strategy("pack").expect("a strategy");
    harness.set_settings(settings);
    harness.settle();
    harness.end("a", "Succeeded");
    harness.end("b", "Succeeded");
    harness.put(Kind::Pod, pod("c", 1));
    harness.settle();
    let there = ["a", "b", "c"].map(|name| harness.node_of(name));
    assert_eq!(there.iter().flatten().count(), 2, "{there:?}");
    assert_eq!(harness.node_of("c"), Some("n"));
}

#[test]
fn metrics_count_devices_and_not_time_slices() {
    let mut sliced = node("sliced", 32);
    sliced["metadata"]["labels"][names::NVIDIA_COUNT] = json!("8");
    sliced["metadata"]["labels"][names::NVIDIA_REPLICAS] = json!("4");
    let mut harness = Harness::new();
    harness.put(Kind::Node, sliced);
    harness.put(Kind::Node, node("whole", 2));
    harness.settle();
    let census = harness.state.summary();
    assert_eq!((census.gpus, census.free, census.reserved), (10.0, 10.0, 0.0));
    let here = json!({"kubernetes.io/hostname": "sliced"});
    harness.put(Kind::Pod, with(pod("a", 1), "spec|nodeSelector", here));
    harness.settle();
    assert_eq!(harness.node_of("a"), Some("sliced"));
    assert!((harness.state.summary().free - 9.75).abs() < 1e-9);
}

#[test]
fn metrics_count_pending_scheduled_and_running_workloads() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    for name in ["a", "b"] {
        harness.put(Kind::Pod, member(name, "g", 1));
    }
    let counts = |harness: &Harness| {
        let census = harness.state.summary();
        (census.pending.values().sum::<u64>(), census.scheduled, census.running)
    };
    harness.settle();
    assert_eq!(counts(&harness), (0, 1, 0));
    harness.put(Kind::Pod, pod("c", 1));
    harness.settle();
    assert_eq!(counts(&harness), (1, 1, 0));
    harness.delete("c");
    harness.settle();
    for (name, expected) in [("a", (0, 1, 0)), ("b", (0, 0, 1))] {
        let running = |pod: &mut Value| pod["status"]["phase"] = json!("Running");
        harness.server.change(Kind::Pod, &Key::new(SPACE, name), running);
        harness.settle();
        assert_eq!(counts(&harness), expected, "{name} runs");
    }
}

#[test]
fn a_nomination_that_comes_late_is_withdrawn() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 1));
    harness.put(Kind::Pod, weighted("low", 1, 1));
    harness.settle();
    harness.server.guarded.insert(Key::new(SPACE, "low"));
    harness.put(Kind::Pod, weighted("high", 1, 9));
    harness.tell_all();
    harness.step();
    let nominates = |act: &Action| matches!(act, Action::Nominate { node: Some(_), .. });
    let late = harness.acts.iter().position(nominates).and_then(|at| harness.acts.remove(at));
    harness.settle();
    harness.acts.extend(late);
    harness.settle();
    let high = harness.server.get(Kind::Pod, &Key::new(SPACE, "high")).expect("a pod");
    assert_eq!(high["status"]["nominatedNodeName"], Value::Null);
}
