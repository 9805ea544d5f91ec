//! Reads that must not wait for the core's lock.

use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tempfile::TempDir;

use agentaflow_api::account::Role;
use agentaflow_api::ids::UserId;
use agentaflow_api::job::{JobCreate, JobSpec};
use agentaflow_api::pending::PendingCode;
use agentaflow_engine::Scheduler;

use super::handle::{Caller, Core};
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::{UserRow, open_sqlite};

async fn start(dir: &TempDir) -> Core {
    let settings = Settings::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
    let store = open_sqlite(dir.path()).await.unwrap();
    let secrets = Arc::new(Keyring::load(&dir.path().join("secret-key")).unwrap());
    Core::start(Arc::new(settings), store, secrets).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn explanations_and_forecasts_do_not_wait_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let core = start(&dir).await;
    let user = UserRow { role: Role::Admin, default_queue: "root".into(), ..UserRow::default() };
    let ana = Caller { user: Arc::new(user), by_cookie: false };
    let job = JobCreate {
        spec: JobSpec { docker_image: Some("busybox".into()), ..JobSpec::default() },
        ..JobCreate::default()
    };
    let (submitted, _) = core.submit(&ana, job.clone(), None, None).await.unwrap();
    let row = core.stored_job(submitted.id).await.unwrap();
    let ask = || async {
        let reason = core.explain(&ana, row.clone()).await.unwrap().pending_reason;
        assert_eq!(reason.map(|reason| reason.code()), Some(PendingCode::NoNodes));
        core.what_if(&ana, job.clone()).await.unwrap();
    };
    // The first answer needs a copy of the engine. Later ones share it until the engine changes.
    ask().await;
    let (locked, release) = (core.clone(), Arc::new(Barrier::new(2)));
    let (holding, held) = tokio::sync::oneshot::channel();
    let end = release.clone();
    let holder = std::thread::spawn(move || {
        let _lock = locked.inner.lock();
        holding.send(()).unwrap();
        end.wait();
    });
    held.await.unwrap();
    let answers = tokio::time::timeout(Duration::from_secs(20), ask()).await;
    release.wait();
    holder.join().unwrap();
    assert!(answers.is_ok(), "an explanation waits for the lock");
}

#[tokio::test]
async fn an_account_has_a_limited_number_of_explanations_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let core = start(&dir).await;
    let (ana, ben) = (UserId(1), UserId(2));
    let (entered, mut running) = tokio::sync::mpsc::unbounded_channel();
    let open = Arc::new((Mutex::new(false), Condvar::new()));
    let mut plans = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (core, entered, open) = (core.clone(), entered.clone(), open.clone());
        plans.spawn(async move {
            let wait = move |_: &Scheduler, _| {
                entered.send(()).unwrap();
                let closed = open.0.lock().unwrap();
                drop(open.1.wait_while(closed, |open| !*open).unwrap());
            };
            core.inner.plan(ana, wait).await.unwrap();
        });
    }
    running.recv().await.unwrap();
    while core.inner.plan(ana, |_, _| ()).now_or_never().is_none_or(|answer| answer.is_ok()) {
        tokio::task::yield_now().await;
    }
    let other = core.clone();
    plans.spawn(async move { other.inner.plan(ben, |_, _| ()).await.unwrap() });
    *open.0.lock().unwrap() = true;
    open.1.notify_all();
    while let Some(plan) = plans.join_next().await {
        plan.unwrap();
    }
    core.inner.plan(ana, |_, _| ()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_nodes_agents_queues_and_accounts_do_not_wait_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let core = start(&dir).await;
    let reader = core.clone();
    let lock = core.inner.lock();
    let reads = std::thread::spawn(move || {
        let rows = (reader.nodes(), reader.agents(), reader.queues());
        (
            rows,
            reader.available_nodes(0, 0),
            reader.account(UserId(1)),
            reader.agent("none").is_err(),
        )
    });
    let since = Instant::now();
    while !reads.is_finished() {
        assert!(since.elapsed() < Duration::from_secs(20), "a read waits for the lock");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(lock);
    assert!(reads.join().unwrap().3);
}
