//! Decodes documents into types. Errors carry the line and a suggestion.

use std::fmt::Write as _;

use agentaflow_units::{did_you_mean, nearest};
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use super::{Document, SourcePosition};

/// Document that does not decode into the requested type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {}", self.message())]
pub struct DecodeError {
    pub position: SourcePosition,
    /// The path of the field, `spec.containers[0].image`; empty for the document itself.
    pub path: String,
    /// Problem with a suggestion.
    pub problem: String,
}

impl DecodeError {
    /// Problem with the path of its field, without the position.
    pub fn message(&self) -> String {
        let Self { path, problem, .. } = self;
        if path.is_empty() { problem.clone() } else { format!("{path}: {problem}") }
    }
}

impl Document {
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        serde_path_to_error::deserialize(&self.value).map_err(|error| {
            let steps: Vec<_> = error.path().iter().filter_map(step).collect();
            self.error_at(steps, &error.inner().to_string())
        })
    }

    /// Turns serde's message about the field at a path into an error with its line. For callers that decode a part
    /// themselves.
    pub fn error_at(&self, mut steps: Vec<String>, text: &str) -> DecodeError {
        let text = text.split(" at line ").next().unwrap_or(text);
        let problem = match quoted_after(text, "unknown field `") {
            Some((field, expected)) => {
                if steps.last() != Some(&field) {
                    steps.push(field.clone());
                }
                format!("unknown field `{field}`{}", advice(&field, &expected))
            }
            None => match quoted_after(text, "unknown variant `") {
                Some((variant, expected)) => {
                    format!("unknown value `{variant}`{}", advice(&variant, &expected))
                }
                None => readable_type(text),
            },
        };
        DecodeError { position: self.position(&steps), path: path_text(&steps), problem }
    }
}

/// Replaces Rust's type names in a message of serde.
fn readable_type(message: &str) -> String {
    let Some((message, kind)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let kind = match kind {
        "u8" | "u16" | "u32" | "u64" => "a whole number such as 2",
        "f64" => "a number such as 0.5",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list such as [a, b]",
        other => other,
    };
    format!("{message}expected {kind}")
}

/// Path as text: `spec.containers[0].image`. Keys with dots are quoted in brackets.
pub(crate) fn path_text<S: AsRef<str>>(steps: &[S]) -> String {
    let mut text = String::new();
    for step in steps {
        let step = step.as_ref();
        if !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit()) {
            let _ = write!(text, "[{step}]");
        } else if step.contains(['.', '/']) {
            let _ = write!(text, "[\"{step}\"]");
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(step);
        }
    }
    text
}

fn step(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// Name after an opening text, and the names in back quotes after that.
fn quoted_after(message: &str, opening: &str) -> Option<(String, Vec<String>)> {
    let (name, rest) = message.strip_prefix(opening)?.split_once('`')?;
    let expected = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    Some((name.to_owned(), expected))
}

fn advice(name: &str, expected: &[String]) -> String {
    let near = nearest(name, expected.iter().map(String::as_str));
    if near.is_some() || expected.is_empty() {
        return did_you_mean(near);
    }
    let names: Vec<_> = expected.iter().map(|name| format!("`{name}`")).collect();
    format!("; use one of {}", names.join(", "))
}
