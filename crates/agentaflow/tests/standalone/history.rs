//! History and waste of a running `up`, over `kill -9`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Cluster, SOON, eventually, free_port};
use crate::http::Connection;

/// Three samples of the history, on a busy machine.
const SAMPLED: Duration = Duration::from_secs(90);

/// Readings of a column that are not null.
fn readings(curves: &Value, column: &str) -> Vec<f64> {
    let columns = curves["series"][0]["columns"].as_array().expect("a series");
    let column = columns.iter().find(|found| found["name"] == column).expect(column);
    column["values"].as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// Token of a new user.
fn user(cluster: &Cluster, name: &str) -> String {
    let user = json!({"username": name, "password": "correct horse", "role": "user"});
    cluster.post("/users", &user).ok();
    let login = json!({"username": name, "password": "correct horse"});
    let tokens = cluster.post("/auth/login", &login).ok();
    tokens["access_token"].as_str().unwrap().to_owned()
}

#[test]
fn curves_and_use_survive_kill_9_and_other_users_see_neither() {
    let port = free_port();
    let mut cluster = Cluster::up(&["--metrics-listen", &format!("127.0.0.1:{port}")]);
    let work = "while :; do :; done & sleep 600";
    let id = cluster.submit(work, json!({"gpu_count": 1, "job_name": "busy"}));
    cluster.wait_for_status(id, "running");
    let of_job = format!("/history/jobs/{id}?points=2000");
    let before = eventually("two rates of the job", SAMPLED, || {
        let curves = cluster.get(&of_job).ok();
        (readings(&curves, "gpu_utilization_percent").len() >= 2).then_some(curves)
    });
    // One process is busy. Simulated GPUs are, too.
    let cpu = readings(&before, "cpu_cores");
    assert!(cpu.iter().all(|cores| (0.01..4.0).contains(cores)), "{cpu:?}");
    assert!(readings(&before, "memory_mib").iter().all(|mib| *mib > 0.0), "{before}");
    let busy = readings(&before, "gpu_utilization_percent");
    assert!(busy.iter().all(|percent| (50.0..=100.0).contains(percent)), "{busy:?}");
    let node = cluster.get("/gpu-workers/nodes/").ok()[0]["node_id"].as_str().unwrap().to_owned();
    let of_node = format!("/history/nodes/{node}?points=2000");
    assert!(!readings(&cluster.get(&of_node).ok(), "temperature_celsius").is_empty());
    let scraped = Connection::open(port, None)
        .and_then(|mut connection| connection.call("GET", "/metrics", None))
        .expect("a scrape")
        .body;
    let task = format!("{{job_id=\"{id}\",task=\"0\",");
    for name in ["agentaflow_job_cpu_seconds_total", "agentaflow_job_memory_bytes"] {
        assert!(scraped.contains(&format!("{name}{task}")), "{name} is not in\n{scraped}");
    }

    cluster.server.kill();
    cluster.restart_server();
    let after = cluster.get(&of_job).ok();
    for column in ["cpu_cores", "memory_mib", "gpu_utilization_percent"] {
        let (before, after) = (readings(&before, column), readings(&after, column));
        assert!(after.starts_with(&before), "{column}: {before:?} became {after:?}");
    }
    assert!(!readings(&cluster.get("/history/cluster").ok(), "gpus_used").is_empty());

    let row = eventually("the running job in the report", SOON, || {
        let rows = cluster.get("/billing/waste?by=job").ok();
        let key = id.to_string();
        rows.as_array()?.iter().find(|row| row["key"] == *key).cloned()
    });
    assert_eq!((&row["running"], &row["name"]), (&json!(1), &json!("busy")));
    // The meter of the killed agent continues: nearly the whole run time is measured.
    let used = row["gpu_hours_used"].as_f64().unwrap() / row["gpu_hours"].as_f64().unwrap();
    assert!((0.5..=1.0).contains(&used), "{row}");

    let other = user(&cluster, "eve");
    let status = |path: &str| {
        let mut connection = Connection::open(cluster.port, Some(&other)).unwrap();
        let answer = connection.call("GET", path, None).unwrap();
        (answer.status, answer.body)
    };
    assert_eq!(status(&of_job).0, 404);
    assert_eq!(status("/billing/waste?by=job"), (200, "[]".to_owned()));

    cluster.post(&format!("/gpu-workers/jobs/{id}/cancel"), &json!({})).ok();
    let ended = cluster.wait_for_status(id, "cancelled");
    let usage = &ended["gpu_usage"];
    // The agent saves its meter every 15 seconds; before the kill it ran for at least 30.
    assert!(usage["used_ms"].as_u64().unwrap() >= 12_000, "{usage}");
    let ran = ended["duration_seconds"].as_f64().unwrap() * 1_000.0;
    assert!(usage["allocated_ms"].as_f64().unwrap() <= ran + 2_000.0, "{usage} of {ran}");
    let curves = cluster.get(&of_job).ok();
    assert!(readings(&curves, "cpu_cores").starts_with(&cpu), "the curves of an ended job stay");
    let waste = cluster.run(&["waste", "--by", "job", "-o", "json"]);
    assert_eq!(waste.code, Some(0), "{}", waste.err);
    let rows: Value = serde_json::from_str(&waste.out).unwrap();
    assert_eq!((&rows[0]["key"], &rows[0]["running"]), (&json!(id.to_string()), &json!(0)));
    let table = cluster.run(&["waste"]);
    assert!(table.out.contains("LOST") && table.err.contains("LOST = COST"), "{table:?}");
}
