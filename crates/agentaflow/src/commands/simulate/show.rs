//! Outcomes as a table, JSON or CSV.

use std::path::Path;

use agentaflow_console::format::{grouped, short_time};
use agentaflow_sim::html::several_orders;
use agentaflow_sim::{Outcome, Stats};
use anyhow::{Context as _, Result};

use super::notes;
use super::subject::{Prepared, Subject};
use crate::listing::{left, right};
use crate::output::{self, Column, Field};

const REPLAY_NOTE: &str = "\
WAIT: mean time to the first start. DONE: mean time from arrival to the end.";

const EXPERIMENT_NOTE: &str = "\
ALLOC%: GPUs allocated after all arrivals. FRAG%: share of the rest that typical pods cannot use.";

/// Description of the input, table, and legend.
pub(super) fn text(
    subject: &Subject,
    outcomes: &[Outcome],
    room: Option<usize>,
    html: Option<&Path>,
) -> String {
    let note = match subject.prepared {
        Prepared::Replay(_) => REPLAY_NOTE,
        Prepared::Experiment(_) => EXPERIMENT_NOTE,
    };
    format!(
        "{}\n{}\n{}{}{}",
        output::wrapped(&format!("{}.", subject.about), "", ""),
        table(subject, outcomes, room),
        notes::text(outcomes),
        output::wrapped(note, "", ""),
        output::wrapped(&hints(html, room.is_none()), "", ""),
    )
}

/// Hints about further output.
fn hints(html: Option<&Path>, wide: bool) -> String {
    match (html.map(Path::display), wide) {
        (Some(path), true) => {
            format!("Curves: {path}. Metrics: docs/simulator.md.")
        }
        (Some(path), false) => {
            format!("Curves: {path}. All columns: -o wide. Metrics: docs/simulator.md.")
        }
        (None, true) => "Curves: --html FILE. Metrics: docs/simulator.md.".to_owned(),
        (None, false) => {
            "All columns: -o wide. Curves: --html FILE. Metrics: docs/simulator.md.".to_owned()
        }
    }
}

pub(super) fn table(subject: &Subject, outcomes: &[Outcome], room: Option<usize>) -> String {
    let columns = match subject.prepared {
        Prepared::Replay(_) => replay_columns(several_orders(outcomes)),
        Prepared::Experiment(_) => experiment_columns(),
    };
    output::table(&columns, outcomes, room)
}

/// An array with one object per run.
pub(super) fn json(outcomes: &[Outcome], curve: bool) -> Result<String> {
    let plain: Vec<_> = outcomes
        .iter()
        .cloned()
        .map(|outcome| if curve { outcome } else { outcome.without_curve() })
        .collect();
    let text = serde_json::to_string_pretty(&plain).context("cannot write the outcomes as JSON")?;
    Ok(text + "\n")
}

/// One line per run, without the curves.
pub(super) fn csv(outcomes: &[Outcome]) -> String {
    output::csv(&FIELDS, outcomes)
}

fn replay_columns(several_orders: bool) -> Vec<Column<Outcome>> {
    vec![
        left("STRATEGY", 0, |o| o.strategy.clone()),
        left("ORDER", if several_orders { 0 } else { 9 }, |o| o.order.clone()),
        right("ALLOC%", 0, |o| format!("{:.1}", o.allocation_percent)),
        right("FRAG%", 1, |o| format!("{:.1}", o.fragmentation_percent)),
        right("WAIT", 0, |o| short_time(o.wait_seconds.mean)),
        right("WAIT P50", 6, |o| short_time(o.wait_seconds.p50)),
        right("WAIT P99", 2, |o| short_time(o.wait_seconds.p99)),
        right("DONE", 0, |o| short_time(o.completion_seconds.mean)),
        right("DONE P50", 6, |o| short_time(o.completion_seconds.p50)),
        right("DONE P99", 5, |o| short_time(o.completion_seconds.p99)),
        right("MAKESPAN", 3, |o| short_time(o.makespan_seconds)),
        right("DROPPED", 4, |o| grouped(o.dropped)),
        right("FINISHED", 8, |o| grouped(o.finished)),
        right("PREEMPTED", 8, |o| grouped(o.preemptions)),
        right("DECISIONS/S", 7, |o| grouped(o.decisions_per_second().round() as u64)),
    ]
}

fn experiment_columns() -> Vec<Column<Outcome>> {
    vec![
        left("STRATEGY", 0, |o| o.strategy.clone()),
        right("ALLOC%", 0, |o| format!("{:.2}", o.allocation_percent)),
        right("FRAG%", 1, |o| format!("{:.1}", o.fragmentation_percent)),
        right("ALLOCATED", 4, |o| gpus(o.allocated_milli)),
        right("CAPACITY", 5, |o| gpus(o.capacity_milli)),
        right("ARRIVED", 3, |o| grouped(o.jobs)),
        right("DROPPED", 0, |o| grouped(o.dropped)),
        right("DECISIONS/S", 2, |o| grouped(o.decisions_per_second().round() as u64)),
        right("SECONDS", 6, |o| format!("{:.2}", o.seconds)),
    ]
}

fn gpus(milli: i64) -> String {
    format!("{:.1}", milli as f64 / 1000.0)
}

const FIELDS: [Field<Outcome>; 19] = [
    Field { name: "strategy", value: |o| o.strategy.clone() },
    Field { name: "order", value: |o| o.order.clone() },
    Field { name: "jobs", value: |o| o.jobs.to_string() },
    Field { name: "finished", value: |o| o.finished.to_string() },
    Field { name: "dropped", value: |o| o.dropped.to_string() },
    Field { name: "preemptions", value: |o| o.preemptions.to_string() },
    Field { name: "allocated_milli", value: |o| o.allocated_milli.to_string() },
    Field { name: "capacity_milli", value: |o| o.capacity_milli.to_string() },
    Field { name: "allocation_percent", value: |o| o.allocation_percent.to_string() },
    Field { name: "fragmentation_percent", value: |o| o.fragmentation_percent.to_string() },
    Field { name: "wait_seconds_mean", value: |o| mean(o.wait_seconds) },
    Field { name: "wait_seconds_p50", value: |o| o.wait_seconds.p50.to_string() },
    Field { name: "wait_seconds_p99", value: |o| o.wait_seconds.p99.to_string() },
    Field { name: "completion_seconds_mean", value: |o| mean(o.completion_seconds) },
    Field { name: "completion_seconds_p50", value: |o| o.completion_seconds.p50.to_string() },
    Field { name: "completion_seconds_p99", value: |o| o.completion_seconds.p99.to_string() },
    Field { name: "makespan_seconds", value: |o| o.makespan_seconds.to_string() },
    Field { name: "decisions", value: |o| o.decisions.to_string() },
    Field { name: "seconds", value: |o| o.seconds.to_string() },
];

fn mean(stats: Stats) -> String {
    stats.mean.to_string()
}
