//! Server, agents, guardians and machines are killed at random times under load: no job is lost, no job runs twice at
//! the same time, and the ledger matches the costs of the jobs.
//!
//! `CHAOS_SEED` sets the random seed, `CHAOS_SECONDS` the duration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::three_agents;
use crate::harness::{Cluster, HEARTBEAT, shell_job};

/// Time for all jobs to finish after the last kill.
const SETTLE: Duration = Duration::from_mins(2);

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// A job that holds its own lock while it runs, and reports a lock held by another instance.
fn job(cluster: &Cluster, dice: &mut Dice) -> Value {
    let (folder, seconds) = (cluster.shared(""), dice.below(25) as f64 / 10.0);
    let script = format!(
        "exec 9>> {folder}lock.$JOB_ID; flock -n 9 || echo $JOB_ID >> {folder}twice; \
         echo $JOB_ID >> {folder}began; sleep {seconds}; echo $JOB_ID >> {folder}ended"
    );
    let gpus = dice.below(4).saturating_sub(1);
    shell_job(
        &script,
        json!({"gpu_count": gpus, "max_retries": 50, "stop_grace_seconds": 1, "preemptible": false}),
    )
}

/// Kills a process or machine and restarts it.
fn strike(cluster: &mut Cluster, dice: &mut Dice) -> String {
    let name = ["one", "two", "three"][dice.below(3) as usize];
    let away = Duration::from_millis(dice.below(1500));
    match dice.below(12) {
        10..12 => {
            // Jobs die with the guardian; otherwise they would still run when the server starts them elsewhere.
            cluster.agents.get_mut(name).unwrap().kill();
            cluster.kill_guardian(name);
            sleep(away);
            cluster.restart_agent(name);
            format!("agent and guardian {name}, for {away:?}")
        }
        0..4 => {
            cluster.server.kill();
            sleep(away / 2);
            cluster.restart_server();
            format!("server, for {:?}", away / 2)
        }
        4..8 => {
            cluster.agents.get_mut(name).unwrap().kill();
            sleep(away);
            cluster.restart_agent(name);
            format!("agent {name}, for {away:?}")
        }
        _ => {
            cluster.lose_machine(name);
            sleep(away);
            cluster.restart_agent(name);
            format!("machine {name}, for {away:?}")
        }
    }
}

#[test]
fn no_job_is_lost_or_runs_twice_at_once_and_the_ledger_adds_up_while_everything_is_killed() {
    let mut dice = Dice(setting("CHAOS_SEED", 7) | 1);
    let mut cluster = three_agents();
    let mut promised = BTreeSet::new();
    let mut struck = Vec::new();
    let end = Instant::now() + Duration::from_secs(setting("CHAOS_SECONDS", 20));
    while Instant::now() < end {
        for _ in 0..4 + dice.below(8) {
            promised.insert(
                cluster.post("/gpu-workers/jobs/", &job(&cluster, &mut dice)).ok()["id"]
                    .as_i64()
                    .unwrap(),
            );
        }
        sleep(Duration::from_millis(dice.below(600)));
        struck.push(strike(&mut cluster, &mut dice));
    }
    cluster.wait_for_nodes(3);
    let jobs = settled(&cluster, &promised);
    let output = || format!("struck: {struck:#?}");
    let twice = std::fs::read_to_string(cluster.shared("twice")).unwrap_or_default();
    assert_eq!(twice, "", "ran twice at once; {}", output());
    let ended: BTreeSet<i64> = numbers(&cluster.shared("ended"));
    for id in &promised {
        assert_eq!(jobs[id]["status"], "completed", "{:#}; {}", jobs[id], output());
        assert!(ended.contains(id), "job {id} did not run to its end; {}", output());
    }
    ledger_adds_up(&cluster, &jobs);
    println!(
        "{} jobs, {} strikes, {} starts",
        jobs.len(),
        struck.len(),
        lines(&cluster.shared("began"))
    );
}

/// All jobs, after all have finished.
fn settled(cluster: &Cluster, promised: &BTreeSet<i64>) -> BTreeMap<i64, Value> {
    let since = Instant::now();
    loop {
        let jobs: BTreeMap<_, _> = pages(cluster, "/gpu-workers/jobs/")
            .into_iter()
            .map(|job| (job["id"].as_i64().unwrap(), job))
            .collect();
        let missing: Vec<_> = promised.iter().filter(|id| !jobs.contains_key(id)).collect();
        assert!(missing.is_empty(), "jobs are gone: {missing:?}");
        let over = |job: &&Value| {
            ["completed", "failed", "cancelled"].iter().any(|word| job["status"] == *word)
        };
        let open: Vec<_> = jobs.values().filter(|job| !over(job)).collect();
        if open.is_empty() {
            return jobs;
        }
        assert!(
            since.elapsed() < SETTLE,
            "{} jobs are not over, such as {:#}",
            open.len(),
            open[0]
        );
        sleep(HEARTBEAT);
    }
}

fn ledger_adds_up(cluster: &Cluster, jobs: &BTreeMap<i64, Value>) {
    let mut sums = BTreeMap::new();
    for entry in pages(cluster, "/billing/ledger") {
        if let Some(id) = entry["job_id"].as_i64() {
            *sums.entry(id).or_insert(0) += entry["micros"].as_i64().unwrap();
        }
    }
    for (id, job) in jobs {
        let cost = (job["cost"].as_f64().unwrap() * 1e6).round() as i64;
        assert_eq!(sums.get(id).copied().unwrap_or(0), cost, "{job:#}");
    }
    assert!(sums.values().sum::<i64>() > 0, "nothing cost anything");
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

fn numbers(file: &str) -> BTreeSet<i64> {
    std::fs::read_to_string(Path::new(file))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect()
}

fn lines(file: &str) -> usize {
    std::fs::read_to_string(Path::new(file)).unwrap_or_default().lines().count()
}
