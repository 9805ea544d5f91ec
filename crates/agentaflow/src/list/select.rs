//! What is chosen of a list, and in which order.

use anyhow::Result;
use serde_json::Value;

use super::Kind;
use crate::failure::usage;
use crate::output::Column;

/// Conditions on labels and fields, all of which must hold.
pub(super) struct Selector(Vec<(String, Wanted)>);

enum Wanted {
    There,
    Absent,
    Is(String),
    IsNot(String),
}

impl Selector {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let condition = |part: &str| {
            let part = part.trim();
            let (key, wanted) = if let Some((key, value)) = part.split_once("!=") {
                (key, Wanted::IsNot(value.trim().to_owned()))
            } else if let Some((key, value)) =
                part.split_once("==").or_else(|| part.split_once('='))
            {
                (key, Wanted::Is(value.trim().to_owned()))
            } else if let Some(key) = part.strip_prefix('!') {
                (key, Wanted::Absent)
            } else {
                (part, Wanted::There)
            };
            let key = key.trim();
            if key.is_empty() {
                return Err(usage(format!(
                    "`{text}` is no selector: write key=value, key!=value or key, with commas between them"
                )));
            }
            Ok((key.to_owned(), wanted))
        };
        text.split(',').map(condition).collect::<Result<_>>().map(Self)
    }

    pub(super) fn matches(&self, value: &Value) -> bool {
        self.0.iter().all(|(key, wanted)| {
            let found = field(value, key);
            match wanted {
                Wanted::There => found.is_some(),
                Wanted::Absent => found.is_none(),
                Wanted::Is(text) => found.as_deref() == Some(text),
                Wanted::IsNot(text) => found.as_deref() != Some(text),
            }
        })
    }
}

/// A label or a field as text; what is null or empty is not there.
fn field(value: &Value, key: &str) -> Option<String> {
    let label = value.get("labels").and_then(|labels| labels.get(key));
    match label.or_else(|| value.get(key))? {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        other => Some(other.to_string()),
    }
}

pub(super) fn sort<T>(kind: &Kind<T>, rows: &mut [(Value, T)], field: &str) -> Result<()> {
    let (backwards, name) = match field.strip_prefix('-') {
        Some(name) => (true, name),
        None => (false, field),
    };
    let column = sorted(kind, name);
    let known = rows.iter().any(|(value, _)| value.get(name).is_some());
    match column {
        _ if known => rows.sort_by(|(a, _), (b, _)| in_order(&a[name], &b[name])),
        Some(column) => rows.sort_by_cached_key(|(_, row)| Natural((column.cell)(row))),
        None if rows.is_empty() => {}
        None => {
            let titles: Vec<_> = kind.columns.iter().map(|column| slug(column.title)).collect();
            return Err(usage(format!(
                "there is nothing called `{name}` to sort by; there is {}, and every field of `-o json`",
                titles.join(", ")
            )));
        }
    }
    if backwards {
        rows.reverse();
    }
    Ok(())
}

/// The column that is sorted by, if it is one.
pub(super) fn sorted<T>(kind: &Kind<T>, field: &str) -> Option<&'static Column<T>> {
    let name = slug(field.strip_prefix('-').unwrap_or(field));
    kind.columns.iter().find(|column| slug(column.title) == name)
}

fn slug(title: &str) -> String {
    title.to_lowercase().replace([' ', '_'], "-")
}

fn in_order(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => Natural(text_of(a)).cmp(&Natural(text_of(b))),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Text in which numbers count as numbers: `gpu-2` comes before `gpu-10`.
#[derive(PartialEq, Eq)]
struct Natural(String);

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let key = |text: &str| -> Vec<(u8, u128, String)> {
            let mut parts: Vec<(u8, u128, String)> = Vec::new();
            for letter in text.chars() {
                match (letter.to_digit(10), parts.last_mut()) {
                    (Some(digit), Some((0, number, _))) => {
                        *number = number.saturating_mul(10).saturating_add(digit.into());
                    }
                    (Some(digit), _) => parts.push((0, digit.into(), String::new())),
                    (None, Some((1, _, word))) => word.push(letter),
                    (None, _) => parts.push((1, 0, letter.to_string())),
                }
            }
            parts
        };
        key(&self.0).cmp(&key(&other.0))
    }
}
