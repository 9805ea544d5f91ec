//! Where a store under test lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use agentaflow_server::store::{Store, StoreError, open_postgres, open_sqlite};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

/// A fresh place for a store; opened as often as a check likes.
pub(crate) enum Place {
    /// A folder.
    Sqlite(tempfile::TempDir),
    /// The address of a database of its own.
    Postgres(String),
}

impl Place {
    /// An empty folder.
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    /// A new database.
    pub(crate) async fn postgres() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("agentaflow_{}_{count}", std::process::id());
        let mut url: url::Url = server().parse().expect("AGENTAFLOW_TEST_POSTGRES is an address");
        let mut admin = PgConnection::connect(url.as_str()).await.expect("PostgreSQL answers");
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        admin.execute(AssertSqlSafe(drop)).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        url.set_path(&name);
        Self::Postgres(url.into())
    }

    /// Opens the store.
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        self.try_open().await.unwrap()
    }

    /// Opens the store, or not.
    pub(crate) async fn try_open(&self) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Self::Sqlite(dir) => open_sqlite(dir.path()).await,
            Self::Postgres(url) => open_postgres(url).await,
        }
    }
}

fn server() -> String {
    std::env::var("AGENTAFLOW_TEST_POSTGRES")
        .expect("AGENTAFLOW_TEST_POSTGRES names a PostgreSQL server, like postgres://user@127.0.0.1:5432/postgres")
}
