//! Tests of affinity, anti-affinity and spread.

use serde_json::{Value, json};

use super::{Cluster, check, check_lands, nodes};

/// Two nodes in zone `a`, one in zone `b`, one outside all zones.
fn zones() -> Cluster {
    let labels = |name: &str, zone: &str| json!({"kubernetes.io/hostname": name, "zone": zone});
    nodes([
        ("a1", labels("a1", "a")),
        ("a2", labels("a2", "a")),
        ("b1", labels("b1", "b")),
        ("x", json!({"kubernetes.io/hostname": "x"})),
    ])
}

/// A pod with labels and these terms.
fn pod(labels: Value, spec: Value) -> Value {
    json!({"metadata": {"name": "new", "namespace": "default", "labels": labels}, "spec": spec})
}

fn required(terms: Value) -> Value {
    json!({"requiredDuringSchedulingIgnoredDuringExecution": terms})
}

fn affinity(terms: Value) -> Value {
    json!({"affinity": {"podAffinity": required(terms)}})
}

fn anti_affinity(terms: Value) -> Value {
    json!({"affinity": {"podAntiAffinity": required(terms)}})
}

fn term(app: &str, key: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})
}

fn with(mut term: Value, more: Value) -> Value {
    for (key, value) in more.as_object().unwrap() {
        term[key] = value.clone();
    }
    term
}

#[test]
fn required_affinity_and_anti_affinity_look_at_domains() {
    let cluster = zones().with_pod("a1", json!({"app": "web", "tier": "1"}), json!({})).with_pod(
        "b1",
        json!({"app": "db"}),
        json!({}),
    );
    let no_selector = json!({"topologyKey": "zone"});
    let everything = json!({"labelSelector": {}, "topologyKey": "zone"});
    let table = [
        (affinity(json!([term("web", "zone")])), "a1 a2"),
        (affinity(json!([term("web", "kubernetes.io/hostname")])), "a1"),
        (anti_affinity(json!([term("web", "zone")])), "b1 x"),
        (anti_affinity(json!([term("web", "kubernetes.io/hostname")])), "a2 b1 x"),
        (affinity(json!([term("none", "zone")])), "no: TaskAffinity"),
        (anti_affinity(json!([term("none", "zone")])), "a1 a2 b1 x"),
        // A missing selector selects no pod, an empty one all pods.
        (affinity(json!([no_selector])), "no: TaskAffinity"),
        (anti_affinity(json!([no_selector])), "a1 a2 b1 x"),
        (affinity(json!([everything])), "a1 a2 b1"),
        // One pod must match all terms.
        (affinity(json!([term("web", "zone"), term("db", "zone")])), "no: TaskAffinity"),
        (
            affinity(json!([term("web", "zone"),
                {"labelSelector": {"matchLabels": {"tier": "1"}}, "topologyKey": "kubernetes.io/hostname"}])),
            "a1",
        ),
        // Each anti-affinity term applies on its own.
        (anti_affinity(json!([term("web", "zone"), term("db", "zone")])), "x"),
        (affinity(json!([term("web", "")])), "unsupported spec.affinity.podAffinity"),
        (affinity(json!([term("web", "node")])), "unsupported spec.affinity.podAffinity"),
        (
            anti_affinity(json!([{"topologyKey": "zone", "labelSelector":
                {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}}])),
            "unsupported spec.affinity.podAntiAffinity",
        ),
    ];
    for (spec, expected) in table {
        check(&cluster, pod(json!({"app": "new"}), spec), expected);
    }
}

#[test]
fn the_first_of_a_group_that_wants_to_be_together_may_start() {
    let own = |labels| pod(labels, affinity(json!([term("web", "zone")])));
    check(&zones(), own(json!({"app": "web"})), "a1 a2 b1");
    check(&zones(), own(json!({"app": "db"})), "no: TaskAffinity");
    let started = zones().with_pod("b1", json!({"app": "web"}), json!({}));
    check(&started, own(json!({"app": "web"})), "b1");
}

#[test]
fn anti_affinity_of_foreign_pods_is_respected() {
    let cluster =
        zones().with_pod("a1", json!({"app": "db"}), anti_affinity(json!([term("web", "zone")])));
    check(&cluster, pod(json!({"app": "web"}), json!({})), "b1 x");
    check(&cluster, pod(json!({"app": "other"}), json!({})), "a1 a2 b1 x");
    let elsewhere = cluster.in_namespace("other");
    check(&elsewhere, pod(json!({"app": "web"}), json!({})), "a1 a2 b1 x");
}

#[test]
fn terms_mean_the_pods_of_their_namespaces() {
    let cluster = zones()
        .with_namespace("default", json!({"team": "us"}))
        .with_namespace("one", json!({"team": "them"}))
        .with_namespace("two", json!({"team": "them", "env": "test"}))
        .with_pod("a1", json!({"app": "web"}), json!({}))
        .in_namespace("one")
        .with_pod("b1", json!({"app": "web"}), json!({}))
        .in_namespace("two");
    let labels = |labels: Value| json!({"namespaceSelector": {"matchLabels": labels}});
    let table = [
        (json!({}), "no: TaskAffinity"),
        (json!({"namespaces": ["one"]}), "a1 a2"),
        (json!({"namespaces": ["one", "two"]}), "a1 a2 b1"),
        (json!({"namespaces": ["absent"]}), "no: TaskAffinity"),
        (json!({"namespaceSelector": {}}), "a1 a2 b1"),
        (labels(json!({"team": "them"})), "a1 a2 b1"),
        (labels(json!({"env": "test"})), "b1"),
        (labels(json!({"env": "none"})), "no: TaskAffinity"),
        (with(labels(json!({"env": "test"})), json!({"namespaces": ["one"]})), "a1 a2 b1"),
        (json!({"namespaces": [], "namespaceSelector": null}), "no: TaskAffinity"),
    ];
    for (more, expected) in table {
        let spec = affinity(json!([with(term("web", "zone"), more)]));
        check(&cluster, pod(json!({}), spec), expected);
    }
    let depends = |more| {
        let spec = anti_affinity(json!([with(term("web", "zone"), more)]));
        cluster.translate(pod(json!({}), spec)).unwrap().depends.namespaces
    };
    assert!(depends(labels(json!({"env": "test"}))));
    assert!(!depends(json!({"namespaceSelector": {}})));
    assert!(!depends(json!({"namespaces": ["one"]})));
}

#[test]
fn label_keys_compare_with_the_pods_own_labels() {
    let cluster = zones()
        .with_pod("a1", json!({"app": "web", "version": "1"}), json!({}))
        .with_pod("b1", json!({"app": "web", "version": "2"}), json!({}));
    let own = || json!({"version": "2"});
    let merged = json!({"labelSelector": {"matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "version", "operator": "In", "values": ["2"]}]}});
    let table = [
        (json!({"matchLabelKeys": ["version"]}), "b1"),
        (json!({"mismatchLabelKeys": ["version"]}), "a1 a2"),
        (json!({"matchLabelKeys": ["absent"]}), "a1 a2 b1"),
        (with(merged, json!({"matchLabelKeys": ["version"]})), "b1"),
    ];
    for (more, expected) in table {
        let spec = affinity(json!([with(term("web", "zone"), more.clone())]));
        let asked = cluster.translate(pod(own(), spec.clone())).unwrap().request;
        let about_version =
            asked.affinity[0].selector.exprs.iter().filter(|expr| &*expr.key == "version");
        assert!(about_version.count() <= 1, "{more}");
        check(&cluster, pod(own(), spec), expected);
    }
}

#[test]
fn preferred_terms_decide_where_nothing_else_does() {
    let cluster = zones()
        .with_pod("a1", json!({"app": "web"}), json!({}))
        .with_pod("b1", json!({"app": "web"}), json!({}))
        .with_pod("b1", json!({"app": "db"}), json!({}));
    let preferring = |kind: &str, app: &str, weight: i32| {
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": weight, "podAffinityTerm": term(app, "zone")}]}}})
    };
    let table = [
        (json!({}), "a1"),
        (preferring("podAffinity", "db", 10), "b1"),
        (preferring("podAntiAffinity", "web", 10), "x"),
        (preferring("podAffinity", "db", 0), "a1"),
        (preferring("podAffinity", "db", 1000), "unsupported spec.affinity.podAffinity"),
        (preferring("podAntiAffinity", "db", -1), "unsupported spec.affinity.podAntiAffinity"),
    ];
    for (spec, expected) in table {
        check_lands(&cluster, pod(json!({}), spec), expected);
    }
}

fn spread(more: Value) -> Value {
    let base = json!({"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone",
        "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"});
    json!({"topologySpreadConstraints": [with(base, more)]})
}

#[test]
fn pods_are_spread_over_domains() {
    let cluster = zones().with_pod("a1", json!({"app": "web"}), json!({}));
    let web = || json!({"app": "web"});
    let table = [
        (web(), spread(json!({})), "b1"),
        (web(), spread(json!({"maxSkew": 2})), "a1"),
        (json!({"app": "db"}), spread(json!({})), "a1"),
        (web(), spread(json!({"whenUnsatisfiable": "ScheduleAnyway"})), "b1"),
        (web(), with(spread(json!({})), json!({"nodeSelector": {"zone": "a"}})), "a1"),
        // With too few domains the emptiest counts as empty.
        (
            web(),
            with(spread(json!({"minDomains": 2})), json!({"nodeSelector": {"zone": "a"}})),
            "no: NodeSelector TopologySpread",
        ),
        (web(), spread(json!({"labelSelector": null})), "a1"),
        // kube-scheduler counts no pod with an empty selector.
        (web(), spread(json!({"labelSelector": {}})), "a1"),
        (
            json!({"app": "web", "version": "2"}),
            spread(json!({"matchLabelKeys": ["version"]})),
            "a1",
        ),
        (web(), spread(json!({"maxSkew": 0})), "unsupported spec.topologySpreadConstraints"),
        (
            web(),
            spread(json!({"whenUnsatisfiable": "Maybe"})),
            "unsupported spec.topologySpreadConstraints",
        ),
        (web(), spread(json!({"nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"})), "b1"),
    ];
    for (labels, spec, expected) in table {
        check_lands(&cluster, pod(labels, spec), expected);
    }
    let elsewhere = zones().with_pod("a1", web(), json!({})).in_namespace("other");
    check_lands(&elsewhere, pod(web(), spread(json!({}))), "a1");
    check_lands(&cluster.leaving(), pod(web(), spread(json!({}))), "a1");
}

#[test]
fn policies_say_which_nodes_count_in_a_spread() {
    let taint = json!({"taints": [{"key": "closed", "effect": "NoSchedule"}]});
    let cluster = nodes([("a1", json!({"zone": "a"}))])
        .with_node(json!({"metadata": {"name": "b1", "labels": {"zone": "b"}}, "spec": taint}))
        .with_pod("a1", json!({"app": "web"}), json!({}));
    let only_a = |more| with(spread(more), json!({"nodeSelector": {"zone": "a"}}));
    let table = [
        (spread(json!({})), "no: Taint TopologySpread"),
        (spread(json!({"nodeTaintsPolicy": "Ignore"})), "no: Taint TopologySpread"),
        (spread(json!({"nodeTaintsPolicy": "Honor"})), "a1"),
        (only_a(json!({})), "a1"),
        (only_a(json!({"nodeAffinityPolicy": "Honor"})), "a1"),
        (only_a(json!({"nodeAffinityPolicy": "Ignore"})), "no: NodeSelector TopologySpread"),
        (only_a(json!({"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"})), "a1"),
    ];
    for (spec, expected) in table {
        check_lands(&cluster, pod(json!({"app": "web"}), spec), expected);
    }
}
