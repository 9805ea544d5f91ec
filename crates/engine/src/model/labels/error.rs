//! What is refused of labels, and the limits behind it.

use std::sync::Arc;

/// The longest value, and the longest key without its prefix.
const MAX_LENGTH: usize = 63;

/// The longest prefix of a key, and the longest name of a node.
const MAX_NAME: usize = 253;

/// How much of a text that is too long is repeated.
const SHOWN: usize = 32;

/// Why an expression, taint or toleration is refused. Texts that are too long are shortened, so
/// that a refusal can be shown and logged whatever was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// There is no key, or nothing after its prefix.
    #[error("the key of a label is empty")]
    EmptyKey,
    /// A key, value or name is too long.
    #[error("`{text}…` is longer than {limit} bytes")]
    TooLong {
        /// How it begins.
        text: String,
        /// The longest accepted.
        limit: usize,
    },
    /// `in` or `not_in` without values.
    #[error("`{0}` is compared with no values")]
    NoValues(Arc<str>),
    /// A value where only the presence of a label or taint counts.
    #[error("`{0}` has a value that is not used")]
    UnusedValue(Arc<str>),
    /// `gt` or `lt` with anything but one integer.
    #[error("`{0}` is compared with something other than one integer")]
    NotOneInteger(Arc<str>),
    /// `gt` or `lt` in a selector of tasks.
    #[error("`{0}` is compared as a number, which is for nodes only")]
    OnlyForNodes(Arc<str>),
    /// A toleration without a key that is not for every taint.
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
