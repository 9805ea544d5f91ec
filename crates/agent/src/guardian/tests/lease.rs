//! Lease of the guardian, and lost messages between agent and guardian.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use agentaflow_api::link::StopCause;

use super::{TestDir, is_alive, key, run};
use crate::clock::boot_ms;
use crate::guardian::container_leases::LeaseFile;
use crate::guardian::groups::GroupRoots;
use crate::guardian::supervisor::{OverdueContainers, Supervisor};
use crate::guardian::wire::{ProcessSpec, Response, StartFault};
use crate::guardian::{TASKS, procs};
use crate::runtime::process::{Process, ProcessLimits};

#[tokio::test]
async fn only_leased_tasks_end_with_the_lease() {
    let test = TestDir::new();
    let agent = test.agent();
    agent.renew(boot_ms() + 300);
    agent.start(ProcessSpec { leased: true, ..test.spec(1, "sleep 300") }).await.unwrap();
    agent.start(test.spec(2, "echo $$; sleep 300")).await.unwrap();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    let other = test.pid_written(2, 1).await[0];
    assert!(is_alive(other));
}

#[tokio::test]
async fn a_leased_task_does_not_start_after_the_lease_expired() {
    let test = TestDir::new();
    let agent = test.agent();
    agent.renew(boot_ms());
    let spec = ProcessSpec { leased: true, ..test.spec(1, "true") };
    let response = agent.start(spec).await.unwrap();
    let node_fault = matches!(response, Response::Failed { fault: StartFault::Node { .. } });
    assert!(node_fault, "{response:?}");
    assert_eq!(run(&agent, test.spec(2, "true")).await.code, Some(0));
    agent.renew(boot_ms() + 10_000);
    assert_eq!(
        run(&agent, ProcessSpec { leased: true, ..test.spec(1, "true") }).await.code,
        Some(0)
    );
}

#[tokio::test]
async fn the_first_lease_is_two_intervals() {
    let test = TestDir::new();
    let agent = test.agent_with(Duration::from_millis(150));
    let begun = Instant::now();
    agent.start(ProcessSpec { leased: true, ..test.spec(1, "sleep 300") }).await.unwrap();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_grace_counts_from_the_expiry_even_if_the_guardian_notices_it_late() {
    let test = TestDir::new();
    let agent = test.agent();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let spec = ProcessSpec { leased: true, grace_ms: 4000, ..test.spec(1, script) };
    agent.renew(boot_ms() + 500);
    agent.start(spec).await.unwrap();
    test.pid_written(1, 1).await;
    let guardian = test.guardian();
    procs::signal(guardian, Signal::STOP);
    tokio::time::sleep(Duration::from_millis(4600)).await;
    procs::signal(guardian, Signal::CONT);
    let awake = Instant::now();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), Some(StopCause::LeaseLost)));
    assert!(awake.elapsed() < Duration::from_millis(3900), "{:?}", awake.elapsed());
}

#[tokio::test]
async fn the_guardian_runs_until_overdue_containers_are_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor = Supervisor::new(dir.path().to_owned(), GroupRoots::default());
    let docker_socket = PathBuf::from("/no/such/docker.sock");
    supervisor.set_interval(10);
    supervisor.protect(key(1), docker_socket.clone()).unwrap();
    assert!(supervisor.check_lease().is_empty() && !supervisor.is_idle());
    tokio::time::sleep(Duration::from_millis(30)).await;
    let overdue = supervisor.check_lease();
    assert_eq!((overdue.len(), &overdue[0].docker_socket), (1, &docker_socket));
    assert!(overdue[0].since_ms <= boot_ms());
    // The stop is in progress; the containers stay registered until it succeeds.
    assert!(supervisor.check_lease().is_empty() && !supervisor.is_idle());
    // A container of a later lease is independent.
    supervisor.protect(key(2), docker_socket).unwrap();
    supervisor.release(&overdue[0].keys);
    assert!(!supervisor.is_idle());
    supervisor.forget(key(2));
    assert!(supervisor.is_idle());
}

#[tokio::test]
async fn the_next_guardian_keeps_the_containers_and_the_lease_of_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let guardian = || {
        let supervisor = Supervisor::new(dir.path().to_owned(), GroupRoots::default());
        supervisor.with_lease_file(LeaseFile::new(dir.path()))
    };
    let docker_socket = PathBuf::from("/no/such/docker.sock");
    let mut first = guardian();
    assert!(first.is_idle());
    let end = boot_ms() + 200;
    first.renew(end);
    first.protect(key(1), docker_socket.clone()).unwrap();
    first.protect(key(2), docker_socket.clone()).unwrap();
    first.forget(key(2));
    drop(first);
    let mut second = guardian();
    assert!(!second.is_idle() && second.check_lease().is_empty());
    tokio::time::sleep(Duration::from_millis(210)).await;
    let overdue = second.check_lease();
    let keys = BTreeSet::from([key(1)]);
    assert_eq!(overdue, [OverdueContainers { docker_socket, keys, since_ms: end }]);
    second.release(&overdue[0].keys);
    assert!(guardian().is_idle());
}

#[tokio::test]
async fn a_container_without_a_saved_lease_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let supervisor = Supervisor::new(dir.path().to_owned(), GroupRoots::default());
    let mut supervisor = supervisor.with_lease_file(LeaseFile::new(&dir.path().join("missing")));
    assert!(supervisor.protect(key(1), PathBuf::from("/no/such/docker.sock")).is_err());
}

#[tokio::test]
async fn a_start_with_a_lost_response_is_undone_before_the_refusal() {
    let test = TestDir::new();
    let agent = test.agent();
    run(&agent, test.spec(1, "true")).await;
    let guardian = test.guardian();
    // The command is in flight when the agent stops waiting for the response.
    procs::signal(guardian, Signal::STOP);
    let spec = test.spec(2, "echo $$; sleep 300");
    assert!(tokio::time::timeout(Duration::from_millis(200), agent.start(spec)).await.is_err());
    let process = Process::new(
        agent.clone(),
        test.dir.path().join(TASKS),
        ProcessLimits { pids: 0, open_files: 0, log: 1 << 20 },
    );
    let withdrawn = tokio::spawn(async move { process.withdraw(key(2)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!withdrawn.is_finished());
    procs::signal(guardian, Signal::CONT);
    withdrawn.await.unwrap();
    assert!(agent.list().await.unwrap().iter().all(|task| task.key != key(2)));
    let left: Vec<u32> = test.output(2).lines().filter_map(|line| line.parse().ok()).collect();
    assert!(left.iter().all(|pid| !is_alive(*pid)), "{left:?} still run");
}

#[tokio::test]
async fn a_stop_after_the_end_of_a_task_does_not_count() {
    let test = TestDir::new();
    let agent = test.agent();
    for job in 1..=6 {
        agent.start(test.spec(job, "echo $$; sleep 0.1; exit 3")).await.unwrap();
        let pid = test.pid_written(job, 1).await[0];
        let guardian = test.guardian();
        procs::signal(guardian, Signal::STOP);
        while is_alive(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        agent.stop(key(job), StopCause::Cancelled, Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(20)).await;
        procs::signal(guardian, Signal::CONT);
        let exit = agent.wait(key(job)).await.unwrap();
        assert_eq!((exit.code, exit.stopped), (Some(3), None));
    }
}
