//! Tests of the linter through its public API.

mod corrections;
mod fixes;
mod hostile;
mod kinds;
mod pages;
mod real;
mod refused;
mod reports;
mod rules;
mod schedules;
mod servers;

use agentaflow_manifest::lint::{Finding, Input, Options, check, fix};
use agentaflow_manifest::yaml::{Limits, read_text};

fn found(text: &str) -> Vec<Finding> {
    check(&[input("test.yaml", text)], &Options::default())
}

/// Distinct ids of the findings.
fn ids(text: &str) -> Vec<&'static str> {
    let mut ids: Vec<_> = found(text).iter().map(|finding| finding.rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The text after `--fix`.
fn fixed(text: &str) -> String {
    let fixed = fix(&[("test.yaml".to_owned(), text.to_owned())], &Options::default());
    fixed.texts.into_iter().next().unwrap()
}

fn input(name: &str, text: &str) -> Input {
    let documents = read_text(text, &Limits::default());
    Input::text(name, documents.unwrap_or_else(|error| panic!("{error}\n{text}")))
}
