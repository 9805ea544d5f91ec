//! Containers of an agent that was killed together with its guardian.

use std::time::{Duration, Instant};

use bollard::Docker as DockerClient;
use bollard::query_parameters::RemoveContainerOptions;

use agentaflow_api::ids::JobId;
use agentaflow_api::job::Runtime;
use agentaflow_api::link::{Assignment, TaskKey};

use crate::image::{IMAGE, client, ensure_image};
use crate::{DOCKER_INTERVAL, TestBed, shell};

const GRACE: Duration = Duration::from_millis(500);

/// Running container of an agent that is a separate process.
struct Killed {
    bed: TestBed,
    agent: std::process::Child,
    client: DockerClient,
    key: TaskKey,
    /// Last heartbeat before the death of the agent.
    heartbeat: Instant,
}

impl Killed {
    async fn start(number: i64) -> Self {
        let client = client().await;
        ensure_image(&client).await;
        let bed = TestBed::new().await;
        let agent = bed.agent_process_with_docker();
        let key = bed.assign(container(number));
        bed.server.running(key).await;
        let before = bed.server.memory().heartbeats.len();
        let next = |count: usize| (count > before).then(Instant::now);
        let heartbeat =
            bed.server.until("a heartbeat", |memory| next(memory.heartbeats.len())).await;
        // The agent extends the lease after the response.
        tokio::time::sleep(Duration::from_millis(200)).await;
        Self { bed, agent, client, key, heartbeat }
    }

    fn kill_agent_and_guardian(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
        let guardians = self.bed.guardians();
        assert_eq!(guardians.len(), 1, "{guardians:?}");
        TestBed::kill(guardians[0]);
    }

    /// Moment at which a server gives the job to another node: after the lease, one interval and the grace.
    fn reassigned_at(&self) -> Instant {
        self.heartbeat + DOCKER_INTERVAL * 2 + DOCKER_INTERVAL + GRACE
    }

    async fn is_running(&self) -> bool {
        let name = format!("agentaflow-{}", self.key);
        let found = self.client.inspect_container(&name, None).await.unwrap();
        found.state.and_then(|state| state.running) == Some(true)
    }

    async fn ends_before_the_job_is_reassigned(&self) {
        while self.is_running().await {
            assert!(Instant::now() < self.reassigned_at(), "the container still runs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn remove(self) {
        let name = format!("agentaflow-{}", self.key);
        let force = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
        self.client.remove_container(&name, Some(force)).await.unwrap();
    }
}

/// Ignores TERM, so that only KILL after the grace ends it.
fn container(number: i64) -> Assignment {
    let mut container = shell(i64::from(std::process::id()) * 1000 + number, "");
    container.key.job = JobId(i64::from(std::process::id()) * 1000 + number);
    container.runtime = Runtime::Docker;
    container.image = Some(IMAGE.to_owned());
    let script = "trap '' TERM; while true; do sleep 0.1; done";
    container.command = Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec());
    container.leased = true;
    container.grace_ms = GRACE.as_millis() as u64;
    container
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_ends_with_its_lease_after_agent_and_guardian_were_killed() {
    let mut killed = Killed::start(1).await;
    killed.kill_agent_and_guardian();
    // An agent that starts again adopts the container, so it runs until the end of its lease.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(killed.is_running().await);
    killed.ends_before_the_job_is_reassigned().await;
    killed.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_sweep_ends_a_container_after_the_sentinel_was_killed_too() {
    let mut killed = Killed::start(2).await;
    let sentinels = killed.bed.processes(|environ| environ.contains("AGENTAFLOW_GUARDIAN_ROLE"));
    assert_eq!(sentinels.len(), 1, "{sentinels:?}");
    // A stopped guardian does not replace its sentinel.
    killed.agent.kill().unwrap();
    killed.agent.wait().unwrap();
    let guardian = killed.bed.guardians()[0];
    let signal = |pid: i32, signal| {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(guardian, rustix::process::Signal::STOP);
    TestBed::kill(sentinels[0]);
    TestBed::kill(guardian);
    killed.bed.sweep();
    assert!(killed.is_running().await);
    killed.ends_before_the_job_is_reassigned().await;
    killed.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_runs_on_if_a_new_agent_starts_within_the_lease() {
    let mut killed = Killed::start(3).await;
    killed.kill_agent_and_guardian();
    killed.agent = killed.bed.agent_process_with_docker();
    tokio::time::sleep_until((killed.reassigned_at() + DOCKER_INTERVAL).into()).await;
    assert!(killed.is_running().await);
    // The sentinel of the killed guardian has left the containers to the new one.
    let roles = killed.bed.processes(|environ| environ.contains("AGENTAFLOW_GUARDIAN_ROLE"));
    assert_eq!((killed.bed.guardians().len(), roles.len()), (1, 1), "{roles:?}");
    killed.kill_agent_and_guardian();
    killed.remove().await;
}
