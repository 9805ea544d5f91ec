//! A server that starts without its key file.

use std::fs;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Cluster, SOON, eventually};

#[test]
fn a_job_with_a_secret_starts_with_it_or_not_at_all() {
    let mut cluster = Cluster::server(&[]);
    let more = json!({"secret_env": {"PASSPHRASE": "open sesame"}});
    let id = cluster.submit("echo \"<$PASSPHRASE>\"", more);
    let key_file = cluster.path("data/secret-key");
    let key = fs::read_to_string(&key_file).unwrap();
    let admin = cluster.token();
    cluster.server.kill();
    fs::remove_file(&key_file).unwrap();
    fs::remove_file(cluster.path("data/admin-token")).unwrap();
    cluster.restart_server();
    let answer = cluster.try_call("GET", "/auth/me", None, Some(&admin)).unwrap();
    assert_eq!(answer.status, 200, "the token of the lost file is revoked");

    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    cluster.wait_for(id, "held", |job| job["pending_reason"]["code"] == "SecretsUnavailable");
    let named = key_file.display().to_string();
    assert!(cluster.server.output().contains(&named));
    let doctor = cluster.run(&["doctor"]);
    assert!(doctor.out.contains(&named), "{}{}", doctor.out, doctor.err);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(cluster.job(id)["status"], "pending");

    let fresh = fs::read_to_string(&key_file).unwrap();
    fs::write(&key_file, format!("{}\n{}\n", fresh.trim(), key.trim())).unwrap();
    cluster.wait_for_status(id, "completed");
    eventually("the secret is in the output", SOON, || {
        cluster.logs(id).contains("<open sesame>").then_some(())
    });
}
