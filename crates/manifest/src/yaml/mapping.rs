//! A mapping while it is read: keys once only, and what `<<` merges in behind what is written.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Map, Value};

use super::{Entry, Node, Place, Problem, YamlError};

/// What introduces entries of other mappings.
pub(super) const MERGE: &str = "<<";

/// A node with its value, as long as nobody has taken it in.
pub(super) struct Built {
    pub(super) node: Node,
    pub(super) value: Value,
}

/// A mapping that is still open: what it holds so far, and the key that waits for its value.
#[derive(Default)]
pub(super) struct OpenMapping {
    entries: Vec<Entry>,
    values: Map<String, Value>,
    first: HashMap<String, Place>,
    key: Option<Key>,
    merges: Vec<Built>,
}

/// A key before its value.
pub(super) struct Key {
    pub(super) text: String,
    pub(super) place: Place,
    pub(super) span: Range<usize>,
    /// It is [`MERGE`].
    pub(super) merge: bool,
}

impl OpenMapping {
    /// Whether the next node is a key.
    pub(super) fn wants_key(&self) -> bool {
        self.key.is_none()
    }

    /// Takes the key that the next node belongs to.
    pub(super) fn name(&mut self, key: Key) -> Result<(), YamlError> {
        if let Some(first) = self.first.insert(key.text.clone(), key.place) {
            let problem = Problem::DuplicateKey { key: key.text, first };
            return Err(YamlError::at(key.place, problem));
        }
        self.key = Some(key);
        Ok(())
    }

    /// Takes the value of the key that waits for it.
    pub(super) fn put(&mut self, built: Built) -> Result<(), YamlError> {
        let Some(key) = self.key.take() else { return Ok(()) };
        if key.merge {
            return self.merge(built);
        }
        self.values.insert(key.text.clone(), built.value);
        self.entries.push(Entry {
            key: key.text,
            place: key.place,
            span: key.span,
            value: built.node,
            merged: false,
        });
        Ok(())
    }

    /// Takes note of what `<<` names: one mapping, or a list of them.
    fn merge(&mut self, built: Built) -> Result<(), YamlError> {
        match built.value {
            Value::Object(_) => self.merges.push(built),
            Value::Array(values) if values.iter().all(Value::is_object) => {
                let nodes = built.node.items().to_vec();
                let each = nodes.into_iter().zip(values);
                self.merges.extend(each.map(|(node, value)| Built { node, value }));
            }
            _ => return Err(YamlError::at(built.node.place, Problem::MergeNotMapping)),
        }
        Ok(())
    }

    /// What is written here goes before what is merged in, and what is merged in first before the rest.
    pub(super) fn close(mut self) -> Result<(Vec<Entry>, Map<String, Value>), YamlError> {
        for Built { node, value } in std::mem::take(&mut self.merges) {
            let Value::Object(mut values) = value else {
                return Err(YamlError::at(node.place, Problem::MergeNotMapping));
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
