//! The `glossary` phase: every type that `docs/glossary.md` names is declared in the crate that it names.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

use crate::output::out;
use crate::report::Report;
use crate::{repo, tools};

const GLOSSARY: &str = "docs/glossary.md";

pub(crate) fn check() -> Result<Report> {
    tools::ensure_program("git")?;
    let read = |file: &str| {
        fs::read_to_string(repo::root().join(file)).with_context(|| format!("cannot read `{file}`"))
    };
    let mut declared = BTreeSet::new();
    for file in repo::files()?.iter().filter(|file| is_source(file)) {
        let name = file.split('/').nth(1).unwrap_or_default().replace('-', "_");
        let types = declarations(&read(file)?).into_iter();
        declared.extend(types.map(|declared| format!("{name}::{declared}")));
    }
    let mut problems = 0;
    for (number, name) in types(&read(GLOSSARY)?) {
        if !declared.contains(&name) {
            out!("   {GLOSSARY}:{number}: no type `{name}`");
            problems += 1;
        }
    }
    Ok(Report::from_count("glossary", problems))
}

fn is_source(file: &str) -> bool {
    file.starts_with("crates/")
        && file.contains("/src/")
        && std::path::Path::new(file).extension().is_some_and(|ending| ending == "rs")
}

/// Types in the last column of each table row, with the line number: `` `engine::WaitReason` ``.
fn types(glossary: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in glossary.lines().enumerate() {
        let Some(row) = line.strip_prefix('|').and_then(|line| line.strip_suffix('|')) else {
            continue;
        };
        let last = row.rsplit('|').next().unwrap_or_default();
        // Every second part stands between backticks.
        for span in last.split('`').skip(1).step_by(2) {
            let name = span.rsplit("::").next().unwrap_or_default();
            if name.starts_with(|c: char| c.is_ascii_uppercase()) {
                found.push((index + 1, span.to_owned()));
            }
        }
    }
    found
}

fn declarations(source: &str) -> Vec<String> {
    let words = ["struct", "enum", "trait", "type"];
    let name = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, r)| r)
        });
        let (word, rest) = line.trim_start().split_once(' ')?;
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        words.contains(&word).then(|| rest[..end].to_owned())
    };
    source.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_from_the_last_column_only() {
        let text =
            "| pending | `Pending` in REST | `engine::WaitReason`, `PodState`, `wait.rs` |\n";
        let names: Vec<String> = types(text).into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["engine::WaitReason", "PodState"]);
    }

    #[test]
    fn declarations_are_found_with_any_visibility() {
        let text = "pub struct Node {\n    pub(crate) enum Tier {\ntype Files = u8;\nlet x = 1;\n";
        assert_eq!(declarations(text), ["Node", "Tier", "Files"]);
    }
}
