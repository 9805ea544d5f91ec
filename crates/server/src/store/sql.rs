//! A statement with its values for either database; only placeholders differ.

use std::fmt::Write;

use agentaflow_api::ids::{
    AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, MicroUsd, NodeId, UserId,
};
use agentaflow_api::units::Stamp;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    /// PostgreSQL needs a cast.
    Json(String),
}

impl Value {
    pub(super) fn json(record: &impl Serialize) -> Result<Self, serde_json::Error> {
        let text = serde_json::to_string(record)?;
        let opened = text.bytes().filter(|byte| matches!(byte, b'{' | b'[')).count();
        if opened <= MOST_DEEP && !text.contains("\\u0000") {
            return Ok(Self::Json(text));
        }
        let mut value = serde_json::to_value(record)?;
        tidy(&mut value, MOST_DEEP);
        Ok(Self::Json(value.to_string()))
    }
}

/// Maximum nesting of JSON; the reader fails beyond 128.
const MOST_DEEP: usize = 120;

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(Some(number))
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        Self::Int(number)
    }
}

macro_rules! id_values {
    ($($id:ty),+) => {$(
        impl From<$id> for Value {
            fn from(id: $id) -> Self {
                Self::Int(Some(id.0))
            }
        }

        impl From<Option<$id>> for Value {
            fn from(id: Option<$id>) -> Self {
                Self::Int(id.map(|id| id.0))
            }
        }
    )+};
}

id_values!(AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, MicroUsd, NodeId, UserId);

impl From<Option<u32>> for Value {
    fn from(number: Option<u32>) -> Self {
        Self::Int(number.map(i64::from))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Int(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<Stamp> for Value {
    fn from(at: Stamp) -> Self {
        Self::Int(Some(at.0))
    }
}

impl From<Option<Stamp>> for Value {
    fn from(at: Option<Stamp>) -> Self {
        Self::Int(at.map(|at| at.0))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(without_nul(text)))
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Option<&str>> for Value {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(without_nul))
    }
}

/// PostgreSQL cannot store the character 0 in text.
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Replaces values that could not be read again: the character 0, and values nested too deep, which become text.
fn tidy(value: &mut serde_json::Value, deep: usize) {
    use serde_json::Value::{Array, Object, String};
    match value {
        String(text) => *text = without_nul(text),
        Array(_) | Object(_) if deep == 0 => *value = String(without_nul(&value.to_string())),
        Array(list) => list.iter_mut().for_each(|value| tidy(value, deep - 1)),
        Object(map) => {
            let entries = std::mem::take(map).into_iter();
            *map = entries
                .map(|(name, mut value)| {
                    tidy(&mut value, deep - 1);
                    (without_nul(&name), value)
                })
                .collect();
        }
        _ => {}
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sql {
    dialect: Dialect,
    /// Text with placeholders.
    pub(super) text: String,
    pub(super) values: Vec<Value>,
    /// Required number of rows; any other number fails the transaction.
    pub(super) expect: Option<usize>,
    has_condition: bool,
}

impl Sql {
    pub(super) fn new(dialect: Dialect, text: &str) -> Self {
        Self {
            dialect,
            text: text.to_owned(),
            values: Vec::new(),
            expect: None,
            has_condition: false,
        }
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push_str(text);
        self
    }

    /// Appends a placeholder and its value.
    pub(super) fn bind(&mut self, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        let is_json = matches!(value, Value::Json(_));
        self.values.push(value);
        match (self.dialect, is_json) {
            (Dialect::Sqlite, _) => self.text.push('?'),
            (Dialect::Postgres, false) => self.number("$", ""),
            (Dialect::Postgres, true) => self.number("CAST($", " AS JSONB)"),
        }
        self
    }

    fn number(&mut self, before: &str, after: &str) {
        // Writing to a string does not fail.
        let _ = write!(self.text, "{before}{}{after}", self.values.len());
    }

    /// Appends values in parentheses.
    pub(super) fn bind_row(&mut self, values: impl IntoIterator<Item = Value>) -> &mut Self {
        for (at, value) in values.into_iter().enumerate() {
            self.push(if at == 0 { "(" } else { ", " }).bind(value);
        }
        self.push(")")
    }

    /// Starts a condition; conditions are joined with AND.
    pub(super) fn and(&mut self, text: &str) -> &mut Self {
        let word = if self.has_condition { " AND " } else { " WHERE " };
        self.has_condition = true;
        self.push(word).push(text)
    }

    /// Adds a condition if the value is present.
    pub(super) fn and_if_some(&mut self, text: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.and(text).bind(value);
        }
        self
    }
}

/// Maximum rows of one statement, far below the limit of values of both databases.
const MOST_ROWS: usize = 64;

/// Statements of many rows each: `head`, the rows, `tail`. The numbers of rows are powers of two, so that few statements
/// need to be prepared.
pub(super) fn in_rows<T>(
    dialect: Dialect,
    (head, tail): (&str, &str),
    rows: &[T],
    values: impl Fn(&T) -> Result<Vec<Value>, serde_json::Error>,
) -> Result<Vec<Sql>, serde_json::Error> {
    let mut statements = Vec::new();
    for now in in_powers_of_two(rows) {
        let mut sql = Sql::new(dialect, head);
        for (at, row) in now.iter().enumerate() {
            if at > 0 {
                sql.push(", ");
            }
            sql.bind_row(values(row)?);
        }
        sql.push(tail);
        statements.push(sql);
    }
    Ok(statements)
}

/// Splits rows into parts of known sizes, at most [`MOST_ROWS`] each.
pub(super) fn in_powers_of_two<T>(rows: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let count = MOST_ROWS.min(1 << rest.len().checked_ilog2()?);
        let (now, later) = rest.split_at(count);
        rest = later;
        Some(now)
    })
}

/// Pattern for `LIKE … ESCAPE '\'` that matches this text anywhere.
pub(super) fn like(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.to_lowercase().chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_follow_the_dialect() {
        for (dialect, text) in [
            (Dialect::Sqlite, "INSERT INTO t VALUES (?, ?)"),
            (Dialect::Postgres, "INSERT INTO t VALUES ($1, CAST($2 AS JSONB))"),
        ] {
            let mut sql = Sql::new(dialect, "INSERT INTO t VALUES ");
            sql.bind_row([Value::from(1_i64), Value::json(&"x").unwrap()]);
            assert_eq!(sql.text, text);
        }
    }

    #[test]
    fn many_rows_become_a_few_statements_of_known_sizes() {
        let rows: Vec<i64> = (0..203).collect();
        let made =
            in_rows(Dialect::Sqlite, ("", ""), &rows, |row| Ok(vec![(*row).into()])).unwrap();
        let sizes: Vec<usize> = made.iter().map(|sql| sql.values.len()).collect();
        assert_eq!(sizes, [64, 64, 64, 8, 2, 1]);
        assert_eq!(made[2].values[63], Value::Int(Some(191)));
    }

    #[test]
    fn a_nul_is_replaced_wherever_it_hides() {
        let record = serde_json::json!({"a\0": ["b\0", "\\u0000"]});
        let Value::Json(text) = Value::json(&record).unwrap() else { panic!("not JSON") };
        let back: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(back, serde_json::json!({"a\u{fffd}": ["b\u{fffd}", "\\u0000"]}));
        assert_eq!(Value::from("x\0y"), Value::Text(Some("x\u{fffd}y".into())));
    }

    #[test]
    fn json_is_never_written_deeper_than_it_can_be_read() {
        let deep = |levels| {
            (0..levels).fold(serde_json::json!("x"), |inner, _| serde_json::json!([inner]))
        };
        for levels in [1, MOST_DEEP, MOST_DEEP + 1, 500] {
            let Value::Json(text) = Value::json(&deep(levels)).unwrap() else { panic!("not JSON") };
            let back: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(back == deep(levels), levels <= MOST_DEEP, "{levels}");
        }
    }

    #[test]
    fn a_search_takes_every_letter_as_it_is() {
        assert_eq!(like("50%_A\\"), "%50\\%\\_a\\\\%");
    }
}
