//! What is chosen of a list, and in which order.

use anyhow::Result;
use serde_json::Value;

use super::Kind;
use crate::failure::usage;
use crate::nearest::nearest;
use crate::output::Column;

/// Conditions on labels and fields, all of which must hold.
pub(super) struct Selector(Vec<(String, Wanted)>);

enum Wanted {
    There,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let condition = |part: &str| {
            let (key, wanted) = wanted(part.trim());
            let key = key.trim();
            // What is left of a condition that was not understood would be taken for a name.
            if key.is_empty() || key.contains([' ', '(', ')', '!', '=']) {
                return Err(usage(format!(
                    "`{text}` is no selector: write key=value, key!=value, key in (a,b), key or !key, with commas between them"
                )));
            }
            Ok((key.to_owned(), wanted))
        };
        parts(text).into_iter().map(condition).collect::<Result<_>>().map(Self)
    }

    /// Refuses a key that nothing has: a slip would choose nothing, or everything, without a word.
    pub(super) fn must_be_known<T>(&self, kind: &Kind<T>, rows: &[(Value, T)]) -> Result<()> {
        let column = |key: &str| sorted(kind, key).is_some();
        let has =
            |value: &Value, key: &str| value.get(key).is_some() || label(value, key).is_some();
        let known = |key: &str| column(key) || rows.iter().any(|(value, _)| has(value, key));
        let absent = |wanted: &Wanted| matches!(wanted, Wanted::Absent);
        let unknown = self.0.iter().find(|(key, wanted)| !absent(wanted) && !known(key));
        match unknown {
            Some((key, _)) if !rows.is_empty() => Err(usage(format!(
                "nothing here has `{key}` to select by; {}there is {}, every label, and every field of `-o json`",
                near(kind, key),
                titles(kind)
            ))),
            _ => Ok(()),
        }
    }

    pub(super) fn matches<T>(&self, kind: &Kind<T>, value: &Value, row: &T) -> bool {
        self.0.iter().all(|(key, wanted)| {
            let found = field(value, key).or_else(|| {
                let shown = sorted(kind, key)?.value(row);
                (!shown.is_empty()).then_some(shown)
            });
            let is = |values: &[String]| found.as_ref().is_some_and(|text| values.contains(text));
            match wanted {
                Wanted::There => found.is_some(),
                Wanted::Absent => found.is_none(),
                Wanted::In(values) => is(values),
                Wanted::NotIn(values) => !is(values),
            }
        })
    }
}

/// The conditions: a comma between brackets separates values, and not conditions.
fn parts(text: &str) -> Vec<&str> {
    let mut within = false;
    text.split(|letter| {
        within = (within || letter == '(') && letter != ')';
        letter == ',' && !within
    })
    .collect()
}

/// The key and what is wanted of it.
fn wanted(part: &str) -> (&str, Wanted) {
    let one = |value: &str| vec![value.trim().to_owned()];
    let listed = |word: &str| {
        let (key, rest) = part.split_once(word)?;
        let values = rest.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some((key, values.split(',').map(|value| value.trim().to_owned()).collect()))
    };
    if let Some((key, values)) = listed(" notin ") {
        (key, Wanted::NotIn(values))
    } else if let Some((key, values)) = listed(" in ") {
        (key, Wanted::In(values))
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Wanted::NotIn(one(value)))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Wanted::In(one(value)))
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Wanted::Absent)
    } else {
        (part, Wanted::There)
    }
}

fn label<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get("labels").and_then(|labels| labels.get(key))
}

/// A label or a field as text; what is null or empty is not there.
fn field(value: &Value, key: &str) -> Option<String> {
    match label(value, key).or_else(|| value.get(key))? {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        other => Some(other.to_string()),
    }
}

/// The columns, as they are named on the command line.
fn titles<T>(kind: &Kind<T>) -> String {
    let titles: Vec<_> = kind.columns.iter().map(|column| slug(column.title)).collect();
    titles.join(", ")
}

/// The column that may be meant.
fn near<T>(kind: &Kind<T>, name: &str) -> String {
    let titles: Vec<_> = kind.columns.iter().map(|column| slug(column.title)).collect();
    let near = nearest(name, titles.iter().map(String::as_str));
    near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default()
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
            return Err(usage(format!(
                "there is nothing called `{name}` to sort by; {}there is {}, and every field of `-o json`",
                near(kind, name),
                titles(kind)
            )));
        }
    }
    if backwards {
        rows.reverse();
    }
    Ok(())
}

/// The column of this name, if there is one; a minus in front only turns the order round.
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
