//! Location of a store under test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use agentaflow_server::store::{Store, StoreError, open_postgres, open_sqlite};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Executor};

/// An empty location for a store; a test may open it several times.
pub(crate) enum Place {
    /// Directory of the database file.
    Sqlite(tempfile::TempDir),
    /// Address of a database of its own.
    Postgres(String),
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

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

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        self.try_open().await.unwrap()
    }

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
