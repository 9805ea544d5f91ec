//! Validation of request values. Pure functions: they take a value and return nothing or an error with field and
//! message. The core relies on these checks.

mod account;
mod job;
mod node;
mod queue;
mod report;
mod status;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::limits;
use crate::api_error::ApiError;

pub use account::{
    check_key, check_register, check_user, check_user_update, password as check_password,
};
pub use job::{check_job, idempotency_key};
pub use node::{check_agent, check_agent_update, check_heartbeat, check_node, check_node_update};
pub use queue::check_queue;
pub use report::sanitize_report;
pub use status::{check_status_update, take_output};

type Checked = Result<(), ApiError>;

/// Validates one line of text: no control characters, at most `most` bytes.
pub(crate) fn plain(field: &str, text: &str, most: usize) -> Checked {
    sized(field, text, most)?;
    if text.chars().any(char::is_control) {
        return refuse(field, "must not contain control characters or line breaks");
    }
    Ok(())
}

/// Like [`plain`], for an optional value.
fn plain_option(field: &str, text: Option<&String>, most: usize) -> Checked {
    text.map_or(Ok(()), |text| plain(field, text, most))
}

/// Validates text of several lines: no NUL, which no program can receive as an argument.
fn lines(field: &str, text: &str, most: usize) -> Checked {
    sized(field, text, most)?;
    if text.contains('\0') {
        return refuse(field, "must not contain the character NUL");
    }
    Ok(())
}

fn sized(field: &str, text: &str, most: usize) -> Checked {
    if text.len() > most {
        return refuse(field, format!("is longer than {most} bytes"));
    }
    Ok(())
}

/// Validates a name for paths and lists: letters, digits and `-_.`, beginning with a letter or digit.
fn name(field: &str, text: &str, most: usize) -> Checked {
    plain(field, text, most)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins && text.chars().all(fits) {
        return Ok(());
    }
    if text.is_empty() {
        return refuse(field, "is missing");
    }
    refuse(
        field,
        "must begin with a letter or digit and contain only letters, digits, `-`, `_` and `.`",
    )
}

fn at_most<T: PartialOrd + std::fmt::Display + Copy>(
    field: &str,
    value: Option<T>,
    most: T,
) -> Checked {
    match value {
        Some(value) if value > most => {
            refuse(field, format!("is {value}; at most {most} is allowed"))
        }
        _ => Ok(()),
    }
}

fn few(field: &str, count: usize, most: usize) -> Checked {
    if count > most {
        return refuse(field, format!("has {count} entries; at most {most} are allowed"));
    }
    Ok(())
}

/// Rejects the value of a field; `problem` is a predicate such as `must be 1 or more`.
fn refuse(field: &str, problem: impl Into<String>) -> Checked {
    Err(ApiError::violation(field, problem))
}

/// Rejects the values of two fields that contradict each other; `problem` precedes the second field.
fn refuse_both(field: &str, problem: &str, other: &str) -> Checked {
    Err(ApiError::contradiction(field, problem, other))
}

/// Validates free-form JSON: no NUL, which PostgreSQL cannot store.
fn anything(field: &str, value: &Value) -> Checked {
    match value {
        Value::String(text) => lines(field, text, limits::BODY),
        Value::Array(items) => items.iter().try_for_each(|item| anything(field, item)),
        Value::Object(map) => object(field, map),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

fn object(field: &str, map: &Map<String, Value>) -> Checked {
    map.iter().try_for_each(|(key, value)| {
        lines(field, key, limits::BODY)?;
        anything(field, value)
    })
}
