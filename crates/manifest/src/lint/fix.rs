//! Applies fixes document by document until no fix is left.

use std::collections::BTreeMap;

use super::edit::{edited, edited_together};
use super::{Finding, Input, Options, check};
use crate::yaml::{Document, Limits, read_text};

/// Most passes: one fix may reveal a finding of another rule.
const ROUNDS: usize = 8;

/// Prefix of the rules about names and types of fields.
const FIELDS: &str = "AF7";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// New text of each input.
    pub texts: Vec<String>,
    /// Applied fixes: rule id and object, in order.
    pub applied: Vec<(&'static str, String)>,
}

/// Fixes named texts, which are checked together. An unreadable text stays unchanged.
pub fn fix(texts: &[(String, String)], options: &Options<'_>) -> Fixed {
    let mut new: Vec<String> = texts.iter().map(|(_, text)| text.clone()).collect();
    let mut applied = Vec::new();
    for _ in 0..ROUNDS {
        let inputs: Vec<_> =
            texts.iter().zip(&new).map(|((name, _), text)| input(name, text)).collect();
        let findings = check(&inputs, options);
        let before = applied.len();
        for (number, text) in new.iter_mut().enumerate() {
            let here: Vec<_> = findings.iter().filter(|finding| finding.input == number).collect();
            *text = round(text, &inputs[number].documents, &here, &mut applied);
        }
        if applied.len() == before {
            break;
        }
    }
    Fixed { texts: new, applied }
}

fn input(name: &str, text: &str) -> Input {
    Input::text(name, read_text(text, &Limits::default()).unwrap_or_default())
}

/// One pass over each document of a text. Editing documents separately avoids parsing a long text again for each
/// edit.
fn round(
    text: &str,
    documents: &[Document],
    findings: &[&Finding],
    applied: &mut Vec<(&'static str, String)>,
) -> String {
    let mut whole = String::with_capacity(text.len());
    for (number, document) in documents.iter().enumerate() {
        let start = if number == 0 { 0 } else { document.start };
        let end = documents.get(number + 1).map_or(text.len(), |next| next.start);
        let mut slice = text.get(start..end).unwrap_or_default().to_owned();
        let here = findings.iter().filter(|finding| finding.document == number);
        let (fields, others): (Vec<&Finding>, Vec<&Finding>) =
            here.partition(|finding| finding.rule.id.starts_with(FIELDS));
        // A misspelt field looks missing to all other rules: fix names first.
        if !apply_fixes(&mut slice, &fields, applied) {
            apply_fixes(&mut slice, &others, applied);
        }
        whole.push_str(&slice);
    }
    if documents.is_empty() { text.to_owned() } else { whole }
}

/// Applies the fixes of some findings; true if any was applied.
fn apply_fixes(
    text: &mut String,
    findings: &[&Finding],
    applied: &mut Vec<(&'static str, String)>,
) -> bool {
    let before = applied.len();
    let mut left: BTreeMap<_, Vec<&Finding>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| !finding.fix.is_empty()) {
        match with_fix(text, finding) {
            Some(new) => {
                *text = new;
                applied.push((finding.rule.id, finding.object.clone()));
            }
            None => left.entry(finding.rule.id).or_default().push(finding),
        }
    }
    // A fix at an anchor applies to all of its aliases, or is skipped.
    for (id, findings) in left.into_iter().filter(|(_, findings)| findings.len() > 1) {
        let operations: Vec<_> = findings.iter().flat_map(|finding| &finding.fix).collect();
        if let Some(new) = edited_together(text, &operations).filter(|new| new != text) {
            *text = new;
            applied.extend(findings.iter().map(|finding| (id, finding.object.clone())));
        }
    }
    applied.len() > before
}

/// Text with a complete fix, or none.
fn with_fix(text: &str, finding: &Finding) -> Option<String> {
    let mut new = text.to_owned();
    for operation in &finding.fix {
        new = edited(&new, operation)?;
    }
    (new != text).then_some(new)
}
