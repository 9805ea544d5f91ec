//! Execution of statements on a connection of either database.

use std::future::Future;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Connection, Row, SqlSafeStr};

use super::read::{Cause, Cells};
use super::sql::{Sql, Value};

/// A connection that runs statements.
pub(super) trait Driver: Connection {
    type Row: Cells + Send + Sync;

    /// Runs a statement and returns its rows. Statements with the same text are prepared once.
    fn fetch(
        &mut self,
        sql: Sql,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
}

macro_rules! driver {
    ($connection:ty, $arguments:ty, $row:ty) => {
        impl Driver for $connection {
            type Row = $row;

            async fn fetch(&mut self, sql: Sql) -> Result<Vec<$row>, sqlx::Error> {
                let mut arguments = <$arguments>::default();
                for value in sql.values {
                    match value {
                        Value::Int(number) => arguments.add(number),
                        Value::Text(text) => arguments.add(text),
                        Value::Json(text) => arguments.add(text),
                    }
                    .map_err(sqlx::Error::Encode)?;
                }
                // The text consists of constants and placeholders.
                sqlx::query_with(AssertSqlSafe(sql.text), arguments).fetch_all(self).await
            }
        }

        impl Cells for $row {
            fn maybe_int(&self, column: usize) -> Result<Option<i64>, Cause> {
                Ok(self.try_get(column)?)
            }

            fn maybe_text(&self, column: usize) -> Result<Option<String>, Cause> {
                Ok(self.try_get(column)?)
            }
        }
    };
}

driver!(SqliteConnection, SqliteArguments, SqliteRow);
driver!(PgConnection, PgArguments, PgRow);

/// Runs statements in order and returns the rows of each.
pub(super) async fn run_all<C: Driver>(
    connection: &mut C,
    statements: Vec<Sql>,
) -> Result<Vec<Vec<C::Row>>, Cause> {
    let mut answers = Vec::with_capacity(statements.len());
    for sql in statements {
        let expect = sql.expect;
        let rows = connection.fetch(sql).await?;
        if expect.is_some_and(|expect| expect != rows.len()) {
            return Err("the transaction changes a job that does not exist".into());
        }
        answers.push(rows);
    }
    Ok(answers)
}

/// Migrations from an empty database to the current schema, numbered from 1.
pub(super) fn migrator(steps: &[&'static str]) -> Migrator {
    let migration = |(number, step): (i64, &&'static str)| {
        Migration::new(number, "step".into(), MigrationType::Simple, step.into_sql_str(), false)
    };
    Migrator::with_migrations((1..).zip(steps).map(migration).collect())
}

/// Error of a migration with a remedy.
pub(super) fn explain_migration(error: MigrateError, steps: &[&'static str]) -> Cause {
    match error {
        MigrateError::VersionMissing(number) => format!(
            "it was created by a newer version of agentaflow (schema {number}, this version supports {}); \
             use that version, or restore a backup",
            steps.len()
        )
        .into(),
        MigrateError::VersionMismatch(number) => format!(
            "schema {number} differs from the one of this version: it was created by an unreleased version of agentaflow; \
             use that version, or another database"
        )
        .into(),
        other => other.into(),
    }
}
