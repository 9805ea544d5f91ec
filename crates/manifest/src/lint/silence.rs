//! Comments that suppress rules: `# agentaflow-lint: ignore=AF003`.
//!
//! At the end of a line, or on the line above, such a comment applies to the node that starts on the line and its
//! descendants. Before the first line of a document it applies to the whole document.

use std::ops::RangeInclusive;

use super::{Finding, Input};
use crate::yaml::{Comment, Document, Node};

const MARK: &str = "agentaflow-lint:";

/// True if a comment suppresses the finding.
pub(super) fn suppressed(inputs: &[Input], finding: &Finding) -> bool {
    let document = &inputs[finding.input].documents[finding.document];
    let Some(position) = finding.position else { return false };
    document.comments.iter().any(|comment| {
        names(comment, finding.rule.id) && lines(document, comment).contains(&position.line)
    })
}

fn names(comment: &Comment, id: &str) -> bool {
    let Some((_, message)) = comment.text.split_once(MARK) else { return false };
    let Some(ids) = message.trim().strip_prefix("ignore") else { return false };
    let ids = ids.trim_start().trim_start_matches('=').trim();
    let ids = ids.split([',', ' ']).map(str::trim);
    ids.into_iter().any(|named| named.eq_ignore_ascii_case(id) || named == "all")
}

/// Lines that a comment applies to.
fn lines(document: &Document, comment: &Comment) -> RangeInclusive<usize> {
    let line = comment.position.line;
    if comment.alone && line < document.root.position.line {
        return 0..=usize::MAX;
    }
    let mut found = None;
    widest(&document.root, line, comment.alone, &mut found);
    found.unwrap_or(line..=line)
}

/// Largest node that starts on a line; for a comment alone on its line, on the first line below.
fn widest(node: &Node, line: usize, below: bool, found: &mut Option<RangeInclusive<usize>>) {
    if node.alias {
        return;
    }
    let mut look = |begin: usize, value: &Node| {
        let fits = if below { begin > line } else { begin == line };
        let better = found.as_ref().is_none_or(|best| {
            let end = last_line(value).max(begin);
            begin < *best.start() || (begin == *best.start() && end > *best.end())
        });
        if fits && better {
            *found = Some(begin..=last_line(value).max(begin));
        }
    };
    for entry in node.entries().iter().filter(|entry| !entry.merged) {
        look(entry.position.line, &entry.value);
    }
    for item in node.items() {
        look(item.position.line, item);
    }
    for entry in node.entries().iter().filter(|entry| !entry.merged) {
        widest(&entry.value, line, below, found);
    }
    for item in node.items() {
        widest(item, line, below, found);
    }
}

fn last_line(node: &Node) -> usize {
    if node.alias {
        return node.position.line;
    }
    let entries = node.entries().iter().filter(|entry| !entry.merged);
    let inner = entries.map(|entry| last_line(&entry.value).max(entry.position.line));
    let items = node.items().iter().map(last_line);
    inner.chain(items).max().unwrap_or(node.position.line).max(node.position.line)
}
