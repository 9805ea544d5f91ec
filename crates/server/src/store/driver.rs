//! How statements reach a connection of either database.

use std::future::Future;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{Arguments, AssertSqlSafe, Connection, Row, SqlSafeStr};

use super::read::{Cause, Cells};
use super::sql::{Sql, Value};

/// A connection that runs statements.
pub(super) trait Driver: Connection {
    /// A row of an answer.
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
                // Only fixed texts and placeholders are ever put together.
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

/// Runs statements one after the other and returns the rows of each.
pub(super) async fn run_all<C: Driver>(
    connection: &mut C,
    statements: Vec<Sql>,
) -> Result<Vec<Vec<C::Row>>, Cause> {
    let mut answers = Vec::with_capacity(statements.len());
    for sql in statements {
        let expect = sql.expect;
        let rows = connection.fetch(sql).await?;
        if expect.is_some_and(|expect| expect != rows.len()) {
            return Err("a job that is not there cannot change".into());
        }
        answers.push(rows);
    }
    Ok(answers)
}

/// The steps from an empty database to the present form, the first being number 1.
pub(super) fn migrator(steps: &[&'static str]) -> Migrator {
    let migration = |(number, step): (i64, &&'static str)| {
        Migration::new(number, "step".into(), MigrationType::Simple, step.into_sql_str(), false)
    };
    Migrator::with_migrations((1..).zip(steps).map(migration).collect())
}

/// Why a database could not be brought to the present form, in words that say what to do.
pub(super) fn explain_migration(error: MigrateError, steps: &[&'static str]) -> Cause {
    match error {
        MigrateError::VersionMissing(number) => format!(
            "it was made by a newer version of agentaflow (its form is number {number}, this version knows {}); \
             use that version, or a copy of the database from before",
            steps.len()
        )
        .into(),
        MigrateError::VersionMismatch(number) => format!(
            "its form number {number} is not the one this version knows: it was made by a version of agentaflow \
             that was never released; use that one, or another database"
        )
        .into(),
        other => other.into(),
    }
}
