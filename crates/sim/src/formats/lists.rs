//! Arrival and rank lists of a packing experiment.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::TracePod;
use crate::SimError;

/// Reads pod names in order of arrival, one per line; repeats allowed.
pub fn read_arrivals(path: &Path) -> Result<Vec<String>, SimError> {
    let text = super::read_text(path)?;
    let names: Vec<String> = lines(&text).map(|(_, line)| line.to_owned()).collect();
    if names.is_empty() {
        return Err(SimError::Empty { path: path.to_owned(), what: "pod names" });
    }
    Ok(names)
}

/// Reads pod names in order of arrival; all must be in the pod list.
pub fn read_arrivals_of(path: &Path, pods: &[TracePod]) -> Result<Vec<String>, SimError> {
    let text = super::read_text(path)?;
    let known: HashSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
    match lines(&text).find(|(_, name)| !known.contains(name)) {
        None => read_arrivals(path),
        Some((line, name)) => Err(SimError::Value {
            path: path.to_owned(),
            line,
            column: "name",
            value: name.chars().take(64).collect(),
            help: "is not in the pod list; check that the two files belong together".to_owned(),
        }),
    }
}

/// Reads node ranks, `name,rank` per line; a header is allowed.
pub fn read_ranks(path: &Path) -> Result<BTreeMap<String, u32>, SimError> {
    let text = super::read_text(path)?;
    let wrong = |line, column, value: &str, help: &str| SimError::Value {
        path: path.to_owned(),
        line,
        column,
        value: value.chars().take(64).collect(),
        help: help.to_owned(),
    };
    let mut ranks = BTreeMap::new();
    for (number, line) in lines(&text) {
        let (name, rank) = line.split_once(',').unwrap_or((line, ""));
        let (name, rank) = (name.trim(), rank.trim());
        if ranks.is_empty() && rank.eq_ignore_ascii_case("rank") {
            continue;
        }
        let Ok(rank) = rank.parse() else {
            return Err(wrong(
                number,
                "rank",
                rank,
                "is not a rank; write `name,rank` on each line",
            ));
        };
        if name.is_empty() {
            return Err(wrong(number, "name", name, "is empty; write `name,rank` on each line"));
        }
        if ranks.insert(name.to_owned(), rank).is_some() {
            return Err(wrong(number, "name", name, "already has a rank; names must be unique"));
        }
    }
    if ranks.is_empty() {
        return Err(SimError::Empty { path: path.to_owned(), what: "node ranks" });
    }
    Ok(ranks)
}

/// Non-empty lines with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let trimmed = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    (1..).zip(trimmed).filter(|(_, line)| !line.is_empty())
}
