//! Claims of pods that are placed, and the volumes that serve them.

use serde_json::{Value, json};

use super::fake_server::{Kind, Server};
use super::harness::{Play, SPACE};
use super::objects::{group, member, node, pod, weighted, with};
use super::storage::{ZONE, only_on};
use crate::state::{Action, ClaimAction, Key};

/// A class whose volumes are made, or given, when a pod needs them.
pub(super) fn class(name: &str, provisioner: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"})
}

pub(super) fn claim(name: &str, class: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": SPACE, "annotations": {}},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}})
}

/// A volume that nobody has, on one node.
pub(super) fn volume(name: &str, class: &str, node: &str) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1Gi"},
            "nodeAffinity": only_on("kubernetes.io/hostname", &json!(node))},
        "status": {"phase": "Available"}})
}

pub(super) fn using(value: Value, claim: &str) -> Value {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    with(value, "spec|volumes", volumes)
}

fn in_zone(name: &str, zone: &str, gpus: u32) -> Value {
    with(node(name, gpus), &format!("metadata|labels|{ZONE}"), json!(zone))
}

/// What is to be done for the claim of each pod that is being bound.
fn planned(play: &Play) -> Vec<(&str, &ClaimAction)> {
    let binds = play.acts.iter().filter_map(|act| match act {
        Action::Bind(bind) => Some(bind),
        _ => None,
    });
    binds.flat_map(|bind| bind.claims.iter().map(|(_, act)| (&*bind.pod.key.name, act))).collect()
}

/// A zone with one GPU in each of these places, and a claim whose volume a provisioner makes.
fn zones(zones: &[(&str, &str)]) -> Play {
    let mut play = Play::new();
    play.put(Kind::Class, class("zonal", "csi.example"));
    play.put(Kind::Claim, claim("data", "zonal"));
    for (name, zone) in zones {
        play.put(Kind::Node, in_zone(name, zone, 1));
    }
    play
}

#[test]
fn pods_that_share_a_claim_go_where_its_volume_was_made() {
    let mut play = zones(&[("a", "north"), ("b", "south")]);
    play.put(Kind::Pod, using(pod("one", 1), "data"));
    play.put(Kind::Pod, using(pod("two", 1), "data"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play).len(), 1, "{:?}", play.acts);
    play.settle_for_long();
    let nodes = [play.node_of("one"), play.node_of("two")];
    let (at, waits) = match nodes {
        [Some(at), None] => (at.to_owned(), "two"),
        [None, Some(at)] => (at.to_owned(), "one"),
        other => panic!("one has its place, and the other waits: {other:?}"),
    };
    let zone = if at == "a" { "north" } else { "south" };
    play.put(Kind::Node, in_zone("c", zone, 1));
    play.settle_for_long();
    assert_eq!(play.node_of(waits), Some("c"));
}

#[test]
fn a_binding_that_waits_for_its_volume_decides_for_pods_that_come_later() {
    let mut play = zones(&[("a", "north")]);
    play.put(Kind::Pod, using(pod("one", 1), "data"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play), [("one", &ClaimAction::Provision("a".into()))]);
    play.put(Kind::Node, in_zone("b", "south", 1));
    play.put(Kind::Pod, using(pod("two", 1), "data"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play).len(), 1, "{:?}", play.acts);
    // It was not to be: the other may have the volume where it goes.
    play.refuse();
    while play.answer() {}
    play.delete("one");
    play.settle_for_long();
    assert!(play.node_of("two").is_some());
}

#[test]
fn a_gang_that_shares_a_claim_waits_for_the_volume_on_its_nodes() {
    let mut play = zones(&[("a", "north"), ("b", "north")]);
    play.put(Kind::PodGroup, group("g", 2));
    play.put(Kind::Pod, using(member("one", "g", 1), "data"));
    play.put(Kind::Pod, using(member("two", "g", 1), "data"));
    play.settle();
    assert!(play.node_of("one").is_some() && play.node_of("two").is_some(), "{:?}", play.notes);
}

#[test]
fn a_gang_whose_volume_is_made_in_one_zone_ends_up_there() {
    let mut play = zones(&[("a", "north"), ("b", "south")]);
    play.put(Kind::PodGroup, group("g", 2));
    let gang = |play: &mut Play| {
        for name in ["one", "two"] {
            if play.server.get(Kind::Pod, &Key::new(SPACE, name)).is_none() {
                play.put(Kind::Pod, using(member(name, "g", 1), "data"));
            }
        }
    };
    gang(&mut play);
    play.settle();
    let made = play.server.volume_of(&Key::new(SPACE, "data"));
    assert_eq!(made, Some("made-data"));
    for (name, zone) in [("c", "north"), ("d", "south")] {
        play.put(Kind::Node, in_zone(name, zone, 1));
    }
    for _ in 0..3 {
        play.kubelets();
        gang(&mut play);
        play.settle_for_long();
    }
    let nodes = [play.node_of("one"), play.node_of("two")];
    assert!(
        nodes.iter().all(|node| matches!(node, Some("a" | "c")))
            || nodes.iter().all(|node| matches!(node, Some("b" | "d"))),
        "{nodes:?}"
    );
}

/// A node with a local volume for each of these names, and claims `data-…` for local volumes.
fn local(gpus: u32, volumes: &[&str], claims: u32) -> Play {
    let mut play = Play::new();
    play.put(Kind::Class, class("local", "kubernetes.io/no-provisioner"));
    play.put(Kind::Node, node("n", gpus));
    for name in volumes {
        play.put(Kind::Volume, volume(name, "local", "n"));
    }
    for number in 0..claims {
        play.put(Kind::Claim, claim(&format!("data-{number}"), "local"));
    }
    play
}

#[test]
fn each_pod_of_a_gang_gets_a_volume_of_its_own() {
    let mut play = local(2, &["v", "w"], 2);
    play.put(Kind::PodGroup, group("g", 2));
    play.put(Kind::Pod, using(member("one", "g", 1), "data-0"));
    play.put(Kind::Pod, using(member("two", "g", 1), "data-1"));
    play.tell_all();
    play.step();
    let (v, w) = (ClaimAction::Volume("v".to_owned()), ClaimAction::Volume("w".to_owned()));
    let planned = planned(&play);
    assert!(planned == [("one", &v), ("two", &w)] || planned == [("one", &w), ("two", &v)]);
    play.settle();
    assert_eq!([play.node_of("one"), play.node_of("two")], [Some("n"); 2]);
}

/// Nodes with this many GPUs and this many local volumes, and a gang of which each pod waits for one.
fn spread(nodes: &[(&str, u32, u32)], gang: u32) -> Play {
    let mut play = local(0, &[], gang);
    for (name, gpus, volumes) in nodes {
        play.put(Kind::Node, node(name, *gpus));
        for number in 0..*volumes {
            play.put(Kind::Volume, volume(&format!("{name}-{number}"), "local", name));
        }
    }
    play.put(Kind::PodGroup, group("g", gang));
    for number in 0..gang {
        let pod = using(member(&format!("p{number}"), "g", 1), &format!("data-{number}"));
        play.put(Kind::Pod, pod);
    }
    play
}

fn places(play: &Play, gang: u32) -> Vec<Option<&str>> {
    let mut places: Vec<_> = (0..gang).map(|n| play.node_of(&format!("p{n}"))).collect();
    places.sort_unstable();
    places
}

#[test]
fn a_gang_goes_where_each_of_its_pods_finds_a_volume_and_is_refused_nowhere() {
    let mut play = spread(&[("a", 8, 1), ("b", 8, 2), ("c", 8, 1)], 4);
    play.settle();
    assert_eq!(places(&play, 4), [Some("a"), Some("b"), Some("b"), Some("c")], "{:?}", play.notes);
    assert!(!play.notes.iter().any(|note| note.contains("FailedBinding")), "{:?}", play.notes);
}

#[test]
fn a_gang_waits_for_the_volume_that_it_lacks_and_is_not_tried_before() {
    let mut play = spread(&[("a", 8, 1), ("b", 8, 1)], 3);
    play.settle_for_long();
    assert_eq!(places(&play, 3), [None; 3]);
    assert!(!play.notes.iter().any(|note| note.contains("FailedBinding")), "{:?}", play.notes);
    play.put(Kind::Volume, volume("more", "local", "a"));
    play.settle();
    assert_eq!(places(&play, 3), [Some("a"), Some("a"), Some("b")]);
}

#[test]
fn a_small_volume_does_not_count_for_a_large_claim() {
    let mut play = spread(&[("a", 8, 0), ("b", 8, 0)], 2);
    let sized =
        |name, node, size| with(volume(name, "local", node), "spec|capacity|storage", json!(size));
    play.put(Kind::Volume, sized("small", "a", "1Mi"));
    play.put(Kind::Volume, sized("large", "a", "1Gi"));
    play.put(Kind::Volume, sized("huge", "b", "1Ti"));
    play.settle();
    assert_eq!(places(&play, 2), [Some("a"), Some("b")]);
    assert!(!play.notes.iter().any(|note| note.contains("FailedBinding")), "{:?}", play.notes);
}

#[test]
fn pods_that_share_a_claim_share_its_volume() {
    let mut play = local(2, &["v"], 1);
    for name in ["one", "two"] {
        play.put(Kind::Pod, using(pod(name, 1), "data-0"));
    }
    play.settle_for_long();
    assert_eq!([play.node_of("one"), play.node_of("two")], [Some("n"); 2]);
}

#[test]
fn nobody_is_stopped_for_a_volume_that_would_not_come_free() {
    let mut play = local(2, &["v"], 2);
    play.put(Kind::Pod, using(pod("one", 1), "data-0"));
    play.settle();
    assert_eq!(play.node_of("one"), Some("n"));
    let urgent = weighted("two", 1, "10");
    play.put(Kind::Pod, using(urgent, "data-1"));
    play.settle_for_long();
    assert!(!play.notes.iter().any(|note| note.contains("Preempted")), "{:?}", play.notes);
    assert_eq!(play.node_of("two"), None);
    play.put(Kind::Volume, volume("more", "local", "n"));
    play.settle_for_long();
    assert_eq!(play.node_of("two"), Some("n"));
}

#[test]
fn a_volume_is_not_given_away_while_a_pod_is_being_bound_to_it() {
    let mut play = local(2, &["v"], 2);
    play.put(Kind::Pod, using(pod("one", 1), "data-0"));
    play.tell_all();
    play.step();
    play.put(Kind::Pod, using(pod("two", 1), "data-1"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play), [("one", &ClaimAction::Volume("v".to_owned()))]);
    // The binding fails, and the volume is free again.
    play.refuse();
    while play.answer() {}
    play.delete("one");
    play.settle_for_long();
    assert_eq!(play.node_of("two"), Some("n"));
}

#[test]
fn a_volume_that_is_there_is_taken_before_one_is_made() {
    let mut play = zones(&[("a", "north")]);
    play.put(Kind::Node, in_zone("a", "north", 2));
    play.put(Kind::Claim, claim("more", "zonal"));
    play.put(Kind::Volume, volume("there", "zonal", "a"));
    play.put(Kind::Pod, using(pod("one", 1), "data"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play), [("one", &ClaimAction::Volume("there".to_owned()))]);
    play.settle();
    play.put(Kind::Pod, using(pod("two", 1), "more"));
    play.tell_all();
    play.step();
    assert_eq!(planned(&play), [("two", &ClaimAction::Provision("a".into()))]);
}

#[test]
fn no_volume_is_made_outside_of_what_its_class_allows() {
    let mut play = zones(&[("a", "north")]);
    let allowed = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["south"]}]}]);
    play.put(Kind::Class, with(class("zonal", "csi.example"), "allowedTopologies", allowed));
    play.put(Kind::Node, in_zone("a", "north", 2));
    play.put(Kind::Claim, claim("more", "zonal"));
    play.put(Kind::Volume, volume("there", "zonal", "a"));
    play.put(Kind::Pod, using(pod("one", 1), "data"));
    play.put(Kind::Pod, using(pod("two", 1), "more"));
    play.tell_all();
    play.step();
    let planned = planned(&play);
    assert_eq!(planned.len(), 1, "{planned:?}");
    assert_eq!(planned[0].1, &ClaimAction::Volume("there".to_owned()));
}

#[test]
fn a_pod_waits_for_storage_and_starts_where_there_is_some_again() {
    let left = |size: &str| {
        json!({"metadata": {"name": "north", "namespace": "csi"}, "storageClassName": "zonal",
            "capacity": size, "nodeTopology": {"matchLabels": {(ZONE): "north"}}})
    };
    let mut play = zones(&[("a", "north"), ("b", "south")]);
    let driver = json!({"metadata": {"name": "csi.example"}, "spec": {"storageCapacity": true}});
    play.put(Kind::Driver, driver);
    play.put(Kind::Capacity, left("1Mi"));
    play.put(Kind::Pod, using(pod("one", 1), "data"));
    play.settle_for_long();
    assert_eq!(play.node_of("one"), None);
    assert_eq!(play.reason("one").as_deref(), Some("Unschedulable"));
    play.put(Kind::Capacity, left("1Ti"));
    play.settle();
    assert_eq!(play.node_of("one"), Some("a"));
}

/// A pod of another scheduler that is on a node.
fn theirs(value: Value, node: &str) -> Value {
    let value = with(value, "spec|schedulerName", json!("default-scheduler"));
    with(value, "spec|nodeName", json!(node))
}

#[test]
fn what_pods_of_others_hold_counts_whatever_is_listed_first() {
    let alone = with(claim("data", "zonal"), "spec|accessModes", json!(["ReadWriteOncePod"]));
    let alone = with(alone, "spec|volumeName", json!("v"));
    let done = "metadata|annotations|pv.kubernetes.io/bind-completed";
    let alone = with(with(alone, done, json!("yes")), "status|phase", json!("Bound"));
    let mut server = Server::default();
    server.put(Kind::Node, node("n", 2));
    server.put(Kind::Claim, alone);
    server.put(Kind::Volume, volume("v", "zonal", "n"));
    server.put(Kind::Pod, theirs(using(pod("theirs", 0), "data"), "n"));
    server.put(Kind::Pod, using(pod("ours", 1), "data"));
    // Pods are told before claims.
    let mut play = Play::of(server);
    play.settle_for_long();
    assert_eq!(play.node_of("ours"), None, "one pod may use the claim at a time");
    play.end("theirs", "Succeeded");
    play.settle_for_long();
    assert_eq!(play.node_of("ours"), Some("n"));
}

#[test]
fn a_pod_of_others_keeps_away_from_namespaces_that_come_to_be_meant() {
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {"matchLabels": {"team": "loud"}},
        "labelSelector": {}}]}});
    let space = |team: &str| json!({"metadata": {"name": SPACE, "labels": {"team": team}}});
    let mut play = Play::new();
    play.put(Kind::Namespace, space("quiet"));
    play.put(Kind::Node, node("n", 2));
    play.put(Kind::Pod, theirs(with(pod("theirs", 0), "spec|affinity", away), "n"));
    play.put(Kind::Pod, pod("before", 1));
    play.settle();
    assert_eq!(play.node_of("before"), Some("n"));
    play.put(Kind::Namespace, space("loud"));
    play.settle();
    play.put(Kind::Pod, pod("after", 1));
    play.settle_for_long();
    assert_eq!(play.node_of("after"), None);
}
