//! Deletion of old jobs and logs, and the storage of accounts.

use std::time::Duration;

use agentaflow_api::error::ErrorCode;
use agentaflow_api::ids::JobId;
use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;
use agentaflow_server::logs::LogStore;
use agentaflow_server::retention::{self, Retention};

use crate::rig::{Rig, Worker, ended, running, spec};

const FOREVER: Retention =
    Retention { jobs: None, logs: None, log_bytes: None, account_bytes: None };

/// A completed job with output.
async fn finished(rig: &Rig, logs: &LogStore, bytes: usize) -> JobId {
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    logs.append(key, 0, &vec![b'x'; bytes], None).await.unwrap();
    assert!(worker.report(key, ended(0, 5)).await);
    id
}

async fn has_logs(logs: &LogStore, job: JobId) -> bool {
    !logs.tasks(job).await.unwrap().is_empty()
}

#[tokio::test]
async fn jobs_and_logs_go_by_age_and_the_cost_stays() {
    let rig = Rig::new().await;
    let logs = LogStore::new(rig.dir.path().join("logs"));
    let old = finished(&rig, &logs, 100).await;
    let in_a_day = Stamp(Stamp::now().0 + 86_400_000);
    let day = Some(Duration::from_hours(20));

    let by_log_age = Retention { logs: day, ..FOREVER };
    retention::pass(&rig.core, &logs, by_log_age, Stamp::now()).await.unwrap();
    assert!(has_logs(&logs, old).await, "the log is new");
    retention::pass(&rig.core, &logs, by_log_age, in_a_day).await.unwrap();
    assert!(!has_logs(&logs, old).await);
    assert!(rig.core.store().job(old).await.unwrap().is_some(), "the job is kept longer");

    let spent = rig.core.account(rig.ana.user.id).spent_this_month;
    let live = rig.submit(spec(8)).await;
    retention::pass(&rig.core, &logs, Retention { jobs: day, ..FOREVER }, in_a_day).await.unwrap();
    assert!(rig.core.store().job(old).await.unwrap().is_none());
    assert!(rig.core.store().job(live).await.unwrap().is_some(), "pending jobs are kept");
    assert_eq!(rig.core.account(rig.ana.user.id).spent_this_month, spent);
    let next = rig.submit(spec(8)).await;
    assert!(next > live, "numbers are not reused");
}

/// Storage of an account, in bytes.
const LIMIT: u64 = 40_000;
const LIMITED: Retention = Retention { account_bytes: Some(LIMIT), ..FOREVER };

async fn limited() -> (Rig, LogStore) {
    let rig = Rig::with(|settings| settings.retention = LIMITED, |store| store).await;
    let logs = LogStore::new(rig.dir.path().join("logs"));
    (rig, logs)
}

/// A running job.
async fn started(rig: &Rig, worker: &mut Worker) -> TaskKey {
    rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    assert!(worker.report(key, running()).await);
    key
}

async fn write(rig: &Rig, logs: &LogStore, key: TaskKey, offset: u64, bytes: usize) -> u64 {
    let owner = rig.core.storage_of(key.job);
    logs.append(key, offset, &vec![b'x'; bytes], owner.as_ref()).await.unwrap()
}

async fn log_len(logs: &LogStore, job: JobId) -> u64 {
    logs.read(job, 0, 0, 0).await.unwrap().len
}

#[tokio::test]
async fn an_account_above_its_storage_cannot_submit_until_its_data_is_deleted() {
    let (rig, logs) = limited().await;
    let old = finished(&rig, &logs, 50_000).await;
    let mut worker = rig.worker("b", 1).await;
    let key = started(&rig, &mut worker).await;
    logs.append(key, 0, &vec![b'x'; 50_000], None).await.unwrap();
    retention::pass(&rig.core, &logs, LIMITED, Stamp::now()).await.unwrap();
    assert!(
        !has_logs(&logs, old).await && has_logs(&logs, key.job).await,
        "logs of live jobs stay"
    );
    let refused = rig.try_submit(spec(1)).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (429, ErrorCode::TooManyRequests));
    worker.report(key, ended(0, 5)).await;
    retention::pass(&rig.core, &logs, LIMITED, Stamp::now()).await.unwrap();
    assert!(!has_logs(&logs, key.job).await);
    rig.submit(spec(1)).await;
}

/// No pass runs between the submissions.
#[tokio::test]
async fn an_account_cannot_exceed_its_storage_between_two_passes() {
    let (rig, logs) = limited().await;
    let mut worker = rig.worker("a", 1).await;
    let key = started(&rig, &mut worker).await;
    let mut had = 0;
    for _ in 0..30 {
        had = write(&rig, &logs, key, had, 1000).await;
    }
    assert_eq!(log_len(&logs, key.job).await, 30_000);
    let mut refused = None;
    for _ in 0..1000 {
        refused = rig.try_submit(spec(1)).await.err();
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused.map(|error| error.status), Some(429));
    let stored = rig.core.store().stored_bytes().await.unwrap();
    let records: u64 = stored.iter().map(|stored| stored.bytes).sum();
    assert!((2_000..15_000).contains(&records), "{records}");
    let beyond = write(&rig, &logs, key, had, 1000).await;
    assert_eq!(beyond, had + 1000, "the agent continues, and its output is dropped");
    let end = log_len(&logs, key.job).await;
    assert!((30_001..30_200).contains(&end), "one line records it: {end}");
}

#[tokio::test]
async fn an_account_without_old_logs_loses_its_oldest_ended_jobs_and_their_events() {
    let (rig, logs) = limited().await;
    let mut worker = rig.worker("a", 1).await;
    let mut jobs = Vec::new();
    loop {
        let key = started(&rig, &mut worker).await;
        worker.report(key, ended(0, 5)).await;
        jobs.push(key.job);
        let stored = rig.core.store().stored_bytes().await.unwrap();
        if stored.iter().map(|stored| stored.bytes).sum::<u64>() > LIMIT * 96 / 100 {
            break;
        }
    }
    let live = started(&rig, &mut worker).await.job;
    retention::pass(&rig.core, &logs, LIMITED, Stamp::now()).await.unwrap();
    let stored = rig.core.store().stored_bytes().await.unwrap();
    let bytes: u64 = stored.iter().map(|stored| stored.bytes).sum();
    assert!((LIMIT * 80 / 100..=LIMIT * 90 / 100).contains(&bytes), "{bytes}");
    let (first, last) = (jobs[0], jobs[jobs.len() - 1]);
    assert!(rig.core.store().job(first).await.unwrap().is_none());
    assert!(rig.kinds(first).await.is_empty());
    assert!(rig.core.store().job(last).await.unwrap().is_some());
    assert!(rig.core.store().job(live).await.unwrap().is_some());
    rig.submit(spec(1)).await;
}
