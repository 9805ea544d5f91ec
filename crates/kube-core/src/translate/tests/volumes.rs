//! Claims and volumes.

use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::{Cluster, check, nodes, pod, read};
use crate::translate::{ClaimBinding, Volumes, labels};

pub(super) fn zones() -> Cluster {
    nodes([
        ("a", json!({"topology.kubernetes.io/zone": "a", "host": "a"})),
        ("b", json!({"topology.kubernetes.io/zone": "b", "host": "b"})),
        ("old", json!({"failure-domain.beta.kubernetes.io/zone": "a", "host": "old"})),
        ("plain", json!({"host": "plain"})),
    ])
    .with_class(
        "wait",
        json!({"provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer"}),
    )
    .with_class("now", json!({"provisioner": "csi.example", "volumeBindingMode": "Immediate"}))
    .with_class(
        "local",
        json!({"provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"}),
    )
}

/// A pod with these claims.
pub(super) fn using<const N: usize>(claims: [&str; N]) -> Value {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    pod(json!({"volumes": claims.iter().map(volume).collect::<Vec<_>>()}))
}

/// Metadata of a completely bound claim.
pub(super) fn done() -> Value {
    json!({"annotations": {"pv.kubernetes.io/bind-completed": "yes"}})
}

fn on_host(hosts: Value) -> Value {
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "host", "operator": "In", "values": hosts}]}]}})
}

/// A claim of this class and size.
pub(super) fn asking(class: &str, size: &str) -> Value {
    json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}}})
}

/// A local volume on a host.
pub(super) fn local(host: &str, size: &str) -> Value {
    json!({"storageClassName": "local", "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
        "capacity": {"storage": size}, "nodeAffinity": on_host(json!([host]))})
}

#[test]
fn a_claim_that_cannot_be_used_yet_keeps_its_pod_waiting() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    let cluster = zones()
        .with_claim("deleted", deleted, asking("now", "1Gi"))
        .with_claim("immediate", json!({}), asking("now", "1Gi"))
        .with_claim("classless", json!({}), asking("", "1Gi"))
        .with_claim("unknown-class", json!({}), asking("gone", "1Gi"))
        .with_claim("prebound", json!({}), json!({"volumeName": "v", "storageClassName": "wait"}))
        .with_claim("lost-volume", done(), json!({"volumeName": "v"}))
        .with_claim("nothing-local", json!({}), asking("local", "1Gi"));
    let table = [
        ("absent", "claim `absent` does not exist"),
        ("deleted", "claim `deleted` is being deleted"),
        ("immediate", "claim `immediate` waits for its volume to be bound"),
        ("classless", "claim `classless` waits for its volume to be bound"),
        ("unknown-class", "claim `unknown-class` waits for its volume to be bound"),
        ("prebound", "claim `prebound` waits for its volume `v`"),
        ("lost-volume", "claim `lost-volume` has the volume `v`, which does not exist"),
        (
            "nothing-local",
            "claim `nothing-local` waits for a volume: none matches, and no provisioner creates one",
        ),
    ];
    for (claim, expected) in table {
        check(&cluster, using([claim]), expected);
    }
    let mut lost = zones();
    lost.volumes.set_claim(read(json!({"metadata": {"namespace": "default", "name": "c",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v"}, "status": {"phase": "Lost"}})));
    check(&lost, using(["c"]), "claim `c` has lost its volume");
}

#[test]
fn an_ephemeral_volume_waits_for_the_claim_that_is_made_for_its_pod() {
    let spec =
        || pod(json!({"volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}]}));
    let owned = |uid: &str| {
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": uid,
            "controller": true}]})
    };
    let with = |metadata| zones().with_claim("new-scratch", metadata, asking("wait", "1Gi"));
    let stranger = "claim `new-scratch` was not made for this pod, though its name is taken for it";
    check(&zones(), spec(), "claim `new-scratch` does not exist");
    check(&with(json!({})), spec(), stranger);
    check(&with(owned("u-other")), spec(), stranger);
    check(&with(owned("u-new")), spec(), "a b old plain");
}

#[test]
fn a_pod_goes_where_its_volumes_are() {
    let cluster = zones()
        .with_claim("anywhere", done(), json!({"volumeName": "v-anywhere"}))
        .with_claim("on-a-b", done(), json!({"volumeName": "v-a-b"}))
        .with_claim("on-b-plain", done(), json!({"volumeName": "v-b-plain"}))
        .with_claim("zone-a", done(), json!({"volumeName": "v-zone-a"}))
        .with_claim("zones", done(), json!({"volumeName": "v-zones"}))
        .with_claim("old-zone-a", done(), json!({"volumeName": "v-old-zone-a"}))
        .with_volume("v-anywhere", json!({}), json!({}))
        .with_volume("v-a-b", json!({}), json!({"nodeAffinity": on_host(json!(["a", "b"]))}))
        .with_volume(
            "v-b-plain",
            json!({}),
            json!({"nodeAffinity": on_host(json!(["b", "plain"]))}),
        )
        .with_volume("v-zone-a", json!({"topology.kubernetes.io/zone": "a"}), json!({}))
        .with_volume("v-zones", json!({"topology.kubernetes.io/zone": "b__c"}), json!({}))
        .with_volume(
            "v-old-zone-a",
            json!({"failure-domain.beta.kubernetes.io/zone": "a"}),
            json!({}),
        );
    check(&cluster, using(["anywhere"]), "a b old plain");
    check(&cluster, using(["on-a-b"]), "a b");
    check(&cluster, using(["on-a-b", "on-b-plain"]), "b");
    // A node without zone labels is in every zone; the new label replaces the old one.
    check(&cluster, using(["zone-a"]), "a plain");
    check(&cluster, using(["zones"]), "b plain");
    check(&cluster, using(["old-zone-a"]), "a old plain");
    check(&cluster, using(["old-zone-a", "zones"]), "plain");
    check(&cluster, using(["on-a-b", "zones"]), "b");
    let mut both = using(["on-a-b"]);
    both["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b", "old"]}]},
                               {"matchExpressions": [{"key": "host", "operator": "In", "values": ["plain"]}]}]}}});
    check(&cluster, both.clone(), "b");
    both["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "zone-a".into();
    check(&cluster, both, "plain");
}

#[test]
fn a_claim_that_waits_for_its_node_can_go_where_a_volume_is_or_can_be_made() {
    let topology = |zone: &str| {
        json!({"provisioner": "csi.example", "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies":
            [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": [zone]}]}]})
    };
    let mut in_b = local("plain", "5Gi");
    in_b["storageClassName"] = "in-b".into();
    let cluster = zones()
        .with_class("in-b", topology("b"))
        .with_claim("made", json!({}), asking("wait", "1Gi"))
        .with_claim("made-in-b", json!({}), asking("in-b", "8Gi"))
        .with_claim("either", json!({}), asking("in-b", "2Gi"))
        .with_claim(
            "chosen",
            json!({"annotations": {"volume.kubernetes.io/selected-node": "old"}}),
            asking("wait", "1Gi"),
        )
        .with_claim("local", json!({}), asking("local", "2Gi"))
        .with_claim("large", json!({}), asking("local", "8Gi"))
        .with_volume("v1", json!({}), local("a", "5Gi"))
        .with_volume("v2", json!({}), local("b", "10Gi"))
        .with_volume("v3", json!({}), local("plain", "1Gi"))
        .with_volume("v4", json!({}), in_b);
    let table = [
        ("made", "a b old plain", ClaimBinding::Provision),
        ("made-in-b", "b", ClaimBinding::Provision),
        ("either", "b plain", ClaimBinding::Provision),
        ("chosen", "old", ClaimBinding::Provision),
        ("local", "a b", ClaimBinding::Static),
        ("large", "b", ClaimBinding::Static),
    ];
    for (claim, expected, how) in table {
        check(&cluster, using([claim]), expected);
        let asked = cluster.translate(using([claim])).unwrap();
        assert_eq!(asked.claims.len(), 1);
        assert_eq!((asked.claims[0].name.as_str(), asked.claims[0].how), (claim, how));
        let looked_up = asked.depends.claims.into_iter().collect::<Vec<_>>();
        assert_eq!(looked_up, [("default".to_owned(), claim.to_owned())]);
    }
}

#[test]
fn only_a_volume_that_matches_in_everything_serves_a_claim() {
    let claim = || asking("local", "2Gi");
    let with = |mut value: Value, more: Value| {
        for (key, field) in more.as_object().unwrap() {
            value[key] = field.clone();
        }
        value
    };
    let fits = "a";
    let none = "claim `c` waits for a volume: none matches, and no provisioner creates one";
    let selector = json!({"selector": {"matchLabels": {"disk": "fast"}}});
    let table = [
        (claim(), local("a", "2Gi"), fits),
        (claim(), local("a", "2047Mi"), none),
        (claim(), with(local("a", "2Gi"), json!({"storageClassName": "other"})), none),
        (claim(), with(local("a", "2Gi"), json!({"volumeMode": "Block"})), none),
        (
            with(claim(), json!({"volumeMode": "Block"})),
            with(local("a", "2Gi"), json!({"volumeMode": "Block"})),
            fits,
        ),
        (
            with(claim(), json!({"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]})),
            local("a", "2Gi"),
            fits,
        ),
        (with(claim(), json!({"accessModes": ["ReadWriteMany"]})), local("a", "2Gi"), none),
        (with(claim(), selector.clone()), local("a", "2Gi"), fits),
        (
            with(claim(), json!({"selector": {"matchLabels": {"disk": "slow"}}})),
            local("a", "2Gi"),
            none,
        ),
        (with(claim(), json!({"volumeAttributesClassName": "gold"})), local("a", "2Gi"), none),
        (
            claim(),
            with(local("a", "2Gi"), json!({"claimRef": {"namespace": "default", "name": "d"}})),
            none,
        ),
        (
            claim(),
            with(local("a", "2Gi"), json!({"claimRef": {"namespace": "default", "name": "c"}})),
            fits,
        ),
        (
            claim(),
            with(
                local("a", "2Gi"),
                json!({"claimRef": {"namespace": "default", "name": "c", "uid": "x"}}),
            ),
            none,
        ),
        // A pre-bound volume need not match the access modes.
        (
            with(claim(), json!({"accessModes": ["ReadWriteMany"]})),
            with(local("a", "2Gi"), json!({"claimRef": {"namespace": "default", "name": "c"}})),
            fits,
        ),
        (claim(), json!({"storageClassName": "local", "capacity": {"storage": "huge"}}), none),
    ];
    for (claim, volume, expected) in table {
        let cluster = zones().with_claim("c", json!({}), claim).with_volume(
            "v",
            json!({"disk": "fast"}),
            volume,
        );
        check(&cluster, using(["c"]), expected);
    }
}

#[test]
fn the_smallest_volume_on_the_node_is_taken() {
    let cluster = zones()
        .with_claim("c", json!({}), asking("local", "2Gi"))
        .with_claim(
            "made",
            json!({"annotations": {"volume.kubernetes.io/selected-node": "a"}}),
            asking("local", "2Gi"),
        )
        .with_volume("large", json!({}), local("a", "9Gi"))
        .with_volume("small", json!({}), local("a", "3Gi"))
        .with_volume("tiny", json!({}), local("a", "1Gi"))
        .with_volume("elsewhere", json!({}), local("b", "2Gi"));
    let on = |host: &str, taken: &[&str]| {
        let labels = labels(Some(&[("host".to_owned(), host.to_owned())].into()));
        let taken: BTreeSet<String> = taken.iter().map(|&name| name.to_owned()).collect();
        cluster.volumes.volume_for(("default", "c"), (host, &labels), &taken)
    };
    assert_eq!(on("a", &[]).as_deref(), Some("small"));
    assert_eq!(on("a", &["small"]).as_deref(), Some("large"));
    assert_eq!(on("a", &["small", "large"]), None);
    assert_eq!(on("b", &[]).as_deref(), Some("elsewhere"));
    assert_eq!(on("plain", &[]), None);
    let labels = labels(None);
    assert_eq!(
        cluster.volumes.volume_for(("default", "made"), ("a", &labels), &BTreeSet::new()),
        None
    );
    assert_eq!(cluster.volumes.volume_for(("other", "c"), ("a", &labels), &BTreeSet::new()), None);
}

#[test]
fn two_claims_go_where_each_finds_a_volume_of_its_own() {
    let cluster = zones()
        .with_claim("data", json!({}), asking("local", "10Gi"))
        .with_claim("log", json!({}), asking("local", "1Gi"))
        .with_volume("a-0", json!({}), local("a", "20Gi"))
        .with_volume("b-0", json!({}), local("b", "20Gi"))
        .with_volume("b-1", json!({}), local("b", "2Gi"))
        .with_volume("old-0", json!({}), local("old", "2Gi"))
        .with_volume("old-1", json!({}), local("old", "2Gi"));
    check(&cluster, using(["data"]), "a b");
    check(&cluster, using(["data", "log"]), "b");
    let mut many = cluster;
    for number in 0..100 {
        let host = format!("h{number}");
        many = many.with_volume(&format!("{host}-0"), json!({}), local(&host, "20Gi"));
    }
    check(&many, using(["data", "log"]), "b");
}

#[test]
fn thousands_of_local_volumes_are_one_question() {
    let mut cluster = zones().with_claim("c", json!({}), asking("local", "2Gi"));
    for number in 0..2000 {
        cluster = cluster.with_volume(
            &format!("v{number}"),
            json!({}),
            local(&format!("host-{number}"), "5Gi"),
        );
    }
    let asked = cluster.translate(using(["c"])).unwrap();
    assert_eq!(asked.request.required_nodes.len(), 1);
    assert_eq!(asked.request.required_nodes[0].exprs[0].values.len(), 2000);
}

#[test]
fn only_news_that_matter_count_as_changes() {
    let mut volumes = Volumes::default();
    let claim = |annotation: &str, volume: Option<&str>| {
        read(
            json!({"metadata": {"namespace": "n", "name": "c", "annotations": {"note": annotation}},
            "spec": {"volumeName": volume}}),
        )
    };
    assert!(volumes.set_claim(claim("1", None)));
    assert!(!volumes.set_claim(claim("2", None)));
    assert!(volumes.set_claim(claim("2", Some("v"))));
    assert!(!volumes.is_bound("n", "c"), "a name alone may be a wish");
    assert!(volumes.remove_claim("n", "c"));
    assert!(!volumes.remove_claim("n", "c"));

    let volume = |class: &str, version: &str| {
        read(
            json!({"metadata": {"name": "v", "resourceVersion": version}, "spec": {"storageClassName": class}}),
        )
    };
    assert!(volumes.set_volume(volume("local", "1")));
    assert!(!volumes.set_volume(volume("local", "2")));
    assert!(volumes.set_volume(volume("other", "3")));
    assert!(volumes.remove_volume("v"));
    assert!(!volumes.remove_volume("v"));

    let class = |mode: &str| {
        read(json!({"metadata": {"name": "s"}, "provisioner": "p", "volumeBindingMode": mode}))
    };
    assert!(volumes.set_class(class("Immediate")));
    assert!(!volumes.set_class(class("Immediate")));
    assert!(volumes.set_class(class("WaitForFirstConsumer")));
    assert!(volumes.remove_class("s"));

    let csi = |count: Value| {
        read(
            json!({"metadata": {"name": "n1"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": count}}]}}),
        )
    };
    assert!(!volumes.set_csi_node(&csi(json!(null))));
    assert!(volumes.set_csi_node(&csi(json!(5))));
    assert!(!volumes.set_csi_node(&csi(json!(5))));
    assert!(volumes.set_csi_node(&csi(json!(-1))));
    assert_eq!(volumes.limited_drivers().count(), 1);
    assert!(volumes.remove_csi_node("n1"));
    assert!(!volumes.remove_csi_node("n1"));
    assert_eq!(volumes.limited_drivers().count(), 0);
}

#[test]
fn volumes_in_too_many_different_places_are_refused() {
    let term = |key: &str, value: u32| {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value.to_string()]},
                                    {"key": "host", "operator": "Exists"}]})
    };
    let terms = |key: &str| {
        let terms: Vec<Value> = (0..20).map(|value| term(key, value)).collect();
        json!({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}})
    };
    let cluster = zones()
        .with_claim("c1", done(), json!({"volumeName": "v1"}))
        .with_claim("c2", done(), json!({"volumeName": "v2"}))
        .with_volume("v1", json!({}), terms("rack"))
        .with_volume("v2", json!({}), terms("row"));
    check(&cluster, using(["c1", "c2"]), "unsupported spec.volumes");
}
