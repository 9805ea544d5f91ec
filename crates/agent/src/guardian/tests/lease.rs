//! The lease, and what must hold when guardian and agent miss each other.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use agentaflow_api::link::StopCause;

use super::{Place, is_alive, key, run};
use crate::clock::boot_ms;
use crate::guardian::keeper::Keeper;
use crate::guardian::procs;
use crate::guardian::wire::{Answer, Order};
use crate::runtime::process::Process;

#[tokio::test]
async fn leased_tasks_end_with_the_lease_and_others_do_not() {
    let place = Place::new();
    let agent = place.agent();
    agent.renew(boot_ms() + 300);
    agent.start(Order { leased: true, ..place.order(1, "sleep 300") }).await.unwrap();
    agent.start(place.order(2, "echo $$; sleep 300")).await.unwrap();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    let other = place.pid_written(2, 1).await[0];
    assert!(is_alive(other));
}

#[tokio::test]
async fn a_leased_task_does_not_start_when_the_lease_has_run_out() {
    let place = Place::new();
    let agent = place.agent();
    agent.renew(boot_ms());
    let answer = agent.start(Order { leased: true, ..place.order(1, "true") }).await.unwrap();
    let Answer::Failed { job: false, detail } = answer else { panic!("{answer:?}") };
    assert!(detail.contains("the lease has run out"), "{detail}");
    assert_eq!(run(&agent, place.order(2, "true")).await.code, Some(0));
    agent.renew(boot_ms() + 10_000);
    assert_eq!(run(&agent, Order { leased: true, ..place.order(1, "true") }).await.code, Some(0));
}

#[tokio::test]
async fn the_first_lease_is_two_intervals() {
    let place = Place::new();
    let agent = place.agent_with(Duration::from_millis(150));
    let begun = Instant::now();
    agent.start(Order { leased: true, ..place.order(1, "sleep 300") }).await.unwrap();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!(exit.stopped, Some(StopCause::LeaseLost));
    assert!(begun.elapsed() >= Duration::from_millis(290), "{:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_grace_counts_from_the_end_of_the_lease_also_when_it_is_seen_late() {
    let place = Place::new();
    let agent = place.agent();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let order = Order { leased: true, grace_ms: 4000, ..place.order(1, script) };
    agent.renew(boot_ms() + 500);
    agent.start(order).await.unwrap();
    place.pid_written(1, 1).await;
    let guardian = place.guardian();
    procs::signal(guardian, Signal::STOP);
    tokio::time::sleep(Duration::from_millis(4600)).await;
    procs::signal(guardian, Signal::CONT);
    let awake = Instant::now();
    let exit = agent.wait(key(1)).await.unwrap();
    assert_eq!((exit.signal, exit.stopped), (Some(9), Some(StopCause::LeaseLost)));
    assert!(awake.elapsed() < Duration::from_millis(3900), "{:?}", awake.elapsed());
}

#[tokio::test]
async fn the_guardian_goes_on_until_overdue_containers_are_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let mut keeper = Keeper::new(dir.path().to_owned(), None);
    let engine = PathBuf::from("/no/such/engine");
    keeper.set_interval(10);
    keeper.protect(key(1), engine.clone());
    assert!(keeper.check_lease().is_empty() && !keeper.is_idle());
    tokio::time::sleep(Duration::from_millis(30)).await;
    let overdue = keeper.check_lease();
    assert_eq!((overdue.len(), &overdue[0].engine), (1, &engine));
    assert!(overdue[0].since_ms <= boot_ms());
    // Somebody is at it; nothing is forgotten before that has succeeded.
    assert!(keeper.check_lease().is_empty() && !keeper.is_idle());
    // A container of a later lease is another matter.
    keeper.protect(key(2), engine);
    keeper.release(&overdue[0].keys);
    assert!(!keeper.is_idle());
    keeper.forget(key(2));
    assert!(keeper.is_idle());
}

#[tokio::test]
async fn a_start_whose_answer_is_lost_is_undone_before_it_is_called_refused() {
    let place = Place::new();
    let agent = place.agent();
    run(&agent, place.order(1, "true")).await;
    let guardian = place.guardian();
    // The order is on its way when the agent gives up waiting for the answer.
    procs::signal(guardian, Signal::STOP);
    let order = place.order(2, "echo $$; sleep 300");
    assert!(tokio::time::timeout(Duration::from_millis(200), agent.start(order)).await.is_err());
    let process = Process::new(agent.clone(), None, 0, 1 << 20);
    let withdrawn = tokio::spawn(async move { process.withdraw(key(2)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!withdrawn.is_finished());
    procs::signal(guardian, Signal::CONT);
    withdrawn.await.unwrap();
    assert!(agent.list().await.unwrap().iter().all(|task| task.key != key(2)));
    let left: Vec<u32> = place.output(2).lines().filter_map(|line| line.parse().ok()).collect();
    assert!(left.iter().all(|pid| !is_alive(*pid)), "{left:?} still run");
}

#[tokio::test]
async fn a_stop_that_meets_a_natural_end_does_not_make_it_a_stop() {
    let place = Place::new();
    let agent = place.agent();
    for job in 1..=6 {
        agent.start(place.order(job, "echo $$; sleep 0.1; exit 3")).await.unwrap();
        let pid = place.pid_written(job, 1).await[0];
        let guardian = place.guardian();
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
