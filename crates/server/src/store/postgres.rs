//! PostgreSQL.
//!
//! One server writes. It holds an advisory lock on a connection of its own, which the database releases when the server
//! dies, and an epoch that every start increments and every transaction checks: a server that lost the lock writes
//! nothing.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions, PgSslMode, Postgres};
use sqlx::{ConnectOptions, Connection, Pool};
use tokio::sync::Mutex;
use tokio::time::timeout;
use url::Url;

use agentaflow_backoff::BackoffPolicy;

use super::database::{Backend, Database, Slot, failed};
use super::driver::{Driver, explain_migration, migrator};
use super::read::{Cause, Cells};
use super::sql::{Dialect, Sql};
use super::{Store, StoreError};

/// Beginning of the name of a server in the database.
const APPLICATION: &str = "agentaflow";

const STEPS: [&str; 1] = [include_str!("../../migrations/postgres/0001_start.sql")];

/// Timeout of a connection attempt or check.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval of checks of the lock's connection.
const LOOK: Duration = Duration::from_secs(5);

/// Attempts to take the lock at start, and the delays between them.
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_RETRY: BackoffPolicy =
    BackoffPolicy::new(Duration::from_millis(200), Duration::from_millis(200));

/// Opens a PostgreSQL database by its `postgres://…` address.
pub async fn open_postgres(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let name = shown(url);
    let open = |source: Cause| StoreError::Open { what: name.clone(), source };
    let options = options(url).map_err(open)?;
    let guard = Arc::new(Guard { options: options.clone(), state: Mutex::default() });
    if !guard.take_soon().await.map_err(open)? {
        let holder = holder(&options).await.unwrap_or_default();
        return Err(StoreError::InUse(format!(
            "another agentaflow server{holder} uses {name}; stop it or choose another --database"
        )));
    }
    let mut writer = connect(&options).await.map_err(open)?;
    migrator(&STEPS)
        .run_direct(None, &mut writer, false)
        .await
        .map_err(|error| open(explain_migration(error, &STEPS)))?;
    let epoch = next_epoch(&mut writer).await.map_err(open)?;
    let readers = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with(options.clone());
    tokio::spawn(watch_lock(Arc::downgrade(&guard)));
    Ok(Arc::new(Database(Server { options, readers, writer: Slot::new(writer), guard, epoch })))
}

/// Address without password and parameters, which may contain one.
fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "the PostgreSQL database".to_owned() };
    let hidden = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    if hidden.is_err() { "the PostgreSQL database".to_owned() } else { url.to_string() }
}

fn options(url: &str) -> Result<PgConnectOptions, Cause> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err("the address of a database begins with postgres://".into());
    }
    let mut options = PgConnectOptions::from_str(url)?;
    if !states_ssl_mode(url) && !is_local(&options) {
        options = options.ssl_mode(PgSslMode::VerifyFull);
    }
    let options = options
        .application_name(&application_name())
        .statement_cache_capacity(256)
        // A lost connection of this server blocks the next one only for this time.
        // These override the settings of the address, the role and the database. An acknowledged job must survive a crash
        // of the database.
        .options([
            ("idle_in_transaction_session_timeout", "30s"),
            ("lock_timeout", "20s"),
            ("synchronous_commit", "on"),
        ])
        .disable_statement_logging();
    Ok(options)
}

/// Name of this server in the database, by which a second server tells its user who holds the lock. PostgreSQL cuts it
/// at 63 bytes.
fn application_name() -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host = &host[..host.floor_char_boundary(36)];
    format!("{APPLICATION} host {host}, pid {}", std::process::id())
}

/// Session that holds the lock: host and process of its server, and its start.
const HOLDER: &str = "SELECT application_name, coalesce(host(client_addr), ''), \
                      to_char(backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"') \
                      FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted \
                      AND classid = 1095124556::OID AND objid = (hashtext(coalesce(current_schema(), ''))::BIGINT \
                      & 4294967295)::OID AND database = (SELECT oid FROM pg_database WHERE datname = \
                      current_database())";

/// Description of the server that holds the lock: ` (host …, pid …, since …)`; empty if it cannot be read.
async fn holder(options: &PgConnectOptions) -> Result<String, Cause> {
    let mut connection = connect(options).await?;
    let row = one(connection.fetch(plain(HOLDER)).await?)?;
    let (name, address, since) = (row.text(0)?, row.text(1)?, row.text(2)?);
    let server = name.strip_prefix(APPLICATION).map_or("", str::trim);
    let server = if server.is_empty() { format!("host {address}") } else { server.to_owned() };
    Ok(format!(" ({server}, since {since})"))
}

/// Returns true if the address or the environment chooses the TLS mode.
fn states_ssl_mode(url: &str) -> bool {
    let stated =
        |url: Url| url.query_pairs().any(|(name, _)| matches!(&*name, "sslmode" | "ssl-mode"));
    std::env::var_os("PGSSLMODE").is_some() || Url::parse(url).is_ok_and(stated)
}

/// Returns true for a database on this machine: a socket or a loopback address.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, Cause> {
    match timeout(PATIENCE, options.connect()).await {
        Ok(Err(sqlx::Error::Tls(problem))) => Err(format!(
            "TLS failed: {problem}; a database on another host is verified (sslmode=verify-full) unless its address \
             states another `sslmode`"
        )
        .into()),
        Ok(connected) => Ok(connected?),
        Err(_) => Err("it does not answer".into()),
    }
}

fn plain(text: &str) -> Sql {
    Sql::new(Dialect::Postgres, text)
}

async fn next_epoch(connection: &mut PgConnection) -> Result<i64, Cause> {
    let next = plain("UPDATE leader SET epoch = epoch + 1 WHERE id = 1 RETURNING epoch");
    one(connection.fetch(next).await?)?.int(0)
}

fn one<R>(mut rows: Vec<R>) -> Result<R, Cause> {
    rows.pop().ok_or_else(|| "the database has no answer".into())
}

/// Holds the advisory lock of the writing server.
struct Guard {
    options: PgConnectOptions,
    state: Mutex<GuardState>,
}

#[derive(Default)]
struct GuardState {
    connection: Option<PgConnection>,
    /// Backend process of the session that holds or held the lock, and its start.
    session: Option<(i64, String)>,
    /// Another server has the lock.
    lost: bool,
}

/// Advisory locks belong to a database; the schema separates two installations.
const TRY_LOCK: &str = "SELECT CAST(pg_try_advisory_lock(1095124556, hashtext(coalesce(current_schema(), ''))) \
                        AS INT)::BIGINT, pg_backend_pid()::BIGINT, \
                        (SELECT backend_start::TEXT FROM pg_stat_activity WHERE pid = pg_backend_pid())";

impl Guard {
    /// Takes the lock; false if another server keeps it. The database needs a moment to notice the death of a server, so
    /// that a quick restart retries.
    async fn take_soon(&self) -> Result<bool, Cause> {
        let mut state = self.state.lock().await;
        let mut backoff = LOCK_RETRY.start();
        for _ in 0..LOCK_ATTEMPTS {
            if state.take(&self.options).await? {
                return Ok(true);
            }
            backoff.sleep().await;
        }
        Ok(false)
    }

    /// Verifies the lock, and takes it again after a lost connection.
    async fn hold(&self, what: &'static str) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        if !state.lost && !state.is_alive().await {
            state.connection = None;
            state.lost = !state.take(&self.options).await.map_err(failed(what))?;
        }
        if state.lost { Err(StoreError::Fenced) } else { Ok(()) }
    }

    async fn mark_lost(&self) {
        self.state.lock().await.lost = true;
    }
}

impl GuardState {
    async fn is_alive(&mut self) -> bool {
        let Some(connection) = &mut self.connection else { return false };
        matches!(timeout(PATIENCE, connection.fetch(plain("SELECT 1"))).await, Ok(Ok(_)))
    }

    async fn take(&mut self, options: &PgConnectOptions) -> Result<bool, Cause> {
        let mut connection = connect(options).await?;
        if let Some((pid, started)) = &self.session {
            // The former session of this server may still exist if only the network failed.
            let mut end = plain("SELECT pg_terminate_backend(pid) FROM pg_stat_activity");
            end.and("pid = ").bind(*pid);
            end.and("backend_start::TEXT = ").bind(started);
            connection.fetch(end).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let row = one(connection.fetch(plain(TRY_LOCK)).await?)?;
        let taken = row.int(0)? == 1;
        if taken {
            self.session = Some((row.int(1)?, row.text(2)?));
            self.connection = Some(connection);
        }
        Ok(taken)
    }
}

/// Verifies the lock at intervals.
async fn watch_lock(guard: Weak<Guard>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(guard) = guard.upgrade() else { return };
        // An unreachable database is retried; a lost lock stays lost.
        if let Err(StoreError::Fenced) = guard.hold("keep its lock").await {
            return;
        }
    }
}

struct Server {
    options: PgConnectOptions,
    readers: Pool<Postgres>,
    writer: Slot<PgConnection>,
    guard: Arc<Guard>,
    epoch: i64,
}

#[async_trait]
impl Backend for Server {
    const DIALECT: Dialect = Dialect::Postgres;
    const EXCLUSIVE: bool = false;
    type Database = Postgres;
    type Connection = PgConnection;

    fn writer(&self) -> &Slot<PgConnection> {
        &self.writer
    }

    fn readers(&self) -> &Pool<Postgres> {
        &self.readers
    }

    async fn connect(&self, what: &'static str) -> Result<PgConnection, StoreError> {
        self.guard.hold(what).await?;
        connect(&self.options).await.map_err(failed(what))
    }

    async fn begin(
        &self,
        connection: &mut PgConnection,
        what: &'static str,
    ) -> Result<(), StoreError> {
        connection.fetch(plain("BEGIN")).await.map_err(failed(what))?;
        // The row lock also waits for an earlier transaction of this server with an unknown outcome.
        let look = plain("SELECT epoch FROM leader WHERE id = 1 FOR UPDATE");
        let row = one(connection.fetch(look).await.map_err(failed(what))?).map_err(failed(what))?;
        if row.int(0).map_err(failed(what))? == self.epoch {
            return Ok(());
        }
        self.guard.mark_lost().await;
        Err(StoreError::Fenced)
    }

    async fn release(&self) {
        let mut state = self.guard.state.lock().await;
        state.lost = true;
        if let Some(mut connection) = state.connection.take() {
            // An explicit unlock, because the database notices a closed connection later.
            let unlock = connection.fetch(plain("SELECT pg_advisory_unlock_all()"));
            let _ = timeout(PATIENCE, unlock).await;
            let _ = timeout(PATIENCE, connection.close()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_secrets() {
        let url = "postgres://ann:s3cret@db.example:5433/jobs?password=s3cret&sslmode=require";
        assert_eq!(shown(url), "postgres://ann@db.example:5433/jobs");
        assert_eq!(shown("s3cret"), "the PostgreSQL database");
    }

    #[test]
    fn a_remote_database_is_verified_unless_its_address_says_otherwise() {
        if std::env::var_os("PGSSLMODE").is_some() {
            return;
        }
        let mode = |address: &str| {
            format!("{:?}", options(&format!("postgres://{address}")).unwrap().get_ssl_mode())
        };
        for remote in ["ann@db.example/jobs", "ann@192.0.2.7/jobs", "ann@[2001:db8::7]:5433/jobs"] {
            assert_eq!(mode(remote), "VerifyFull", "{remote}");
        }
        for local in
            ["ann@localhost/jobs", "ann@127.0.0.1/jobs", "ann@[::1]/jobs", "ann@%2Frun%2Fpg/jobs"]
        {
            assert_eq!(mode(local), "Prefer", "{local}");
        }
        assert_eq!(mode("ann@db.example/jobs?sslmode=require"), "Require");
        assert_eq!(mode("ann@db.example/jobs?ssl-mode=disable"), "Disable");
    }

    #[test]
    fn commits_are_synchronous_for_every_address() {
        let address = "postgres://ann@localhost/jobs?options=-c%20synchronous_commit%3Doff";
        let options = options(address).unwrap();
        let all = options.get_options().unwrap();
        let last = all.rfind("synchronous_commit=").unwrap();
        assert!(all[last..].starts_with("synchronous_commit=on"), "{all}");
    }

    #[tokio::test]
    #[ignore = "needs PostgreSQL in AGENTAFLOW_TEST_POSTGRES"]
    async fn postgres_commits_are_synchronous_against_the_settings_of_the_database() {
        let url = std::env::var("AGENTAFLOW_TEST_POSTGRES").unwrap();
        let joint = if url.contains('?') { '&' } else { '?' };
        let url = format!("{url}{joint}options[synchronous_commit]=off");
        let mut connection = connect(&options(&url).unwrap()).await.unwrap();
        let shown = connection.fetch(plain("SELECT current_setting('synchronous_commit')")).await;
        assert_eq!(one(shown.unwrap()).unwrap().text(0).unwrap(), "on");
    }

    #[tokio::test]
    async fn a_database_that_is_not_there_is_an_error_without_its_password() {
        for scheme in ["postgres", "mysql"] {
            let url = format!("{scheme}://ann:s3cret@127.0.0.1:1/jobs");
            let Err(error) = open_postgres(&url).await else { panic!("opened") };
            let text = format!("{error} {error:?}");
            let words = format!("cannot open {scheme}://ann@127.0.0.1:1/jobs");
            assert!(text.starts_with(&words), "{text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
