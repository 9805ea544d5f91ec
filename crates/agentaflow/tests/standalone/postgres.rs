//! A server on PostgreSQL; `AGENTAFLOW_TEST_POSTGRES` is a URL whose user may create databases.

use std::process::Command;

use serde_json::json;

use crate::harness::{Cluster, Ran, free_port, program};

/// Creates a database for the test; returns its URL.
fn database(name: &str) -> String {
    let url =
        std::env::var("AGENTAFLOW_TEST_POSTGRES").expect("AGENTAFLOW_TEST_POSTGRES names a server");
    let name = format!("e2e_{name}_{}", std::process::id());
    let made = Command::new("psql")
        .args([&url, "-qc", &format!("CREATE DATABASE {name}")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (address, query) = url.split_once('?').map_or((url.as_str(), None), |(a, q)| (a, Some(q)));
    let scheme = address.find("://").unwrap() + 3;
    let end = address[scheme..].find('/').map_or(address.len(), |slash| scheme + slash);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &address[..end])
}

#[test]
#[ignore = "needs PostgreSQL: AGENTAFLOW_TEST_POSTGRES"]
fn postgres_keeps_jobs_through_kill_9() {
    let url = database("kept");
    let mut cluster = Cluster::server(&["--database", &url, "--lease", "30s"]);
    cluster.agent("one", &[]);
    cluster.wait_for_nodes(1);
    let file = cluster.shared("once");
    let end = cluster.shared("end");
    let script = format!("echo x >> {file}; until [ -e {end} ]; do sleep 0.05; done; echo done");
    let running = cluster.submit(&script, json!({}));
    let waiting = cluster.submit("true", json!({"gpu_count": 64}));
    cluster.wait_for_status(running, "running");
    cluster.server.kill();
    cluster.restart_server();
    std::fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(running, "completed");
    assert_eq!(job["attempt"], 1, "{job:#}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "x\n");
    assert_eq!(cluster.job(waiting)["status"], "pending");
}

#[test]
#[ignore = "needs PostgreSQL: AGENTAFLOW_TEST_POSTGRES"]
fn postgres_rejects_a_second_server() {
    let url = database("second");
    let cluster = Cluster::server(&["--database", &url]);
    let other = cluster.path("other").display().to_string();
    let listen = format!("127.0.0.1:{}", free_port());
    let arguments = ["server", "--listen", &listen, "--data-dir", &other, "--database", &url];
    let ran = Ran::from(program(&cluster.path("")).args(arguments).output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("--database"), "{}", ran.err);
}

#[test]
#[ignore = "needs PostgreSQL: AGENTAFLOW_TEST_POSTGRES"]
fn postgres_errors_do_not_contain_the_password() {
    let home = tempfile::tempdir().unwrap();
    let (data, listen) =
        (home.path().join("data").display().to_string(), format!("127.0.0.1:{}", free_port()));
    let url = format!("postgres://someone:hunter2@127.0.0.1:{}/nothing", free_port());
    let arguments = ["server", "--listen", &listen, "--data-dir", &data, "--database", &url];
    let ran = Ran::from(program(home.path()).args(arguments).output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(!ran.err.contains("hunter2") && ran.err.contains("127.0.0.1"), "{}", ran.err);
}
