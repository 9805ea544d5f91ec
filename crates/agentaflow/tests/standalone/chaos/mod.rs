//! Crash campaign: server, agents, guardians, machines, Docker engines and databases are killed at random times under
//! load, the wall clock of the server steps, and the server is away for long. No job is lost, no job runs twice at the same
//! time, each job is billed once and exactly, and nothing is left behind. An original worker is among the agents.
//!
//! `CHAOS_SEED` sets the random seed, `CHAOS_SECONDS` the duration.

mod checks;
mod postgres_server;
mod strikes;
mod wall_clock;

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::docker_host::DockerHost;
use crate::harness::{Cluster, HEARTBEAT, SOON, eventually, shell_job};
use crate::http::Connection;
use crate::image::IMAGE;
use crate::original_worker::OriginalWorker;
use crate::skip::skip;
use postgres_server::PostgresServer;
use wall_clock::WallClock;

/// Lease of the agents: longer than an outage of the server.
const LEASE: Duration = Duration::from_secs(7);
/// Outage of the server in the CI tier: many heartbeat intervals, within the lease.
const OUTAGE: Duration = Duration::from_secs(5);
/// Lease and outage of the full tier.
const LONG_LEASE: &str = "90s";
const LONG_OUTAGE: Duration = Duration::from_mins(1);
/// Agent whose wall clock steps.
const CLOCK_AGENT: &str = "three";
/// Name of the node of the original worker.
const ORIGINAL: &str = "original";

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn duration(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.below(most.as_millis() as u64))
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

fn is_full() -> bool {
    std::env::var_os("AGENTAFLOW_TEST_FULL").is_some()
}

/// Kind of a submitted job, and the run time of its last attempt if it completes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum JobKind {
    Process {
        seconds: f64,
    },
    Container {
        seconds: f64,
    },
    /// Two processes on any nodes.
    Gang {
        seconds: f64,
    },
    /// On the original worker.
    Pushed {
        /// Requeued if the worker forgets the job.
        requeue: bool,
    },
}

struct Submission {
    kind: JobKind,
    key: String,
    path: String,
    body: Value,
}

/// Wall clocks that the campaign sets.
struct Clocks {
    server: WallClock,
    /// Clock of the agent [`CLOCK_AGENT`] and its guardian.
    agent: WallClock,
}

impl Clocks {
    fn find() -> Option<Self> {
        Some(Self { server: WallClock::find()?, agent: WallClock::find()? })
    }
}

struct Campaign {
    // Before the services: its programs stop first.
    cluster: Cluster,
    dice: Dice,
    worker: OriginalWorker,
    docker: Option<DockerHost>,
    postgres: Option<PostgresServer>,
    /// None without libfaketime.
    clocks: Option<Clocks>,
    /// Killed agents and the times of their restarts.
    down: BTreeMap<String, Instant>,
    submitted: BTreeMap<i64, Submission>,
    struck: Vec<String>,
    started: Instant,
}

#[test]
fn no_job_is_lost_or_runs_twice_at_once_and_the_ledger_adds_up_while_everything_is_killed() {
    Campaign::start(None, None).run(20);
}

#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_crash_campaign_with_kills_of_the_engine() {
    if let Some(missing) = DockerHost::missing() {
        skip!("{missing}");
    }
    Campaign::start(Some(DockerHost::start()), None).run(15);
}

/// Both at once in the full tier only.
#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_crash_campaign_with_kills_of_engine_and_database() {
    if !is_full() {
        skip!("needs the full tier: `cargo xtask test --full`");
    }
    if let Some(missing) = DockerHost::missing() {
        skip!("{missing}");
    }
    let Some(programs) = PostgresServer::programs() else {
        skip!("needs root and the server programs of PostgreSQL in /usr/lib/postgresql");
    };
    Campaign::start(Some(DockerHost::start()), Some(PostgresServer::start(&programs))).run(15);
}

#[test]
#[ignore = "needs PostgreSQL: AGENTAFLOW_TEST_POSTGRES"]
fn postgres_crash_campaign_with_kills_of_the_database() {
    let Some(programs) = PostgresServer::programs() else {
        skip!("needs root and the server programs of PostgreSQL in /usr/lib/postgresql");
    };
    Campaign::start(None, Some(PostgresServer::start(&programs))).run(15);
}

/// A server answers no heartbeats without its database, which another server may use meanwhile.
#[test]
#[ignore = "needs PostgreSQL: AGENTAFLOW_TEST_POSTGRES"]
fn postgres_an_outage_of_the_database_within_the_lease_stops_no_job() {
    let Some(programs) = PostgresServer::programs() else {
        skip!("needs root and the server programs of PostgreSQL in /usr/lib/postgresql");
    };
    let mut postgres = PostgresServer::start(&programs);
    let mut cluster = Cluster::server(&["--lease", LONG_LEASE, "--database", &postgres.url()]);
    cluster.agent("one", &[]);
    cluster.wait_for_nodes(1);
    let (starts, end) = (cluster.shared("starts"), cluster.shared("end"));
    let script = format!("echo x >> {starts}; until [ -e {end} ]; do sleep 0.05; done");
    let id = cluster.submit(&script, json!({"stop_grace_seconds": 1}));
    cluster.wait_for_status(id, "running");
    eventually("the job began", SOON, || fs::read_to_string(&starts).ok());
    postgres.kill();
    // Long after two heartbeat intervals, the lease without a setting of its own.
    sleep(if is_full() { LONG_OUTAGE } else { HEARTBEAT * 15 });
    postgres.start_again();
    cluster.wait_for_nodes(1);
    fs::write(end, "").unwrap();
    let job = cluster.wait_for_status(id, "completed");
    assert_eq!((&job["attempt"], fs::read_to_string(starts).unwrap().as_str()), (&json!(1), "x\n"));
}

impl Campaign {
    fn start(docker: Option<DockerHost>, postgres: Option<PostgresServer>) -> Self {
        let clocks = Clocks::find();
        if clocks.is_none() {
            let reason = "needs libfaketime; `sudo apt-get install libfaketime` installs it";
            crate::skip::report("chaos::steps_of_the_wall_clock", reason);
        }
        let lease = format!("{}s", LEASE.as_secs());
        let mut arguments = vec!["--lease", lease.as_str(), "--push-allow", "127.0.0.1"];
        let url = postgres.as_ref().map(PostgresServer::url);
        arguments.extend(url.iter().flat_map(|url| ["--database", url.as_str()]));
        let server = clocks.as_ref().map(|clocks| clocks.server.environment());
        // Agents in the network of the engine reach the server at another address.
        let address = if docker.is_some() { "0.0.0.0" } else { "127.0.0.1" };
        arguments.extend(docker.iter().map(|_| "--insecure"));
        let mut cluster = Cluster::server_at_with(address, &arguments, server.unwrap_or_default());
        let agent = clocks.as_ref().map(|clocks| clocks.agent.environment());
        cluster.set_agent_environment(CLOCK_AGENT, agent.unwrap_or_default());
        for name in ["one", "two", "three"] {
            start_agent(&mut cluster, name, docker.as_ref());
        }
        cluster.wait_for_nodes(3);
        let worker = OriginalWorker::start(&cluster, ORIGINAL);
        cluster.wait_for_nodes(4);
        checks::prepare(&cluster);
        let seed = setting("CHAOS_SEED", 7) | 1;
        Self {
            cluster,
            dice: Dice(seed),
            worker,
            docker,
            postgres,
            clocks,
            down: BTreeMap::new(),
            submitted: BTreeMap::new(),
            struck: Vec::new(),
            started: Instant::now(),
        }
    }

    fn run(mut self, seconds: u64) {
        let length = Duration::from_secs(setting("CHAOS_SECONDS", seconds));
        self.strike_for(length / 2);
        self.outage(OUTAGE);
        self.strike_for(length / 2);
        if is_full() {
            self.cluster.server.kill();
            self.cluster.set_option("--lease", LONG_LEASE);
            self.cluster.restart_server();
            self.strike_for(length / 6);
            self.outage(LONG_OUTAGE);
            self.strike_for(length / 6);
        }
        self.restart_agents(true);
        self.cluster.wait_for_nodes(3);
        checks::all(&mut self);
    }

    fn strike_for(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            for _ in 0..3 + self.dice.below(6) {
                self.submit_job();
            }
            self.repeat_submission();
            let pause = self.dice.duration(Duration::from_millis(600));
            sleep(pause);
            self.end_pushed_job();
            self.restart_agents(false);
            self.strike();
        }
    }

    /// The server is away for less than the lease: jobs keep running, and their ends are reported afterwards.
    fn outage(&mut self, length: Duration) {
        self.restart_agents(true);
        self.cluster.wait_for_nodes(3);
        self.submit_job();
        self.cluster.server.kill();
        self.struck.push(format!("outage of the server for {length:?}"));
        sleep(length / 2);
        self.end_pushed_job();
        sleep(length / 2);
        self.cluster.restart_server();
    }

    /// Restarts killed agents whose time has come, or all of them.
    fn restart_agents(&mut self, all: bool) {
        let due = |at: &Instant| all || *at <= Instant::now();
        let names: Vec<String> =
            self.down.iter().filter(|(_, at)| due(at)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.down.remove(&name);
            self.cluster.restart_agent(&name);
        }
    }

    /// Ends the container of the original worker, which blocks until then.
    fn end_pushed_job(&self) {
        if self.worker.is_blocked() {
            self.worker.end_container(0, "done\n");
        }
    }

    fn submit_job(&mut self) {
        let seconds = self.dice.below(25) as f64 / 10.0;
        let gpus = self.dice.below(4).saturating_sub(1);
        let more = json!({"gpu_count": gpus, "max_retries": 50, "stop_grace_seconds": 1, "preemptible": false});
        let (kind, body) = match self.dice.below(12) {
            0 => {
                let requeue = self.dice.below(3) == 0;
                (JobKind::Pushed { requeue }, pushed_job(requeue))
            }
            1 => (JobKind::Gang { seconds }, gang(&self.cluster, seconds, more)),
            2..7 if self.docker.is_some() => {
                (JobKind::Container { seconds }, container_job(&self.cluster, seconds, &more))
            }
            _ => (JobKind::Process { seconds }, process_job(&self.cluster, seconds, more)),
        };
        let path = match kind {
            JobKind::Pushed { .. } => format!("/gpu-workers/nodes/{}/jobs", self.worker.node()),
            _ => "/gpu-workers/jobs/".to_owned(),
        };
        let key = format!("campaign-{}", self.submitted.len());
        let submission = Submission { kind, key, path, body };
        let id = self.send(&submission);
        let before = self.submitted.insert(id, submission);
        assert!(before.is_none(), "job {id} was accepted twice");
    }

    /// A client that saw no answer repeats its request.
    fn repeat_submission(&mut self) {
        let position = self.dice.below(self.submitted.len() as u64) as usize;
        let (id, submission) = self.submitted.iter().nth(position).unwrap();
        assert_eq!(self.send(submission), *id, "a repeated submission; {:#?}", self.struck);
    }

    /// Submits until the server accepts: its database may be away.
    fn send(&self, submission: &Submission) -> i64 {
        let token = self.cluster.token();
        let Submission { path, body, key, .. } = submission;
        eventually("the server accepts a job", SOON, || {
            let connection = Connection::open(self.cluster.port, Some(&token)).ok()?;
            let mut connection = connection.with_header(format!("Idempotency-Key: {key}"));
            let answer = connection.call("POST", path, Some(body)).ok()?;
            (answer.status != 503).then(|| answer.ok()["id"].as_i64().unwrap())
        })
    }
}

fn start_agent(cluster: &mut Cluster, name: &str, docker: Option<&DockerHost>) {
    let Some(docker) = docker else { return cluster.agent(name, &[]) };
    let (socket, mount) = (docker.socket(), format!("{}:rw", cluster.shared("")));
    let runtimes = ["--runtime", "docker,process", "--allow-process", "--docker-socket", &socket];
    // Agents set firewall rules in the network of the engine.
    cluster.set_agent_network(name, docker.network());
    let server = format!("http://{}:{}", docker.gateway(), cluster.port);
    cluster.agent_at(name, &server, &[runtimes.as_slice(), &["--allow-mount", &mount]].concat());
}

fn pushed_job(requeue: bool) -> Value {
    let on_node_lost = if requeue { "requeue" } else { "wait" };
    json!({"docker_image": "busybox", "gpu_memory_required": 1024, "stop_grace_seconds": 0,
        "max_retries": 50, "on_node_lost": on_node_lost})
}

/// A gang of two processes, one GPU each at most.
fn gang(cluster: &Cluster, seconds: f64, mut more: Value) -> Value {
    more["replicas"] = json!(2);
    more["gpu_count"] = json!(more["gpu_count"].as_u64().map(|gpus| gpus.min(1)));
    process_job(cluster, seconds, more)
}

/// A job that holds a lock for each of its tasks while it runs, and reports a lock held by another instance.
fn process_job(cluster: &Cluster, seconds: f64, more: Value) -> Value {
    let folder = cluster.shared("");
    let script = format!(
        "exec 9>> {folder}lock.$JOB_ID.$RANK; flock -n 9 || echo $JOB_ID >> {folder}twice; \
         echo $JOB_ID >> {folder}began; sleep {seconds}; echo $JOB_ID >> {folder}ended"
    );
    shell_job(&script, more)
}

/// A container that leaves a mark every 50 ms: marks of two instances of a job must not alternate. The static busybox of the
/// image has no `flock`.
fn container_job(cluster: &Cluster, seconds: f64, more: &Value) -> Value {
    let marks = (seconds * 20.0) as u64;
    let script = format!(
        "me=$(cat /proc/sys/kernel/random/uuid); echo $JOB_ID >> /shared/began; i=0; \
         while [ $i -lt {marks} ]; do echo $JOB_ID $me >> /shared/marks; sleep 0.05; i=$((i+1)); done; \
         echo $JOB_ID >> /shared/ended"
    );
    let volumes = json!([{"source": cluster.shared(""), "target": "/shared"}]);
    let mut job =
        json!({"docker_image": IMAGE, "command": ["/bin/sh", "-c", script], "volumes": volumes});
    job.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    job
}
