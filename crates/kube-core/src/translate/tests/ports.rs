//! Host ports.

use serde_json::{Value, json};

use super::{check, nodes, pod};

#[test]
fn a_host_port_is_given_to_one_pod_on_each_address() {
    let port = |number: u16| json!({"containerPort": 1, "hostPort": number});
    let at = |number: u16, address: &str| json!({"containerPort": 1, "hostPort": number, "hostIP": address});
    let udp = |number: u16| json!({"containerPort": 1, "hostPort": number, "protocol": "UDP"});
    let table = [
        (port(80), port(80), "no: Token"),
        (port(80), port(81), "n1"),
        (port(80), udp(80), "n1"),
        (udp(80), udp(80), "no: Token"),
        (at(80, "10.0.0.1"), at(80, "10.0.0.2"), "n1"),
        (at(80, "10.0.0.1"), at(80, "10.0.0.1"), "no: Token"),
        (at(80, "10.0.0.1"), port(80), "no: Token"),
        (port(80), at(80, "10.0.0.1"), "no: Token"),
        (at(80, "0.0.0.0"), at(80, "10.0.0.1"), "no: Token"),
        (at(80, ""), port(80), "no: Token"),
        (json!({"containerPort": 80}), json!({"containerPort": 80}), "n1"),
        (json!({"containerPort": 80, "hostPort": 0}), port(80), "n1"),
    ];
    let spec = |port: Value| json!({"containers": [{"name": "c", "ports": [port]}]});
    for (theirs, ours, expected) in table {
        let cluster = nodes([("n1", json!({}))]).with_pod("n1", json!({}), spec(theirs));
        check(&cluster, pod(spec(ours)), expected);
    }
}

#[test]
fn ports_count_for_host_networks_and_sidecars_but_not_for_init_containers() {
    let ports = json!([{"containerPort": 80, "hostPort": 80}]);
    let table = [
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}),
            "no: Token",
        ),
        (
            json!({"initContainers": [{"name": "c", "restartPolicy": "Always", "ports": ports}]}),
            "no: Token",
        ),
        (json!({"initContainers": [{"name": "c", "ports": ports}]}), "n1"),
        // The kubelet handles two containers of one pod on one port.
        (
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 90, "hostPort": 90}]},
                               {"name": "b", "ports": [{"containerPort": 90, "hostPort": 90}]}]}),
            "n1",
        ),
    ];
    let taken =
        json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]});
    let cluster = nodes([("n1", json!({}))]).with_pod("n1", json!({}), taken);
    for (spec, expected) in table {
        check(&cluster, pod(spec), expected);
    }
}

#[test]
fn a_port_on_all_addresses_stays_so_beside_one_address() {
    let everywhere = json!({"containerPort": 1, "hostPort": 80});
    let at = |address: &str| json!({"containerPort": 1, "hostPort": 80, "hostIP": address});
    for ports in [json!([everywhere, at("10.0.0.1")]), json!([at("10.0.0.1"), everywhere])] {
        let both = json!({"containers": [{"name": "c", "ports": ports}]});
        let cluster = nodes([("n1", json!({}))]).with_pod("n1", json!({}), both);
        check(
            &cluster,
            pod(json!({"containers": [{"name": "c", "ports": [at("10.0.0.2")]}]})),
            "no: Token",
        );
    }
}
