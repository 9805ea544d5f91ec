//! Lost members of running gangs.

use agentaflow_kube_core::names;
use serde_json::{Value, json};

use super::fake_server::Kind;
use super::harness::Harness;
use super::objects::{group, member, node, with, workload};
use crate::state::{Key, Settings};

const WAITS: &str = "WaitingForReplacement";

/// Three nodes of four GPUs; the gang `run` of two pods runs, the gang `wait` is pending.
fn busy() -> Harness {
    let mut harness = Harness::new();
    for name in ["n1", "n2", "n3"] {
        harness.put(Kind::Node, node(name, 4));
    }
    for gang in ["run", "wait"] {
        harness.put(Kind::PodGroup, group(gang, 2));
        for task in 0..2 {
            harness.put(Kind::Pod, member(&format!("{gang}-{task}"), gang, 4));
        }
        harness.settle();
        harness.pass(1000);
    }
    assert!(harness.node_of("run-0").is_some() && harness.node_of("wait-0").is_none());
    harness.take_actions();
    harness
}

/// As a user and a kubelet delete a pod: it terminates, ends with a signal, and is gone.
fn delete_running(harness: &mut Harness, pod: &str) {
    harness.delete(pod);
    harness.settle();
    harness.end(pod, "Failed");
    harness.settle();
    harness.kubelets();
    harness.settle();
}

#[test]
fn the_place_of_a_lost_pod_stays_reserved_for_its_replacement() {
    let mut harness = busy();
    let place = harness.node_of("run-0").unwrap_or_default().to_owned();
    delete_running(&mut harness, "run-0");
    assert_eq!(harness.node_of("wait-0"), None);
    for name in ["run", "run-0", "run-1"] {
        assert_eq!(harness.reason(name).as_deref(), Some(WAITS), "{name}");
    }
    let explained = harness.state.explain(&Key::new("ns", "run")).expect("a known gang");
    assert!(explained.lines[0].contains(&place), "{:?}", explained.lines);
    harness.pass(60_000);
    harness.put(Kind::Pod, member("run-0", "run", 4));
    harness.settle();
    assert_eq!(harness.node_of("run-0"), Some(place.as_str()));
    assert_eq!([harness.node_of("wait-0"), harness.node_of("wait-1")], [None; 2]);
    assert_eq!(harness.reason("run"), None);
}

#[test]
fn a_gang_restarts_whole_when_no_replacement_comes_in_time() {
    let mut harness = busy();
    delete_running(&mut harness, "run-0");
    harness.pass(301_000);
    harness.settle();
    assert!(harness.take_actions().contains(&"evict run-1".to_owned()));
    harness.kubelets();
    harness.settle();
    assert!(harness.node_of("wait-0").is_some() && harness.node_of("wait-1").is_some());
    // The owner creates all pods again; they are a pending gang.
    for task in 0..2 {
        harness.put(Kind::Pod, member(&format!("run-{task}"), "run", 4));
    }
    harness.settle();
    assert_eq!(harness.node_of("run-0"), None);
    assert_eq!(harness.reason("run").as_deref(), Some("GangIncomplete"));
}

#[test]
fn settings_and_annotations_set_the_time() {
    let mut harness = busy();
    let data = [("replacementTimeout".to_owned(), "10s".to_owned())].into();
    let usual = Settings::new(names::SCHEDULER_NAME);
    let (settings, refused) = usual.clone().with_config(&data, &usual.policy);
    assert_eq!(refused, Vec::new());
    harness.set_settings(settings);
    delete_running(&mut harness, "run-0");
    harness.pass(11_000);
    harness.settle();
    assert!(harness.take_actions().contains(&"evict run-1".to_owned()));

    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    let pointer = format!("metadata|annotations|{}", names::REPLACEMENT_TIMEOUT);
    for name in ["a", "b"] {
        harness.put(Kind::Pod, with(member(name, "g", 1), &pointer, json!("1h")));
    }
    harness.settle();
    delete_running(&mut harness, "a");
    harness.pass(1_800_000);
    harness.settle();
    assert!(!harness.take_actions().contains(&"evict b".to_owned()));
    assert_eq!(harness.reason("g").as_deref(), Some(WAITS));
}

#[test]
fn a_place_on_a_cordoned_node_moves_or_ends() {
    let mut harness = busy();
    let place = harness.node_of("run-0").unwrap_or_default().to_owned();
    delete_running(&mut harness, "run-0");
    let cordon = |harness: &mut Harness, name: &str, on: bool| {
        harness.server.change(Kind::Node, &Key::new("", name), |node| {
            node["spec"]["unschedulable"] = json!(on);
        });
        harness.settle();
    };
    cordon(&mut harness, &place, true);
    let lines = harness.state.explain(&Key::new("ns", "run")).expect("a known gang").lines;
    assert!(lines[0].contains("n3"), "the free node: {lines:?}");
    cordon(&mut harness, "n3", true);
    harness.put(Kind::Pod, member("run-0", "run", 4));
    harness.settle();
    assert_eq!(harness.node_of("run-0"), None);
    assert_eq!(harness.reason("run-0").as_deref(), Some(WAITS));
    cordon(&mut harness, "n3", false);
    assert_eq!(harness.node_of("run-0"), Some("n3"));
}

#[test]
fn a_replacement_that_cannot_be_bound_leaves_its_gang_running() {
    let mut harness = busy();
    delete_running(&mut harness, "run-0");
    harness.put(Kind::Pod, member("run-x", "run", 4));
    harness.tell_all();
    harness.step();
    harness.refuse();
    while harness.answer() {}
    harness.settle();
    assert!(!harness.take_actions().iter().any(|action| action.starts_with("delete")));
    harness.pass(2000);
    harness.settle();
    assert!(harness.node_of("run-x").is_some() && harness.node_of("run-1").is_some());
    assert_eq!(harness.node_of("wait-0"), None);
}

#[test]
fn a_replacement_may_come_early_go_again_and_differ() {
    let mut harness = busy();
    // A Job creates the replacement while the old pod terminates.
    harness.delete("run-0");
    harness.put(Kind::Pod, member("run-x", "run", 4));
    harness.settle();
    assert_eq!(harness.node_of("run-x"), Some("n3"), "there is room elsewhere");
    harness.kubelets();
    harness.settle();
    assert_eq!(harness.reason("run"), None, "the gang is complete");

    delete_running(&mut harness, "run-x");
    harness.settle();
    let mut harness = busy();
    harness.put(Kind::Pod, member("filler", "none", 4));
    delete_running(&mut harness, "run-0");
    let mut other = member("run-y", "run", 4);
    other["metadata"]["labels"]["app"] = json!("other");
    other["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "n3"});
    harness.put(Kind::Pod, other);
    harness.settle();
    assert_eq!(harness.node_of("run-y"), Some("n3"));
    assert_eq!(harness.reason("run"), None);
}

#[test]
fn finished_and_deleted_gangs_reserve_nothing() {
    let mut harness = busy();
    harness.end("run-0", "Succeeded");
    harness.settle();
    assert!(harness.node_of("wait-0").is_some(), "a finished pod needs no replacement");

    let mut harness = busy();
    harness.delete("run-0");
    harness.delete("run-1");
    harness.settle();
    harness.server.remove(Kind::Pod, &Key::new("ns", "run-0"));
    harness.settle();
    assert!(harness.node_of("wait-0").is_some(), "the whole gang is being deleted");
}

/// A running gang of two pods with one GPU each, on nodes without further room.
fn running_workload() -> Harness {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Workload, workload("w", 2, 0));
    harness.settle_for_long();
    assert!(harness.node_of("w-0").is_some());
    harness
}

fn condition(harness: &Harness) -> Value {
    let object = harness.server.get(Kind::Workload, &Key::new("ns", "w")).expect("a workload");
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|one| one["type"] == "Schedulable").unwrap_or_default()
}

#[test]
fn the_status_of_a_workload_names_the_reserved_place() {
    let mut harness = running_workload();
    harness.put(Kind::Pod, super::objects::pod("next", 1));
    harness.delete("w-0");
    harness.settle();
    harness.kubelets();
    harness.tell_all();
    harness.step();
    // The controller has requested the replacement, which does not exist yet.
    harness.acts.retain(|act| !matches!(act, crate::state::Action::Create { .. }));
    harness.settle();
    let condition = condition(&harness);
    assert_eq!(condition["reason"], WAITS);
    assert_eq!(harness.node_of("next"), None);
    harness.settle_for_long();
    assert_eq!(harness.node_of("w-0-1").or(harness.node_of("w-0")), Some("n"));
    assert_eq!(harness.node_of("next"), None);
}

#[test]
fn a_new_leader_reserves_the_place_again() {
    let mut harness = running_workload();
    harness.put(Kind::Pod, super::objects::pod("next", 1));
    harness.delete("w-0");
    harness.settle();
    harness.kubelets();
    harness.crash();
    harness.settle();
    assert_eq!(harness.node_of("next"), None);
    harness.settle_for_long();
    assert_eq!(harness.node_of("next"), None);
}

#[test]
fn a_new_leader_reserves_the_place_of_a_pod_of_a_group() {
    let mut harness = busy();
    delete_running(&mut harness, "run-0");
    harness.crash();
    harness.settle();
    assert_eq!([harness.node_of("wait-0"), harness.node_of("wait-1")], [None; 2]);
    assert_eq!(harness.reason("run").as_deref(), Some(WAITS));
    harness.put(Kind::Pod, member("run-x", "run", 4));
    harness.settle();
    assert!(harness.node_of("run-x").is_some());
    assert_eq!(harness.reason("run"), None);

    let mut harness = busy();
    delete_running(&mut harness, "run-0");
    harness.crash();
    harness.settle();
    harness.pass(301_000);
    harness.settle();
    assert!(harness.take_actions().contains(&"evict run-1".to_owned()));
}

#[test]
fn a_new_leader_waits_for_no_finished_pod() {
    for phase in ["Succeeded", "Failed"] {
        let mut harness = busy();
        harness.end("run-0", phase);
        harness.crash();
        harness.settle();
        assert!(harness.node_of("wait-0").is_some(), "{phase}");
    }
}
