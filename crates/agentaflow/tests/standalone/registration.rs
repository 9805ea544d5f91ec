//! Registration of machines: limited tokens, keys that outlive them, and approvals.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually};
use crate::http::{Answer, Connection};

#[test]
fn a_single_use_token_admits_one_machine_whose_key_outlives_it() {
    let mut cluster = Cluster::server(&[]);
    let made =
        cluster.run(&["token", "create", "--registration", "--uses", "1", "--expires", "1h"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let file = cluster.path("single-use");
    fs::write(&file, &made.out).unwrap();
    let file = file.display().to_string();
    cluster.agent("first", &["--token-file", &file]);
    cluster.wait_for_nodes(1);
    cluster.agent("second", &["--token-file", &file]);
    eventually("the second machine is refused", SOON, || {
        cluster.agents["second"].output().contains("REGISTRATION_TOKEN").then_some(())
    });
    let tokens = cluster.get("/registration-tokens").ok();
    let used_up = |token: &Value| token["uses_left"] == 0;
    assert_eq!(tokens.as_array().unwrap().iter().filter(|token| used_up(token)).count(), 1);
    // The key of the first machine repeats the registration.
    let registered = |cluster: &Cluster| {
        cluster.get("/gpu-workers/nodes/").ok()[0]["registered_at"].as_str().unwrap().to_owned()
    };
    let before = registered(&cluster);
    cluster.agents.get_mut("first").unwrap().kill();
    cluster.restart_agent("first");
    eventually("the first machine registers again", SOON, || {
        (registered(&cluster) != before).then_some(())
    });
    cluster.wait_for_nodes(1);
}

/// Registers the node `n` through a proxy on this machine, from the given address.
fn register_from(cluster: &Cluster, address: &str) -> Answer {
    let token = fs::read_to_string(cluster.path("data/registration-token")).unwrap();
    let connection = Connection::open(cluster.port, Some(token.trim())).unwrap();
    let node = json!({"node_name": "n", "gpu_count": 1, "gpu_type": "RTX 4090",
        "gpu_memory_total": 24576, "cpu_cores": 8, "memory_total": 32768});
    let mut connection = connection.with_header(format!("X-Forwarded-For: {address}"));
    connection.call("POST", "/gpu-workers/nodes/register", Some(&node)).unwrap()
}

#[test]
fn an_admin_approves_a_machine_with_a_known_name() {
    let cluster = Cluster::server(&["--trusted-proxy", "127.0.0.0/8"]);
    register_from(&cluster, "192.0.2.1").ok();
    let nothing = cluster.run(&["node", "approve", "n"]);
    assert_eq!(nothing.code, Some(3), "{}", nothing.err);
    let refused = register_from(&cluster, "192.0.2.2");
    assert_eq!((refused.status, &refused.json()["code"]), (403, &json!("approval_required")));
    let listed = cluster.run(&["get", "nodes"]);
    let reason = "pending, registration from 192.0.2.2 awaits approval";
    assert!(listed.out.contains(reason), "{}", listed.out);
    let other = cluster.run(&["node", "approve", "n", "--address", "192.0.2.3"]);
    assert_eq!(other.code, Some(1), "{}", other.err);
    let approved = cluster.run(&["node", "approve", "n"]);
    assert_eq!(approved.code, Some(0), "{}", approved.err);
    assert!(approved.out.contains("192.0.2.2"), "{}", approved.out);
    let node: Value = register_from(&cluster, "192.0.2.2").ok();
    assert_eq!(node["pending_registration"], Value::Null);
    assert_eq!(register_from(&cluster, "192.0.2.1").status, 403);
}
