//! Time from the submission of a job to its start.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::Row;
use crate::image::{IMAGE, make_image};
use crate::system::{System, percentile};

const TRIES: usize = 200;

/// A process writes down when it began; one job after another.
pub(crate) fn process_start() -> Vec<Row> {
    let system = System::up(&[]);
    let job = json!({"runtime": "process", "command": ["date", "+%s%N"]});
    let times = run_all(&system, &job, |job, submitted| {
        let output = system.get(&format!("/gpu-workers/jobs/{}/logs", job["id"])).body;
        let began = output.trim().parse().unwrap_or_else(|_| panic!("`{output}`"));
        Duration::from_nanos(began).saturating_sub(submitted)
    });
    vec![row("process", "through `up`", times)]
}

/// The same for containers, where there is an engine.
pub(crate) fn container_start() -> Vec<Row> {
    let Ok(socket) = std::env::var("AGENTAFLOW_TEST_DOCKER") else {
        let skipped = "not measured: AGENTAFLOW_TEST_DOCKER names no engine";
        return vec![Row::new("from submission to the start of a container", skipped)];
    };
    make_image(&socket);
    let mut system = System::start("server", &["--rate", "100000"]);
    system.agent(&["--runtime", "docker", "--docker-socket", &socket]);
    let job = json!({"docker_image": IMAGE, "command": ["true"]});
    let time =
        |job: &Value, field: &str| job[field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let times = run_all(&system, &job, |job, _| {
        let waited = time(job, "started_at").duration_since(time(job, "created_at"));
        waited.unsigned_abs()
    });
    vec![row("container", "image present", times)]
}

fn row(what: &str, how: &str, mut times: Vec<Duration>) -> Row {
    let [half, most] = [50, 99].map(|part| percentile(&mut times, part).as_secs_f64() * 1e3);
    Row::new(
        format!("from submission to the start of a {what}, {how}, one at a time"),
        format!("p50 {half:.1} ms, p99 {most:.1} ms"),
    )
}

/// Runs the job again and again; `measure` sees each when it is over, with the moment of its submission.
fn run_all(
    system: &System,
    job: &Value,
    mut measure: impl FnMut(&Value, Duration) -> Duration,
) -> Vec<Duration> {
    let mut line = system.connect();
    let mut times = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let submitted = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let id = line.call("POST", "/gpu-workers/jobs/", Some(job)).unwrap().ok()["id"].clone();
        let since = Instant::now();
        let ended = loop {
            let job = line.call("GET", &format!("/gpu-workers/jobs/{id}"), None).unwrap().ok();
            if job["status"] == "completed" {
                break job;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "job {id} does not end: {job:#}");
            sleep(Duration::from_millis(1));
        };
        times.push(measure(&ended, submitted));
    }
    times
}
