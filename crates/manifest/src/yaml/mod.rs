//! YAML (and JSON, which is YAML) into values that remember where they were written.
//!
//! A message about a manifest is only useful with its line, so every path of a [`Document`] has a [`Place`], and every
//! node the bytes it was written in, so that a mistake can be mended without disturbing comments and layout.
//!
//! Input is hostile: its size, its depth and what its aliases grow to are all bounded by [`Limits`].

mod decode;
mod error;
mod mapping;
mod node;
mod reader;
mod scalar;

pub(crate) use decode::path_text;
pub use decode::{DecodeError, nearest, nearest_within};
pub use error::{Problem, YamlError};
pub use node::{Content, Entry, Node, Scalar};
pub use scalar::Oddity;
pub(crate) use scalar::is_plain_text;

use std::sync::Arc;

use serde_json::Value;

/// How much a text may hold before it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text itself.
    pub bytes: usize,
    /// Nodes (keys, values, items) in all documents together, with every alias written out.
    pub nodes: usize,
    /// Bytes of all values together, with every alias written out.
    pub expanded_bytes: usize,
    /// Collections inside of collections.
    pub depth: usize,
}

impl Default for Limits {
    /// More than any manifest needs, and little enough for any machine.
    fn default() -> Self {
        Self {
            bytes: 16 * 1024 * 1024,
            nodes: 2_000_000,
            expanded_bytes: 64 * 1024 * 1024,
            depth: 100,
        }
    }
}

/// A line and a column, both counted from 1, as editors show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line in the whole text, not in its document.
    pub line: usize,
    /// The column in characters.
    pub column: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A comment, which is no data but may be meant for a checker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Where its `#` stands.
    pub place: Place,
    /// What follows the `#`, trimmed.
    pub text: String,
    /// Whether nothing else stands on its line.
    pub alone: bool,
}

/// Something that is read in one way here and in another by other tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Where it stands.
    pub place: Place,
    /// What is odd about it.
    pub oddity: Oddity,
}

/// One document of a text.
#[derive(Clone, Debug)]
pub struct Document {
    /// What it says.
    pub value: Value,
    /// How and where it says it.
    pub root: Node,
    /// Where its text begins: at its `---`, or at its first letter.
    pub start: usize,
    /// The comments before and in it, in order.
    pub comments: Vec<Comment>,
    /// What other tools may read differently.
    pub notes: Vec<Note>,
}

/// One step of a path into a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A key of a mapping.
    Key(&'a str),
    /// An item of a sequence, counted from 0.
    Item(usize),
}

/// What can be a step of a path: a key, or the number of an item written as text (`"0"`).
pub trait AsStep {
    /// The step, given the collection that it leads into.
    fn step<'a>(&'a self, into: &Content) -> Option<Step<'a>>;
}

impl<T: AsRef<str>> AsStep for T {
    fn step<'a>(&'a self, into: &Content) -> Option<Step<'a>> {
        let text = self.as_ref();
        match into {
            Content::Scalar(_) => None,
            Content::Mapping { .. } => Some(Step::Key(text)),
            Content::Sequence { .. } => text.parse().ok().map(Step::Item),
        }
    }
}

impl Document {
    /// A document that was not read from text and has no places.
    pub fn from_value(value: Value) -> Self {
        let content = Arc::new(Content::Scalar(Scalar::Plain));
        let place = Place { line: 1, column: 1 };
        let root = Node { place, span: 0..0, content, alias: false };
        Self { value, root, start: 0, comments: Vec::new(), notes: Vec::new() }
    }

    /// Where the thing at a path is written: its key if it has one, else the value itself. Items of lists are named by
    /// their number: `["spec", "containers", "0", "image"]`. Where the path ends early, the place of the last thing
    /// that is there, so that a message about something missing points at what lacks it.
    pub fn place<S: AsStep>(&self, path: &[S]) -> Place {
        let mut place = self.root.place;
        let mut node = &self.root;
        for step in path {
            let Some((at, next)) = node.child(step) else { break };
            place = at;
            node = next;
        }
        place
    }

    /// The node at a path, if there is one.
    pub fn node<S: AsStep>(&self, path: &[S]) -> Option<&Node> {
        path.iter().try_fold(&self.root, |node, step| node.child(step).map(|(_, next)| next))
    }

    /// The value at a path, if there is one.
    pub fn at<S: AsRef<str>>(&self, path: &[S]) -> Option<&Value> {
        at(&self.value, path)
    }

    /// The chart template that Helm rendered this document from, as its `# Source:` comment says.
    pub fn helm_source(&self) -> Option<&str> {
        self.comments.iter().find_map(|comment| comment.text.strip_prefix("Source:")).map(str::trim)
    }
}

/// Reads every document of a text that came as bytes. Documents without content are left out; a text without any
/// document that has content is an error.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Vec<Document>, YamlError> {
    read_text(text(bytes, limits)?, limits)
}

/// The same for what is known to be text.
pub fn read_text(text: &str, limits: &Limits) -> Result<Vec<Document>, YamlError> {
    error::refuse_binary(text)?;
    refuse_long(text.len(), limits)?;
    let documents = reader::documents(text, limits)?;
    if documents.is_empty() {
        let problem = if text.trim().is_empty() { Problem::Empty } else { Problem::OnlyComments };
        return Err(YamlError { place: None, problem });
    }
    Ok(documents)
}

/// Reads a text that must hold exactly one document.
pub fn read_one(bytes: &[u8], limits: &Limits) -> Result<Document, YamlError> {
    let mut documents = read(bytes, limits)?;
    if documents.len() > 1 {
        let place = Some(documents[1].root.place);
        return Err(YamlError { place, problem: Problem::Several { count: documents.len() } });
    }
    documents.pop().ok_or(YamlError { place: None, problem: Problem::Empty })
}

/// Bytes as text, or why they are none.
pub fn text<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, YamlError> {
    refuse_long(bytes.len(), limits)?;
    std::str::from_utf8(bytes).map_err(|error| error::not_utf8(bytes, error.valid_up_to()))
}

/// The value at a path of keys and numbers of items.
pub fn at<'a, S: AsRef<str>>(value: &'a Value, path: &[S]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get(step.as_ref()),
        Value::Array(items) => items.get(step.as_ref().parse::<usize>().ok()?),
        _ => None,
    })
}

fn refuse_long(size: usize, limits: &Limits) -> Result<(), YamlError> {
    if size <= limits.bytes {
        return Ok(());
    }
    Err(YamlError { place: None, problem: Problem::TooLong { size, limit: limits.bytes } })
}

#[cfg(test)]
mod tests;
