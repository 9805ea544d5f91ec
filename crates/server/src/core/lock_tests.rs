//! Reads that must not wait for the core's lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agentaflow_api::ids::UserId;

use super::handle::Core;
use crate::secrets::Keyring;
use crate::settings::Settings;
use crate::store::open_sqlite;

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_nodes_agents_queues_and_accounts_do_not_wait_for_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
    let store = open_sqlite(dir.path()).await.unwrap();
    let secrets = Arc::new(Keyring::load(&dir.path().join("secret-key")).unwrap());
    let core = Core::start(Arc::new(settings), store, secrets).await.unwrap().0;
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
