//! Exclusive access of one server, and reopening of a store.

use std::time::Duration;

use agentaflow_server::store::{EventFilter, StoreError, open_postgres};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Executor};

use crate::make::{self, happened, new_job};
use crate::place::Place;
use agentaflow_api::ids::EventSeq;

pub(crate) async fn a_second_server_is_refused_with_a_message(place: &Place) {
    let store = place.open().await;
    let Err(StoreError::InUse(words)) = place.try_open().await else { panic!("opened twice") };
    let pid = std::process::id();
    match place {
        Place::Sqlite(dir) => {
            let dir = dir.path().display();
            let expected = format!(
                "another agentaflow server (pid {pid}) uses {dir}; stop it or choose another --data-dir"
            );
            assert_eq!(words, expected);
        }
        Place::Postgres(url) => {
            let host = rustix::system::uname();
            let host = host.nodename().to_string_lossy();
            let start = format!("another agentaflow server (host {host}, pid {pid}, since 20");
            let end = format!("Z) uses {url}; stop it or choose another --database");
            assert!(words.starts_with(&start) && words.ends_with(&end), "{words}");
        }
    }
    store.commit(&[happened(make::event(1))]).await.unwrap();
    store.close().await;
    place.open().await.commit(&[happened(make::event(2))]).await.unwrap();
}

pub(crate) async fn everything_is_there_after_opening_again(place: &Place) {
    let store = place.open().await;
    store.commit(&[new_job(make::job(1, 1)), happened(make::event(1))]).await.unwrap();
    let before = store.load("2026-11").await.unwrap();
    store.close().await;
    let after = place.open().await.load("2026-11").await.unwrap();
    assert_eq!(format!("{before:?}"), format!("{after:?}"));
}

pub(crate) async fn a_closed_store_fails_and_does_not_hang(place: &Place) {
    let store = place.open().await;
    store.close().await;
    store.close().await;
    store.commit(&[happened(make::event(1))]).await.unwrap_err();
    store.load("2026-11").await.unwrap_err();
    store.job(agentaflow_api::ids::JobId(1)).await.unwrap_err();
    store.ping().await.unwrap_err();
}

pub(crate) async fn readers_do_not_wait_for_the_writer(place: &Place) {
    let store = place.open().await;
    store.commit(&[new_job(make::job(1, 1))]).await.unwrap();
    let many: Vec<_> = (1..=2000).map(|seq| happened(make::event(seq))).collect();
    let (written, seen) = tokio::join!(store.commit(&many), async {
        let mut seen = 0;
        for _ in 0..20 {
            seen += store
                .jobs(&agentaflow_server::store::JobFilter { limit: 1, ..Default::default() })
                .await
                .unwrap()
                .len();
        }
        seen
    });
    written.unwrap();
    assert_eq!(seen, 20);
}

/// Cuts the connections of the servers under test, like a restart or a network failure; all of them, or the lock's
/// only.
async fn cut(url: &str, only_lock: bool) {
    let mut admin = PgConnection::connect(url).await.unwrap();
    let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let lock = "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                WHERE l.locktype = 'advisory' AND d.datname = current_database()";
    admin.execute(if only_lock { lock } else { all }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn address() -> String {
    let Place::Postgres(url) = Place::postgres().await else { panic!("not PostgreSQL") };
    url
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server; `cargo xtask test` starts one"]
async fn postgres_a_server_that_lost_its_lock_to_another_writes_nothing() {
    let url = address().await;
    let old = open_postgres(&url).await.unwrap();
    old.commit(&[happened(make::event(1))]).await.unwrap();
    cut(&url, true).await;
    let new = open_postgres(&url).await.unwrap();
    for seq in [2, 3] {
        let error = old.commit(&[happened(make::event(seq))]).await.unwrap_err();
        assert!(matches!(error, StoreError::Fenced), "{error:?}");
    }
    assert!(matches!(old.load("2026-11").await, Err(StoreError::Fenced)));
    new.commit(&[happened(make::event(2))]).await.unwrap();
    let all = EventFilter { limit: 10, ..EventFilter::default() };
    assert_eq!(new.events(&all).await.unwrap(), [make::event(1), make::event(2)]);
    // Even after the new server is gone, the old one lacks the new one's changes.
    new.close().await;
    assert!(matches!(old.commit(&[happened(make::event(3))]).await, Err(StoreError::Fenced)));
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server; `cargo xtask test` starts one"]
async fn postgres_a_server_goes_on_after_the_database_was_restarted() {
    let url = address().await;
    let store = open_postgres(&url).await.unwrap();
    store.commit(&[happened(make::event(1))]).await.unwrap();
    cut(&url, false).await;
    let error = store.commit(&[happened(make::event(2))]).await.unwrap_err();
    assert!(matches!(error, StoreError::Failed { .. }), "{error:?}");
    store.commit(&[happened(make::event(2))]).await.unwrap();
    assert_eq!(store.load("2026-11").await.unwrap().last.event, EventSeq(2));
    // The server has the lock again.
    assert!(matches!(open_postgres(&url).await, Err(StoreError::InUse(_))));
}

#[tokio::test]
#[ignore = "needs a PostgreSQL server; `cargo xtask test` starts one"]
async fn postgres_a_server_that_was_away_while_another_came_is_fenced() {
    let url = address().await;
    let old = open_postgres(&url).await.unwrap();
    cut(&url, false).await;
    let _new = open_postgres(&url).await.unwrap();
    old.commit(&[happened(make::event(1))]).await.unwrap_err();
    let error = old.commit(&[happened(make::event(1))]).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced), "{error:?}");
}
