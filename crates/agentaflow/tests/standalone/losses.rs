//! Loss of agents, guardians and machines.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{node_of, three_agents, three_patient_agents};
use crate::harness::{Cluster, HEARTBEAT, SOON, eventually};

/// A job that counts its starts in a file and ends when another file exists.
fn counting(cluster: &Cluster) -> (String, String, String) {
    let (starts, end) = (cluster.shared("starts"), cluster.shared("end"));
    let script = format!(
        "echo x >> {starts}; echo begun; until [ -e {end} ]; do sleep 0.05; done; echo done"
    );
    (script, starts, end)
}

fn starts(file: &str) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().count()
}

#[test]
fn jobs_of_a_lost_machine_move() {
    let mut cluster = three_agents();
    let (script, starts_file, end) = counting(&cluster);
    let id = cluster.submit(&script, json!({"stop_grace_seconds": 1}));
    let first = node_of(&cluster.wait_for_status(id, "running"));
    eventually("it began", SOON, || (starts(&starts_file) == 1).then_some(()));
    cluster.lose_machine(&first);
    let job = cluster
        .wait_for(id, "elsewhere", |job| job["status"] == "running" && node_of(job) != first);
    assert_eq!(job["attempt"], 2, "{job:#}");
    std::fs::write(end, "").unwrap();
    cluster.wait_for_status(id, "completed");
    assert_eq!(starts(&starts_file), 2);
    let events = cluster.get(&format!("/gpu-workers/jobs/{id}/events")).ok();
    let requeued = |event: &Value| event["kind"] == "Requeued";
    assert!(events.as_array().unwrap().iter().any(requeued), "{events:#}");
    cluster.restart_agent(&first);
    cluster.wait_for_nodes(3);
}

#[test]
fn a_killed_agent_comes_back_to_its_jobs_without_starting_them_again() {
    let mut cluster = three_patient_agents();
    let (script, starts_file, end) = counting(&cluster);
    let id = cluster.submit(&script, json!({"stop_grace_seconds": 1}));
    let name = node_of(&cluster.wait_for_status(id, "running"));
    eventually("its output is there", SOON, || cluster.logs(id).contains("begun").then_some(()));
    assert!(cluster.guardian(&name).is_some(), "there is no guardian");
    cluster.agents.get_mut(&name).unwrap().kill();
    cluster.restart_agent(&name);
    cluster.wait_for_nodes(3);
    thread::sleep(HEARTBEAT * 4);
    let job = cluster.job(id);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("running"), &json!(1)), "{job:#}");
    std::fs::write(end, "").unwrap();
    cluster.wait_for_status(id, "completed");
    assert_eq!(starts(&starts_file), 1);
    assert_eq!(cluster.logs(id), "begun\ndone\n");
}

#[test]
fn an_outage_of_the_server_within_the_lease_stops_no_job() {
    let mut cluster = Cluster::server(&["--lease", "30s"]);
    cluster.agent("a", &[]);
    cluster.wait_for_nodes(1);
    let (script, starts_file, end) = counting(&cluster);
    let id = cluster.submit(&script, json!({"stop_grace_seconds": 1}));
    cluster.wait_for_status(id, "running");
    eventually("it began", SOON, || (starts(&starts_file) == 1).then_some(()));
    cluster.server.kill();
    // Long after two heartbeat intervals, the lease without a setting of its own.
    thread::sleep(HEARTBEAT * 15);
    cluster.restart_server();
    cluster.wait_for_nodes(1);
    std::fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["attempt"], starts(&starts_file)), (&json!(1), 1), "{job:#}");
}

#[test]
fn an_agent_that_ends_cleanly_leaves_its_jobs_running() {
    let mut cluster = three_patient_agents();
    let (script, starts_file, end) = counting(&cluster);
    let id = cluster.submit(&script, json!({}));
    let name = node_of(&cluster.wait_for_status(id, "running"));
    eventually("it began", SOON, || (starts(&starts_file) == 1).then_some(()));
    let (status, took) = cluster.agents.get_mut(&name).unwrap().terminate();
    assert!(status.success() && took < Duration::from_secs(10), "{status} {took:?}");
    cluster.restart_agent(&name);
    cluster.wait_for_nodes(3);
    std::fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["attempt"], starts(&starts_file)), (&json!(1), 1), "{job:#}");
}

#[test]
fn a_frozen_agent_does_not_keep_its_job_from_being_stopped_and_moved() {
    let cluster = three_agents();
    let (script, starts_file, end) = counting(&cluster);
    let held = format!(
        "exec 9> {}; flock -n 9 || echo twice >> {}; ",
        cluster.shared("lock"),
        cluster.shared("twice")
    );
    let id = cluster.submit(&(held + &script), json!({"stop_grace_seconds": 1}));
    let first = node_of(&cluster.wait_for_status(id, "running"));
    eventually("it began", SOON, || (starts(&starts_file) == 1).then_some(()));
    cluster.agents[&first].signal(Signal::STOP);
    cluster.wait_for(id, "elsewhere", |job| job["status"] == "running" && node_of(job) != first);
    eventually("it began again", SOON, || (starts(&starts_file) == 2).then_some(()));
    assert!(!std::path::Path::new(&cluster.shared("twice")).exists(), "it ran twice at once");
    // A late update of the first attempt has no effect.
    cluster.agents[&first].signal(Signal::CONT);
    cluster.wait_for_nodes(3);
    thread::sleep(HEARTBEAT * 3);
    assert_eq!(cluster.job(id)["status"], "running");
    std::fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["attempt"], starts(&starts_file)), (&json!(2), 2), "{job:#}");
}

#[test]
fn an_agent_that_is_cut_off_stops_its_jobs_before_they_start_elsewhere() {
    let mut cluster = Cluster::server(&[]);
    let road = Road::to(cluster.port);
    cluster.agent_at("far", &format!("http://127.0.0.1:{}", road.port), &[]);
    cluster.wait_for_nodes(1);
    let (script, starts_file, end) = counting(&cluster);
    let held = format!(
        "exec 9> {}; flock -n 9 || echo twice >> {}; ",
        cluster.shared("lock"),
        cluster.shared("twice")
    );
    let id = cluster.submit(&(held + &script), json!({"stop_grace_seconds": 1}));
    cluster.wait_for_status(id, "running");
    eventually("it began", SOON, || (starts(&starts_file) == 1).then_some(()));
    cluster.agent("near", &[]);
    road.block(true);
    cluster.wait_for(id, "near", |job| job["status"] == "running" && node_of(job) == "near");
    eventually("it began again", SOON, || (starts(&starts_file) == 2).then_some(()));
    assert!(!std::path::Path::new(&cluster.shared("twice")).exists(), "it ran twice at once");
    road.block(false);
    cluster.wait_for_nodes(2);
    std::fs::write(end, "").unwrap();
    assert_eq!(cluster.wait_for_status(id, "completed")["attempt"], 2);
}

#[test]
fn a_job_that_tolerates_disconnection_keeps_running() {
    let mut cluster = Cluster::server(&[]);
    let road = Road::to(cluster.port);
    cluster.agent_at("far", &format!("http://127.0.0.1:{}", road.port), &[]);
    cluster.wait_for_nodes(1);
    let (script, starts_file, end) = counting(&cluster);
    let id = cluster.submit(&script, json!({"on_node_lost": "wait", "stop_grace_seconds": 1}));
    cluster.wait_for_status(id, "running");
    cluster.agent("near", &[]);
    road.block(true);
    eventually("the node is given up", SOON, || {
        let nodes = cluster.get("/gpu-workers/nodes/").ok();
        nodes.as_array().unwrap().iter().find(|node| node["status"] == "inactive").map(drop)
    });
    thread::sleep(HEARTBEAT * 4);
    // The job ends while the server is unreachable.
    std::fs::write(end, "").unwrap();
    thread::sleep(HEARTBEAT);
    road.block(false);
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["attempt"], starts(&starts_file)), (&json!(1), 1), "{job:#}");
    assert_eq!(cluster.logs(id), "begun\ndone\n");
}

/// A proxy to the server that can silently drop all traffic.
struct Road {
    port: u16,
    blocked: Arc<AtomicBool>,
}

impl Road {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let blocked = Arc::new(AtomicBool::new(false));
        let gate = Arc::clone(&blocked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Ok(other) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                carry(&stream, &other, &gate);
                carry(&other, &stream, &gate);
            }
        });
        Self { port, blocked }
    }

    fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::SeqCst);
    }
}

fn carry(from: &TcpStream, to: &TcpStream, blocked: &Arc<AtomicBool>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let blocked = Arc::clone(blocked);
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            while blocked.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
        }
        // The peer may have closed the connection.
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}
