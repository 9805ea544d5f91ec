//! Committed changes survive a crash of the server.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use agentaflow_server::store::{EventFilter, open_postgres, open_sqlite};

use crate::make::{self, happened, new_job};
use crate::place::Place;

const CHILD: &str = "AGENTAFLOW_TEST_WRITE_TO";

/// Not a test: the child process of the tests below, which runs until it is killed.
#[tokio::test]
async fn child_that_writes_until_it_is_killed() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let store = if place.contains("://") {
        open_postgres(&place).await.unwrap()
    } else {
        open_sqlite(&PathBuf::from(place)).await.unwrap()
    };
    for id in 1.. {
        store.commit(&[new_job(make::job(id, 1)), happened(make::event(id))]).await.unwrap();
        println!("committed {id}");
    }
}

fn child(place: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "durable::child_that_writes_until_it_is_killed"])
        .env(CHILD, place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills the child after a few commits; returns the last commit that the child reported.
fn kill_after(child: &mut Child, commits: i64) -> i64 {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut last = 0;
    for line in lines {
        // The test harness sometimes writes on the same line.
        let output = line.split("committed ").nth(1).and_then(|id| id.trim().parse().ok());
        last = output.unwrap_or(last);
        if last == commits {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(last >= commits, "the child ended early, after {last}");
    last
}

async fn check(place: &Place, address: &str) {
    let last = kill_after(&mut child(address), 20);
    let store = loop {
        // PostgreSQL notices the death of a server with a delay.
        if let Ok(store) = place.try_open().await {
            break store;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let loaded = store.load("2026-11").await.unwrap();
    assert!(loaded.last.job.0 >= last, "{} < {last}", loaded.last.job.0);
    assert_eq!(loaded.last.job.0, loaded.last.event.0, "half a transaction");
    assert_eq!(loaded.jobs.len() as i64, loaded.last.job.0);
    let all = EventFilter { limit: 1_000_000, ..EventFilter::default() };
    assert_eq!(store.events(&all).await.unwrap().len() as i64, loaded.last.event.0);
}

#[tokio::test]
async fn sqlite_keeps_commits_when_the_server_is_killed() {
    let place = Place::sqlite();
    let Place::Sqlite(dir) = &place else { panic!("not SQLite") };
    check(&place, dir.path().to_str().unwrap()).await;
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server; `cargo xtask test` starts one"]
async fn postgres_keeps_commits_when_the_server_is_killed() {
    let place = Place::postgres().await;
    let Place::Postgres(url) = &place else { panic!("not PostgreSQL") };
    check(&place, url).await;
}
