//! The `links` phase: every relative link in a Markdown file resolves to a file or a heading.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

use crate::output::out;
use crate::report::Report;
use crate::{repo, tools};

pub(crate) fn check() -> Result<Report> {
    tools::ensure_program("git")?;
    let files = repo::files()?;
    let paths = paths(&files);
    let mut broken = 0;
    for file in files.iter().filter(|file| is_markdown(file)) {
        for (number, link) in links(&read(file)?) {
            if let Err(problem) = resolve(file, &link, &paths) {
                out!("   {file}:{number}: `{link}`: {problem}");
                broken += 1;
            }
        }
    }
    Ok(Report::from_count("links", broken))
}

/// Every file and folder that git tracks; other files do not exist in a clone.
fn paths(files: &[String]) -> BTreeSet<&str> {
    let mut paths = BTreeSet::from([""]);
    for file in files {
        let mut path = file.as_str();
        while paths.insert(path) {
            path = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        }
    }
    paths
}

fn resolve(file: &str, link: &str, paths: &BTreeSet<&str>) -> Result<(), String> {
    if is_external(link) {
        return Ok(());
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        file.to_owned()
    } else {
        join(file, &percent_decoded(path)).ok_or("leaves the repository")?
    };
    if !paths.contains(target.as_str()) {
        return Err(format!("`{target}` is not in the repository"));
    }
    if anchor.is_empty() || !is_markdown(&target) {
        return Ok(());
    }
    let text = read(&target).map_err(|error| format!("{error:#}"))?;
    if anchors(&text).contains(anchor) {
        Ok(())
    } else {
        Err(format!("`{target}` has no heading `#{anchor}`"))
    }
}

/// True for `https://…`, `mailto:…` and the like.
fn is_external(link: &str) -> bool {
    link.starts_with("//")
        || link.split_once(':').is_some_and(|(scheme, _)| {
            !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')
        })
}

/// Path of `link` relative to `file`; `None` if the path leaves the repository.
fn join(file: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = if link.starts_with('/') {
        Vec::new()
    } else {
        let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
        folder.split('/').filter(|part| !part.is_empty()).collect()
    };
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Links with line numbers: inline, by reference, and as HTML attributes.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        let after = |mark| line.match_indices(mark).map(|(at, mark)| &line[at + mark.len()..]);
        for rest in after("](") {
            found.push((number, destination(rest, ')')));
        }
        for rest in after(" href=\"").chain(after(" src=\"")) {
            found.push((number, destination(rest, '"')));
        }
        if let Some((label, rest)) = line.trim_start().split_once("]: ")
            && label.starts_with('[')
            && !label.starts_with("[^")
        {
            found.push((number, destination(rest.trim(), ' ')));
        }
    }
    found
}

/// Parses `path`, `path "title"` or `<path with spaces>` up to the closing mark.
fn destination(rest: &str, close: char) -> String {
    if let Some(bracketed) = rest.strip_prefix('<') {
        return bracketed.split('>').next().unwrap_or("").to_owned();
    }
    let mut depth = 0;
    let end = rest.find(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c.is_whitespace() || (c == close && (c != ')' || depth < 0))
    });
    rest[..end.unwrap_or(rest.len())].to_owned()
}

/// Numbered lines outside fenced code blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let Some(mark) = fence else {
            fence = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
            return fence.is_none().then_some((index + 1, line));
        };
        if start.starts_with(mark) {
            fence = None;
        }
        None
    })
}

/// Removes `code spans`: links inside them are text.
fn without_code(line: &str) -> String {
    let spans: Vec<&str> = line.split('`').collect();
    // An unpaired backtick at the end opens no span.
    let closed = spans.len() - usize::from(spans.len().is_multiple_of(2));
    let is_text = |(index, _): &(usize, &&str)| index % 2 == 0 || *index >= closed;
    spans.iter().enumerate().filter(is_text).map(|(_, span)| *span).collect()
}

/// Anchors of all headings, in the form of GitHub.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let anchor = slug(title.trim());
        let numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let mut candidates = std::iter::once(anchor.clone()).chain(numbered);
        // The second heading of a name gets `-1`, the third `-2`.
        candidates.find(|candidate| anchors.insert(candidate.clone()));
    }
    anchors
}

fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn percent_decoded(path: &str) -> String {
    path.replace("%20", " ")
}

fn is_markdown(file: &str) -> bool {
    file.rsplit_once('.').is_some_and(|(_, extension)| extension == "md")
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(repo::root().join(file)).with_context(|| format!("cannot read `{file}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let found: Vec<String> = links(text).into_iter().map(|(_, link)| link).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn inline_links_and_pictures_are_found_with_titles_cut_off() {
        check("see [a](one.md) and ![b](two.png \"title\")", &["one.md", "two.png"]);
        check("[a](<with space.md>) [b](f_(x).md)", &["with space.md", "f_(x).md"]);
        check("[![badge](a.svg)](b.md)", &["a.svg", "b.md"]);
    }

    #[test]
    fn references_and_html_attributes_are_found_and_footnotes_are_not() {
        check("[a]: one.md\n[^1]: a remark", &["one.md"]);
        check("<a href=\"x.md\"><img src=\"y.png\"></a>", &["x.md", "y.png"]);
    }

    #[test]
    fn links_inside_code_are_not_links() {
        check("```\n[a](one.md)\n```\n`[b](two.md)` [c](three.md)", &["three.md"]);
    }

    #[test]
    fn a_link_stays_inside_the_repository() {
        assert_eq!(join("docs/a.md", "../b.md").as_deref(), Some("b.md"));
        assert_eq!(join("docs/a.md", "/b.md").as_deref(), Some("b.md"));
        assert_eq!(join("docs/a.md", "../../b.md"), None);
    }

    #[test]
    fn a_link_to_a_missing_file_is_broken() {
        let files = ["docs/a.md".to_owned(), "img/b.png".to_owned()];
        let paths = paths(&files);
        assert!(resolve("docs/a.md", "../img/b.png", &paths).is_ok());
        assert!(resolve("docs/a.md", "../img/", &paths).is_ok());
        assert!(resolve("docs/a.md", "https://example.org", &paths).is_ok());
        assert!(resolve("docs/a.md", "../img/c.png", &paths).is_err());
    }

    #[test]
    fn headings_get_the_anchors_of_github() {
        let anchors = anchors("# The `run` command\n## Why?\n## Why?\n#hashtag\n");
        let expected = ["the-run-command", "why", "why-1"];
        assert_eq!(anchors, expected.map(str::to_owned).into());
    }
}
