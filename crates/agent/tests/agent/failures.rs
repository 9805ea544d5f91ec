//! Tasks across failures of agent, server and network.

use std::time::Duration;

use axum::http::StatusCode;

use agentaflow_agent::AgentError;
use agentaflow_agent::runtime::docker::{DockerSettings, NetworkMode};
use agentaflow_api::job::Runtime;
use agentaflow_api::link::{Assignment, Message, StopCause};

use crate::{TestBed, fake_docker, shell};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_the_agent_and_the_next_agent_adopts_them() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let until = |file: &str| {
        let path = bed.dir.path().join(file);
        (format!("until [ -e {} ]; do sleep 0.05; done", path.display()), path)
    };
    let ((first, first_file), (second, second_file)) = (until("first"), until("second"));
    let key = bed.assign(shell(1, &format!("echo one; {second}; echo two; exit 6")));
    let short = bed.assign(shell(2, &format!("{first}; echo short")));
    bed.server.running(key).await;
    bed.server.running(short).await;
    agent.stop().await;
    std::fs::write(first_file, "").unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(bed.server.memory().ended(short).is_none());
    let agent = bed.agent();
    assert_eq!(bed.server.ended(short).await.exit_code, Some(0));
    std::fs::write(second_file, "").unwrap();
    assert_eq!(bed.server.ended(key).await.exit_code, Some(6));
    assert_eq!(bed.server.log(key), "one\ntwo\n");
    assert_eq!(bed.server.log(short), "short\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_loses_no_task_and_runs_none_twice() {
    let bed = TestBed::new().await;
    let mut agent = bed.agent_process();
    let keys: Vec<_> = (1..=20)
        .map(|job| {
            let script = format!("echo begin; sleep 0.{}5; sleep 0.3; echo end", job % 9);
            bed.assign(shell(job, &script))
        })
        .collect();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        agent.kill().unwrap();
        agent.wait().unwrap();
        agent = bed.agent_process();
    }
    for key in &keys {
        assert_eq!(bed.server.ended(*key).await.exit_code, Some(0));
        assert_eq!(bed.server.log(*key), "begin\nend\n");
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_reported_when_the_server_returns() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "sleep 0.3; echo done"));
    bed.server.running(key).await;
    bed.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_millis(600)).await;
    bed.server.memory().broken = None;
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    assert_eq!(bed.server.log(key), "done\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_leased_tasks_end_when_the_server_is_unreachable() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let mut assignment = shell(1, "sleep 300");
    assignment.leased = true;
    let leased = bed.assign(assignment);
    let unleased = bed.assign(shell(2, "sleep 3; echo survived"));
    bed.server.running(leased).await;
    bed.server.running(unleased).await;
    bed.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_secs(2)).await;
    bed.server.memory().broken = None;
    assert_eq!(bed.server.ended(leased).await.stopped, Some(StopCause::LeaseLost));
    assert_eq!(bed.server.ended(unleased).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_task_is_killed_without_a_report() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "while :; do echo on; sleep 0.05; done"));
    bed.server.memory().stale.insert(key);
    bed.server
        .until("a clean folder", |memory| {
            (memory.requests > 0 && bed.folder_is_gone(key)).then_some(())
        })
        .await;
    assert!(bed.server.memory().ended(key).is_none());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_kills_tasks_that_it_does_not_contain() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let extra = bed.assign(shell(1, "sleep 300"));
    let named = bed.assign(shell(2, "sleep 1; echo kept"));
    bed.server.running(extra).await;
    bed.server.running(named).await;
    bed.server.unassign(extra);
    bed.server.sync();
    bed.server.until("a clean folder", |_| bed.folder_is_gone(extra).then_some(())).await;
    assert_eq!(bed.server.ended(named).await.exit_code, Some(0));
    assert!(bed.server.memory().ended(extra).is_none());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_with_ended_or_lost_tasks_is_answered_with_their_end() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    let over = bed.assign(shell(1, "echo once; exit 4"));
    bed.server.ended(over).await;
    bed.server.until("a clean folder", |_| bed.folder_is_gone(over).then_some(())).await;
    let lost = Assignment { running: true, ..shell(2, "echo never") };
    let (again, lost_key) = (shell(1, "echo once; exit 4"), lost.key);
    let fresh = shell(3, "echo fresh");
    let fresh_key = fresh.key;
    let assignments = vec![again, lost, fresh];
    bed.server.memory().reports.clear();
    // Until the removal of its folder the agent considers a task as live and reports nothing.
    while bed.server.memory().ended(over).is_none() {
        let assignments = assignments.clone();
        bed.server.send(Message::Sync { assignments, stops: Vec::new() });
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for key in [over, lost_key] {
        let ended = bed.server.ended(key).await;
        assert_eq!((ended.exit_code, ended.stopped), (None, Some(StopCause::LeaseLost)));
    }
    assert_eq!(bed.server.ended(fresh_key).await.exit_code, Some(0));
    assert_eq!((bed.server.log(over).as_str(), bed.server.log(lost_key).as_str()), ("once\n", ""));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_with_the_same_state_directory_fails() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    bed.server.until("a stream", |memory| (memory.streams > 0).then_some(())).await;
    let second = TestBed::agent_with(bed.open_settings());
    let error = second.running.await.unwrap().unwrap_err();
    assert!(matches!(error, AgentError::InUse { .. }), "{error}");
    agent.stop().await;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "true"));
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_interval_over_ten_minutes_is_an_error() {
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    settings.heartbeat_interval = Duration::from_secs(601);
    let error = TestBed::agent_with(settings).running.await.unwrap().unwrap_err();
    assert!(matches!(error, AgentError::Interval(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_containers_of_an_earlier_agent_waits_for_docker() {
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    let mut left = shell(1, "true");
    left.runtime = Runtime::Docker;
    let folder = settings.state_dir.join("tasks").join(left.key.to_string());
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("assignment.json"), serde_json::to_vec(&left).unwrap()).unwrap();
    let error = TestBed::agent_with(settings.clone()).running.await.unwrap().unwrap_err();
    assert!(matches!(error, AgentError::NoDocker { .. }), "{error}");
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = bed.dir.path().join("docker.sock");
    docker.network = NetworkMode::Host;
    settings.docker = Some(docker);
    let agent = TestBed::agent_with(settings);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(bed.server.memory().registrations, 0);
    assert!(folder.exists());
    // The agent can be stopped while it waits.
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_registers_docker_when_it_starts_later() {
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = bed.dir.path().join("docker.sock");
    docker.network = NetworkMode::Host;
    let socket = docker.socket.clone();
    settings.docker = Some(docker);
    let agent = TestBed::agent_with(settings);
    let runtimes =
        |memory: &crate::server::Memory| memory.node.as_ref().map(|node| node.runtimes.clone());
    assert_eq!(bed.server.until("a registration", runtimes).await, ["process"]);
    let (docker_daemon, _) = fake_docker::start(&socket);
    let both = |memory: &crate::server::Memory| runtimes(memory).filter(|names| names.len() > 1);
    assert_eq!(bed.server.until("both", both).await, ["process", "docker"]);
    let key = bed.assign(shell(1, "echo still here"));
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    docker_daemon.abort();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_guardian_stops_a_container_whose_start_was_never_confirmed() {
    let bed = TestBed::new().await;
    let mut settings = bed.open_settings();
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = bed.dir.path().join("docker.sock");
    docker.network = NetworkMode::Host;
    let (docker_daemon, calls) = fake_docker::start(&docker.socket);
    settings.docker = Some(docker);
    let agent = TestBed::agent_with(settings);
    let mut assignment = shell(1, "true");
    assignment.runtime = Runtime::Docker;
    assignment.image = Some("busybox:1".to_owned());
    assignment.leased = true;
    bed.assign(assignment);
    // Docker does not answer this request: the container may run or not.
    bed.server.until("a container", |_| (calls.creates() > 0).then_some(())).await;
    agent.stop().await;
    // The lease expires. Docker refuses the first attempt, and the guardian retries.
    bed.server.until("another attempt", |_| (calls.leased() > 1).then_some(())).await;
    docker_daemon.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_registers_again_when_the_server_rejects_its_session() {
    let bed = TestBed::new().await;
    let agent = bed.agent();
    bed.server.until("a stream", |memory| (memory.streams > 0).then_some(())).await;
    bed.server.memory().broken = Some(StatusCode::UNAUTHORIZED);
    tokio::time::sleep(Duration::from_millis(500)).await;
    bed.server.memory().broken = None;
    bed.server
        .until("another registration", |memory| (memory.registrations > 1).then_some(()))
        .await;
    let key = bed.assign(shell(1, "echo again"));
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assignments_arrive_by_polling_if_the_network_cuts_streams() {
    let bed = TestBed::new().await;
    bed.server.memory().cuts = true;
    let agent = bed.agent();
    let key = bed.assign(shell(1, "echo polled"));
    assert_eq!(bed.server.ended(key).await.exit_code, Some(0));
    assert!(bed.server.memory().polls > 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_endpoints_report_liveness_and_readiness() {
    let bed = TestBed::new().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = bed.open_settings();
    settings.listen = Some(free);
    bed.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    let agent = TestBed::agent_with(settings);
    let client = agentaflow_api::client::Client::new(&format!("http://{free}"), None).unwrap();
    while client.get("/health").text().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.get("/ready").text().await.unwrap_err().status(), Some(503));
    bed.server.memory().broken = None;
    while client.get("/ready").text().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.stop().await;
}
