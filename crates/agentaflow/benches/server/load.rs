//! Many jobs, many clients, many agents.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Row;
use crate::http::Connection;
use crate::system::{System, cpu_seconds, percentile};

const JOBS: usize = 1000;
const AGENTS: usize = 1000;

/// 1,000 jobs of `true` through `up`, until all are completed.
pub(crate) fn thousand_jobs() -> Vec<Row> {
    let system = System::up(&[]);
    let since = Instant::now();
    let handed_in = complete_thousand(&system);
    let took = since.elapsed().as_secs_f64();
    vec![Row::new(
        "1,000 jobs of `true` through `up`, process runtime, 16 connections, end to end",
        format!(
            "{:.0} jobs/s ({took:.2} s, submitted after {:.2} s)",
            JOBS as f64 / took,
            handed_in.as_secs_f64()
        ),
    )]
}

/// Runs 1,000 jobs of `true`; returns the time of the submissions.
pub(crate) fn complete_thousand(system: &System) -> Duration {
    let since = Instant::now();
    submit(system, 16, JOBS, &json!({"runtime": "process", "command": ["true"]}));
    let handed_in = since.elapsed();
    let mut line = system.connect();
    while any_with(&mut line, "pending,scheduled,running") {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!any_with(&mut line, "failed"), "some jobs failed");
    handed_in
}

fn any_with(line: &mut Connection, status: &str) -> bool {
    let path = format!("/gpu-workers/jobs/?status={status}&limit=1");
    let jobs = line.call("GET", &path, None).unwrap().ok();
    jobs.as_array().is_some_and(|jobs| !jobs.is_empty())
}

/// Submissions alone: no node can run these jobs.
pub(crate) fn submissions() -> Vec<Row> {
    // All clients share one account, so its limit must not apply.
    let system = System::start("server", &["--rate", "1000000"]);
    let job = json!({"docker_image": "busybox", "cpu_cores_required": 1});
    let since = Instant::now();
    let mut latencies = submit(&system, 50, 5000, &job);
    let rate = latencies.len() as f64 / since.elapsed().as_secs_f64();
    let [half, most] = [50, 99].map(|part| percentile(&mut latencies, part).as_secs_f64() * 1e3);
    vec![Row::new(
        "submissions by 50 concurrent clients, each durable when answered",
        format!("{rate:.0}/s, p50 {half:.1} ms, p99 {most:.1} ms"),
    )]
}

/// Submits jobs over several connections in parallel; returns the duration of each call.
fn submit(system: &System, connections: usize, jobs: usize, job: &Value) -> Vec<Duration> {
    let all = Mutex::new(Vec::with_capacity(jobs));
    thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut line = system.connect();
                let mut own = Vec::new();
                for _ in 0..jobs / connections {
                    own.push(submit_one(&mut line, job));
                }
                all.lock().unwrap().extend(own);
            });
        }
    });
    // Remainder of the division.
    let mut line = system.connect();
    for _ in 0..jobs % connections {
        submit_one(&mut line, job);
    }
    all.into_inner().unwrap()
}

fn submit_one(line: &mut Connection, job: &Value) -> Duration {
    let since = Instant::now();
    let answer = line.call("POST", "/gpu-workers/jobs/", Some(job)).unwrap();
    assert_eq!(answer.status, 201, "{}", answer.body);
    since.elapsed()
}

/// 1,000 nodes that give a sign of life every second, for ten seconds.
pub(crate) fn heartbeats() -> Vec<Row> {
    let system = System::start("server", &[]);
    let token = system.token("registration-token");
    let names: Vec<(String, String)> =
        (0..AGENTS).map(|number| register(&system, &token, number)).collect();
    let (seconds, connections) = (10, 8);
    let (before, since) = (cpu_seconds(system.pid()), Instant::now());
    let late = Mutex::new(0_usize);
    thread::scope(|scope| {
        for part in names.chunks(AGENTS.div_ceil(connections)) {
            let (late, system) = (&late, &system);
            scope.spawn(move || {
                let mut lines: Vec<_> = part
                    .iter()
                    .map(|(_, key)| Connection::open(system.port, Some(key)).unwrap())
                    .collect();
                for round in 0..seconds {
                    let due = since + Duration::from_secs(round);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    for (line, (node, _)) in lines.iter_mut().zip(part) {
                        beat(line, node);
                    }
                    if due.elapsed() > Duration::from_secs(1) {
                        *late.lock().unwrap() += 1;
                    }
                }
            });
        }
    });
    let elapsed = since.elapsed().as_secs_f64().max(seconds as f64);
    let cpu = (cpu_seconds(system.pid()) - before) / elapsed;
    vec![Row::new(
        "1,000 simulated agents with a heartbeat every second: CPU of the server",
        format!("{cpu:.2} CPU seconds a second ({} late rounds)", late.into_inner().unwrap()),
    )]
}

fn register(system: &System, token: &str, number: usize) -> (String, String) {
    let node = json!({"node_name": format!("node-{number}"), "gpu_count": 8, "gpu_type": "NVIDIA A100",
                      "gpu_memory_total": 8 * 40960, "cpu_cores": 64, "memory_total": 512 << 10});
    let mut line = Connection::open(system.port, Some(token)).unwrap();
    let node = line.call("POST", "/gpu-workers/nodes/register", Some(&node)).unwrap().ok();
    let text = |field: &str| node[field].as_str().unwrap().to_owned();
    (text("node_id"), text("api_key"))
}

fn beat(line: &mut Connection, node: &str) {
    let gpu = |index: usize| {
        json!({"gpu_index": index, "gpu_uuid": format!("GPU-{node}-{index}"), "gpu_memory": 40960,
               "gpu_memory_available": 40000, "utilization": 40.5, "temperature": 61, "power_usage": 250.0})
    };
    let body = json!({"node_id": node, "gpu_memory_available": 8 * 40000, "health_status": "healthy",
                      "gpu_instances": (0..8).map(gpu).collect::<Vec<_>>()});
    let answer =
        line.call("POST", &format!("/gpu-workers/nodes/{node}/heartbeat"), Some(&body)).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Pending jobs of the one account that asks.
const PENDING: usize = 100_000;
/// `GET /queues` a second.
const READS: u32 = 500;
/// Heartbeats a second, from as many nodes.
const BEATS: u32 = 100;
/// Length of each of the two measurements.
const WINDOW: Duration = Duration::from_secs(5);

/// Reads of the owner of the pending jobs: method and path. The server rejects most of the last two, which make the engine
/// plan.
const READ_PATHS: [(&str, &str); 5] = [
    ("GET", "/queues"),
    ("GET", "/auth/me"),
    ("GET", "/gpu-workers/jobs/?limit=20"),
    ("GET", "/gpu-workers/jobs/100000/explain"),
    ("POST", "/gpu-workers/jobs/what-if"),
];

/// Limit of the 99th percentile: a heartbeat must not wait for reads.
const SLOWEST_HEARTBEAT: Duration = Duration::from_millis(50);

/// Latency of heartbeats while an account with 100,000 pending jobs sends 500 reads a second.
pub(crate) fn reads_beside_heartbeats() -> Vec<Row> {
    let system = System::start("server", &["--rate", "1000000"]);
    let token = system.token("registration-token");
    let nodes: Vec<_> =
        (0..BEATS as usize).map(|number| register(&system, &token, number)).collect();
    submit(&system, 50, PENDING, &busybox());
    let shown = |times: &mut Vec<Duration>| {
        let [half, most] = [50, 99].map(|part| percentile(times, part).as_secs_f64() * 1e3);
        format!("p50 {half:.2} ms, p99 {most:.2} ms")
    };
    let (mut alone, _) = heartbeats_beside(&system, &nodes, None);
    let mut rows =
        vec![Row::new("heartbeats beside 100,000 pending jobs, no reads", shown(&mut alone))];
    for (method, path) in READ_PATHS {
        let (mut beside, reads) = heartbeats_beside(&system, &nodes, Some((method, path)));
        let rate = f64::from(reads) / WINDOW.as_secs_f64();
        let row = Row::new(
            format!("the same with {READS} `{method} {path}` a second by the owner of the jobs"),
            format!("{} ({rate:.0} reads/s answered)", shown(&mut beside)),
        );
        let exceeds_limit = percentile(&mut beside, 99) >= SLOWEST_HEARTBEAT;
        rows.push(Row { exceeds_limit, ..row });
    }
    rows
}

/// A job that no node can run.
fn busybox() -> Value {
    json!({"docker_image": "busybox", "cpu_cores_required": 1, "estimated_duration_seconds": 60})
}

/// Sends heartbeats for [`WINDOW`], beside [`READS`] reads of a path a second if given. Returns the latency of each heartbeat
/// and the number of reads that were answered.
fn heartbeats_beside(
    system: &System,
    nodes: &[(String, String)],
    read: Option<(&str, &str)>,
) -> (Vec<Duration>, u32) {
    const READERS: u32 = 10;
    let since = Instant::now();
    let answered = Mutex::new(0);
    let mut latencies = Vec::new();
    thread::scope(|scope| {
        for reader in 0..read.map_or(0, |_| READERS) {
            let answered = &answered;
            scope.spawn(move || {
                let mut line = system.connect();
                let mut number = reader;
                let mut own = 0;
                let (method, path) = read.unwrap_or_default();
                let body = (method == "POST").then(busybox);
                while at_rate(since, number, READS) {
                    let answer = line.call(method, path, body.as_ref()).unwrap();
                    assert!([200, 429].contains(&answer.status), "{}", answer.body);
                    number += READERS;
                    own += u32::from(answer.status == 200);
                }
                *answered.lock().unwrap() += own;
            });
        }
        let mut lines: Vec<_> = nodes
            .iter()
            .map(|(_, key)| Connection::open(system.port, Some(key)).unwrap())
            .collect();
        let mut number = 0;
        while at_rate(since, number, BEATS) {
            let index = number as usize % nodes.len();
            let started = Instant::now();
            beat(&mut lines[index], &nodes[index].0);
            latencies.push(started.elapsed());
            number += 1;
        }
    });
    (latencies, answered.into_inner().unwrap())
}

/// Waits until call `number` of `rate` calls a second is due; false once [`WINDOW`] is over.
fn at_rate(since: Instant, number: u32, rate: u32) -> bool {
    let due = since + Duration::from_secs(1) * number / rate;
    thread::sleep(due.saturating_duration_since(Instant::now()));
    since.elapsed() < WINDOW
}
