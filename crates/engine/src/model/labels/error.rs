//! Validation errors of labels, and the length limits.

use std::sync::Arc;

/// Limit of a value and of a key without its prefix, in bytes.
const MAX_LENGTH: usize = 63;

/// Limit of a key prefix and of a node name, in bytes.
const MAX_NAME: usize = 253;

/// Characters of an overlong text shown in the error.
const SHOWN: usize = 32;

/// An invalid expression, taint or toleration. Overlong texts are shortened, which keeps every error short
/// enough for logs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("a label key must not be empty")]
    EmptyKey,
    #[error("`{text}…` is longer than {limit} bytes")]
    TooLong {
        /// Beginning of the text.
        text: String,
        limit: usize,
    },
    #[error("`{0}` needs at least one value")]
    NoValues(Arc<str>),
    #[error("`{0}` must not have a value with this operator")]
    UnusedValue(Arc<str>),
    #[error("`{0}` needs exactly one integer with `gt` or `lt`")]
    NotOneInteger(Arc<str>),
    /// `gt` or `lt` in a task selector.
    #[error("`{0}` uses `gt` or `lt`, which only node terms support")]
    OnlyForNodes(Arc<str>),
    #[error("a toleration without a key must use the operator `exists`")]
    KeylessToleration,
}

pub(super) fn check_key(key: &str) -> Result<(), LabelError> {
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    if name.is_empty() {
        return Err(LabelError::EmptyKey);
    }
    check_length(prefix, MAX_NAME)?;
    check_length(name, MAX_LENGTH)
}

pub(super) fn check_value(value: &str) -> Result<(), LabelError> {
    check_length(value, MAX_LENGTH)
}

pub(super) fn check_node_name(name: &str) -> Result<(), LabelError> {
    check_length(name, MAX_NAME)
}

fn check_length(text: &str, limit: usize) -> Result<(), LabelError> {
    if text.len() <= limit {
        return Ok(());
    }
    Err(LabelError::TooLong { text: text.chars().take(SHOWN).collect(), limit })
}
