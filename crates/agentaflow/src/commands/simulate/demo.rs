//! Output of `--demo`: a comparison, curves, and one explained pending job.

use std::path::Path;

use agentaflow_console::format::short_time;
use agentaflow_engine::{GpuRequest, QueueOrder, Strategy, Time, Workload};
use agentaflow_sim::{Load, Outcome, html, pending_example};

use super::subject::{Prepared, Subject, short_model};
use super::{notes, show, spark};
use crate::output::{self, bold};
use agentaflow_explain as explain;

/// With the strategy names this fits 80 columns.
const SPARK_WIDTH: usize = 60;

pub(super) fn text(subject: &Subject, outcomes: &[Outcome], html: Option<&Path>) -> String {
    let mut text = format!(
        "{}.\nVirtual time; no job runs. WAIT: mean time to start, DONE: mean time to end.\n\n{}",
        subject.about,
        show::table(subject, outcomes, Some(output::width().min(100))),
    );
    text.push_str(&notes::text(outcomes));
    text.push_str(&sparks(outcomes));
    if let Prepared::Replay(load) = &subject.prepared {
        text.push_str(&explained(load, outcomes).unwrap_or_default());
    }
    text + &next(html)
}

fn sparks(outcomes: &[Outcome]) -> String {
    let end = outcomes.iter().map(|outcome| outcome.makespan_seconds).fold(0.0, f64::max);
    let mut text = format!(
        "\n{}\n",
        bold(&format!("Allocated GPUs from the start to {} (full block: 100 %)", short_time(end)))
    );
    let names = html::names(outcomes);
    let indent = names.iter().map(|name| name.chars().count() + 2).max().unwrap_or(0);
    let width = output::width().saturating_sub(indent).clamp(10, SPARK_WIDTH);
    for (outcome, name) in outcomes.iter().zip(names) {
        let line = spark::allocation(&outcome.curve, end, width);
        let line = format!("{name:<indent$}{line}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// One pending job of the first strategy with its explanation.
fn explained(load: &Load, outcomes: &[Outcome]) -> Option<String> {
    let first = outcomes.first()?;
    let strategy: Strategy = first.strategy.parse().ok()?;
    let order =
        QueueOrder::ALL.iter().find(|(name, _)| *name == first.order).map(|(_, order)| *order);
    let example = pending_example(load, strategy, order)?;
    let workload = &example.job.workload;
    let heading = format!(
        "{strategy}, after {}: `{}` ({}) is pending",
        explain::span(example.at.since(Time(0))),
        workload.id,
        requested(workload),
    );
    let mut text = format!("\n{}\n", bold(&heading));
    for line in explain::explanation(&example.explanation, example.at) {
        text.push_str(&output::wrapped(&line, "  ", "    "));
    }
    Some(text)
}

fn requested(workload: &Workload) -> String {
    let gpu = match workload.request.gpu {
        GpuRequest::None => "no GPU".to_owned(),
        GpuRequest::Whole(count) => explain::count(count, "GPU"),
        GpuRequest::Fraction(share) => {
            format!("{} of a GPU", explain::thousandths(share.get().into()))
        }
        GpuRequest::Memory(memory) => format!("{memory} of a GPU"),
        GpuRequest::Mig { profile, count } => format!("{count} × {}", profile.as_str()),
    };
    let models: Vec<_> =
        workload.request.models.iter().map(|model| short_model(model.as_str())).collect();
    let tasks =
        if workload.tasks > 1 { format!("{} tasks of ", workload.tasks) } else { String::new() };
    let on = if models.is_empty() { String::new() } else { format!(", {}", models.join(" or ")) };
    format!("{tasks}{gpu}{on}")
}

fn next(html: Option<&Path>) -> String {
    let page = match html {
        Some(path) => format!("curves in {}", path.display()),
        None => {
            "agentaflow simulate --demo --html report.html    curves as an HTML page".to_owned()
        }
    };
    format!(
        "\n{} {page}\n      agentaflow simulate --help                       your own cluster and jobs\n      docs/simulator.md                                metrics explained\n",
        bold("Next:"),
    )
}
