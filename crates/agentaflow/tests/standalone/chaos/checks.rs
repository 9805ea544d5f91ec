//! Invariants of the campaign.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Campaign, JobKind};
use crate::harness::{Cluster, HEARTBEAT, SOON, eventually};
use crate::procs::processes;

/// Time for all jobs to finish after the last strike.
const SETTLE: Duration = Duration::from_mins(2);

/// Docker takes the time of the start after the start.
const START_SLACK_MS: u64 = 300;

/// Creates the files that jobs of several users append to.
pub(super) fn prepare(cluster: &Cluster) {
    for name in ["began", "ended", "marks", "twice"] {
        let file = cluster.shared(name);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    }
}

pub(super) fn all(campaign: &mut Campaign) {
    let jobs = settled(campaign);
    let struck = format!("struck: {:#?}", campaign.struck);
    let cluster = &campaign.cluster;
    assert_eq!(read(cluster, "twice"), "", "ran twice at once; {struck}");
    assert_eq!(
        alternating(&read(cluster, "marks")),
        BTreeSet::new(),
        "ran twice at once; {struck}"
    );
    ends(campaign, &jobs, &struck);
    bills(campaign, &jobs, &struck);
    submissions(campaign, &jobs, &struck);
    let starts = read(cluster, "began").lines().count();
    nothing_is_left(campaign);
    println!(
        "{} jobs, {} strikes, {starts} starts, {:?}",
        jobs.len(),
        campaign.struck.len(),
        campaign.started.elapsed()
    );
}

/// All jobs, after all have finished. No job is missing, and none was created twice.
fn settled(campaign: &Campaign) -> BTreeMap<i64, Value> {
    let since = Instant::now();
    loop {
        campaign.end_pushed_job();
        let jobs: BTreeMap<_, _> = pages(&campaign.cluster, "/gpu-workers/jobs/")
            .into_iter()
            .map(|job| (job["id"].as_i64().unwrap(), job))
            .collect();
        assert!(
            jobs.keys().eq(campaign.submitted.keys()),
            "submitted {:?}, the server has {:?}; {:#?}",
            campaign.submitted.keys(),
            jobs.keys(),
            campaign.struck
        );
        let over = |job: &&Value| {
            ["completed", "failed", "cancelled"].iter().any(|word| job["status"] == *word)
        };
        let open: Vec<_> = jobs.values().filter(|job| !over(job)).collect();
        if open.is_empty() {
            return jobs;
        }
        assert!(
            since.elapsed() < SETTLE,
            "{} jobs are not over, such as {:#}; {:#?}",
            open.len(),
            open[0],
            campaign.struck
        );
        sleep(HEARTBEAT);
    }
}

/// Every job completes. Only a job that the original worker forgot fails, unless it asks to be requeued.
fn ends(campaign: &Campaign, jobs: &BTreeMap<i64, Value>, struck: &str) {
    let ended: BTreeSet<i64> =
        read(&campaign.cluster, "ended").lines().filter_map(|line| line.parse().ok()).collect();
    for (id, submission) in &campaign.submitted {
        let job = &jobs[id];
        if let JobKind::Pushed { requeue } = submission.kind {
            let lost = !requeue && job["status"] == "failed" && job["end_reason"] == "NodeLost";
            assert!(lost || job["status"] == "completed", "{job:#}; {struck}");
            continue;
        }
        assert_eq!(job["status"], "completed", "{job:#}; {struck}");
        assert!(ended.contains(id), "job {id} did not run to its end; {struck}");
    }
}

/// Each attempt is billed once. The entries of a job add up to its cost, and to a time between that of its last run and
/// that of the campaign, although the wall clock stepped by days.
fn bills(campaign: &Campaign, jobs: &BTreeMap<i64, Value>, struck: &str) {
    let (mut sums, mut times, mut billed) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
    for entry in pages(&campaign.cluster, "/billing/ledger") {
        let id = entry["job_id"].as_i64().unwrap();
        let attempt = (id, entry["attempt"].as_i64(), entry["task"].as_i64());
        assert!(billed.insert(attempt), "billed twice: {entry:#}; {struck}");
        *sums.entry(id).or_insert(0) += entry["micros"].as_i64().unwrap();
        *times.entry(id).or_insert(0) += entry["duration_ms"].as_u64().unwrap();
    }
    let most = campaign.started.elapsed().as_millis() as u64;
    for (id, job) in jobs {
        let cost = (job["cost"].as_f64().unwrap() * 1e6).round() as i64;
        assert_eq!(sums.get(id).copied().unwrap_or(0), cost, "{job:#}; {struck}");
        let least = match campaign.submitted[id].kind {
            JobKind::Process { seconds } | JobKind::Container { seconds } => {
                (seconds * 1000.0) as u64
            }
            // Each task is billed.
            JobKind::Gang { seconds } => (seconds * 2000.0) as u64,
            JobKind::Pushed { .. } => 0,
        };
        let time = times.get(id).copied().unwrap_or(0);
        let least = least.saturating_sub(START_SLACK_MS);
        assert!((least..most).contains(&time), "billed for {time} ms: {job:#}; {struck}");
    }
    assert!(sums.values().sum::<i64>() > 0, "nothing cost anything");
}

/// The original worker receives each attempt of a job once. It receives a job again only if the server did not receive the
/// result: the worker died, or the server was away.
fn submissions(campaign: &Campaign, jobs: &BTreeMap<i64, Value>, struck: &str) {
    let (mut received, mut results) = (BTreeSet::new(), BTreeSet::new());
    for submitted in campaign.worker.submissions() {
        received.insert(submitted.job);
        let is_first = submitted.lost || results.insert(submitted.job);
        assert!(is_first, "ran again after its result: {:#}; {struck}", jobs[&submitted.job]);
    }
    for (id, submission) in &campaign.submitted {
        let is_pushed = matches!(submission.kind, JobKind::Pushed { .. });
        let is_expected = is_pushed || !received.contains(id);
        assert!(is_expected, "pushed to the original worker: {:#}; {struck}", jobs[id]);
        let was_sent = received.contains(id) || !is_pushed || jobs[id]["status"] != "completed";
        assert!(was_sent, "completed without a submission: {:#}; {struck}", jobs[id]);
    }
}

fn nothing_is_left(campaign: &mut Campaign) {
    let home = campaign.cluster.path("").display().to_string();
    eventually("no process of a job is left", SOON, || {
        let of_job = |_: &str, environment: &str| {
            environment.contains("\0JOB_ID=") && environment.contains(&home)
        };
        processes(of_job).is_empty().then_some(())
    });
    if campaign.docker.is_none() {
        return;
    }
    // An agent removes a container that ended while Docker was away when it starts, a documented limit.
    for name in ["one", "two", "three"] {
        campaign.cluster.agents.get_mut(name).unwrap().kill();
        campaign.cluster.restart_agent(name);
    }
    let Some(docker) = &campaign.docker else { return };
    let since = Instant::now();
    while !docker.leftovers().is_empty() {
        assert!(since.elapsed() < SOON, "left behind: {:?}", docker.leftovers());
        sleep(HEARTBEAT);
    }
}

/// Jobs with a mark of one instance after a mark of a later instance.
fn alternating(marks: &str) -> BTreeSet<String> {
    let mut instances: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (job, instance) in marks.lines().filter_map(|line| line.split_once(' ')) {
        let seen = instances.entry(job).or_default();
        if seen.last() != Some(&instance) {
            if seen.contains(&instance) {
                found.insert(job.to_owned());
            }
            seen.push(instance);
        }
    }
    found
}

fn read(cluster: &Cluster, file: &str) -> String {
    fs::read_to_string(cluster.shared(file)).unwrap()
}

fn pages(cluster: &Cluster, path: &str) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let page = cluster.get(&format!("{path}?skip={}&limit=100", all.len())).ok();
        let page = page.as_array().unwrap().clone();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

#[test]
fn marks_of_two_instances_that_alternate_are_found() {
    assert_eq!(alternating("1 a\n2 x\n1 a\n1 b\n2 x\n1 b\n"), BTreeSet::new());
    assert_eq!(alternating("1 a\n1 b\n2 x\n1 a\n"), BTreeSet::from(["1".to_owned()]));
}
