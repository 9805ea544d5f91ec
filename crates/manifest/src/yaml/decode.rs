//! From a document to a type, with errors that name the line and what was probably meant.

use std::fmt::Write as _;

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use super::{Document, Place};

/// Why a document is not what was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {}{problem}", self.at())]
pub struct DecodeError {
    /// Where.
    pub place: Place,
    /// The path of the field, `spec.containers[0].image`; empty for the document itself.
    pub path: String,
    /// What is wrong, and what was probably meant.
    pub problem: String,
}

impl DecodeError {
    fn at(&self) -> String {
        if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) }
    }
}

impl Document {
    /// The document as a `T`, or where and why it is none.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        serde_path_to_error::deserialize(&self.value).map_err(|error| {
            let steps: Vec<_> = error.path().iter().filter_map(step).collect();
            self.error_at(steps, &error.inner().to_string())
        })
    }

    /// What serde said about the field at a path, with its line. For callers that decode a part by themselves.
    pub fn error_at(&self, mut steps: Vec<String>, said: &str) -> DecodeError {
        let said = said.split(" at line ").next().unwrap_or(said);
        let problem = match quoted_after(said, "unknown field `") {
            Some((field, expected)) => {
                if steps.last() != Some(&field) {
                    steps.push(field.clone());
                }
                format!("unknown field `{field}`{}", advice(&field, &expected))
            }
            None => match quoted_after(said, "unknown variant `") {
                Some((variant, expected)) => {
                    format!("`{variant}` is not known here{}", advice(&variant, &expected))
                }
                None => for_people(said),
            },
        };
        DecodeError { place: self.place(&steps), path: path_text(&steps), problem }
    }
}

/// What a number is called by those who do not program.
fn for_people(said: &str) -> String {
    let Some((said, kind)) = said.rsplit_once("expected ") else { return said.to_owned() };
    let kind = match kind {
        "u8" | "u16" | "u32" | "u64" => "a whole number such as 2",
        "f64" => "a number such as 0.5",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list such as [a, b]",
        other => other,
    };
    format!("{said}expected {kind}")
}

/// A path as people write it: `spec.containers[0].image`. Keys with dots in them stand in brackets and quotes.
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

/// The nearest of some names, if any is near enough to be a slip of the hand.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_within(name, known, 1 + name.chars().count() / 4)
}

/// The same, where at most so many letters may be wrong.
pub fn nearest_within<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let scored = known.into_iter().map(|other| (distance(&lower, &other.to_lowercase()), other));
    let (score, best) = scored.min_by_key(|(score, _)| *score)?;
    (score <= most && score < name.chars().count()).then_some(best)
}

fn step(segment: &Segment) -> Option<String> {
    match segment {
        Segment::Seq { index } => Some(index.to_string()),
        Segment::Map { key } => Some(key.clone()),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// The name after an opening text, and the names in back quotes that follow.
fn quoted_after(said: &str, opening: &str) -> Option<(String, Vec<String>)> {
    let (name, rest) = said.strip_prefix(opening)?.split_once('`')?;
    let expected = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    Some((name.to_owned(), expected))
}

fn advice(name: &str, expected: &[String]) -> String {
    if let Some(near) = nearest(name, expected.iter().map(String::as_str)) {
        return format!(" (did you mean `{near}`?)");
    }
    if expected.is_empty() {
        return String::new();
    }
    let names: Vec<_> = expected.iter().map(|name| format!("`{name}`")).collect();
    format!("; known are {}", names.join(", "))
}

/// How many letters must be added, dropped, changed or swapped to get from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    // Names are short; whatever is long is not a slip.
    if one.len().max(other.len()) > 128 {
        return usize::MAX;
    }
    let width = other.len() + 1;
    let mut rows = vec![0; (one.len() + 1) * width];
    for i in 0..=one.len() {
        for j in 0..width {
            rows[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = one[i - 1] == other[j - 1];
                let mut least = rows[(i - 1) * width + j - 1] + usize::from(!same);
                least = least.min(rows[(i - 1) * width + j] + 1);
                least = least.min(rows[i * width + j - 1] + 1);
                if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                    least = least.min(rows[(i - 2) * width + j - 2] + 1);
                }
                least
            };
        }
    }
    rows[one.len() * width + other.len()]
}
