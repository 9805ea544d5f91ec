//! A store that fails: the core confirms no change that is not durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use agentaflow_api::billing::{LedgerEntry, UsageRow};
use agentaflow_api::event::Event;
use agentaflow_api::ids::{JobId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::node::Heartbeat;
use agentaflow_server::core::{NodeRef, Registrant};
use agentaflow_server::store::{
    Change, EndedFilter, EventFilter, IdempotencyRow, JobFilter, JobRow, LedgerFilter, Loaded,
    MeasuredFilter, MeasuredJob, Store, StoreError, StoredBytes, UsageBy,
};

use crate::rig::{INTERVAL, Rig, ended, running, spec};

/// Fails writes on demand, like a full disk, and blocks writes while a test holds the pause.
struct Faulty {
    inner: Arc<dyn Store>,
    full: Arc<AtomicBool>,
    pause: Arc<tokio::sync::Mutex<()>>,
    /// Another server could take over the database, as with PostgreSQL.
    shared: bool,
}

#[async_trait]
impl Store for Faulty {
    async fn commit(&self, changes: &[Change]) -> Result<(), StoreError> {
        drop(self.pause.lock().await);
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError::Failed { what: "commit", source: "the disk is full".into() });
        }
        self.inner.commit(changes).await
    }
    async fn load(&self, month: &str) -> Result<Loaded, StoreError> {
        if self.full.load(Ordering::SeqCst) {
            return Err(StoreError::Failed { what: "load", source: "the disk is full".into() });
        }
        self.inner.load(month).await
    }
    async fn job(&self, id: JobId) -> Result<Option<JobRow>, StoreError> {
        self.inner.job(id).await
    }
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRow>, StoreError> {
        self.inner.jobs(filter).await
    }
    async fn count_jobs(&self, filter: &JobFilter) -> Result<u64, StoreError> {
        self.inner.count_jobs(filter).await
    }
    async fn ended_jobs(&self, filter: &EndedFilter) -> Result<Vec<JobRow>, StoreError> {
        self.inner.ended_jobs(filter).await
    }
    async fn ended_bytes(
        &self,
        user: UserId,
        after: JobId,
        limit: u64,
    ) -> Result<Vec<(JobId, u64)>, StoreError> {
        self.inner.ended_bytes(user, after, limit).await
    }
    async fn owners(&self, jobs: &[JobId]) -> Result<Vec<(JobId, UserId)>, StoreError> {
        self.inner.owners(jobs).await
    }
    async fn stored_bytes(&self) -> Result<Vec<StoredBytes>, StoreError> {
        self.inner.stored_bytes().await
    }
    async fn events(&self, filter: &EventFilter) -> Result<Vec<Event>, StoreError> {
        self.inner.events(filter).await
    }
    async fn ledger(&self, filter: &LedgerFilter) -> Result<Vec<LedgerEntry>, StoreError> {
        self.inner.ledger(filter).await
    }
    async fn usage(&self, by: UsageBy, filter: &LedgerFilter) -> Result<Vec<UsageRow>, StoreError> {
        self.inner.usage(by, filter).await
    }
    async fn measured_jobs(&self, filter: &MeasuredFilter) -> Result<Vec<MeasuredJob>, StoreError> {
        self.inner.measured_jobs(filter).await
    }
    async fn idempotency(
        &self,
        user: UserId,
        key: &str,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        self.inner.idempotency(user, key).await
    }
    fn is_exclusive(&self) -> bool {
        !self.shared
    }
    async fn ping(&self) -> Result<(), StoreError> {
        self.inner.ping().await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

#[tokio::test]
async fn a_full_disk_fails_requests_and_loses_no_change() {
    let full = Arc::new(AtomicBool::new(false));
    let flag = full.clone();
    let pause = Arc::default();
    let rig = Rig::with(
        |_| {},
        move |inner| Arc::new(Faulty { inner, full: flag, pause, shared: false }),
    )
    .await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;

    full.store(true, Ordering::SeqCst);
    assert_eq!(rig.try_submit(spec(1)).await.unwrap_err().status, 503);
    let jobs = rig.core.store().jobs(&JobFilter { limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(jobs.len(), 1, "the refused job is nowhere");

    full.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        if rig.core.ready().await.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(rig.job(id).await.status, JobStatus::Running);
    assert!(worker.report(key, ended(0, 5)).await, "the running job was not forgotten");
    assert_eq!(rig.job(id).await.status, JobStatus::Completed);
    let next = rig.submit(spec(1)).await;
    assert_eq!(next, JobId(id.0 + 1), "numbers go on where the store is");
    let (mut seen, mut sync) = (false, 0);
    while !seen {
        match worker.next().await {
            agentaflow_api::link::Message::Assign(assignment) => seen = assignment.key.job == next,
            agentaflow_api::link::Message::Sync { assignments, .. } => {
                sync += 1;
                seen = assignments.iter().any(|assignment| assignment.key.job == next);
            }
            agentaflow_api::link::Message::Stop(stop) => {
                panic!("nothing is to be stopped: {stop:?}")
            }
        }
    }
    assert!(sync >= 1, "after the fault the agent received a full sync");
}

#[tokio::test]
async fn heartbeats_are_answered_without_the_store_if_no_other_server_can_take_it_over() {
    for shared in [false, true] {
        let full = Arc::new(AtomicBool::new(false));
        let (flag, pause) = (full.clone(), Arc::default());
        let wrap =
            move |inner| Arc::new(Faulty { inner, full: flag, pause, shared }) as Arc<dyn Store>;
        let rig = Rig::with(|_| {}, wrap).await;
        let mut worker = rig.worker("a", 1).await;
        let id = rig.submit(spec(1)).await;
        let key = worker.assignment().await.key;
        worker.report(key, running()).await;
        full.store(true, Ordering::SeqCst);
        assert_eq!(rig.try_submit(spec(1)).await.unwrap_err().status, 503);
        let node = NodeRef::Number(worker.node);
        let beat = || rig.core.heartbeat(&node, Heartbeat::default());
        assert_eq!(beat().map_err(|error| error.status).err(), shared.then_some(503));
        if shared {
            continue;
        }
        // Longer than the lease: the node is not lost, since its heartbeats were answered.
        worker.beating(tokio::time::sleep(INTERVAL * 8)).await;
        full.store(false, Ordering::SeqCst);
        let ended = worker.beating(async {
            while rig.core.ready().await.is_err() {
                tokio::time::sleep(INTERVAL).await;
            }
            worker.report(key, ended(0, 5)).await
        });
        assert!(ended.await, "the task is still assigned");
        assert_eq!(rig.job(id).await.attempt, 1);
    }
}

#[tokio::test]
async fn a_repeated_end_is_acknowledged_only_once_durable() {
    let (full, pause) = (Arc::new(AtomicBool::new(false)), Arc::new(tokio::sync::Mutex::new(())));
    let (flag, gate) = (full.clone(), pause.clone());
    let rig = Rig::with(
        |_| {},
        move |inner| Arc::new(Faulty { inner, full: flag, pause: gate, shared: false }),
    )
    .await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;

    let held = pause.lock().await;
    let output = |update| {
        let batch = agentaflow_api::link::ReportBatch {
            reports: vec![agentaflow_api::link::Report { key, update }],
            logs: Vec::new(),
        };
        let (core, agent) = (rig.core.clone(), worker.agent);
        tokio::spawn(async move { core.report(agent, batch).await })
    };
    let first = output(ended(0, 5));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let second = output(ended(0, 5));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!first.is_finished() && !second.is_finished(), "nothing is durable yet");
    full.store(true, Ordering::SeqCst);
    drop(held);
    assert_eq!(first.await.unwrap().unwrap_err().status, 503);
    assert_eq!(second.await.unwrap().unwrap_err().status, 503);

    full.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        if rig.core.ready().await.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(rig.job(id).await.status, JobStatus::Running);
    assert!(worker.report(key, ended(0, 5)).await);
    assert_eq!(rig.job(id).await.status, JobStatus::Completed);
}

#[tokio::test]
async fn a_missing_gpu_affects_only_its_own_job() {
    let mut rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let ids = [rig.submit(spec(1)).await, rig.submit(spec(1)).await];
    let mut keys = Vec::new();
    for _ in ids {
        let assignment = worker.assignment().await;
        worker.report(assignment.key, running()).await;
        keys.push(assignment.key);
    }
    let waits = rig.submit(spec(1)).await;
    // One GPU falls off the bus, and the server restarts at once.
    rig.core
        .register_node(
            crate::rig::registration("a", 1),
            crate::rig::HERE,
            Registrant::Key(worker.node),
        )
        .await
        .unwrap();
    rig.restart().await;
    let agent = rig.core.agents()[0].id;
    let _stream = rig.core.open_stream(agent, None, 0).await.unwrap();
    for key in keys {
        let batch = agentaflow_api::link::ReportBatch {
            reports: vec![agentaflow_api::link::Report { key, update: ended(0, 5) }],
            logs: Vec::new(),
        };
        assert!(rig.core.report(agent, batch).await.unwrap().accepted[0]);
    }
    rig.until(waits, |job| job.status == JobStatus::Scheduled).await;
}
