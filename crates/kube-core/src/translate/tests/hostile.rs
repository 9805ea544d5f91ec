//! No object content may panic, and the engine accepts every translation.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Cluster, read};
use crate::slim::{Node, Pod};
use crate::translate::{foreign, node, pod};

/// Texts in unexpected fields.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("node".to_owned()),
        Just("-1".to_owned()),
        Just("9e999999999".to_owned()),
        Just("18446744073709551616Ei".to_owned()),
        Just("x".repeat(300)),
        "[a-z0-9/.!-]{0,12}",
        any::<String>().prop_map(|text| text.chars().take(20).collect()),
    ]
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![Just(i32::MIN), Just(i32::MAX), Just(0), -3..200_i32]
}

fn operator() -> impl Strategy<Value = String> {
    let known = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equal", ""];
    prop_oneof![proptest::sample::select(known.to_vec()).prop_map(str::to_owned), text()]
}

prop_compose! {
    fn requirement()(key in text(), operator in operator(), values in proptest::option::of(proptest::collection::vec(text(), 0..3))) -> Value {
        json!({"key": key, "operator": operator, "values": values})
    }
}

prop_compose! {
    fn term()(key in text(), topology in text(), names in proptest::collection::vec(text(), 0..3), requirement in requirement(), weight in number()) -> Value {
        json!({"weight": weight, "podAffinityTerm": {"topologyKey": topology, "namespaces": names,
            "labelSelector": {"matchLabels": {key.clone(): "v"}, "matchExpressions": [requirement]},
            "namespaceSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": [key.clone()], "mismatchLabelKeys": [key]}})
    }
}

prop_compose! {
    fn hostile_pod()(
        amounts in proptest::collection::btree_map(text(), text(), 0..4),
        gpus in text(),
        port in number(),
        address in text(),
        requirement in requirement(),
        field in requirement(),
        term in term(),
        names in proptest::collection::vec(text(), 4),
        skew in number(),
        toleration in (text(), operator(), text(), text()),
    ) -> Value {
        let container = json!({"name": names[0], "resources": {"requests": amounts, "limits": {"nvidia.com/gpu": gpus}},
            "ports": [{"containerPort": port, "hostPort": port, "hostIP": address, "protocol": names[1]}]});
        let node_term = json!({"matchExpressions": [requirement], "matchFields": [field]});
        let inner = term["podAffinityTerm"].clone();
        let between = json!({"requiredDuringSchedulingIgnoredDuringExecution": [inner.clone(), inner],
            "preferredDuringSchedulingIgnoredDuringExecution": [term]});
        json!({"metadata": {"name": names[2], "labels": {names[3].clone(): names[2]}}, "spec": {
            "containers": [container], "initContainers": [container], "overhead": amounts,
            "resources": {"requests": amounts, "limits": amounts},
            "nodeSelector": {names[0].clone(): names[1]},
            "tolerations": [{"key": toleration.0, "operator": toleration.1, "value": toleration.2, "effect": toleration.3}],
            "volumes": [{"name": names[0], "ephemeral": {}}, {"name": names[1], "persistentVolumeClaim": {"claimName": names[2]}}],
            "topologySpreadConstraints": [{"maxSkew": skew, "minDomains": skew, "topologyKey": names[3], "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {"podAffinity": between, "podAntiAffinity": between, "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node_term]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": skew, "preference": node_term}]}},
        }})
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_pod_causes_a_panic_and_the_engine_accepts_its_request(value in hostile_pod(), without in proptest::sample::subsequence(vec!["volumes", "affinity", "topologySpreadConstraints", "overhead", "resources", "containers", "initContainers"], 0..=7)) {
        let mut value = value;
        for field in without {
            value["spec"].as_object_mut().unwrap().remove(field);
        }
        let cluster = Cluster::default();
        let hostile: Pod = read(value);
        if let Ok(asked) = pod(&hostile, &cluster.around()) {
            prop_assert_eq!(asked.request.validate(), Ok(()));
        }
        prop_assert_eq!(foreign(&hostile, &cluster.around()).validate(), Ok(()));
    }

    #[test]
    fn no_node_causes_a_panic(
        labels in proptest::collection::btree_map(proptest::sample::select(vec!["nvidia.com/gpu.replicas", "nvidia.com/gpu.memory", "nvidia.com/gpu.product"]), text(), 0..3),
        gpus in text(),
        amount in text(),
        ids in proptest::collection::vec((text(), text(), any::<u64>(), any::<f64>()), 0..4),
        count in number(),
    ) {
        let object: Node = read(json!({"metadata": {"name": "n", "labels": labels}, "status": {"allocatable":
            {"nvidia.com/gpu": gpus, "cpu": amount, "memory": amount, "x": amount}}}));
        let devices: Vec<Value> = ids.iter().map(|(id, name, memory, _)| json!({"id": id, "name": name, "memoryTotal": memory})).collect();
        let status: Vec<Value> = ids.iter().map(|(id, _, _, busy)| json!({"id": id, "available": true, "utilization": busy})).collect();
        let status: Vec<Value> = status.into_iter().filter(|gpu| !gpu["utilization"].is_null()).collect();
        let devices = read(json!({"apiVersion": "agentaflow.io/v1", "kind": "GPUNode", "metadata": {}, "spec":
            {"nodeName": "n", "gpuDevices": devices}, "status": {"gpuStatus": status}}));
        let csi = read(json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": count}}]}}));
        let view = node(&object, Some(&devices), Some(&csi));
        prop_assert_eq!(view.node.validate(), Ok(()));
        prop_assert_eq!(view.health.len(), view.node.gpus.len());
    }
}
