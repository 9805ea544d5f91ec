//! Billing and budgets.

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::MicroUsd;
use agentaflow_api::job::{JobSpec, JobStatus};
use agentaflow_api::link::StopCause;
use agentaflow_api::pending::{PendingCode, PendingReason};
use agentaflow_api::units::Dollars;
use agentaflow_engine::Span;
use agentaflow_server::store::{LedgerFilter, UsageBy};

use crate::rig::{Rig, ended, running, spec, stopped};

/// A GPU costs $3.60 an hour: a thousandth of a dollar a second.
const SECOND: i64 = 1_000;

#[tokio::test]
async fn the_cost_of_a_job_is_allocation_times_run_time() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let id = rig.submit(spec(2)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    worker.report(key, ended(1, 1_500)).await;
    let job = rig.job(id).await;
    assert_eq!(
        job.cost,
        Dollars(2 * 3 * SECOND / 2),
        "failed jobs are paid for as far as they ran"
    );
    let ledger =
        rig.core.store().ledger(&LedgerFilter { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(ledger.iter().map(|line| line.micros.0).sum::<i64>(), job.cost.0);
    assert_eq!(rig.core.account(rig.ana.user.id).balance, Dollars(-job.cost.0));
}

#[tokio::test]
async fn a_job_of_less_than_a_millisecond_is_billed() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, ended(0, 0)).await;
    let waiting = rig.submit(spec(1)).await;
    worker.assignment().await;
    let all = LedgerFilter::default();
    let usage = rig.core.store().usage(UsageBy::Job, &all).await.unwrap();
    let usage: Vec<_> = usage.iter().map(|row| (row.key.clone(), row.micros.0)).collect();
    assert_eq!(usage, [(id.to_string(), 0)], "and job {waiting} has not run");
}

#[tokio::test]
async fn a_run_time_of_zero_is_billed_as_the_server_observed_it() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let began = std::time::Instant::now();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let slept = began.elapsed().as_millis() as i64;
    worker.report(key, ended(0, 0)).await;
    let most = began.elapsed().as_millis() as i64 + 1_000;
    // A dollar per 1,000 seconds is one micro-dollar per millisecond.
    let cost = rig.job(id).await.cost.0;
    assert!((slept - 10..most).contains(&cost), "{cost} for {slept} ms");
}

#[tokio::test]
async fn the_billed_time_is_at_most_the_observed_time() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, ended(0, 3_600_000)).await;
    assert!(rig.job(id).await.cost.0 < 5 * SECOND);
}

#[tokio::test]
async fn a_gpu_share_is_billed_by_its_size() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let share = |spec: JobSpec| JobSpec { gpu_count: None, ..spec };
    let half = rig.submit(share(JobSpec { gpu_fraction: Some(0.5), ..spec(0) })).await;
    let key = worker.assignment().await.key;
    worker.report(key, ended(0, 1_000)).await;
    assert_eq!(rig.job(half).await.cost, Dollars(SECOND / 2));
    let memory = rig.submit(share(JobSpec { gpu_memory_required: Some(10_240), ..spec(0) })).await;
    let key = worker.assignment().await.key;
    worker.report(key, ended(0, 1_000)).await;
    assert_eq!(rig.job(memory).await.cost, Dollars(SECOND / 4));
}

#[tokio::test]
async fn a_job_over_budget_stays_pending_with_a_reason() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    // The budget covers an hour of one GPU, but not of two.
    rig.limit(Some(5_000_000), false).await;
    let first = rig.submit(spec(1)).await;
    let second = rig.submit(spec(1)).await;
    assert_eq!(worker.assignment().await.key.job, first);
    let explained = rig.explain(second).await;
    let code = explained.pending_reason.as_ref().map(PendingReason::code);
    assert_eq!(code, Some(PendingCode::BudgetExceeded));
    // The budget covers a shorter job.
    let third = rig.submit(JobSpec { timeout_seconds: Some(60), ..spec(1) }).await;
    assert_eq!(worker.assignment().await.key.job, third);
    rig.limit(None, false).await;
    rig.until(second, |job| matches!(job.pending_reason, Some(PendingReason::NoRoom(_)))).await;
}

#[tokio::test]
async fn a_prepaid_user_needs_credit() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    rig.limit(None, true).await;
    let id = rig.submit(spec(1)).await;
    assert!(rig.job(id).await.status == JobStatus::Pending);
    rig.core.credit(rig.ana.user.id, MicroUsd(10_000_000), Some("paid".into())).await.unwrap();
    assert_eq!(worker.assignment().await.key.job, id);
    assert_eq!(rig.core.account(rig.ana.user.id).balance, Dollars(10_000_000));
}

#[tokio::test]
async fn a_running_job_over_budget_is_warned_about_then_stopped() {
    let rig = Rig::with(|settings| settings.budget_grace = Span(1_500), |store| store).await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    rig.limit(Some(SECOND / 10), false).await;
    let stop = worker
        .beating(async {
            tokio::time::timeout(std::time::Duration::from_secs(8), async {
                while !rig.kinds(id).await.contains(&EventKind::BudgetExceeded) {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            })
            .await
        })
        .await;
    stop.expect("it was not stopped");
    let kinds = rig.kinds(id).await;
    let at = |kind: EventKind| kinds.iter().position(|known| *known == kind);
    assert!(
        at(EventKind::BudgetWarning) < at(EventKind::BudgetExceeded)
            && at(EventKind::BudgetWarning).is_some(),
        "{kinds:?}"
    );
    let stop = worker.stop().await;
    assert_eq!(stop.cause, StopCause::BudgetExceeded);
    worker.report(key, stopped(stop.cause, 2_000)).await;
    let job = rig.job(id).await;
    assert_eq!((job.status, job.end_reason), (JobStatus::Failed, Some(EndReason::BudgetExceeded)));
}

#[tokio::test]
async fn a_job_that_expects_to_run_for_no_time_is_budgeted_with_the_grace() {
    let rig = Rig::with(|settings| settings.budget_grace = Span(60_000), |store| store).await;
    let mut worker = rig.worker("a", 1).await;
    // A minute of one GPU costs 60 thousandths of a dollar.
    rig.limit(Some(59 * SECOND), false).await;
    let id = rig.submit(JobSpec { estimated_duration_seconds: Some(0), ..spec(1) }).await;
    let reason = rig.explain(id).await.pending_reason;
    let Some(PendingReason::BudgetExceeded(short)) = reason else { panic!("{reason:?}") };
    assert_eq!((short.left, short.cost), (Dollars(59 * SECOND), Dollars(60 * SECOND)));
    rig.limit(Some(60 * SECOND), false).await;
    assert_eq!(worker.assignment().await.key.job, id);
}

#[tokio::test]
async fn an_explanation_has_the_numbers_of_the_present_limit() {
    let rig = Rig::new().await;
    rig.worker("a", 1).await;
    for limit in [2_000_000, 1_000_000] {
        rig.limit(Some(limit), false).await;
        let id = rig.submit(spec(1)).await;
        for job in 1..=id.0 {
            let reason = rig.explain(agentaflow_api::ids::JobId(job)).await;
            let Some(PendingReason::BudgetExceeded(short)) = reason.pending_reason else {
                panic!("{reason:?}")
            };
            assert_eq!(short.left, Dollars(limit), "job {job}");
        }
    }
}

#[tokio::test]
async fn a_prepaid_user_without_a_balance_starts_no_job_that_costs_nothing() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    rig.limit(None, true).await;
    let id = rig.submit(spec(0)).await;
    let code = rig.explain(id).await.pending_reason.map(|reason| reason.code());
    assert_eq!(code, Some(PendingCode::BudgetExceeded));
    rig.core.credit(rig.ana.user.id, MicroUsd(1), None).await.unwrap();
    assert_eq!(worker.assignment().await.key.job, id);
}
