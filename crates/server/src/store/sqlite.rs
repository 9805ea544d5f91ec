//! SQLite: one file on one machine.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{
    Sqlite, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Pool};

use super::database::{Backend, Database, Slot, failed};
use super::driver::{Driver, explain_migration, migrator};
use super::lock;
use super::read::Cause;
use super::sql::{Dialect, Sql};
use super::{Store, StoreError};

const STEPS: [&str; 1] = [include_str!("../../migrations/sqlite/0001_start.sql")];

/// Time that a statement waits for another program that has the file locked.
const BUSY: Duration = Duration::from_secs(5);

/// Opens `agentaflow.db` in the data directory; creates both if missing.
pub async fn open_sqlite(data_dir: &Path) -> Result<Arc<dyn Store>, StoreError> {
    let path = data_dir.join("agentaflow.db");
    let open = |source: Cause| StoreError::Open {
        what: format!("the database {}", path.display()),
        source,
    };
    let lock = prepare(data_dir, &path).map_err(|error| match error {
        lock::Refused::InUse(words) => StoreError::InUse(words),
        lock::Refused::Failed(cause) => open(cause.into()),
    })?;
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .foreign_keys(false)
        .busy_timeout(BUSY)
        .statement_cache_capacity(256)
        .disable_statement_logging();
    let readers = SqlitePoolOptions::new()
        .max_connections(4)
        .acquire_timeout(Duration::from_secs(30))
        .connect_lazy_with(options.clone().read_only(true));
    let writing = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut writer = writing.connect().await.map_err(|error| open(error.into()))?;
    migrator(&STEPS)
        .run_direct(None, &mut writer, false)
        .await
        .map_err(|error| open(explain_migration(error, &STEPS)))?;
    let lock = Mutex::new(Some(lock));
    Ok(Arc::new(Database(SqliteFile {
        options: writing,
        readers,
        writer: Slot::new(writer),
        lock,
    })))
}

/// Creates the directory and the file with access for this user only, and takes the lock.
fn prepare(data_dir: &Path, path: &Path) -> Result<File, lock::Refused> {
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let lock = lock::take(data_dir)?;
    // SQLite creates its other files with the same mode.
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(lock)
}

struct SqliteFile {
    options: SqliteConnectOptions,
    readers: Pool<Sqlite>,
    writer: Slot<SqliteConnection>,
    lock: Mutex<Option<File>>,
}

#[async_trait]
impl Backend for SqliteFile {
    const DIALECT: Dialect = Dialect::Sqlite;
    const EXCLUSIVE: bool = true;
    type Database = Sqlite;
    type Connection = SqliteConnection;

    fn writer(&self) -> &Slot<SqliteConnection> {
        &self.writer
    }

    fn readers(&self) -> &Pool<Sqlite> {
        &self.readers
    }

    async fn connect(&self, what: &'static str) -> Result<SqliteConnection, StoreError> {
        self.options.connect().await.map_err(failed(what))
    }

    async fn begin(
        &self,
        connection: &mut SqliteConnection,
        what: &'static str,
    ) -> Result<(), StoreError> {
        let begin = Sql::new(Dialect::Sqlite, "BEGIN IMMEDIATE");
        connection.fetch(begin).await.map(drop).map_err(failed(what))
    }

    async fn release(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Change, EventFilter};
    use super::*;
    use agentaflow_api::event::Event;
    use agentaflow_api::ids::EventSeq;

    fn event(seq: i64, size: usize) -> Change {
        let seq = EventSeq(seq);
        Change::Event(Box::new(Event { seq, message: "x".repeat(size), ..Event::default() }))
    }

    /// A store whose file cannot grow.
    async fn full(dir: &Path) -> Database<SqliteFile> {
        open_sqlite(dir).await.unwrap().close().await;
        let options = SqliteConnectOptions::new().filename(dir.join("agentaflow.db"));
        let writer = options.clone().pragma("max_page_count", "60").connect().await.unwrap();
        let readers = SqlitePoolOptions::new().connect_lazy_with(options.clone());
        Database(SqliteFile { options, readers, writer: Slot::new(writer), lock: Mutex::default() })
    }

    #[tokio::test]
    async fn a_full_disk_is_an_error_and_writing_goes_on_when_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = full(dir.path()).await;
        let error = store.commit(&[event(1, 10), event(2, 2_000_000)]).await.unwrap_err();
        assert!(matches!(&error, StoreError::Failed { .. }), "{error}");
        assert!(store.commit(&[event(3, 2_000_000)]).await.is_err(), "still full");
        store.commit(&[event(4, 10)]).await.unwrap();
        *store.0.writer.lock().await = super::super::database::Slotted::Empty;
        store.commit(&[event(5, 2_000_000)]).await.unwrap();
        let all = EventFilter { limit: 10, ..EventFilter::default() };
        let found: Vec<i64> =
            store.events(&all).await.unwrap().iter().map(|event| event.seq.0).collect();
        assert_eq!(found, [4, 5]);
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("agentaflow.db"), "not a database ".repeat(100)).unwrap();
        let Err(error) = open_sqlite(dir.path()).await else { panic!("opened") };
        assert!(error.to_string().starts_with("cannot open the database /"), "{error}");
    }

    #[tokio::test]
    async fn a_database_of_a_newer_version_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        open_sqlite(dir.path()).await.unwrap().close().await;
        let options = SqliteConnectOptions::new().filename(dir.path().join("agentaflow.db"));
        let newer = [STEPS[0], "CREATE TABLE later (id INTEGER)"];
        let mut connection = options.connect().await.unwrap();
        migrator(&newer).run_direct(None, &mut connection, false).await.unwrap();
        let Err(StoreError::Open { source, .. }) = open_sqlite(dir.path()).await else {
            panic!("opened")
        };
        assert!(source.to_string().contains("newer version of agentaflow"), "{source}");
    }
}
