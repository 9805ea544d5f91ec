//! Notes below the table: jobs cut off by `--until`, and jobs never placed.

use agentaflow_console::format::grouped;
use agentaflow_engine::Time;
use agentaflow_sim::{CutOff, Outcome, html};

use crate::output;
use agentaflow_explain as explain;

/// Reasons shown; `-o json` has all.
const MAX_REASONS: usize = 3;

/// Empty if all jobs finished.
pub(super) fn text(outcomes: &[Outcome]) -> String {
    cut_off(outcomes) + &dropped(outcomes)
}

fn cut_off(outcomes: &[Outcome]) -> String {
    let left = |(outcome, name): (&Outcome, String)| {
        let cut = outcome.cut_off?;
        let prefix = if outcomes.len() > 1 { format!("{name} ") } else { String::new() };
        Some(format!("{prefix}{}", unfinished(cut)))
    };
    let runs: Vec<_> = outcomes.iter().zip(html::names(outcomes)).filter_map(left).collect();
    if runs.is_empty() {
        return String::new();
    }
    output::wrapped(&format!("Cut off by --until: {}.", runs.join("; ")), "", "")
}

fn unfinished(cut: CutOff) -> String {
    let [running, pending, to_come] = [cut.running, cut.waiting, cut.to_come].map(grouped);
    format!("{running} running, {pending} pending, {to_come} not yet arrived")
}

/// Workloads never placed; each reason once over all runs.
fn dropped(outcomes: &[Outcome]) -> String {
    let mut reasons = Vec::new();
    let mut text = String::new();
    for dropped in outcomes.iter().flat_map(|outcome| &outcome.dropped_because) {
        // After the replay no time is in the future.
        let reason = explain::reason(&dropped.reason, Time(u64::MAX));
        if reasons.len() == MAX_REASONS || reasons.contains(&reason) {
            continue;
        }
        let subject = match dropped.others {
            0 => format!("`{}` was", dropped.workload),
            others => format!("`{}` and {} more were", dropped.workload, grouped(others)),
        };
        text.push_str(&output::wrapped(&format!("{subject} never placed: {reason}."), "", ""));
        reasons.push(reason);
    }
    text
}
