//! Gangs.

use serde_json::json;

use super::fake_server::Kind;
use super::harness::{Harness, SPACE};
use super::objects::{group, member, node};
use crate::state::Key;

fn gang(harness: &mut Harness, names: &[&str]) {
    for name in names {
        harness.put(Kind::Pod, member(name, "g", 1));
    }
}

#[test]
fn a_gang_waits_until_it_is_complete_and_then_starts_whole() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    gang(&mut harness, &["a"]);
    harness.check_settled(&["explain a PodGroupMissing"]);
    harness.put(Kind::PodGroup, group("g", 3));
    harness.check_settled(&["explain a Gated again"]);
    gang(&mut harness, &["b"]);
    harness.settle();
    assert_eq!(harness.node_of("a"), None);
    gang(&mut harness, &["c"]);
    harness.settle();
    let binds: Vec<String> =
        harness.take_actions().into_iter().filter(|action| action.starts_with("bind")).collect();
    assert_eq!(binds, ["bind a n", "bind b n", "bind c n"]);
}

#[test]
fn the_conditions_of_a_gang_follow_the_number_of_its_pods() {
    let mut harness = Harness::new();
    harness.put(Kind::PodGroup, group("g", 4));
    let message = |harness: &Harness, name: &str| {
        let found = harness.server.get(Kind::Pod, &Key::new(SPACE, name)).expect("a pod");
        found["status"]["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    for (name, count) in [("a", "1/4"), ("b", "2/4"), ("c", "3/4")] {
        gang(&mut harness, &[name]);
        harness.settle();
        assert!(message(&harness, "a").contains(count), "{}", message(&harness, "a"));
    }
    harness.delete("c");
    harness.settle();
    assert!(message(&harness, "a").contains("2/4"), "{}", message(&harness, "a"));
}

#[test]
fn a_gang_that_does_not_fit_whole_does_not_start() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 3));
    gang(&mut harness, &["a", "b", "c"]);
    harness.settle();
    for name in ["a", "b", "c"] {
        assert_eq!(harness.node_of(name), None);
        assert_eq!(harness.reason(name).as_deref(), Some("GangIncomplete"));
    }
    harness.put(Kind::Node, node("m", 1));
    harness.settle();
    assert!(["a", "b", "c"].iter().all(|name| harness.node_of(name).is_some()));
}

#[test]
fn a_member_that_goes_before_the_start_is_waited_for_again() {
    let mut harness = Harness::new();
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b"]);
    harness.settle();
    harness.delete("b");
    harness.settle();
    harness.put(Kind::Node, node("n", 4));
    harness.settle();
    assert_eq!(harness.node_of("a"), None);
    assert_eq!(harness.reason("a").as_deref(), Some("Gated"));
    gang(&mut harness, &["c"]);
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("c")], [Some("n"); 2]);
}

#[test]
fn when_one_binding_fails_the_bound_ones_go_and_the_gang_gathers_again() {
    for told_late in [false, true] {
        let mut harness = Harness::new();
        harness.put(Kind::Node, node("n", 2));
        harness.put(Kind::PodGroup, group("g", 2));
        gang(&mut harness, &["a", "b"]);
        harness.tell_all();
        harness.step();
        assert!(harness.up_to_binding());
        harness.carry_out();
        if !told_late {
            harness.answer();
        }
        harness.refuse();
        while harness.answer() {}
        harness.settle();
        let actions = harness.take_actions();
        assert!(actions.contains(&"delete a".to_owned()), "{actions:?}");
        harness.kubelets();
        harness.settle();
        assert_eq!(harness.node_of("b"), None);
        // The owner creates another pod.
        gang(&mut harness, &["c"]);
        harness.settle_for_long();
        assert_eq!([harness.node_of("b"), harness.node_of("c")], [Some("n"); 2], "{told_late}");
    }
}

#[test]
fn the_replacement_of_a_running_gangs_member_is_placed_alone() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b"]);
    harness.settle();
    harness.end("a", "Failed");
    gang(&mut harness, &["c"]);
    harness.settle();
    assert_eq!(harness.node_of("c"), Some("n"));
}

#[test]
fn more_members_than_needed_wait_for_the_first() {
    let mut harness = Harness::new();
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b", "c"]);
    harness.settle();
    assert_eq!(harness.reason("c").as_deref(), Some("GangFirst"));
    harness.put(Kind::Node, node("n", 4));
    harness.settle();
    assert!(["a", "b", "c"].iter().all(|name| harness.node_of(name) == Some("n")));
}

#[test]
fn members_beyond_the_minimum_start_one_by_one_even_after_a_restart() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 3));
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b", "c", "d"]);
    harness.settle();
    let (placed, pending): (Vec<&str>, Vec<&str>) =
        ["a", "b", "c", "d"].into_iter().partition(|name| harness.node_of(name).is_some());
    assert_eq!((placed.len(), pending.len()), (3, 1));
    harness.crash();
    harness.settle();
    assert_eq!(harness.node_of(pending[0]), None);
    harness.end(placed[0], "Succeeded");
    harness.settle();
    assert_eq!(harness.node_of(pending[0]), Some("n"));
}

#[test]
fn a_member_too_many_takes_the_place_of_one_that_goes() {
    let mut harness = Harness::new();
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b", "c"]);
    harness.settle();
    assert_eq!(harness.reason("c").as_deref(), Some("GangFirst"));
    harness.delete("a");
    harness.settle();
    harness.put(Kind::Node, node("n", 4));
    harness.settle();
    assert_eq!([harness.node_of("b"), harness.node_of("c")], [Some("n"); 2]);
}

#[test]
fn a_gang_may_consist_of_different_pods() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Node, node("m", 1));
    harness.put(Kind::PodGroup, group("g", 2));
    harness.put(Kind::Pod, member("large", "g", 2));
    harness.put(Kind::Pod, member("small", "g", 1));
    harness.settle();
    assert_eq!(harness.node_of("large"), Some("n"));
    assert_eq!(harness.node_of("small"), Some("m"));
}

#[test]
fn a_group_that_changes_its_size_is_gathered_anew() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::PodGroup, group("g", 3));
    gang(&mut harness, &["a", "b"]);
    harness.settle();
    assert_eq!(harness.node_of("a"), None);
    harness.server.change(Kind::PodGroup, &Key::new("ns", "g"), |group| {
        group["spec"]["minMember"] = json!(2);
    });
    harness.settle();
    assert_eq!([harness.node_of("a"), harness.node_of("b")], [Some("n"); 2]);
}

#[test]
fn a_gang_is_stopped_whole_for_a_higher_priority() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b"]);
    harness.settle();
    harness.put(Kind::Pod, super::objects::weighted("high", 1, 9));
    harness.settle();
    let actions = harness.take_actions();
    for name in ["evict a", "evict b"] {
        assert!(actions.iter().any(|line| line == name), "{actions:?}");
    }
    // New pods of the gang are pending until the old pods are gone.
    gang(&mut harness, &["c", "d"]);
    harness.settle();
    assert_eq!(harness.reason("c").as_deref(), Some("Stopping"));
    harness.kubelets();
    harness.settle();
    assert_eq!(harness.node_of("high"), Some("n"));
    assert_eq!(harness.node_of("c"), None);
    harness.end("high", "Succeeded");
    harness.settle();
    assert_eq!([harness.node_of("c"), harness.node_of("d")], [Some("n"); 2]);
}

#[test]
fn a_gang_continues_beside_a_member_whose_binding_response_was_lost() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::PodGroup, group("g", 4));
    gang(&mut harness, &["a", "b", "c", "d"]);
    harness.tell_all();
    harness.step();
    // The API server is unreachable: no response arrives, and one binding was executed.
    harness.misunderstand();
    for _ in 0..3 {
        harness.refuse();
    }
    while harness.answer() {}
    harness.settle_for_long();
    let nodes = ["a", "b", "c", "d"].map(|name| harness.node_of(name));
    assert_eq!(nodes, [Some("n"); 4], "{:?}", harness.notes);
}

#[test]
fn a_gang_starts_again_when_its_only_bound_pod_ends_unobserved() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 4));
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b", "c", "d"]);
    harness.tell_all();
    harness.step();
    harness.refuse();
    harness.answer();
    while harness.carry_out() {}
    let (bound, rest): (Vec<&str>, Vec<&str>) =
        ["a", "b", "c", "d"].into_iter().partition(|name| harness.node_of(name).is_some());
    harness.end(bound[0], "Succeeded");
    harness.settle_for_long();
    for name in rest {
        let reason = harness.reason(name);
        assert!(harness.node_of(name).is_some(), "{name}: {reason:?}");
    }
}

#[test]
fn the_deletion_of_a_pod_of_a_broken_gang_is_repeated_until_it_is_gone() {
    let mut harness = Harness::new();
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::PodGroup, group("g", 2));
    gang(&mut harness, &["a", "b"]);
    harness.tell_all();
    harness.step();
    assert!(harness.up_to_binding());
    harness.carry_out();
    harness.refuse();
    while harness.answer() {}
    harness.tell_all();
    harness.step();
    assert!(harness.take_actions().contains(&"delete a".to_owned()));
    // The API server denies the first deletion.
    harness.deny();
    harness.settle();
    assert!(!harness.take_actions().contains(&"delete a".to_owned()), "it was just sent");
    harness.settle_for_long();
    harness.kubelets();
    gang(&mut harness, &["c"]);
    harness.settle_for_long();
    assert_eq!([harness.node_of("b"), harness.node_of("c")], [Some("n"); 2]);
}

#[test]
fn the_count_of_a_large_gang_stays_fresh_with_few_writes() {
    let mut harness = Harness::new();
    harness.put(Kind::PodGroup, group("g", 300));
    for index in 0..200 {
        harness.put(Kind::Pod, member(&format!("m-{index:03}"), "g", 1));
        harness.settle();
        harness.pass(10);
    }
    harness.settle_for_long();
    let first = harness.server.get(Kind::Pod, &Key::new("ns", "m-000")).expect("a pod");
    let message = first["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("200/300"), "{message}");
    let writes = harness.take_actions().iter().filter(|one| one.starts_with("explain")).count();
    assert!(writes < 3500, "{writes} writes");
}
