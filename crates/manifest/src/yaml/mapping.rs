//! A mapping under construction: keys are unique, and entries merged by `<<` follow the mapping's own.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Map, Value};

use super::{Entry, Node, Problem, SourcePosition, YamlError};

/// Key that merges entries of other mappings.
pub(super) const MERGE: &str = "<<";

/// Finished node that has no parent yet.
pub(super) struct FinishedNode {
    pub(super) node: Node,
    pub(super) value: Value,
}

/// Open mapping: its entries so far, and the key without a value.
#[derive(Default)]
pub(super) struct OpenMapping {
    entries: Vec<Entry>,
    values: Map<String, Value>,
    first: HashMap<String, SourcePosition>,
    key: Option<Key>,
    merges: Vec<FinishedNode>,
}

/// A key before its value.
pub(super) struct Key {
    pub(super) text: String,
    pub(super) position: SourcePosition,
    pub(super) span: Range<usize>,
    /// The key is [`MERGE`].
    pub(super) merge: bool,
}

impl OpenMapping {
    /// True if the next node is a key.
    pub(super) fn wants_key(&self) -> bool {
        self.key.is_none()
    }

    /// Sets the key of the next node.
    pub(super) fn name(&mut self, key: Key) -> Result<(), YamlError> {
        if let Some(first) = self.first.insert(key.text.clone(), key.position) {
            let problem = Problem::DuplicateKey { key: key.text, first };
            return Err(YamlError::at(key.position, problem));
        }
        self.key = Some(key);
        Ok(())
    }

    /// Adds the value of the pending key.
    pub(super) fn put(&mut self, built: FinishedNode) -> Result<(), YamlError> {
        let Some(key) = self.key.take() else { return Ok(()) };
        if key.merge {
            return self.merge(built);
        }
        self.values.insert(key.text.clone(), built.value);
        self.entries.push(Entry {
            key: key.text,
            position: key.position,
            span: key.span,
            value: built.node,
            merged: false,
        });
        Ok(())
    }

    /// Records the mappings that `<<` names: one mapping, or a list of them.
    fn merge(&mut self, built: FinishedNode) -> Result<(), YamlError> {
        match built.value {
            Value::Object(_) => self.merges.push(built),
            Value::Array(values) if values.iter().all(Value::is_object) => {
                let nodes = built.node.items().to_vec();
                let each = nodes.into_iter().zip(values);
                self.merges.extend(each.map(|(node, value)| FinishedNode { node, value }));
            }
            _ => return Err(YamlError::at(built.node.position, Problem::MergeNotMapping)),
        }
        Ok(())
    }

    /// The mapping's own entries override merged ones; earlier merges override later ones.
    pub(super) fn close(mut self) -> Result<(Vec<Entry>, Map<String, Value>), YamlError> {
        for FinishedNode { node, value } in std::mem::take(&mut self.merges) {
            let Value::Object(mut values) = value else {
                return Err(YamlError::at(node.position, Problem::MergeNotMapping));
            };
            for entry in node.entries() {
                let Some(value) = values.remove(&entry.key) else { continue };
                if !self.values.contains_key(&entry.key) {
                    self.values.insert(entry.key.clone(), value);
                    self.entries.push(Entry { merged: true, ..entry.clone() });
                }
            }
        }
        Ok((self.entries, self.values))
    }
}
