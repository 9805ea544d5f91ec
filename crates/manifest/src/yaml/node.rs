//! The tree of a document as it is written: where each part stands and in which style.

use std::ops::Range;
use std::sync::Arc;

use super::{AsStep, Place, Step};

/// A value as it is written.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it begins.
    pub place: Place,
    /// Its bytes in the text. Of a block collection only the begin is exact; [`Node::end`] tells where it ends.
    pub span: Range<usize>,
    /// What it is. Shared between an anchor and its aliases, which are written once.
    pub content: Arc<Content>,
    /// Whether an alias (`*name`) stands here, so that the content is written elsewhere.
    pub alias: bool,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Content {
    /// Text, a number, a truth or nothing.
    Scalar(Scalar),
    /// A list.
    Sequence {
        /// Its items.
        items: Vec<Node>,
        /// Whether it is written `[…]`.
        flow: bool,
    },
    /// Keys and values.
    Mapping {
        /// Its own entries, then those that `<<` brings in.
        entries: Vec<Entry>,
        /// Whether it is written `{…}`.
        flow: bool,
    },
}

/// How a scalar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Without quotes.
    Plain,
    /// `'…'`
    Single,
    /// `"…"`
    Double,
    /// `|` or `>`, over several lines.
    Block,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key as text.
    pub key: String,
    /// Where the key begins.
    pub place: Place,
    /// The key's bytes.
    pub span: Range<usize>,
    /// Its value.
    pub value: Node,
    /// Whether `<<` brought it in: it is written in another mapping.
    pub merged: bool,
}

impl Node {
    /// What a step leads to, and where that is written: a key if it has one.
    pub fn child<S: AsStep + ?Sized>(&self, step: &S) -> Option<(Place, &Self)> {
        match (step.step(&self.content)?, &*self.content) {
            (Step::Key(key), Content::Mapping { entries, .. }) => {
                let entry = entries.iter().find(|entry| entry.key == key)?;
                Some((entry.place, &entry.value))
            }
            (Step::Item(number), Content::Sequence { items, .. }) => {
                items.get(number).map(|item| (item.place, item))
            }
            _ => None,
        }
    }

    /// The entry of a mapping.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// All entries; none if it is no mapping.
    pub fn entries(&self) -> &[Entry] {
        if let Content::Mapping { entries, .. } = &*self.content { entries } else { &[] }
    }

    /// All items; none if it is no sequence.
    pub fn items(&self) -> &[Self] {
        if let Content::Sequence { items, .. } = &*self.content { items } else { &[] }
    }

    /// Whether it is written with brackets.
    pub fn is_flow(&self) -> bool {
        matches!(
            &*self.content,
            Content::Sequence { flow: true, .. } | Content::Mapping { flow: true, .. }
        )
    }

    /// Where its last byte ends: for a block collection, where the last thing in it ends.
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
