//! Syntax tree of a document: position and style of each node.

use std::ops::Range;
use std::sync::Arc;

use super::{AsPathStep, PathStep, SourcePosition};

/// Node of the syntax tree.
#[derive(Clone, Debug)]
pub struct Node {
    pub position: SourcePosition,
    /// Byte range. For a block collection only the start is exact; use [`Node::end`] for the end.
    pub span: Range<usize>,
    /// Shared between an anchor and its aliases.
    pub content: Arc<Content>,
    /// The node is an alias (`*name`): its content is written elsewhere.
    pub alias: bool,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// String, number, boolean or null.
    Scalar(Scalar),
    Sequence {
        items: Vec<Node>,
        /// Written `[…]`.
        flow: bool,
    },
    Mapping {
        /// Own entries, then entries merged by `<<`.
        entries: Vec<Entry>,
        /// Written `{…}`.
        flow: bool,
    },
}

/// Notation of a scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Unquoted.
    Plain,
    /// `'…'`
    Single,
    /// `"…"`
    Double,
    /// `|` or `>`, over several lines.
    Block,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    /// Position of the key.
    pub position: SourcePosition,
    /// Byte range of the key.
    pub span: Range<usize>,
    pub value: Node,
    /// Merged by `<<`: written in another mapping.
    pub merged: bool,
}

impl Node {
    /// Child node with its position and byte range; the position and range of the key if it has one.
    pub fn child<S: AsPathStep + ?Sized>(&self, step: &S) -> Option<(SourcePosition, &Self)> {
        match (step.step(&self.content)?, &*self.content) {
            (PathStep::Key(key), Content::Mapping { entries, .. }) => {
                let entry = entries.iter().find(|entry| entry.key == key)?;
                Some((entry.position, &entry.value))
            }
            (PathStep::Item(number), Content::Sequence { items, .. }) => {
                items.get(number).map(|item| (item.position, item))
            }
            _ => None,
        }
    }

    /// The entry of a mapping.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Empty if it is not a mapping.
    pub fn entries(&self) -> &[Entry] {
        if let Content::Mapping { entries, .. } = &*self.content { entries } else { &[] }
    }

    /// All items; empty if the node is not a sequence.
    pub fn items(&self) -> &[Self] {
        if let Content::Sequence { items, .. } = &*self.content { items } else { &[] }
    }

    /// Written in flow style, with brackets or braces.
    pub fn is_flow(&self) -> bool {
        matches!(
            &*self.content,
            Content::Sequence { flow: true, .. } | Content::Mapping { flow: true, .. }
        )
    }

    /// Offset after the last byte; for a block collection, after its last descendant.
    pub fn end(&self) -> usize {
        let mut node = self;
        let mut least = node.span.start;
        loop {
            if node.alias || node.is_flow() {
                return node.span.end.max(least);
            }
            let deeper = match &*node.content {
                Content::Scalar(_) => return node.span.end.max(least),
                Content::Sequence { items, .. } => items.last().map(|item| (item.span.start, item)),
                Content::Mapping { entries, .. } => {
                    let own = entries.iter().filter(|entry| !entry.merged);
                    own.max_by_key(|entry| entry.span.start)
                        .map(|entry| (entry.span.end, &entry.value))
                }
            };
            let Some((after, next)) = deeper else { return node.span.end.max(least) };
            least = least.max(after);
            node = next;
        }
    }
}
