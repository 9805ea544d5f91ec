//! Formats values as conventional YAML.

use serde_json::Value;

/// Keys in this order come first; all other keys follow alphabetically.
const FIRST: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "spec",
    "name",
    "key",
    "operator",
    "value",
    "effect",
    "schedule",
    "image",
    "command",
    "args",
    "httpGet",
    "tcpSocket",
    "exec",
    "grpc",
    "periodSeconds",
];

/// A value below a key or in a list: ` scalar` on the same line, or a block on the next lines at an indentation.
pub(super) fn after_key(value: &Value, indent: usize, newline: &str) -> String {
    match value {
        Value::Object(map) if !map.is_empty() => {
            newline.to_owned() + &block(value, indent, newline)
        }
        Value::Array(items) if !items.is_empty() => {
            newline.to_owned() + &block(value, indent, newline)
        }
        other => format!(" {}", scalar(other)),
    }
}

/// A collection over several lines, each at an indentation, without a line end after the last.
pub(super) fn block(value: &Value, indent: usize, newline: &str) -> String {
    let margin = " ".repeat(indent);
    let lines: Vec<String> = match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| (rank(key), key.as_str()));
            let line = |(key, value): (&String, &Value)| {
                // Lists stand below their key without further indentation, as `kubectl` writes them.
                let deeper = if value.is_array() { indent } else { indent + 2 };
                format!("{margin}{}:{}", text(key), after_key(value, deeper, newline))
            };
            entries.into_iter().map(line).collect()
        }
        Value::Array(items) if !items.is_empty() => items
            .iter()
            .map(|value| format!("{margin}- {}", item(value, indent, newline)))
            .collect(),
        other => vec![margin + &scalar(other)],
    };
    lines.join(newline)
}

/// Text after the dash of an item, for a dash at an indentation.
pub(super) fn item(value: &Value, indent: usize, newline: &str) -> String {
    block(value, indent + 2, newline).trim_start().to_owned()
}

/// A value on one line.
pub(super) fn scalar(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        other => other.to_string(),
    }
}

/// Scalar, quoted only if necessary.
pub(super) fn text(string: &str) -> String {
    if is_plain(string) { string.to_owned() } else { Value::String(string.to_owned()).to_string() }
}

fn is_plain(string: &str) -> bool {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-:=".contains(&byte);
    let begins = match string.bytes().next() {
        Some(b'-') => string.starts_with("--") && string.len() > 3,
        // A quantity such as 8Gi, but neither date nor time, which some tools parse as such.
        Some(b'0'..=b'9') => !string.contains(['-', ':', '=', '_']),
        Some(byte) => byte.is_ascii_alphabetic() || byte == b'/',
        None => false,
    };
    begins
        && string.bytes().all(usual)
        && !string.ends_with(':')
        && crate::yaml::is_plain_text(string)
}

fn rank(key: &str) -> usize {
    FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len())
}
