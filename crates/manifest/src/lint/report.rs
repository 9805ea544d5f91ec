//! Findings for programs: JSON, and SARIF for code scanning.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Finding, Input, RULES, Severity, unchecked_kinds};

/// Base address of the rule pages.
const PAGES: &str = "https://github.com/agentaflow/agentaflow/blob/main/docs/lint";

/// Findings and unreadable texts of one run.
#[derive(Debug)]
pub struct LintReport<'a> {
    pub inputs: &'a [Input],
    pub findings: &'a [Finding],
    pub unreadable: &'a [Unreadable],
}

/// Something that could not be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub name: String,
    /// The line and column, where known.
    pub position: Option<crate::yaml::SourcePosition>,
    pub message: String,
}

/// Counts by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Includes unreadable texts.
    pub errors: usize,
    pub warnings: usize,
    pub infos: usize,
    pub fixable: usize,
}

impl LintReport<'_> {
    pub fn summary(&self) -> Summary {
        let count = |severity| self.findings.iter().filter(|f| f.severity == severity).count();
        Summary {
            errors: count(Severity::Error) + self.unreadable.len(),
            warnings: count(Severity::Warning),
            infos: count(Severity::Info),
            fixable: self.findings.iter().filter(|finding| self.is_fixable(finding)).count(),
        }
    }

    /// True if `--fix` can correct it: fixes edit texts, not clusters.
    fn is_fixable(&self, finding: &Finding) -> bool {
        !finding.fix.is_empty() && self.inputs[finding.input].written
    }
}

pub fn json(report: &LintReport<'_>) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "rule": finding.rule.id,
            "name": finding.rule.name,
            "severity": finding.severity,
            "file": report.inputs[finding.input].name,
            "line": finding.position.map(|position| position.line),
            "column": finding.position.map(|position| position.column),
            "object": finding.object,
            "path": finding.path,
            "message": finding.message,
            "advice": finding.rule.advice,
            "fixable": report.is_fixable(finding),
        })
    };
    let unreadable = |unreadable: &Unreadable| {
        json!({
            "rule": UNREADABLE,
            "name": "unreadable",
            "severity": Severity::Error,
            "file": unreadable.name,
            "line": unreadable.position.map(|position| position.line),
            "column": unreadable.position.map(|position| position.column),
            "message": unreadable.message,
            "fixable": false,
        })
    };
    let all = report.unreadable.iter().map(unreadable).chain(report.findings.iter().map(finding));
    json!({
        "findings": all.collect::<Vec<_>>(),
        "summary": report.summary(),
        "unchecked_kinds": unchecked_kinds(report.inputs),
    })
}

/// SARIF 2.1.0.
pub fn sarif(report: &LintReport<'_>) -> Value {
    let rules: Vec<_> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "name": rule.name,
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.why},
                "help": {"text": rule.advice},
                "helpUri": format!("{PAGES}/{}.md", rule.id),
                "defaultConfiguration": {"level": level(rule.severity)},
            })
        })
        .chain([json!({
            "id": UNREADABLE,
            "name": "unreadable",
            "shortDescription": {"text": "The file cannot be read"},
            "defaultConfiguration": {"level": "error"},
        })])
        .collect();
    let results = report.findings.iter().map(|finding| result(report, finding));
    let unreadable = report.unreadable.iter().map(|unreadable| {
        json!({
            "ruleId": UNREADABLE,
            "ruleIndex": RULES.len(),
            "level": "error",
            "message": {"text": unreadable.message},
            "locations": [location(&unreadable.name, unreadable.position)],
        })
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "agentaflow lint",
                "informationUri": format!("{PAGES}/README.md"),
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "results": unreadable.chain(results).collect::<Vec<_>>(),
        }],
    })
}

/// Id of unreadable texts.
pub const UNREADABLE: &str = "AF000";

fn result(report: &LintReport<'_>, finding: &Finding) -> Value {
    let mut location = location(&report.inputs[finding.input].name, finding.position);
    let name = if finding.path.is_empty() {
        finding.object.clone()
    } else {
        format!("{} {}", finding.object, finding.path)
    };
    location["logicalLocations"] = json!([{"fullyQualifiedName": name}]);
    json!({
        "ruleId": finding.rule.id,
        "ruleIndex": RULES.iter().position(|rule| rule.id == finding.rule.id),
        "level": level(finding.severity),
        "message": {"text": finding.message},
        "locations": [location],
    })
}

/// File, or a name without a file.
fn location(name: &str, position: Option<crate::yaml::SourcePosition>) -> Value {
    let region = position
        .map(|position| json!({"startLine": position.line, "startColumn": position.column}));
    let mut physical = json!({"artifactLocation": {"uri": uri(name)}});
    if let Some(region) = region {
        physical["region"] = region;
    }
    json!({ "physicalLocation": physical })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

/// Relative URI of a path, escaped.
fn uri(name: &str) -> String {
    let name = if name == "-" { "stdin" } else { name.strip_prefix("./").unwrap_or(name) };
    let mut uri = String::new();
    for byte in name.replace('\\', "/").bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}
