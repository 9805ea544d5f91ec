//! What a fix does, as changes of a value. The text is edited accordingly, and what the edited text says must be what
//! these changes make of the value: so that an edit that went wrong is never written.

use serde_json::{Map, Value, json};

/// One change of a document. Paths are keys, and numbers of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sets what is at a path, and makes the mappings on the way where they are missing.
    Set {
        /// Where.
        path: Vec<String>,
        /// To what.
        value: Value,
    },
    /// Takes an entry out of a mapping.
    Remove {
        /// Which.
        path: Vec<String>,
    },
    /// Gives an entry another key.
    Rename {
        /// Which.
        path: Vec<String>,
        /// Its new key.
        key: String,
    },
    /// Adds an item at the end of a list, which is made where it is missing. One that is there already is not added
    /// again.
    Append {
        /// The list.
        path: Vec<String>,
        /// What to add.
        value: Value,
    },
    /// Makes one item of a list into two: the list inside of it that ends the path is cut in two.
    Split {
        /// The inner list: `…/terms/0/expressions`.
        path: Vec<String>,
        /// The first of its items that goes into the new one.
        at: usize,
    },
    /// Adds a document behind this one.
    Document {
        /// What it says.
        value: Value,
    },
}

/// What changes make of a value; nothing if one of them cannot be made.
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

/// What is at a path, as it is.
fn find<'v>(value: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get_mut(step),
        Value::Array(items) => items.get_mut(step.parse::<usize>().ok()?),
        _ => None,
    })
}

/// What is at a path, with mappings made on the way.
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
