//! Sums of cost and usage.

use agentaflow_api::billing::{LedgerEntry, LedgerKind, UsageRow};
use agentaflow_api::ids::{JobId, MicroUsd, UserId};
use agentaflow_api::job::{GpuUsage, JobStatus};
use agentaflow_api::units::{Cores, GpuAmount, Stamp};
use agentaflow_server::store::{
    AccountRow, Change, GpuAccount, JobRow, JobState, LedgerFilter, MeasuredFilter, UsageBy,
};

use crate::make::{self, paid};
use crate::place::Place;

/// The last millisecond of October 2026 in UTC.
const OCTOBER: Stamp = Stamp(1_793_491_199_999);

fn line(id: i64, at: Stamp, user: i64, queue: Option<&str>, micros: i64) -> LedgerEntry {
    LedgerEntry { at, queue: queue.map(str::to_owned), ..make::ledger(id, user, micros) }
}

/// Two entries of October, two of November, a credit and a correction.
fn lines() -> Vec<Change> {
    let november = Stamp(OCTOBER.0 + 1);
    let same_job = LedgerEntry { job_id: Some(JobId(1)), ..line(2, OCTOBER, 1, Some("Zeta"), 20) };
    let credit = LedgerEntry { kind: LedgerKind::Credit, ..line(5, november, 1, None, -1000) };
    let correction = LedgerEntry {
        kind: LedgerKind::Correction,
        job_id: None,
        node_id: None,
        duration_ms: 0,
        ..line(6, november, 1, None, -5)
    };
    let all = [
        line(1, OCTOBER, 1, Some("alpha"), 10),
        same_job,
        line(3, november, 1, Some("alpha"), 40),
        line(4, november, 7, Some("alpha"), 80),
        credit,
        correction,
    ];
    let users = [Change::User(Box::new(make::user(1, "ann")))];
    users.into_iter().chain(all.into_iter().map(paid)).collect()
}

fn short(rows: &[UsageRow]) -> Vec<(&str, u64, i64)> {
    rows.iter().map(|row| (row.key.as_str(), row.jobs, row.micros.0)).collect()
}

pub(crate) async fn usage_is_summed_up_by_user_queue_node_day_and_job(place: &Place) {
    let store = place.open().await;
    store.commit(&lines()).await.unwrap();
    let all = LedgerFilter::default();
    let by_user = store.usage(UsageBy::User, &all).await.unwrap();
    assert_eq!(short(&by_user), [("ann", 2, 65), ("user 7", 1, 80)]);
    assert_eq!((by_user[0].gpu_hours, by_user[0].cpu_hours), (7.5, 12.0));
    assert_eq!((by_user[0].memory_gb_hours, by_user[0].cost.0), (6.0, 65));
    let by_queue = store.usage(UsageBy::Queue, &all).await.unwrap();
    assert_eq!(short(&by_queue), [("", 0, -5), ("Zeta", 1, 20), ("alpha", 3, 130)]);
    let by_node = store.usage(UsageBy::Node, &all).await.unwrap();
    assert_eq!(short(&by_node), [("", 0, -5), ("gpu-000000000002", 3, 150)]);
    let by_day = store.usage(UsageBy::Day, &all).await.unwrap();
    assert_eq!(short(&by_day), [("2026-10-31", 1, 30), ("2026-11-01", 2, 115)]);
    let jobs = [9, 10].map(|id| Change::NewJob(Box::new(make::job(id, 1))));
    store.commit(&jobs).await.unwrap();
    let tries = [(7, 10, 1), (8, 10, 2), (9, 9, 4)].map(|(id, job, micros)| {
        paid(LedgerEntry { job_id: Some(JobId(job)), ..line(id, OCTOBER, 7, None, micros) })
    });
    store.commit(&tries).await.unwrap();
    let of_seven =
        LedgerFilter { user: Some(UserId(7)), to: Some(Stamp(OCTOBER.0 + 1)), ..all.clone() };
    let by_job = store.usage(UsageBy::Job, &of_seven).await.unwrap();
    assert_eq!(short(&by_job), [("9", 1, 4), ("10", 1, 3)], "by number, all tries of each");
    assert_eq!(by_job[1].name.as_deref(), Some("Train 10"));
    let october = LedgerFilter { to: Some(Stamp(OCTOBER.0 + 1)), ..all.clone() };
    assert_eq!(
        short(&store.usage(UsageBy::User, &october).await.unwrap()),
        [("ann", 1, 30), ("user 7", 2, 7)]
    );
    let november = LedgerFilter { from: Some(Stamp(OCTOBER.0 + 1)), user: Some(UserId(7)), ..all };
    assert_eq!(short(&store.usage(UsageBy::Queue, &november).await.unwrap()), [("alpha", 1, 80)]);
}

pub(crate) async fn sums_are_exact_beyond_64_bits(place: &Place) {
    let store = place.open().await;
    // Ten years of a million GPUs, cores and 4 TiB each, many times, and one thousandth for a millisecond.
    let ten_years = 10 * 365 * 24 * 3_600_000;
    let huge = |id| LedgerEntry {
        gpus: GpuAmount(1_000_000_000),
        cpu_cores: Cores(1_000_000_000),
        memory: 1 << 32,
        duration_ms: ten_years,
        ..make::ledger(id, 1, i64::MAX / 500)
    };
    let tiny = LedgerEntry {
        gpus: GpuAmount(1),
        cpu_cores: Cores(1),
        memory: 1,
        duration_ms: 1,
        ..make::ledger(1000, 1, 1)
    };
    let mut changes: Vec<Change> = (1..=300).map(|id| paid(huge(id))).collect();
    changes.push(paid(tiny));
    store.commit(&changes).await.unwrap();
    let row = store.usage(UsageBy::Queue, &LedgerFilter::default()).await.unwrap().remove(0);
    assert_eq!(row.jobs, 301);
    assert_eq!(row.micros, MicroUsd(300 * (i64::MAX / 500) + 1));
    let hours = 300.0 * 10.0 * 365.0 * 24.0;
    assert!((row.gpu_hours - hours * 1e6).abs() < 1e-3, "{}", row.gpu_hours);
    assert!((row.cpu_hours - hours * 1e6).abs() < 1e-3, "{}", row.cpu_hours);
    assert!((row.memory_gb_hours - hours * 4_194_304.0).abs() < 1e-3, "{}", row.memory_gb_hours);
}

pub(crate) async fn accounts_have_a_balance_and_monthly_spending(place: &Place) {
    let store = place.open().await;
    store.commit(&lines()).await.unwrap();
    for (month, accounts) in [
        ("2026-10", [(1, 935, 30), (7, -80, 0)]),
        ("2026-11", [(1, 935, 35), (7, -80, 80)]),
        ("2026-12", [(1, 935, 0), (7, -80, 0)]),
    ] {
        let accounts = accounts.map(|(user, balance, spent)| AccountRow {
            user: UserId(user),
            balance: MicroUsd(balance),
            spent: MicroUsd(spent),
        });
        assert_eq!(store.load(month).await.unwrap().accounts, accounts, "{month}");
    }
}

pub(crate) async fn measured_jobs_are_found_by_end_and_owner(place: &Place) {
    let store = place.open().await;
    let usage = GpuUsage { used_ms: 5, busiest_minute: 12.5, ..GpuUsage::default() };
    let account = GpuAccount { usage, billed: 7, divisible: true, ..GpuAccount::default() };
    let job = |id: i64, user: i64, status, at: i64, gpu| {
        let state = JobState { completed_at: Some(Stamp(at)), gpu, ..make::state(status) };
        Change::NewJob(Box::new(JobRow { state, ..make::job(id, user) }))
    };
    let jobs = [
        job(1, 1, JobStatus::Completed, 1_000, Some(account)),
        job(2, 1, JobStatus::Failed, 2_000, Some(account)),
        job(3, 7, JobStatus::Cancelled, 2_500, Some(account)),
        job(4, 1, JobStatus::Running, 2_500, Some(account)),
        job(5, 1, JobStatus::Completed, 2_500, None),
        job(6, 1, JobStatus::Completed, 3_000, Some(account)),
    ];
    store.commit(&jobs).await.unwrap();
    let all = MeasuredFilter {
        user: None,
        from: Stamp(2_000),
        to: Stamp(3_000),
        after: JobId(0),
        limit: 10,
    };
    let ids = async |filter: MeasuredFilter| -> Vec<i64> {
        let jobs = store.measured_jobs(&filter).await.unwrap();
        assert!(jobs.iter().all(|job| job.account == account));
        jobs.iter().map(|job| job.id.0).collect()
    };
    assert_eq!(ids(all).await, [2, 3]);
    assert_eq!(ids(MeasuredFilter { user: Some(UserId(7)), ..all }).await, [3]);
    assert_eq!(ids(MeasuredFilter { after: JobId(2), ..all }).await, [3]);
    assert_eq!(ids(MeasuredFilter { limit: 1, ..all }).await, [2]);
    assert_eq!(ids(MeasuredFilter { from: Stamp(0), to: Stamp(9_000), ..all }).await, [1, 2, 3, 6]);
}
