//! Node selection by labels, names and taints.

use serde_json::{Value, json};

use super::{Cluster, check, check_lands, nodes, pod};

fn three() -> Cluster {
    nodes([
        ("n1", json!({"gpu": "a100", "mem": "40", "zone": "a"})),
        ("n2", json!({"gpu": "h100", "mem": "80", "zone": "b"})),
        ("n3", json!({"mem": "many"})),
    ])
}

fn requiring(terms: Value) -> Value {
    pod(json!({"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
}

#[test]
fn a_node_selector_wants_all_of_its_labels() {
    let table = [
        (json!({}), "n1 n2 n3"),
        (json!({"gpu": "a100"}), "n1"),
        (json!({"gpu": "a100", "zone": "b"}), "no: NodeSelector"),
        (json!({"gpu": "A100"}), "no: NodeSelector"),
    ];
    for (selector, expected) in table {
        check(&three(), pod(json!({"nodeSelector": selector})), expected);
    }
}

#[test]
fn required_node_affinity_matches_one_term_with_all_its_conditions() {
    let expr =
        |key: &str, op: &str, values: Value| json!({"key": key, "operator": op, "values": values});
    let label = |key, op, values| json!({"matchExpressions": [expr(key, op, values)]});
    let name = |op, values| json!({"matchFields": [expr("metadata.name", op, values)]});
    let table = [
        (json!([label("gpu", "In", json!(["a100", "h100"]))]), "n1 n2"),
        (json!([label("gpu", "NotIn", json!(["a100"]))]), "n2 n3"),
        (json!([label("gpu", "Exists", json!(null))]), "n1 n2"),
        (json!([label("gpu", "DoesNotExist", json!([]))]), "n3"),
        (json!([label("mem", "Gt", json!(["40"]))]), "n2"),
        (json!([label("mem", "Lt", json!(["80"]))]), "n1"),
        (json!([label("mem", "Gt", json!(["many"]))]), "unsupported spec.affinity.nodeAffinity"),
        (json!([label("mem", "Gt", json!(["-5"]))]), "unsupported spec.affinity.nodeAffinity"),
        (
            json!([label("mem", "NotIn", json!(["no value"]))]),
            "unsupported spec.affinity.nodeAffinity",
        ),
        (json!([label("mem", "Near", json!(["1"]))]), "unsupported spec.affinity.nodeAffinity"),
        (json!([name("In", json!(["n1", "n3", "n9"]))]), "n1 n3"),
        (json!([name("NotIn", json!(["n1"]))]), "n2 n3"),
        (json!([name("Exists", json!([]))]), "unsupported spec.affinity.nodeAffinity"),
        (json!([label("zone", "In", json!(["a"])), name("In", json!(["n3"]))]), "n1 n3"),
        (
            json!([{"matchExpressions": [expr("gpu", "Exists", json!(null))],
                    "matchFields": [expr("metadata.name", "NotIn", json!(["n1"]))]}]),
            "n2",
        ),
        // An empty term matches no node, and neither does a selector without terms.
        (json!([{}]), "no: NodeAffinity"),
        (json!([{}, label("zone", "In", json!(["a"]))]), "n1"),
        (json!([]), "no: NodeAffinity"),
    ];
    for (terms, expected) in table {
        check(&three(), requiring(terms), expected);
    }
}

#[test]
fn preferred_nodes_are_taken_where_possible() {
    let preferring = |terms: Value| {
        pod(
            json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}),
        )
    };
    let zone = |weight: i32, zone: &str| {
        json!({"weight": weight, "preference":
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}})
    };
    let table = [
        (json!([]), "n1"),
        (json!([zone(1, "b")]), "n2"),
        (json!([zone(10, "b"), zone(20, "a")]), "n1"),
        (json!([zone(20, "b"), zone(10, "a")]), "n2"),
        (json!([zone(1, "b"), {"weight": 100, "preference": {}}]), "n2"),
        (json!([zone(0, "b")]), "n1"),
        (json!([zone(101, "b")]), "unsupported spec.affinity.nodeAffinity"),
        (json!([zone(-1, "b")]), "unsupported spec.affinity.nodeAffinity"),
    ];
    for (terms, expected) in table {
        check_lands(&three(), preferring(terms), expected);
    }
}

#[test]
fn taints_keep_pods_away_that_do_not_tolerate_them() {
    let tainted = |taint: Value| {
        Cluster::default()
            .with_node(json!({"metadata": {"name": "n1"}, "spec": {"taints": [taint]}}))
    };
    let gpu = || json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"});
    let number = || json!({"key": "risk", "value": "5", "effect": "NoExecute"});
    let soft = || json!({"key": "slow", "effect": "PreferNoSchedule"});
    let table = [
        (gpu(), json!([]), "no: Taint"),
        (
            gpu(),
            json!([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "true"}]),
            "no: Taint",
        ),
        (
            gpu(),
            json!([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]),
            "n1",
        ),
        (gpu(), json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]), "n1"),
        (
            gpu(),
            json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]),
            "no: Taint",
        ),
        (gpu(), json!([{"operator": "Exists"}]), "n1"),
        (gpu(), json!([{"key": "", "operator": "Exists", "effect": ""}]), "n1"),
        (gpu(), json!([{"operator": "Equal"}]), "no: Taint"),
        (gpu(), json!([{"key": "nvidia.com/gpu", "operator": "Perhaps"}]), "no: Taint"),
        (number(), json!([{"key": "risk", "operator": "Lt", "value": "6"}]), "n1"),
        (number(), json!([{"key": "risk", "operator": "Lt", "value": "5"}]), "no: Taint"),
        (number(), json!([{"key": "risk", "operator": "Gt", "value": "4"}]), "n1"),
        (number(), json!([{"key": "risk", "operator": "Gt", "value": "x"}]), "no: Taint"),
        (soft(), json!([]), "n1"),
    ];
    for (taint, tolerations, expected) in table {
        check(&tainted(taint), pod(json!({"tolerations": tolerations})), expected);
    }
}

#[test]
fn a_cordoned_node_takes_only_pods_with_a_toleration() {
    let taint = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
    let tolerate =
        json!({"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]});
    let specs = [
        json!({"unschedulable": true}),
        json!({"unschedulable": true, "taints": taint.clone()}),
        json!({"taints": taint}),
    ];
    for spec in specs {
        let node = json!({"metadata": {"name": "n1"}, "spec": spec});
        let view = crate::translate::node(&super::read(node.clone()), None, None);
        assert_eq!(view.node.taints.len(), 1, "{node}");
        let cluster = Cluster::default().with_node(node);
        check(&cluster, pod(json!({})), "no: Taint");
        check(&cluster, pod(tolerate.clone()), "n1");
    }
    let open = json!({"metadata": {"name": "n1"}, "spec": {"unschedulable": false}});
    check(&Cluster::default().with_node(open), pod(json!({})), "n1");
}

#[test]
fn a_feature_of_some_kubelets_requires_such_a_kubelet() {
    let mut cluster = nodes([("old", json!({}))]);
    for (name, features) in [
        ("new", json!(["RestartAllContainersOnContainerExits", "SomethingElse"])),
        (
            "newer",
            json!(["RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"]),
        ),
    ] {
        cluster
            .nodes
            .push(json!({"metadata": {"name": name}, "status": {"declaredFeatures": features}}));
    }
    let ending = |action: &str| json!([{"name": "c", "restartPolicyRules": [{"action": action, "exitCodes": {"operator": "In"}}]}]);
    let users = |own: bool, network: bool| json!({"hostUsers": !own, "hostNetwork": network});
    let table = [
        (json!({"containers": ending("Restart")}), "old new newer"),
        (json!({"containers": ending("RestartAllContainers")}), "new newer"),
        (json!({"initContainers": ending("RestartAllContainers")}), "new newer"),
        (users(true, true), "newer"),
        (users(true, false), "old new newer"),
        (users(false, true), "old new newer"),
    ];
    for (spec, expected) in table {
        check(&cluster, pod(spec), expected);
    }
}

#[test]
fn gates_and_unsupported_fields_keep_a_pod_pending() {
    let table = [
        (
            json!({"schedulingGates": [{"name": "a.example/wait"}, {"name": "b"}]}),
            "held by scheduling gates: a.example/wait, b",
        ),
        (json!({"resourceClaims": [{"name": "gpu"}]}), "unsupported spec.resourceClaims"),
        (json!({"resourceClaims": []}), "n1 n2 n3"),
        (json!({"workloadRef": {"name": "w"}}), "unsupported spec.workloadRef"),
        (json!({"schedulingGroup": {"podGroupName": "g"}}), "n1 n2 n3"),
    ];
    for (spec, expected) in table {
        check(&three(), pod(spec), expected);
    }
}
