//! A Docker daemon that does not answer.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use agentaflow_agent::runtime::Runtime;
use agentaflow_agent::runtime::docker::stop_overdue;
use agentaflow_api::link::StopCause;

use crate::bench::{Bench, output, until};

/// The daemon accepts connections and never answers.
#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_container_without_a_lease_dies_although_docker_hangs() {
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
    let hung = bench.state.path().join("hung.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&hung).unwrap();
    let keys = BTreeSet::from([key]);
    let stopping = stop_overdue(&hung, bench.state.path(), &keys, 0);
    assert!(tokio::time::timeout(Duration::from_secs(4), stopping).await.is_err());
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()), "{pids:?}");
    let exit = bench.docker.wait(key).await.unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), Some(StopCause::LeaseLost)));
    let found = bench.docker.list().await.unwrap();
    let key = other.assignment.key;
    assert!(found.iter().any(|found| found.key == key && !found.ended));
}
