//! Steps of the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::{JobStatus, JobStatusUpdate};
use agentaflow_api::units::{Dollars, Stamp};
use agentaflow_server::core::{WallClock, Worker as Reporter};
use agentaflow_server::store::{EventFilter, LedgerFilter};

use crate::rig::{Rig, ended, running, spec};

/// A GPU costs $3.60 an hour: a thousandth of a dollar a second.
const SECOND: i64 = 1_000;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// A wall clock that a test sets.
#[derive(Clone, Default)]
struct Stepped(Arc<AtomicI64>);

impl Stepped {
    fn clock(&self) -> WallClock {
        let step = self.0.clone();
        WallClock::new(move || Stamp(Stamp::now().0 + step.load(Ordering::SeqCst)))
    }

    fn step(&self, ms: i64) {
        self.0.store(ms, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_step_of_the_wall_clock_changes_no_bill_and_no_budget() {
    for step in [40 * DAY_MS, -40 * DAY_MS] {
        let wall = Stepped::default();
        let rig = Rig::with(|settings| settings.wall_clock = wall.clock(), |store| store).await;
        let mut worker = rig.worker("a", 1).await;
        rig.limit(Some(10_000_000), false).await;
        let first = rig.submit(spec(1)).await;
        let key = worker.assignment().await.key;
        worker.report(key, running()).await;
        wall.step(step);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!((0..2 * SECOND).contains(&rig.job(first).await.cost.0), "{step}");
        worker.report(key, ended(0, 1_000)).await;
        assert_eq!(rig.job(first).await.cost, Dollars(SECOND), "{step}");
        assert_eq!(rig.core.account(rig.ana.user.id).spent_this_month, Dollars(SECOND), "{step}");
        // The next job is paid from the same month.
        rig.limit(Some(3_600_000), false).await;
        let second = rig.submit(spec(1)).await;
        let short = rig.explain(second).await.pending_reason;
        assert!(format!("{short:?}").contains("3599000"), "{short:?}");
    }
}

#[tokio::test]
async fn a_job_that_the_server_times_is_billed_alike_across_a_step_and_a_restart() {
    for step in [2 * DAY_MS, -2 * DAY_MS] {
        let wall = Stepped::default();
        let mut rig = Rig::with(|settings| settings.wall_clock = wall.clock(), |store| store).await;
        let mut worker = rig.worker("a", 1).await;
        let id = rig.submit(spec(1)).await;
        let key = worker.assignment().await.key;
        worker.report(key, running()).await;
        wall.step(step);
        // The step is saved at the latest when the server stops.
        let clock = wall.clock();
        rig.restart_with(|settings| settings.wall_clock = clock).await;
        assert!(
            (0..5 * SECOND).contains(&rig.job(id).await.cost.0),
            "{step}: {:?}",
            rig.job(id).await
        );
        let update = JobStatusUpdate { status: Some(JobStatus::Completed), ..Default::default() };
        rig.core
            .job_status(id, update, Reporter::Node(worker.node), crate::rig::HERE)
            .await
            .unwrap();
        let all = LedgerFilter { limit: 10, ..Default::default() };
        let billed = rig.core.store().ledger(&all).await.unwrap();
        assert_eq!(billed.len(), 1);
        assert!((MicroUsd(0)..MicroUsd(5 * SECOND)).contains(&billed[0].micros), "{billed:?}");
    }
}

#[tokio::test]
async fn a_step_while_no_server_runs_moves_no_bill_and_expires_no_key() {
    for step in [2 * DAY_MS, -2 * DAY_MS] {
        let wall = Stepped::default();
        let mut rig = Rig::with(|settings| settings.wall_clock = wall.clock(), |store| store).await;
        let mut worker = rig.worker("a", 1).await;
        let id = rig.submit_with_key(spec(1), "key").await;
        let key = worker.assignment().await.key;
        worker.report(key, running()).await;
        // The first server never reads the clock that the second one starts with.
        let stepped = Stepped::default();
        stepped.step(step);
        let clock = stepped.clock();
        rig.restart_with(|settings| settings.wall_clock = clock).await;
        let cost = rig.job(id).await.cost.0;
        assert!((0..5 * SECOND).contains(&cost), "{step}: {cost}");
        assert_eq!(rig.submit_with_key(spec(1), "key").await, id, "{step}");
        let update = JobStatusUpdate { status: Some(JobStatus::Completed), ..Default::default() };
        rig.core
            .job_status(id, update, Reporter::Node(worker.node), crate::rig::HERE)
            .await
            .unwrap();
        let cost = rig.job(id).await.cost.0;
        assert!((0..5 * SECOND).contains(&cost), "{step}: {cost}");
    }
}

#[tokio::test]
async fn a_step_into_another_month_and_restarts_keep_the_spending_of_the_month() {
    for step in [40 * DAY_MS, -40 * DAY_MS] {
        let wall = Stepped::default();
        let mut rig = Rig::with(|settings| settings.wall_clock = wall.clock(), |store| store).await;
        let mut worker = rig.worker("a", 1).await;
        rig.limit(Some(10_000_000), false).await;
        rig.submit(spec(1)).await;
        let key = worker.assignment().await.key;
        worker.report(key, ended(0, 1_000)).await;
        wall.step(step);
        for restarts in 1..3 {
            let clock = wall.clock();
            rig.restart_with(|settings| settings.wall_clock = clock).await;
            let spent = rig.core.account(rig.ana.user.id).spent_this_month;
            assert_eq!(spent, Dollars(restarts * SECOND), "{step}");
            // Paid after the step, from the same month.
            let mut worker = rig.worker("a", 1).await;
            rig.submit(spec(1)).await;
            let key = worker.assignment().await.key;
            worker.report(key, ended(0, 1_000)).await;
        }
        let spent = rig.core.account(rig.ana.user.id).spent_this_month;
        assert_eq!(spent, Dollars(3 * SECOND), "{step}");
    }
}

#[tokio::test]
async fn events_have_the_time_of_the_server() {
    let wall = Stepped::default();
    wall.step(-2 * DAY_MS);
    let rig = Rig::with(|settings| settings.wall_clock = wall.clock(), |store| store).await;
    rig.worker("a", 1).await;
    let all = EventFilter { limit: 10, ..EventFilter::default() };
    let events = rig.core.store().events(&all).await.unwrap();
    assert!(!events.is_empty());
    for event in events {
        assert!((event.at.0 - rig.core.now().0).abs() < DAY_MS, "{event:?}");
    }
}

/// The last sign of life ends the bill of a job whose worker is lost.
#[tokio::test]
async fn the_last_heartbeat_of_a_node_moves_once_with_a_step() {
    for step in [2 * DAY_MS, -2 * DAY_MS] {
        let mut rig = Rig::with(|_| (), |store| store).await;
        let worker = rig.worker("a", 1).await;
        worker.beat();
        let wall = Stepped::default();
        wall.step(step);
        for _ in 0..2 {
            let clock = wall.clock();
            rig.restart_with(|settings| settings.wall_clock = clock).await;
            let heard = rig.core.nodes()[0].last_heartbeat.unwrap().0;
            let age = rig.core.now().0 - heard;
            assert!((0..60_000).contains(&age), "{step}: {age}");
        }
    }
}

/// A call of the system's clock would not see the stepped clock of the tests above.
#[test]
fn code_that_bills_reads_no_clock_but_that_of_the_server() {
    let core = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/core");
    let files = [
        "budgets",
        "submit",
        "handle_jobs",
        "finish",
        "ledger",
        "liveness",
        "pricing",
        "push_agents",
        "task_updates",
        "job/attempt",
        "node/live",
        "node/push",
    ];
    for file in files {
        let text = std::fs::read_to_string(core.join(format!("{file}.rs"))).unwrap();
        assert!(!text.contains("Stamp::now") && !text.contains("SystemTime"), "{file}");
    }
}
