//! Operations of a fix on a value. The text is edited accordingly and parsed again: the edit is discarded if the
//! result differs from the operation applied to the value.

use serde_json::{Map, Value, json};

/// One change of a document. Paths are keys, and numbers of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets the value at a path; creates missing parent mappings.
    Set { path: Vec<String>, value: Value },
    /// Takes an entry out of a mapping.
    Remove { path: Vec<String> },
    /// Gives an entry another key.
    Rename { path: Vec<String>, key: String },
    /// Appends an item to a list, which is created if missing. An existing equal item is not added again.
    Append { path: Vec<String>, value: Value },
    /// Splits one item of a list in two, by cutting the inner list at the end of the path.
    Split {
        /// The inner list: `…/terms/0/expressions`.
        path: Vec<String>,
        /// First inner item of the new one.
        at: usize,
    },
    /// Adds a document behind this one.
    Document { value: Value },
}

/// Applies an operation; none if it is impossible.
pub(super) fn apply(value: &mut Value, operation: &Operation) -> Option<()> {
    match operation {
        Operation::Set { path, value: new } => {
            *reach(value, path)? = new.clone();
        }
        Operation::Remove { path } => {
            let (last, parent) = path.split_last()?;
            find(value, parent)?.as_object_mut()?.remove(last)?;
        }
        Operation::Rename { path, key } => {
            let (last, parent) = path.split_last()?;
            let map = find(value, parent)?.as_object_mut()?;
            if map.contains_key(key) {
                return None;
            }
            let moved = map.remove(last)?;
            map.insert(key.clone(), moved);
        }
        Operation::Append { path, value: new } => {
            let list = reach(value, path)?;
            if list.is_null() {
                *list = json!([]);
            }
            let list = list.as_array_mut()?;
            if !list.contains(new) {
                list.push(new.clone());
            }
        }
        Operation::Split { path, at } => {
            let (inner, outer) = path.split_last()?;
            let (number, list) = outer.split_last()?;
            let rest = find(value, path)?.as_array_mut()?;
            if *at == 0 || *at >= rest.len() {
                return None;
            }
            let rest = rest.split_off(*at);
            let list = find(value, list)?.as_array_mut()?;
            list.insert(number.parse::<usize>().ok()? + 1, json!({ inner.as_str(): rest }));
        }
        Operation::Document { .. } => {}
    }
    Some(())
}

/// Existing value at a path.
fn find<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Value at a path; creates missing mappings.
fn reach<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        match value {
            Value::Object(map) => Some(map.entry(step.clone()).or_insert(Value::Null)),
            Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
            _ => None,
        }
    })
}
