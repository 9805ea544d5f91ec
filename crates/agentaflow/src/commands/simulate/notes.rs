//! What a table cannot say: work that was cut off, and why work was never placed.

use agentaflow_console::format::grouped;
use agentaflow_engine::Time;
use agentaflow_sim::{CutOff, Outcome, html};

use crate::output;
use agentaflow_explain as words;

/// Reasons told before the rest is left to `-o json`.
const REASONS: usize = 3;

/// Sentences for under the table; empty when all went to its end.
pub(super) fn under(outcomes: &[Outcome]) -> String {
    cut_off(outcomes) + &dropped(outcomes)
}

fn cut_off(outcomes: &[Outcome]) -> String {
    let left = |(outcome, name): (&Outcome, String)| {
        let cut = outcome.cut_off?;
        let whose = if outcomes.len() > 1 { format!("{name} ") } else { String::new() };
        Some(format!("{whose}{}", still(cut)))
    };
    let runs: Vec<_> = outcomes.iter().zip(html::names(outcomes)).filter_map(left).collect();
    if runs.is_empty() {
        return String::new();
    }
    output::wrapped(&format!("Cut off by --until with work left: {}.", runs.join("; ")), "", "")
}

fn still(cut: CutOff) -> String {
    let [running, waiting, to_come] = [cut.running, cut.waiting, cut.to_come].map(grouped);
    format!("{running} running, {waiting} waiting, {to_come} still to arrive")
}

/// Who was never placed and why, each reason once whatever the number of runs.
fn dropped(outcomes: &[Outcome]) -> String {
    let mut told = Vec::new();
    let mut text = String::new();
    for dropped in outcomes.iter().flat_map(|outcome| &outcome.dropped_because) {
        // A replay is over when this is read: nothing lies in the future.
        let why = words::reason(&dropped.reason, Time(u64::MAX));
        if told.len() == REASONS || told.contains(&why) {
            continue;
        }
        let who = match dropped.others {
            0 => format!("`{}` was", dropped.workload),
            others => format!("`{}` and {} more were", dropped.workload, grouped(others)),
        };
        text.push_str(&output::wrapped(&format!("{who} never placed: {why}."), "", ""));
        told.push(why);
    }
    text
}
