//! Reads YAML, and JSON as a subset of it, into values that keep their source positions.
//!
//! Every path of a [`Document`] has a [`SourcePosition`] for messages, and every node has its byte range, so that a
//! correction keeps comments and layout.
//!
//! Input is untrusted: [`Limits`] bound its size, its depth and the expansion of its aliases.

mod decode;
mod error;
mod mapping;
mod node;
mod reader;
mod scalar;

pub use decode::DecodeError;
pub(crate) use decode::path_text;
pub use error::{Problem, YamlError};
pub use node::{Content, Entry, Node, Scalar};
pub use scalar::Ambiguity;
pub(crate) use scalar::is_plain_text;

use std::sync::Arc;

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text itself.
    pub bytes: usize,
    /// Nodes (keys, values, items) of all documents, with every alias expanded.
    pub nodes: usize,
    /// Bytes of all values together, with every alias expanded.
    pub expanded_bytes: usize,
    /// Nesting depth of collections.
    pub depth: usize,
}

impl Default for Limits {
    /// Above the needs of any manifest, within the memory of any machine.
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
pub struct SourcePosition {
    /// The line in the whole text, not in its document.
    pub line: usize,
    /// The column in characters.
    pub column: usize,
}

impl std::fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Comment; may contain directives for the linter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Position of the `#`.
    pub position: SourcePosition,
    /// Text after the `#`, trimmed.
    pub text: String,
    /// The line contains nothing but the comment.
    pub alone: bool,
}

/// Scalar that other YAML tools interpret differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmbiguousScalar {
    pub position: SourcePosition,
    pub ambiguity: Ambiguity,
}

/// One document of a text.
#[derive(Clone, Debug)]
pub struct Document {
    pub value: Value,
    /// Syntax tree of the value.
    pub root: Node,
    /// Byte offset of the `---`, or of the first character.
    pub start: usize,
    /// Comments before and inside the document, in order.
    pub comments: Vec<Comment>,
    /// Scalars that other tools interpret differently.
    pub ambiguous: Vec<AmbiguousScalar>,
}

/// One step of a path into a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep<'a> {
    /// A key of a mapping.
    Key(&'a str),
    /// An item of a sequence, counted from 0.
    Item(usize),
}

/// `PathStep` of a path: a key, or an index as text (`"0"`).
pub trait AsPathStep {
    /// Resolves the step against the collection that contains its target.
    fn step<'a>(&'a self, into: &Content) -> Option<PathStep<'a>>;
}

impl<T: AsRef<str>> AsPathStep for T {
    fn step<'a>(&'a self, into: &Content) -> Option<PathStep<'a>> {
        let text = self.as_ref();
        match into {
            Content::Scalar(_) => None,
            Content::Mapping { .. } => Some(PathStep::Key(text)),
            Content::Sequence { .. } => text.parse().ok().map(PathStep::Item),
        }
    }
}

impl Document {
    /// Document without source positions.
    pub fn from_value(value: Value) -> Self {
        let content = Arc::new(Content::Scalar(Scalar::Plain));
        let position = SourcePosition { line: 1, column: 1 };
        let root = Node { position, span: 0..0, content, alias: false };
        Self { value, root, start: 0, comments: Vec::new(), ambiguous: Vec::new() }
    }

    /// Position of the value at a path, or of its key if it has one. Items of lists are named by index: `["spec",
    /// "containers", "0", "image"]`. For a path that does not exist, the position of the deepest existing ancestor: a
    /// message about a missing field points at its parent.
    pub fn position<S: AsPathStep>(&self, path: &[S]) -> SourcePosition {
        let mut position = self.root.position;
        let mut node = &self.root;
        for step in path {
            let Some((at, next)) = node.child(step) else { break };
            position = at;
            node = next;
        }
        position
    }

    pub fn node<S: AsPathStep>(&self, path: &[S]) -> Option<&Node> {
        path.iter().try_fold(&self.root, |node, step| node.child(step).map(|(_, next)| next))
    }

    pub fn at<S: AsRef<str>>(&self, path: &[S]) -> Option<&Value> {
        at(&self.value, path)
    }

    /// Chart template that Helm rendered the document from, according to its `# Source:` comment.
    pub fn helm_source(&self) -> Option<&str> {
        self.comments.iter().find_map(|comment| comment.text.strip_prefix("Source:")).map(str::trim)
    }
}

/// Reads all documents. Documents without content are skipped; a text without any content is an error.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Vec<Document>, YamlError> {
    read_text(text(bytes, limits)?, limits)
}

/// Same as [`read`] for valid UTF-8.
pub fn read_text(text: &str, limits: &Limits) -> Result<Vec<Document>, YamlError> {
    error::refuse_binary(text)?;
    refuse_long(text.len(), limits)?;
    let documents = reader::documents(text, limits)?;
    if documents.is_empty() {
        let problem = if text.trim().is_empty() { Problem::Empty } else { Problem::OnlyComments };
        return Err(YamlError { position: None, problem });
    }
    Ok(documents)
}

/// Reads a text that must contain exactly one document.
pub fn read_one(bytes: &[u8], limits: &Limits) -> Result<Document, YamlError> {
    let mut documents = read(bytes, limits)?;
    if documents.len() > 1 {
        let position = Some(documents[1].root.position);
        return Err(YamlError { position, problem: Problem::Several { count: documents.len() } });
    }
    documents.pop().ok_or(YamlError { position: None, problem: Problem::Empty })
}

/// Bytes as text within the limits.
pub fn text<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, YamlError> {
    refuse_long(bytes.len(), limits)?;
    std::str::from_utf8(bytes).map_err(|error| error::not_utf8(bytes, error.valid_up_to()))
}

/// Value at a path of keys and item indexes.
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
    Err(YamlError { position: None, problem: Problem::TooLong { size, limit: limits.bytes } })
}

#[cfg(test)]
mod tests;
