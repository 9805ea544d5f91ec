//! A Docker daemon that hangs or is down while its containers run.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use agentaflow_agent::runtime::Runtime;
use agentaflow_agent::runtime::docker::stop_overdue;
use agentaflow_api::link::StopCause;

use crate::bench::{Bench, output, until};

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_without_a_lease_dies_although_docker_hangs() {
    // Accepts connections and never answers.
    dies_without(|socket| Some(UnixListener::bind(socket).unwrap())).await;
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_without_a_lease_dies_although_docker_refuses_connections() {
    dies_without(|socket| {
        drop(UnixListener::bind(socket).unwrap());
        let refused = UnixStream::connect(socket).unwrap_err().kind();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        None
    })
    .await;
}

/// A leased container dies, and no other one, while `listen` serves the socket of Docker.
async fn dies_without(listen: impl FnOnce(&Path) -> Option<UnixListener>) {
    let bench = Bench::new().await;
    let mut leased = bench.launch("trap '' TERM; echo up; sleep 60 & sleep 60");
    leased.assignment.grace_ms = 100;
    let other = bench.launch("echo up; exec sleep 60");
    for launch in [&leased, &other] {
        bench.start(launch).await;
        until(|| output(launch).contains("up")).await;
    }
    let key = leased.assignment.key;
    let pids = bench.docker.pids(key).await;
    assert!(pids.len() >= 2, "{pids:?}");
    let dead = bench.state.path().join("dead.sock");
    let _listener = listen(&dead);
    let keys = BTreeSet::from([key]);
    let stopping = stop_overdue(&dead, bench.state.path(), &keys, 0);
    assert!(tokio::time::timeout(Duration::from_secs(4), stopping).await.is_err());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
    let exit = bench.docker.wait(key).await.unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), Some(StopCause::LeaseLost)));
    let found = bench.docker.list().await.unwrap();
    let key = other.assignment.key;
    assert!(found.iter().any(|found| found.key == key && !found.ended));
}
