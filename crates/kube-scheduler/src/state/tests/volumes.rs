//! Claims of placed pods and their volumes.

use serde_json::{Value, json};

use super::fake_server::{Kind, Server};
use super::harness::{Harness, SPACE};
use super::objects::{group, member, node, pod, weighted, with};
use super::storage::{ZONE, only_on};
use crate::state::{Action, ClaimAction, Key};

/// A class with `WaitForFirstConsumer`.
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

/// An available local volume.
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

/// Claim actions of the bindings in flight.
fn planned(harness: &Harness) -> Vec<(&str, &ClaimAction)> {
    let binds = harness.acts.iter().filter_map(|act| match act {
        Action::Bind(bind) => Some(bind),
        _ => None,
    });
    binds.flat_map(|bind| bind.claims.iter().map(|(_, act)| (&*bind.pod.key.name, act))).collect()
}

/// Nodes with one GPU in each of these zones, and a claim for a provisioned volume.
fn zones(zones: &[(&str, &str)]) -> Harness {
    let mut harness = Harness::new();
    harness.put(Kind::Class, class("zonal", "csi.example"));
    harness.put(Kind::Claim, claim("data", "zonal"));
    for (name, zone) in zones {
        harness.put(Kind::Node, in_zone(name, zone, 1));
    }
    harness
}

#[test]
fn pods_that_share_a_claim_follow_its_volume() {
    let mut harness = zones(&[("a", "north"), ("b", "south")]);
    harness.put(Kind::Pod, using(pod("one", 1), "data"));
    harness.put(Kind::Pod, using(pod("two", 1), "data"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness).len(), 1, "{:?}", harness.acts);
    harness.settle_for_long();
    let nodes = [harness.node_of("one"), harness.node_of("two")];
    let (at, waits) = match nodes {
        [Some(at), None] => (at.to_owned(), "two"),
        [None, Some(at)] => (at.to_owned(), "one"),
        other => panic!("one has its place, and the other waits: {other:?}"),
    };
    let zone = if at == "a" { "north" } else { "south" };
    harness.put(Kind::Node, in_zone("c", zone, 1));
    harness.settle_for_long();
    assert_eq!(harness.node_of(waits), Some("c"));
}

#[test]
fn a_binding_that_waits_for_its_volume_decides_for_pods_that_come_later() {
    let mut harness = zones(&[("a", "north")]);
    harness.put(Kind::Pod, using(pod("one", 1), "data"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness), [("one", &ClaimAction::Provision("a".into()))]);
    harness.put(Kind::Node, in_zone("b", "south", 1));
    harness.put(Kind::Pod, using(pod("two", 1), "data"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness).len(), 1, "{:?}", harness.acts);
    // The API server refuses the first pod: the second may use the volume on its own node.
    harness.refuse();
    while harness.answer() {}
    harness.delete("one");
    harness.settle_for_long();
    assert!(harness.node_of("two").is_some());
}

#[test]
fn a_gang_that_shares_a_claim_waits_for_the_volume_on_its_nodes() {
    let mut harness = zones(&[("a", "north"), ("b", "north")]);
    harness.put(Kind::PodGroup, group("g", 2));
    harness.put(Kind::Pod, using(member("one", "g", 1), "data"));
    harness.put(Kind::Pod, using(member("two", "g", 1), "data"));
    harness.settle();
    assert!(
        harness.node_of("one").is_some() && harness.node_of("two").is_some(),
        "{:?}",
        harness.notes
    );
}

#[test]
fn a_gang_follows_its_zonal_volume() {
    let mut harness = zones(&[("a", "north"), ("b", "south")]);
    harness.put(Kind::PodGroup, group("g", 2));
    let gang = |harness: &mut Harness| {
        for name in ["one", "two"] {
            if harness.server.get(Kind::Pod, &Key::new(SPACE, name)).is_none() {
                harness.put(Kind::Pod, using(member(name, "g", 1), "data"));
            }
        }
    };
    gang(&mut harness);
    harness.settle();
    let made = harness.server.volume_of(&Key::new(SPACE, "data"));
    assert_eq!(made, Some("made-data"));
    for (name, zone) in [("c", "north"), ("d", "south")] {
        harness.put(Kind::Node, in_zone(name, zone, 1));
    }
    for _ in 0..3 {
        harness.kubelets();
        gang(&mut harness);
        harness.settle_for_long();
    }
    let nodes = [harness.node_of("one"), harness.node_of("two")];
    assert!(
        nodes.iter().all(|node| matches!(node, Some("a" | "c")))
            || nodes.iter().all(|node| matches!(node, Some("b" | "d"))),
        "{nodes:?}"
    );
}

/// A node with a local volume for each of these names, and claims `data-…` for local volumes.
fn local(gpus: u32, volumes: &[&str], claims: u32) -> Harness {
    let mut harness = Harness::new();
    harness.put(Kind::Class, class("local", "kubernetes.io/no-provisioner"));
    harness.put(Kind::Node, node("n", gpus));
    for name in volumes {
        harness.put(Kind::Volume, volume(name, "local", "n"));
    }
    for number in 0..claims {
        harness.put(Kind::Claim, claim(&format!("data-{number}"), "local"));
    }
    harness
}

#[test]
fn each_pod_of_a_gang_gets_a_volume_of_its_own() {
    let mut harness = local(2, &["v", "w"], 2);
    harness.put(Kind::PodGroup, group("g", 2));
    harness.put(Kind::Pod, using(member("one", "g", 1), "data-0"));
    harness.put(Kind::Pod, using(member("two", "g", 1), "data-1"));
    harness.tell_all();
    harness.step();
    let (v, w) = (ClaimAction::Volume("v".to_owned()), ClaimAction::Volume("w".to_owned()));
    let planned = planned(&harness);
    assert!(planned == [("one", &v), ("two", &w)] || planned == [("one", &w), ("two", &v)]);
    harness.settle();
    assert_eq!([harness.node_of("one"), harness.node_of("two")], [Some("n"); 2]);
}

/// Nodes with this many GPUs and this many local volumes, and a gang whose pods each need one volume.
fn spread(nodes: &[(&str, u32, u32)], gang: u32) -> Harness {
    let mut harness = local(0, &[], gang);
    for (name, gpus, volumes) in nodes {
        harness.put(Kind::Node, node(name, *gpus));
        for number in 0..*volumes {
            harness.put(Kind::Volume, volume(&format!("{name}-{number}"), "local", name));
        }
    }
    harness.put(Kind::PodGroup, group("g", gang));
    for number in 0..gang {
        let pod = using(member(&format!("p{number}"), "g", 1), &format!("data-{number}"));
        harness.put(Kind::Pod, pod);
    }
    harness
}

fn places(harness: &Harness, gang: u32) -> Vec<Option<&str>> {
    let mut places: Vec<_> = (0..gang).map(|n| harness.node_of(&format!("p{n}"))).collect();
    places.sort_unstable();
    places
}

#[test]
fn a_gang_is_placed_on_nodes_with_a_volume_for_each_pod() {
    let mut harness = spread(&[("a", 8, 1), ("b", 8, 2), ("c", 8, 1)], 4);
    harness.settle();
    assert_eq!(
        places(&harness, 4),
        [Some("a"), Some("b"), Some("b"), Some("c")],
        "{:?}",
        harness.notes
    );
    assert!(
        !harness.notes.iter().any(|note| note.contains("FailedBinding")),
        "{:?}",
        harness.notes
    );
}

#[test]
fn a_gang_waits_for_the_volume_that_it_lacks_and_is_not_tried_before() {
    let mut harness = spread(&[("a", 8, 1), ("b", 8, 1)], 3);
    harness.settle_for_long();
    assert_eq!(places(&harness, 3), [None; 3]);
    assert!(
        !harness.notes.iter().any(|note| note.contains("FailedBinding")),
        "{:?}",
        harness.notes
    );
    harness.put(Kind::Volume, volume("more", "local", "a"));
    harness.settle();
    assert_eq!(places(&harness, 3), [Some("a"), Some("a"), Some("b")]);
}

#[test]
fn a_small_volume_does_not_count_for_a_large_claim() {
    let mut harness = spread(&[("a", 8, 0), ("b", 8, 0)], 2);
    let sized =
        |name, node, size| with(volume(name, "local", node), "spec|capacity|storage", json!(size));
    harness.put(Kind::Volume, sized("small", "a", "1Mi"));
    harness.put(Kind::Volume, sized("large", "a", "1Gi"));
    harness.put(Kind::Volume, sized("huge", "b", "1Ti"));
    harness.settle();
    assert_eq!(places(&harness, 2), [Some("a"), Some("b")]);
    assert!(
        !harness.notes.iter().any(|note| note.contains("FailedBinding")),
        "{:?}",
        harness.notes
    );
}

#[test]
fn pods_that_share_a_claim_share_its_volume() {
    let mut harness = local(2, &["v"], 1);
    for name in ["one", "two"] {
        harness.put(Kind::Pod, using(pod(name, 1), "data-0"));
    }
    harness.settle_for_long();
    assert_eq!([harness.node_of("one"), harness.node_of("two")], [Some("n"); 2]);
}

#[test]
fn no_pod_is_preempted_for_a_volume_that_would_stay_bound() {
    let mut harness = local(2, &["v"], 2);
    harness.put(Kind::Pod, using(pod("one", 1), "data-0"));
    harness.settle();
    assert_eq!(harness.node_of("one"), Some("n"));
    let urgent = weighted("two", 1, 10);
    harness.put(Kind::Pod, using(urgent, "data-1"));
    harness.settle_for_long();
    assert!(!harness.notes.iter().any(|note| note.contains("Preempted")), "{:?}", harness.notes);
    assert_eq!(harness.node_of("two"), None);
    harness.put(Kind::Volume, volume("more", "local", "n"));
    harness.settle_for_long();
    assert_eq!(harness.node_of("two"), Some("n"));
}

#[test]
fn a_volume_is_not_given_away_while_a_pod_is_being_bound_to_it() {
    let mut harness = local(2, &["v"], 2);
    harness.put(Kind::Pod, using(pod("one", 1), "data-0"));
    harness.tell_all();
    harness.step();
    harness.put(Kind::Pod, using(pod("two", 1), "data-1"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness), [("one", &ClaimAction::Volume("v".to_owned()))]);
    // The binding fails, and the volume is free again.
    harness.refuse();
    while harness.answer() {}
    harness.delete("one");
    harness.settle_for_long();
    assert_eq!(harness.node_of("two"), Some("n"));
}

#[test]
fn a_volume_that_is_there_is_taken_before_one_is_made() {
    let mut harness = zones(&[("a", "north")]);
    harness.put(Kind::Node, in_zone("a", "north", 2));
    harness.put(Kind::Claim, claim("more", "zonal"));
    harness.put(Kind::Volume, volume("there", "zonal", "a"));
    harness.put(Kind::Pod, using(pod("one", 1), "data"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness), [("one", &ClaimAction::Volume("there".to_owned()))]);
    harness.settle();
    harness.put(Kind::Pod, using(pod("two", 1), "more"));
    harness.tell_all();
    harness.step();
    assert_eq!(planned(&harness), [("two", &ClaimAction::Provision("a".into()))]);
}

#[test]
fn no_volume_is_provisioned_outside_the_topology_of_its_class() {
    let mut harness = zones(&[("a", "north")]);
    let allowed = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["south"]}]}]);
    harness.put(Kind::Class, with(class("zonal", "csi.example"), "allowedTopologies", allowed));
    harness.put(Kind::Node, in_zone("a", "north", 2));
    harness.put(Kind::Claim, claim("more", "zonal"));
    harness.put(Kind::Volume, volume("there", "zonal", "a"));
    harness.put(Kind::Pod, using(pod("one", 1), "data"));
    harness.put(Kind::Pod, using(pod("two", 1), "more"));
    harness.tell_all();
    harness.step();
    let planned = planned(&harness);
    assert_eq!(planned.len(), 1, "{planned:?}");
    assert_eq!(planned[0].1, &ClaimAction::Volume("there".to_owned()));
}

#[test]
fn a_pod_waits_for_storage_capacity_and_starts_when_there_is_some() {
    let left = |size: &str| {
        json!({"metadata": {"name": "north", "namespace": "csi"}, "storageClassName": "zonal",
            "capacity": size, "nodeTopology": {"matchLabels": {(ZONE): "north"}}})
    };
    let mut harness = zones(&[("a", "north"), ("b", "south")]);
    let driver = json!({"metadata": {"name": "csi.example"}, "spec": {"storageCapacity": true}});
    harness.put(Kind::Driver, driver);
    harness.put(Kind::Capacity, left("1Mi"));
    harness.put(Kind::Pod, using(pod("one", 1), "data"));
    harness.settle_for_long();
    assert_eq!(harness.node_of("one"), None);
    assert_eq!(harness.reason("one").as_deref(), Some("Unschedulable"));
    harness.put(Kind::Capacity, left("1Ti"));
    harness.settle();
    assert_eq!(harness.node_of("one"), Some("a"));
}

/// A pod of another scheduler, bound to a node.
fn theirs(value: Value, node: &str) -> Value {
    let value = with(value, "spec|schedulerName", json!("default-scheduler"));
    with(value, "spec|nodeName", json!(node))
}

#[test]
fn volumes_of_foreign_pods_count_in_any_listing_order() {
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
    // Pods are delivered before claims.
    let mut harness = Harness::of(server);
    harness.settle_for_long();
    assert_eq!(harness.node_of("ours"), None, "one pod may use the claim at a time");
    harness.end("theirs", "Succeeded");
    harness.settle_for_long();
    assert_eq!(harness.node_of("ours"), Some("n"));
}

#[test]
fn anti_affinity_of_a_foreign_pod_follows_namespace_labels() {
    let away = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {"matchLabels": {"team": "loud"}},
        "labelSelector": {}}]}});
    let space = |team: &str| json!({"metadata": {"name": SPACE, "labels": {"team": team}}});
    let mut harness = Harness::new();
    harness.put(Kind::Namespace, space("quiet"));
    harness.put(Kind::Node, node("n", 2));
    harness.put(Kind::Pod, theirs(with(pod("theirs", 0), "spec|affinity", away), "n"));
    harness.put(Kind::Pod, pod("before", 1));
    harness.settle();
    assert_eq!(harness.node_of("before"), Some("n"));
    harness.put(Kind::Namespace, space("loud"));
    harness.settle();
    harness.put(Kind::Pod, pod("after", 1));
    harness.settle_for_long();
    assert_eq!(harness.node_of("after"), None);
}
