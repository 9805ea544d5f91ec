//! Measured use of GPUs in the records of jobs.

use agentaflow_api::ids::JobId;
use agentaflow_api::job::{GpuUsage, JobStatus, ResourceUsage};
use agentaflow_api::link::{Ended, TaskKey, TaskUpdate, TaskUse};
use agentaflow_api::node::Heartbeat;
use agentaflow_api::units::Stamp;
use agentaflow_server::core::NodeRef;
use agentaflow_server::store::{GpuAccount, MeasuredFilter};

use crate::rig::{Rig, Worker, ended, running, spec};

/// A quarter of the allocated time.
fn usage(allocated_ms: u64) -> GpuUsage {
    GpuUsage {
        allocated_ms,
        used_ms: allocated_ms / 4,
        gpus_used: 1,
        memory_peak: Some(10_240),
        memory_peaks: Some(10_240),
        busiest_minute: 40.0,
    }
}

fn ended_with(ran_ms: u64, gpu: Option<GpuUsage>) -> TaskUpdate {
    let usage = ResourceUsage { gpu, ..ResourceUsage::default() };
    let ended = Ended { exit_code: Some(0), ran_ms, usage, ..Ended::default() };
    TaskUpdate::Ended(Box::new(ended))
}

fn beat(rig: &Rig, worker: &Worker, key: TaskKey, gpu: GpuUsage) {
    let used = TaskUse {
        key,
        cpu_ms: Some(5_000),
        memory: Some(100),
        gpu_memory: Some(900),
        gpu_joules: None,
        gpu: Some(gpu),
    };
    let heartbeat = Heartbeat { tasks: vec![used], ..Heartbeat::default() };
    rig.core.heartbeat(&NodeRef::Number(worker.node), heartbeat).unwrap();
}

async fn account(rig: &Rig, id: JobId) -> Option<GpuAccount> {
    rig.core.store().job(id).await.unwrap().unwrap().state.gpu
}

#[tokio::test]
async fn the_use_of_a_task_is_stored_beside_its_cost_and_survives_a_restart() {
    let mut rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let id = rig.submit(spec(2)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    worker.report(key, ended_with(1_000, Some(usage(2_000)))).await;
    rig.restart().await;
    let found = account(&rig, id).await.unwrap();
    assert_eq!((found.usage.allocated_ms, found.usage.used_ms), (2_000, 500));
    // Two GPUs of 40 GiB for a second, at a thousandth of a dollar a second.
    assert_eq!((found.billed, found.cost.0), (2_000_000, 2_000));
    assert_eq!((found.memory_billed, found.memory_used), (81_920_000, 10_240_000));
    assert_eq!((found.gpus, found.milli, found.memory), (2, 1_000, 40_960));
    assert_eq!(rig.job(id).await.gpu_usage, Some(found.usage));
    let all = MeasuredFilter {
        user: None,
        from: Stamp(0),
        to: Stamp(Stamp::now().0 + 60_000),
        after: JobId(0),
        limit: 10,
    };
    let jobs = rig.core.store().measured_jobs(&all).await.unwrap();
    assert_eq!(jobs.iter().map(|job| (job.id, job.account)).collect::<Vec<_>>(), [(id, found)]);
}

#[tokio::test]
async fn attempts_add_up_and_a_task_without_measured_use_adds_nothing() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let mut retried = spec(1);
    retried.max_retries = Some(2);
    let id = rig.submit(retried).await;
    for gpu in [Some(usage(1_000)), None] {
        let key = worker.assignment().await.key;
        worker.report(key, running()).await;
        let ended = ResourceUsage { gpu, ..ResourceUsage::default() };
        let ended = Ended { exit_code: Some(1), ran_ms: 1_000, usage: ended, ..Ended::default() };
        worker.report(key, TaskUpdate::Ended(Box::new(ended))).await;
    }
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    worker.report(key, ended_with(1_000, Some(usage(1_000)))).await;
    let found = account(&rig, id).await.unwrap();
    assert_eq!((found.usage.allocated_ms, found.usage.used_ms), (2_000, 500));
    assert_eq!(found.cost.0, 2_000, "the unmeasured second is not counted");
    assert_eq!(rig.job(id).await.cost.0, 3_000);
}

#[tokio::test]
async fn the_last_heartbeat_counts_for_a_task_on_a_lost_node() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    beat(&rig, &worker, key, usage(100));
    rig.until(id, |job| job.status == JobStatus::Pending).await;
    let found = account(&rig, id).await.unwrap();
    assert_eq!((found.usage.allocated_ms, found.usage.used_ms), (100, 25));
    assert!(found.billed > 0, "{found:?}");
}

#[tokio::test]
async fn a_heartbeat_about_another_attempt_is_ignored() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    beat(&rig, &worker, TaskKey { epoch: 7, ..key }, usage(100));
    beat(&rig, &worker, TaskKey { job: JobId(99), ..key }, usage(100));
    worker.report(key, ended(0, 1_000)).await;
    assert_eq!(account(&rig, id).await, None);
    assert_eq!(rig.job(id).await.gpu_usage, None);
}
