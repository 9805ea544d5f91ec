//! The `paths` phase: no file names a path that exists on one machine only.

use std::env;
use std::fs;

use anyhow::{Context, Result};

use crate::output::out;
use crate::report::Report;
use crate::{repo, tools};

/// Prefixes of home and checkout folders. Split, so that this file passes its own check.
const FOREIGN: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("../sha", "red"),
];

/// Model cache inside container images.
const IN_CONTAINERS: &str = "/root/.cache";

pub(crate) fn check() -> Result<Report> {
    tools::ensure_program("git")?;
    let foreign = foreign_paths();
    let mut found = 0;
    for file in repo::files()? {
        let bytes =
            fs::read(repo::root().join(&file)).with_context(|| format!("cannot read `{file}`"))?;
        // Images and archives are not text.
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        let text = text.replace(IN_CONTAINERS, "");
        for (number, path) in violations(&text, &foreign) {
            out!("   {file}:{number}: `{path}` exists on one machine only");
            found += 1;
        }
    }
    Ok(Report::from_count("paths", found))
}

/// The fixed prefixes, this checkout and the home folder of the current user.
fn foreign_paths() -> Vec<String> {
    let mut paths: Vec<String> = FOREIGN.map(str::to_owned).to_vec();
    paths.push(repo::root().display().to_string());
    let home = env::var("HOME").unwrap_or_default();
    if home.len() > 1 {
        paths.push(format!("{}/", home.trim_end_matches('/')));
    }
    paths
}

/// Line numbers with the first foreign path of each line.
fn violations<'a>(text: &'a str, foreign: &'a [String]) -> impl Iterator<Item = (usize, &'a str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let path = foreign.iter().find(|path| mentions(line, path))?;
        Some((index + 1, path.as_str()))
    })
}

/// True if `path` starts a word: `/x/` counts, the `/x/` of `example.org/x/` does not.
fn mentions(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~/}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_at_its_start_and_not_inside_a_url() {
        let path = FOREIGN[0];
        assert!(mentions(&format!("see {path}notes"), path));
        assert!(mentions(&format!("\"{path}notes\""), path));
        assert!(!mentions(&format!("https://example.org{path}notes"), path));
    }

    #[test]
    fn a_violation_carries_its_line_number() {
        let text = format!("fine\nalso fine\ncd {}me\n", FOREIGN[1]);
        let foreign = foreign_paths();
        let found: Vec<_> = violations(&text, &foreign).collect();
        assert_eq!(found, [(3, FOREIGN[1])]);
    }
}
