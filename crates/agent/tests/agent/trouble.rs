//! What happens to tasks when agent, server or network fail.

use std::time::Duration;

use axum::http::StatusCode;

use agentaflow_agent::runtime::docker::DockerSettings;
use agentaflow_api::job::Runtime;
use agentaflow_api::link::{Assignment, Message, StopCause};

use crate::{World, engine, shell};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_on_without_the_agent_and_the_next_one_adopts_them() {
    let world = World::new().await;
    let agent = world.agent();
    let until = |file: &str| {
        let path = world.dir.path().join(file);
        (format!("until [ -e {} ]; do sleep 0.05; done", path.display()), path)
    };
    let ((first, first_file), (second, second_file)) = (until("first"), until("second"));
    let key = world.assign(shell(1, &format!("echo one; {second}; echo two; exit 6")));
    let short = world.assign(shell(2, &format!("{first}; echo short")));
    world.server.running(key).await;
    world.server.running(short).await;
    agent.stop().await;
    std::fs::write(first_file, "").unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(world.server.memory().ended(short).is_none());
    let agent = world.agent();
    assert_eq!(world.server.ended(short).await.exit_code, Some(0));
    std::fs::write(second_file, "").unwrap();
    assert_eq!(world.server.ended(key).await.exit_code, Some(6));
    assert_eq!(world.server.log(key), "one\ntwo\n");
    assert_eq!(world.server.log(short), "short\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_loses_no_task_and_runs_none_twice() {
    let world = World::new().await;
    let mut agent = world.agent_process();
    let keys: Vec<_> = (1..=20)
        .map(|job| {
            let script = format!("echo begin; sleep 0.{}5; sleep 0.3; echo end", job % 9);
            world.assign(shell(job, &script))
        })
        .collect();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        agent.kill().unwrap();
        agent.wait().unwrap();
        agent = world.agent_process();
    }
    for key in &keys {
        assert_eq!(world.server.ended(*key).await.exit_code, Some(0));
        assert_eq!(world.server.log(*key), "begin\nend\n");
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_told_when_the_server_is_back() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "sleep 0.3; echo done"));
    world.server.running(key).await;
    world.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_millis(600)).await;
    world.server.memory().broken = None;
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    assert_eq!(world.server.log(key), "done\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_tasks_end_when_the_server_cannot_be_reached_and_others_go_on() {
    let world = World::new().await;
    let agent = world.agent();
    let mut assignment = shell(1, "sleep 300");
    assignment.leased = true;
    let leased = world.assign(assignment);
    let waits = world.assign(shell(2, "sleep 3; echo survived"));
    world.server.running(leased).await;
    world.server.running(waits).await;
    world.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(Duration::from_secs(2)).await;
    world.server.memory().broken = None;
    assert_eq!(world.server.ended(leased).await.stopped, Some(StopCause::LeaseLost));
    assert_eq!(world.server.ended(waits).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_server_calls_stale_is_killed_and_forgotten() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "while :; do echo on; sleep 0.05; done"));
    world.server.memory().stale.insert(key);
    world
        .server
        .until("a clean folder", |memory| {
            (memory.requests > 0 && world.folder_is_gone(key)).then_some(())
        })
        .await;
    assert!(world.server.memory().ended(key).is_none());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_sync_does_not_name_is_killed_and_one_that_it_names_is_started() {
    let world = World::new().await;
    let agent = world.agent();
    let extra = world.assign(shell(1, "sleep 300"));
    let named = world.assign(shell(2, "sleep 1; echo kept"));
    world.server.running(extra).await;
    world.server.running(named).await;
    world.server.unwant(extra);
    world.server.sync();
    world.server.until("a clean folder", |_| world.folder_is_gone(extra).then_some(())).await;
    assert_eq!(world.server.ended(named).await.exit_code, Some(0));
    assert!(world.server.memory().ended(extra).is_none());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sync_that_names_what_is_over_or_lost_is_answered_and_starts_nothing() {
    let world = World::new().await;
    let agent = world.agent();
    let over = world.assign(shell(1, "echo once; exit 4"));
    world.server.ended(over).await;
    world.server.until("a clean folder", |_| world.folder_is_gone(over).then_some(())).await;
    let lost = Assignment { running: true, ..shell(2, "echo never") };
    let (again, lost_key) = (shell(1, "echo once; exit 4"), lost.key);
    let fresh = shell(3, "echo fresh");
    let fresh_key = fresh.key;
    let assignments = vec![again, lost, fresh];
    world.server.memory().reports.clear();
    // The agent forgets a task after its folder is gone; until then it has nothing to say about it.
    while world.server.memory().ended(over).is_none() {
        let assignments = assignments.clone();
        world.server.say(Message::Sync { assignments, stops: Vec::new() });
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for key in [over, lost_key] {
        let ended = world.server.ended(key).await;
        assert_eq!((ended.exit_code, ended.stopped), (None, Some(StopCause::LeaseLost)));
    }
    assert_eq!(world.server.ended(fresh_key).await.exit_code, Some(0));
    assert_eq!(
        (world.server.log(over).as_str(), world.server.log(lost_key).as_str()),
        ("once\n", "")
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_in_the_same_folder_is_refused_in_words() {
    let world = World::new().await;
    let agent = world.agent();
    world.server.until("a stream", |memory| (memory.streams > 0).then_some(())).await;
    let second = World::agent_with(world.open_settings());
    let error = second.running.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("another agent uses"), "{error}");
    agent.stop().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "true"));
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_is_too_seldom_is_refused_in_words() {
    let world = World::new().await;
    let mut settings = world.open_settings();
    settings.heartbeat_interval = Duration::from_secs(601);
    let error = World::agent_with(settings).running.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("601 seconds") && error.contains("at most 600"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_containers_of_an_earlier_one_waits_for_docker_before_it_registers() {
    let world = World::new().await;
    let mut settings = world.open_settings();
    let mut left = shell(1, "true");
    left.runtime = Runtime::Docker;
    let folder = settings.state_dir.join("tasks/1-1-0");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("assignment.json"), serde_json::to_vec(&left).unwrap()).unwrap();
    let error = World::agent_with(settings.clone()).running.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("run in containers"), "{error}");
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = world.dir.path().join("docker.sock");
    settings.docker = Some(docker);
    let agent = World::agent_with(settings);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(world.server.memory().registrations, 0);
    assert!(folder.exists());
    // It can be stopped while it waits.
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_that_comes_later_is_told_to_the_server() {
    let world = World::new().await;
    let mut settings = world.open_settings();
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = world.dir.path().join("docker.sock");
    let socket = docker.socket.clone();
    settings.docker = Some(docker);
    let agent = World::agent_with(settings);
    let told =
        |memory: &crate::server::Memory| memory.node.as_ref().map(|node| node.runtimes.clone());
    assert_eq!(world.server.until("a registration", told).await, ["process"]);
    let (engine, _) = engine::start(&socket);
    let both = |memory: &crate::server::Memory| told(memory).filter(|runtimes| runtimes.len() > 1);
    assert_eq!(world.server.until("both", both).await, ["process", "docker"]);
    let key = world.assign(shell(1, "echo still here"));
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    engine.abort();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_in_the_guardians_care_before_it_starts_and_until_it_is_stopped() {
    let world = World::new().await;
    let mut settings = world.open_settings();
    let mut docker = DockerSettings::new(settings.state_dir.clone());
    docker.socket = world.dir.path().join("docker.sock");
    let (engine, calls) = engine::start(&docker.socket);
    settings.docker = Some(docker);
    let agent = World::agent_with(settings);
    let mut assignment = shell(1, "true");
    (assignment.runtime, assignment.image) = (Runtime::Docker, Some("busybox:1".to_owned()));
    assignment.leased = true;
    world.assign(assignment);
    // The engine does not answer to this one: the container may run or not.
    world.server.until("a container", |_| (calls.creates() > 0).then_some(())).await;
    agent.stop().await;
    // Nobody renews the lease any more. The engine refuses at first, and is asked again.
    world.server.until("another attempt", |_| (calls.leased() > 1).then_some(())).await;
    engine.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_the_server_no_longer_knows_registers_again() {
    let world = World::new().await;
    let agent = world.agent();
    world.server.until("a stream", |memory| (memory.streams > 0).then_some(())).await;
    world.server.memory().broken = Some(StatusCode::UNAUTHORIZED);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.server.memory().broken = None;
    world
        .server
        .until("another registration", |memory| (memory.registrations > 1).then_some(()))
        .await;
    let key = world.assign(shell(1, "echo again"));
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_arrives_by_polling_where_streams_are_cut() {
    let world = World::new().await;
    world.server.memory().cuts = true;
    let agent = world.agent();
    let key = world.assign(shell(1, "echo polled"));
    assert_eq!(world.server.ended(key).await.exit_code, Some(0));
    assert!(world.server.memory().polls > 0);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_tells_on_its_own_port_whether_it_lives_and_is_ready() {
    let world = World::new().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = world.open_settings();
    settings.listen = Some(free);
    world.server.memory().broken = Some(StatusCode::SERVICE_UNAVAILABLE);
    let agent = World::agent_with(settings);
    let client = agentaflow_api::client::Client::new(&format!("http://{free}"), None).unwrap();
    while client.get("/health").text().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.get("/ready").text().await.unwrap_err().status(), Some(503));
    world.server.memory().broken = None;
    while client.get("/ready").text().await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    agent.stop().await;
}
