//! Deletion of old jobs and logs, and the storage of accounts.

use std::time::Duration;

use agentaflow_api::error::ErrorCode;
use agentaflow_api::ids::JobId;
use agentaflow_api::link::TaskKey;
use agentaflow_api::units::Stamp;
use agentaflow_server::logs::LogStore;
use agentaflow_server::retention::{self, Retention};

use crate::rig::{Rig, ended, running, spec};

const FOREVER: Retention =
    Retention { jobs: None, logs: None, log_bytes: None, account_bytes: None };

/// A completed job with output.
async fn finished(rig: &Rig, logs: &LogStore, bytes: usize) -> JobId {
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    logs.append(key, 0, &vec![b'x'; bytes]).await.unwrap();
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

#[tokio::test]
async fn an_account_above_its_storage_cannot_submit_until_its_data_is_deleted() {
    let rig = Rig::new().await;
    let logs = LogStore::new(rig.dir.path().join("logs"));
    let old = finished(&rig, &logs, 50_000).await;
    let mut worker = rig.worker("b", 1).await;
    let id = rig.submit(spec(1)).await;
    let key: TaskKey = worker.assignment().await.key;
    worker.report(key, running()).await;
    logs.append(key, 0, &vec![b'x'; 50_000]).await.unwrap();
    let limited = Retention { account_bytes: Some(40_000), ..FOREVER };
    retention::pass(&rig.core, &logs, limited, Stamp::now()).await.unwrap();
    assert!(!has_logs(&logs, old).await && has_logs(&logs, id).await, "logs of live jobs stay");
    let refused = rig.try_submit(spec(1)).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (429, ErrorCode::TooManyRequests));
    worker.report(key, ended(0, 5)).await;
    retention::pass(&rig.core, &logs, limited, Stamp::now()).await.unwrap();
    assert!(!has_logs(&logs, id).await);
    rig.submit(spec(1)).await;
}
