//! `--selector` and `--sort-by` of lists.

use agentaflow_units::{did_you_mean, nearest};
use anyhow::Result;
use serde_json::Value;

use super::Listing;
use crate::failure::usage;
use crate::output::Column;

/// Conditions on labels and fields, all of which must hold.
pub(super) struct Selector(Vec<(String, Condition)>);

enum Condition {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let parse = |part: &str| {
            let (key, condition) = parse_condition(part.trim());
            let key = key.trim();
            // The rest of an invalid condition must not become a key.
            if key.is_empty() || key.contains([' ', '(', ')', '!', '=']) {
                return Err(usage(format!(
                    "invalid selector `{text}`: use key=value, key!=value, key in (a,b), key or !key, separated by commas"
                )));
            }
            Ok((key.to_owned(), condition))
        };
        parts(text).into_iter().map(parse).collect::<Result<_>>().map(Self)
    }

    /// Rejects a key that no row has, since a typo would silently select no row or all rows.
    pub(super) fn check_keys<T>(&self, listing: &Listing<T>, rows: &[(Value, T)]) -> Result<()> {
        let is_column = |key: &str| column(listing, key).is_some();
        let has =
            |value: &Value, key: &str| value.get(key).is_some() || label(value, key).is_some();
        let known = |key: &str| is_column(key) || rows.iter().any(|(value, _)| has(value, key));
        let absent = |condition: &Condition| matches!(condition, Condition::Absent);
        let unknown = self.0.iter().find(|(key, condition)| !absent(condition) && !known(key));
        match unknown {
            Some((key, _)) if !rows.is_empty() => Err(usage(format!(
                "no column, label or field `{key}`{}; columns: {}; fields: see `-o json`",
                suggestion(listing, key),
                titles(listing)
            ))),
            _ => Ok(()),
        }
    }

    pub(super) fn matches<T>(&self, listing: &Listing<T>, value: &Value, row: &T) -> bool {
        self.0.iter().all(|(key, condition)| {
            let found = field(value, key).or_else(|| {
                let shown = column(listing, key)?.value(row);
                (!shown.is_empty()).then_some(shown)
            });
            let is = |values: &[String]| found.as_ref().is_some_and(|text| values.contains(text));
            match condition {
                Condition::Exists => found.is_some(),
                Condition::Absent => found.is_none(),
                Condition::In(values) => is(values),
                Condition::NotIn(values) => !is(values),
            }
        })
    }
}

/// Splits conditions at commas outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut within = false;
    text.split(|letter| {
        within = (within || letter == '(') && letter != ')';
        letter == ',' && !within
    })
    .collect()
}

fn parse_condition(part: &str) -> (&str, Condition) {
    let one = |value: &str| vec![value.trim().to_owned()];
    let listed = |word: &str| {
        let (key, rest) = part.split_once(word)?;
        let values = rest.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some((key, values.split(',').map(|value| value.trim().to_owned()).collect()))
    };
    if let Some((key, values)) = listed(" notin ") {
        (key, Condition::NotIn(values))
    } else if let Some((key, values)) = listed(" in ") {
        (key, Condition::In(values))
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Condition::NotIn(one(value)))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Condition::In(one(value)))
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Condition::Absent)
    } else {
        (part, Condition::Exists)
    }
}

fn label<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get("labels").and_then(|labels| labels.get(key))
}

/// A label or field as text; null and empty values do not exist.
fn field(value: &Value, key: &str) -> Option<String> {
    match label(value, key).or_else(|| value.get(key))? {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| text.clone()),
        other => Some(other.to_string()),
    }
}

/// Column names for the command line.
fn titles<T>(listing: &Listing<T>) -> String {
    let titles: Vec<_> = listing.columns.iter().map(|column| slug(column.title)).collect();
    titles.join(", ")
}

fn suggestion<T>(listing: &Listing<T>, name: &str) -> String {
    let titles: Vec<_> = listing.columns.iter().map(|column| slug(column.title)).collect();
    did_you_mean(nearest(name, titles.iter().map(String::as_str)))
}

pub(super) fn sort<T>(listing: &Listing<T>, rows: &mut [(Value, T)], field: &str) -> Result<()> {
    let (descending, name) = match field.strip_prefix('-') {
        Some(name) => (true, name),
        None => (false, field),
    };
    let column = column(listing, name);
    let known = rows.iter().any(|(value, _)| value.get(name).is_some());
    match column {
        _ if known => rows.sort_by(|(a, _), (b, _)| in_order(&a[name], &b[name])),
        Some(column) => rows.sort_by_cached_key(|(_, row)| Natural((column.cell)(row))),
        None if rows.is_empty() => {}
        None => {
            return Err(usage(format!(
                "no column or field `{name}`{}; columns: {}; fields: see `-o json`",
                suggestion(listing, name),
                titles(listing)
            )));
        }
    }
    if descending {
        rows.reverse();
    }
    Ok(())
}

/// The column of this name, with or without the `-` of a descending order.
pub(super) fn column<T>(listing: &Listing<T>, field: &str) -> Option<&'static Column<T>> {
    let name = slug(field.strip_prefix('-').unwrap_or(field));
    listing.columns.iter().find(|column| slug(column.title) == name)
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

/// Natural order: `gpu-2` comes before `gpu-10`.
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
