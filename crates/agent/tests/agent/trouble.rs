//! What happens to tasks when agent, server or network fail.

use std::time::Duration;

use axum::http::StatusCode;

use agentaflow_api::link::StopCause;

use crate::{World, shell};

#[tokio::test(flavor = "multi_thread")]
async fn tasks_go_on_without_the_agent_and_the_next_one_adopts_them() {
    let world = World::new().await;
    let agent = world.agent();
    let key = world.assign(shell(1, "echo one; sleep 0.8; echo two; exit 6"));
    let short = world.assign(shell(2, "sleep 0.2; echo short"));
    world.server.running(key).await;
    world.server.running(short).await;
    agent.stop().await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(world.server.memory().ended(short).is_none());
    let agent = world.agent();
    assert_eq!(world.server.ended(short).await.exit_code, Some(0));
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
