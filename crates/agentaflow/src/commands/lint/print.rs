//! Plain text of findings.

use std::collections::HashSet;
use std::fmt::Write as _;

use agentaflow_console::format::one_line;
use agentaflow_manifest::lint::{
    Finding, LintReport, RULES, Severity, UNREADABLE, is_kubernetes, unchecked_kinds,
};

use super::gather::Skipped;
use crate::output;

/// One line per finding, advice with the first finding of each rule, and a summary.
pub(super) fn findings(report: &LintReport<'_>, fixed: Option<usize>) -> String {
    let mut text = String::new();
    for unreadable in report.unreadable {
        let position =
            unreadable.position.map(|position| format!(":{}:{}", position.line, position.column));
        let _ = writeln!(
            text,
            "{}{}: {} {UNREADABLE} {}",
            unreadable.name,
            position.unwrap_or_default(),
            paint(Severity::Error),
            one_line(&unreadable.message)
        );
    }
    let mut advised = HashSet::new();
    for finding in report.findings {
        let _ = writeln!(
            text,
            "{}: {} {} {}",
            place(report, finding),
            paint(finding.severity),
            finding.rule.id,
            one_line(&finding.message)
        );
        if !finding.path.is_empty() {
            let _ = writeln!(text, "    at {}", one_line(&finding.path));
        }
        if advised.insert(finding.rule.id) {
            text.push_str(&output::wrapped(finding.rule.advice, "    ", "    "));
        }
    }
    for kind in unchecked_kinds(report.inputs) {
        let kind = one_line(&kind);
        let _ = writeln!(text, "not checked: pods of {kind}, which has no pod template");
    }
    text + &summary(report, fixed)
}

/// One line with the names of skipped files.
pub(super) fn skipped(notes: &[Skipped]) -> Option<String> {
    const MAX_LISTED: usize = 3;
    let mut names: Vec<_> = notes.iter().map(|note| one_line(&note.name)).collect();
    names.dedup();
    let more = names.len().saturating_sub(MAX_LISTED);
    names.truncate(MAX_LISTED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    (!names.is_empty())
        .then(|| format!("not checked: {}{more}; use -v for the reasons", names.join(", ")))
}

pub(super) fn rules() -> String {
    let mut text = String::new();
    for rule in RULES.iter().copied() {
        let fixable = if rule.fixable { "fix" } else { "" };
        let _ = writeln!(
            text,
            "{}  {:8}{fixable:5}{:24}  {}",
            rule.id,
            rule.severity.as_str(),
            rule.name,
            rule.title
        );
    }
    text
}

/// A diff with removed lines in red and added lines in green, if colours are enabled.
pub(super) fn coloured(diff: &str) -> String {
    if !output::stdout_colour() {
        return diff.to_owned();
    }
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'-') => format!("\u{1b}[31m{line}\u{1b}[0m\n"),
        Some(b'+') => format!("\u{1b}[32m{line}\u{1b}[0m\n"),
        _ => format!("{line}\n"),
    };
    diff.lines().map(line).collect()
}

fn place(report: &LintReport<'_>, finding: &Finding) -> String {
    let name = &report.inputs[finding.input].name;
    match finding.position {
        Some(position) => format!("{name}:{}:{}", position.line, position.column),
        None => format!("{name} {}", finding.object),
    }
}

fn paint(severity: Severity) -> String {
    let colour = match severity {
        Severity::Error => "1;31",
        Severity::Warning => "1;33",
        Severity::Info => "1;36",
    };
    if output::stdout_colour() {
        format!("\u{1b}[{colour}m{severity}\u{1b}[0m")
    } else {
        severity.to_string()
    }
}

fn summary(report: &LintReport<'_>, fixed: Option<usize>) -> String {
    let summary = report.summary();
    let mut parts = Vec::new();
    for (count, one, many) in [
        (summary.errors, "error", "errors"),
        (summary.warnings, "warning", "warnings"),
        (summary.infos, "note", "notes"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {}", if count == 1 { one } else { many }));
        }
    }
    let found = if parts.is_empty() { "no findings".to_owned() } else { parts.join(", ") };
    let documents = report.inputs.iter().flat_map(|input| &input.documents);
    let objects = match documents.filter(|document| is_kubernetes(document)).count() {
        0 if report.unreadable.is_empty() => {
            return "No Kubernetes object to check\n".to_owned();
        }
        1 => "1 object".to_owned(),
        count => format!("{count} objects"),
    };
    // Remaining fixable findings cannot be fixed in place, such as values of a shared YAML anchor.
    let fixable = match (summary.fixable, fixed) {
        (0, _) => String::new(),
        (count, None) => format!("; {count} fixable with --fix"),
        (count, Some(_)) => format!("; {count} not fixable in place"),
    };
    let fixed = fixed.filter(|count| *count > 0).map(|count| format!("{count} fixed, "));
    format!("{}{found} in {objects}{fixable}\n", fixed.unwrap_or_default())
}
