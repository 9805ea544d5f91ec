//! Applies fixes document by document until no fix is left.

use std::collections::BTreeMap;

use super::edit::{edited, edited_together};
use super::{Finding, Input, Options, check};
use crate::yaml::{Document, Limits, read_text};

/// Most passes: one fix may reveal a finding of another rule.
const ROUNDS: usize = 8;

/// Prefix of the rules about names and types of fields.
const FIELDS: &str = "AF7";

/// Result of fixing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// New text of each input.
    pub texts: Vec<String>,
    /// Applied fixes: rule id and object, in order.
    pub mended: Vec<(&'static str, String)>,
}

/// Fixes named texts, which are checked together. An unreadable text stays unchanged.
pub fn fix(texts: &[(String, String)], options: &Options<'_>) -> Fixed {
    let mut new: Vec<String> = texts.iter().map(|(_, text)| text.clone()).collect();
    let mut mended = Vec::new();
    for _ in 0..ROUNDS {
        let inputs: Vec<_> =
            texts.iter().zip(&new).map(|((name, _), text)| input(name, text)).collect();
        let findings = check(&inputs, options);
        let before = mended.len();
        for (number, text) in new.iter_mut().enumerate() {
            let here: Vec<_> = findings.iter().filter(|finding| finding.input == number).collect();
            *text = round(text, &inputs[number].documents, &here, &mut mended);
        }
        if mended.len() == before {
            break;
        }
    }
    Fixed { texts: new, mended }
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
    mended: &mut Vec<(&'static str, String)>,
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
        if !mend(&mut slice, &fields, mended) {
            mend(&mut slice, &others, mended);
        }
        whole.push_str(&slice);
    }
    if documents.is_empty() { text.to_owned() } else { whole }
}

/// Applies the fixes of some findings; true if any was applied.
fn mend(
    text: &mut String,
    findings: &[&Finding],
    mended: &mut Vec<(&'static str, String)>,
) -> bool {
    let before = mended.len();
    let mut left: BTreeMap<_, Vec<&Finding>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| !finding.fix.is_empty()) {
        match with_fix(text, finding) {
            Some(new) => {
                *text = new;
                mended.push((finding.rule.id, finding.object.clone()));
            }
            None => left.entry(finding.rule.id).or_default().push(finding),
        }
    }
    // A fix at an anchor applies to all of its aliases, or is skipped.
    for (id, findings) in left.into_iter().filter(|(_, findings)| findings.len() > 1) {
        let operations: Vec<_> = findings.iter().flat_map(|finding| &finding.fix).collect();
        if let Some(new) = edited_together(text, &operations).filter(|new| new != text) {
            *text = new;
            mended.extend(findings.iter().map(|finding| (id, finding.object.clone())));
        }
    }
    mended.len() > before
}

/// The text with all of a fix, or nothing.
fn with_fix(text: &str, finding: &Finding) -> Option<String> {
    let mut new = text.to_owned();
    for operation in &finding.fix {
        new = edited(&new, operation)?;
    }
    (new != text).then_some(new)
}
