//! Formats objects as readable YAML, or JSON.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value, json};

use super::BuildError;

/// Keys in this order come first; all other keys follow alphabetically.
const FIRST: [&str; 15] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "namespace",
    "type",
    "key",
    "operator",
    "value",
    "effect",
    "image",
    "command",
    "args",
    "schedule",
    "timeZone",
];

pub fn yaml(objects: &[Value]) -> Result<String, BuildError> {
    let ordered: Vec<_> = objects.iter().map(Ordered).collect();
    serde_saphyr::to_string_multiple(&ordered).map_err(|error| BuildError::Yaml(error.to_string()))
}

/// One object as JSON, several as a `List`.
pub fn json(objects: &[Value]) -> Result<String, BuildError> {
    let text = match objects {
        [one] => serde_json::to_string_pretty(&Ordered(one)),
        many => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": many});
            serde_json::to_string_pretty(&Ordered(&list))
        }
    };
    Ok(text? + "\n")
}

/// Value with its keys in reading order.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => {
                let rank =
                    |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
                let mut entries: Vec<_> =
                    object.iter().filter(|(_, value)| !value.is_null()).collect();
                entries.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)).then(a.cmp(b)));
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (key, value) in entries {
                    map.serialize_entry(key, &Self(value))?;
                }
                map.end()
            }
            Value::Array(list) => {
                let mut all = serializer.serialize_seq(Some(list.len()))?;
                for value in list {
                    all.serialize_element(&Self(value))?;
                }
                all.end()
            }
            other => other.serialize(serializer),
        }
    }
}
