//! Pods that start together.

use serde_json::json;

use super::fake_server::Kind;
use super::harness::Play;
use super::objects::{group, member, node};
use crate::state::Key;

fn gang(play: &mut Play, names: &[&str]) {
    for name in names {
        play.put(Kind::Pod, member(name, "g", 1));
    }
}

#[test]
fn a_gang_waits_until_it_is_complete_and_then_starts_whole() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    gang(&mut play, &["a"]);
    play.check_settled(&["explain a PodGroupMissing"]);
    play.put(Kind::PodGroup, group("g", 3));
    play.check_settled(&["explain a Gated again"]);
    gang(&mut play, &["b"]);
    play.settle();
    assert_eq!(play.node_of("a"), None);
    gang(&mut play, &["c"]);
    play.settle();
    let binds: Vec<String> =
        play.said().into_iter().filter(|said| said.starts_with("bind")).collect();
    assert_eq!(binds, ["bind a n", "bind b n", "bind c n"]);
}

#[test]
fn a_gang_that_does_not_fit_whole_does_not_start() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::PodGroup, group("g", 3));
    gang(&mut play, &["a", "b", "c"]);
    play.settle();
    for name in ["a", "b", "c"] {
        assert_eq!(play.node_of(name), None);
        assert_eq!(play.reason(name).as_deref(), Some("GangIncomplete"));
    }
    play.put(Kind::Node, node("m", 1));
    play.settle();
    assert!(["a", "b", "c"].iter().all(|name| play.node_of(name).is_some()));
}

#[test]
fn a_member_that_goes_before_the_start_is_waited_for_again() {
    let mut play = Play::new();
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b"]);
    play.settle();
    play.delete("b");
    play.settle();
    play.put(Kind::Node, node("n", 4));
    play.settle();
    assert_eq!(play.node_of("a"), None);
    assert_eq!(play.reason("a").as_deref(), Some("Gated"));
    gang(&mut play, &["c"]);
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("c")], [Some("n"); 2]);
}

#[test]
fn when_one_binding_fails_the_bound_ones_go_and_the_gang_gathers_again() {
    for told_late in [false, true] {
        let mut play = Play::new();
        play.put(Kind::Node, node("n", 2));
        play.put(Kind::PodGroup, group("g", 2));
        gang(&mut play, &["a", "b"]);
        play.tell_all();
        play.step();
        assert!(play.up_to_binding());
        play.carry_out();
        if !told_late {
            play.answer();
        }
        play.refuse();
        while play.answer() {}
        play.settle();
        let said = play.said();
        assert!(said.contains(&"delete a".to_owned()), "{said:?}");
        play.kubelets();
        play.settle();
        assert_eq!(play.node_of("b"), None);
        // Whoever made the first makes another.
        gang(&mut play, &["c"]);
        play.settle_for_long();
        assert_eq!([play.node_of("b"), play.node_of("c")], [Some("n"); 2], "{told_late}");
    }
}

#[test]
fn the_replacement_of_a_running_gangs_member_is_placed_alone() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b"]);
    play.settle();
    play.end("a", "Failed");
    gang(&mut play, &["c"]);
    play.settle();
    assert_eq!(play.node_of("c"), Some("n"));
}

#[test]
fn more_members_than_needed_wait_for_the_first() {
    let mut play = Play::new();
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b", "c"]);
    play.settle();
    assert_eq!(play.reason("c").as_deref(), Some("GangFirst"));
    play.put(Kind::Node, node("n", 4));
    play.settle();
    assert!(["a", "b", "c"].iter().all(|name| play.node_of(name) == Some("n")));
}

#[test]
fn a_member_too_many_takes_the_place_of_one_that_goes() {
    let mut play = Play::new();
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b", "c"]);
    play.settle();
    assert_eq!(play.reason("c").as_deref(), Some("GangFirst"));
    play.delete("a");
    play.settle();
    play.put(Kind::Node, node("n", 4));
    play.settle();
    assert_eq!([play.node_of("b"), play.node_of("c")], [Some("n"); 2]);
}

#[test]
fn a_gang_may_consist_of_different_pods() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::Node, node("m", 1));
    play.put(Kind::PodGroup, group("g", 2));
    play.put(Kind::Pod, member("large", "g", 2));
    play.put(Kind::Pod, member("small", "g", 1));
    play.settle();
    assert_eq!(play.node_of("large"), Some("n"));
    assert_eq!(play.node_of("small"), Some("m"));
}

#[test]
fn a_group_that_changes_its_size_is_gathered_anew() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::PodGroup, group("g", 3));
    gang(&mut play, &["a", "b"]);
    play.settle();
    assert_eq!(play.node_of("a"), None);
    play.server.change(Kind::PodGroup, &Key::new("ns", "g"), |group| {
        group["spec"]["minMember"] = json!(2);
    });
    play.settle();
    assert_eq!([play.node_of("a"), play.node_of("b")], [Some("n"); 2]);
}

#[test]
fn a_gang_is_stopped_whole_for_a_higher_priority() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b"]);
    play.settle();
    let mut high = super::objects::pod("high", 1);
    high["metadata"]["annotations"] = json!({agentaflow_kube_core::names::PRIORITY: "9"});
    play.put(Kind::Pod, high);
    play.settle();
    let said = play.said();
    for name in ["evict a", "evict b"] {
        assert!(said.iter().any(|line| line == name), "{said:?}");
    }
    // New ones of the old gang wait until the old ones are gone.
    gang(&mut play, &["c", "d"]);
    play.settle();
    assert_eq!(play.reason("c").as_deref(), Some("Stopping"));
    play.kubelets();
    play.settle();
    assert_eq!(play.node_of("high"), Some("n"));
    assert_eq!(play.node_of("c"), None);
    play.end("high", "Succeeded");
    play.settle();
    assert_eq!([play.node_of("c"), play.node_of("d")], [Some("n"); 2]);
}

#[test]
fn a_gang_goes_on_beside_a_member_whose_binding_was_thought_to_have_failed() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::PodGroup, group("g", 4));
    gang(&mut play, &["a", "b", "c", "d"]);
    play.tell_all();
    play.step();
    // The API server is out of reach: no answer comes, and one binding was carried out.
    play.misunderstand();
    for _ in 0..3 {
        play.refuse();
    }
    while play.answer() {}
    play.settle_for_long();
    let nodes = ["a", "b", "c", "d"].map(|name| play.node_of(name));
    assert_eq!(nodes, [Some("n"); 4], "{:?}", play.notes);
}

#[test]
fn a_gang_starts_again_when_the_only_pod_that_was_bound_is_done_before_anybody_knew() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 4));
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b", "c", "d"]);
    play.tell_all();
    play.step();
    play.refuse();
    play.answer();
    while play.carry_out() {}
    let (bound, rest): (Vec<&str>, Vec<&str>) =
        ["a", "b", "c", "d"].into_iter().partition(|name| play.node_of(name).is_some());
    play.end(bound[0], "Succeeded");
    play.settle_for_long();
    for name in rest {
        let reason = play.reason(name);
        assert!(play.node_of(name).is_some(), "{name}: {reason:?}");
    }
}

#[test]
fn a_pod_of_a_broken_gang_is_told_to_go_until_it_does() {
    let mut play = Play::new();
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::PodGroup, group("g", 2));
    gang(&mut play, &["a", "b"]);
    play.tell_all();
    play.step();
    assert!(play.up_to_binding());
    play.carry_out();
    play.refuse();
    while play.answer() {}
    play.tell_all();
    play.step();
    assert!(play.said().contains(&"delete a".to_owned()));
    // Somebody does not let it be deleted at first.
    play.deny();
    play.settle();
    assert!(!play.said().contains(&"delete a".to_owned()), "it was told a moment ago");
    play.settle_for_long();
    play.kubelets();
    gang(&mut play, &["c"]);
    play.settle_for_long();
    assert_eq!([play.node_of("b"), play.node_of("c")], [Some("n"); 2]);
}
