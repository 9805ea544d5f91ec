//! Findings for programs: JSON, and SARIF for code scanning.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Finding, Input, RULES, Severity, not_looked_into};

/// Base address of the rule pages.
const PAGES: &str = "https://github.com/agentaflow/agentaflow/blob/main/docs/lint";

/// Findings and unreadable texts of one run.
#[derive(Debug)]
pub struct Seen<'a> {
    pub inputs: &'a [Input],
    pub findings: &'a [Finding],
    pub unreadable: &'a [Unreadable],
}

/// Something that could not be read.
#[derive(Clone, Debug)]
pub struct Unreadable {
    pub name: String,
    /// The line and column, where known.
    pub place: Option<crate::yaml::Place>,
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

impl Seen<'_> {
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

pub fn json(seen: &Seen<'_>) -> Value {
    let finding = |finding: &Finding| {
        json!({
            "rule": finding.rule.id,
            "name": finding.rule.name,
            "severity": finding.severity,
            "file": seen.inputs[finding.input].name,
            "line": finding.place.map(|place| place.line),
            "column": finding.place.map(|place| place.column),
            "object": finding.object,
            "path": finding.path,
            "message": finding.message,
            "advice": finding.rule.advice,
            "fixable": seen.is_fixable(finding),
        })
    };
    let unreadable = |unreadable: &Unreadable| {
        json!({
            "rule": UNREADABLE,
            "name": "unreadable",
            "severity": Severity::Error,
            "file": unreadable.name,
            "line": unreadable.place.map(|place| place.line),
            "column": unreadable.place.map(|place| place.column),
            "message": unreadable.message,
            "fixable": false,
        })
    };
    let all = seen.unreadable.iter().map(unreadable).chain(seen.findings.iter().map(finding));
    json!({
        "findings": all.collect::<Vec<_>>(),
        "summary": seen.summary(),
        "not_looked_into": not_looked_into(seen.inputs),
    })
}

/// SARIF 2.1.0.
pub fn sarif(seen: &Seen<'_>) -> Value {
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
    let results = seen.findings.iter().map(|finding| result(seen, finding));
    let unreadable = seen.unreadable.iter().map(|unreadable| {
        json!({
            "ruleId": UNREADABLE,
            "ruleIndex": RULES.len(),
            "level": "error",
            "message": {"text": unreadable.message},
            "locations": [location(&unreadable.name, unreadable.place)],
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

fn result(seen: &Seen<'_>, finding: &Finding) -> Value {
    let mut location = location(&seen.inputs[finding.input].name, finding.place);
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
fn location(name: &str, place: Option<crate::yaml::Place>) -> Value {
    let region = place.map(|place| json!({"startLine": place.line, "startColumn": place.column}));
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

/// A path as a relative address; what addresses cannot have is escaped.
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
