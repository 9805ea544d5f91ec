//! A report as one self-contained HTML page: no network, no fonts, no libraries.
//!
//! The numbers are part of the page, so they are visible without JavaScript; the script only draws the
//! curves. A content security policy forbids every request, so a report never contacts a server.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::json;

use crate::outcome::{Outcome, Sample};

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// Columns of the table below a picture.
const MOMENTS: usize = 4;

/// Content of the page.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// Name of the simulation.
    pub title: &'a str,
    /// Summary of the cluster and its jobs, in one sentence without a full stop.
    pub about: &'a str,
    pub axis: Axis,
    /// One per run; strategy and order name the curve.
    pub outcomes: &'a [Outcome],
}

/// Unit of [`Sample::at_seconds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Virtual seconds.
    Time,
    /// Arrived demand in percent of the capacity.
    Arrived,
}

struct Picture {
    key: &'static str,
    title: &'static str,
    note: &'static str,
    unit: &'static str,
    value: fn(&Sample) -> f64,
}

const ALLOCATION: Picture = Picture {
    key: "allocation",
    title: "GPUs allocated",
    note: "Allocated share of all GPUs. Higher is better while jobs are pending.",
    unit: "%",
    value: |sample| sample.allocated_percent,
};

const FRAGMENTATION: Picture = Picture {
    key: "fragmentation",
    title: "Fragmentation",
    note: "Share of the idle GPUs that typical jobs cannot use. Lower is better.",
    unit: "%",
    value: |sample| sample.fragmentation_percent,
};

const RUNNING: Picture = Picture {
    key: "running",
    title: "Running",
    note: "Running workloads.",
    unit: "",
    value: |sample| f64::from(sample.running),
};

const WAITING: Picture = Picture {
    key: "waiting",
    title: "Pending",
    note: "Pending workloads. Lower is better.",
    unit: "",
    value: |sample| f64::from(sample.waiting),
};

const PLACED: Picture = Picture {
    title: "Pods placed",
    note: "Share of arrived pods that were placed. Higher is better.",
    ..RUNNING
};

impl Axis {
    fn guide(self) -> &'static str {
        match self {
            Self::Time => {
                "Wait is the mean time to the first start, done the mean time from submission to completion. The x axis is virtual time. Point at a curve to read its values; click a name to hide or show it."
            }
            Self::Arrived => {
                "The x axis is the requested GPU demand in percent of the capacity. Point at a curve to read its values; click a name to hide or show it."
            }
        }
    }

    /// The packing experiment has no pending pods: a pod without room is dropped.
    fn pictures(self) -> &'static [Picture] {
        match self {
            Self::Time => &[ALLOCATION, FRAGMENTATION, RUNNING, WAITING],
            Self::Arrived => &[ALLOCATION, FRAGMENTATION, PLACED],
        }
    }
}

pub fn page(report: &Report<'_>) -> String {
    let title = escape(report.title);
    let mut body = String::new();
    for picture in report.axis.pictures() {
        body.push_str(&figure(report, picture));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title} · agentaflow simulate</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>Simulation of {title}</h1>\n<p>{}.</p>\n<p>{}</p>\n</header>\n<main>\n\
         <section>\n<h2>Results</h2>\n{}</section>\n\
         <nav id=\"legend\" aria-label=\"Curves to show\">{}</nav>\n\
         <div class=\"pictures\">\n{body}</div>\n</main>\n\
         <footer>Made by agentaflow {}. This page is one file and loads nothing.</footer>\n\
         <script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(report.about),
        report.axis.guide(),
        results(report),
        legend(report),
        env!("CARGO_PKG_VERSION"),
        data(report),
    )
}

/// A strategy ran under more than one order, so its name alone is ambiguous.
pub fn several_orders(outcomes: &[Outcome]) -> bool {
    let strategies: BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.strategy).collect();
    strategies.len() < outcomes.len()
}

/// Escapes text for content and quoted attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

/// Curve names: the strategy, with the order when ambiguous.
pub fn names(outcomes: &[Outcome]) -> Vec<String> {
    let several = several_orders(outcomes);
    let name = |outcome: &Outcome| {
        if several {
            format!("{} · {}", outcome.strategy, outcome.order)
        } else {
            outcome.strategy.clone()
        }
    };
    outcomes.iter().map(name).collect()
}

fn legend(report: &Report<'_>) -> String {
    let mut text = String::new();
    for (index, name) in names(report.outcomes).iter().enumerate() {
        let _ = write!(
            text,
            "<button type=\"button\" aria-pressed=\"true\" data-curve=\"{index}\">{}{}</button>",
            swatch(index),
            escape(name)
        );
    }
    text
}

fn swatch(index: usize) -> String {
    format!(
        "<svg class=\"swatch c{}\" width=\"22\" height=\"8\" aria-hidden=\"true\"><path d=\"M1 4H21\"/></svg>",
        index % COLOURS + index / COLOURS % 2 * COLOURS
    )
}

/// Curves with their own color; the style sheet repeats the colors with another dash.
const COLOURS: usize = 9;

/// Curves as JSON for the script.
fn data(report: &Report<'_>) -> String {
    let curve = |outcome: &Outcome| {
        let column = |value: fn(&Sample) -> f64| -> Vec<f64> {
            outcome.curve.iter().map(|sample| rounded(value(sample))).collect()
        };
        let mut curve = serde_json::Map::new();
        curve.insert("at".to_owned(), json!(column(|sample| sample.at_seconds)));
        for picture in report.axis.pictures() {
            curve.insert(picture.key.to_owned(), json!(column(picture.value)));
        }
        curve
    };
    let text = json!({
        "axis": match report.axis { Axis::Time => "time", Axis::Arrived => "arrived" },
        "names": names(report.outcomes),
        "curves": report.outcomes.iter().map(curve).collect::<Vec<_>>(),
    })
    .to_string();
    // Only these characters could end the script element or start a comment.
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn figure(report: &Report<'_>, picture: &Picture) -> String {
    let unit = if picture.unit.is_empty() { String::new() } else { format!(", {}", picture.unit) };
    format!(
        "<figure>\n<figcaption><h2>{}{unit}</h2><p>{}</p></figcaption>\n\
         <div class=\"chart\" data-key=\"{}\" data-unit=\"{}\" tabindex=\"0\" role=\"img\" aria-label=\"{}: see the table below\"><svg></svg></div>\n{}</figure>\n",
        picture.title,
        picture.note,
        picture.key,
        picture.unit,
        picture.title,
        numbers(report, picture),
    )
}

/// Numbers of a picture: mean, maximum, and the values at a few moments.
fn numbers(report: &Report<'_>, picture: &Picture) -> String {
    let ends = report.outcomes.iter().filter_map(|outcome| Some(outcome.curve.last()?.at_seconds));
    let end = ends.fold(0.0, f64::max);
    let moments: Vec<f64> =
        (1..=MOMENTS).map(|index| end * index as f64 / MOMENTS as f64).collect();
    let mut heads = vec![String::new(), "mean".to_owned(), "most".to_owned()];
    heads.extend(moments.iter().map(|at| moment(*at, report.axis)));
    let rows = report.outcomes.iter().zip(names(report.outcomes)).enumerate().map(
        |(index, (outcome, name))| {
            let mut row = vec![swatch(index) + &escape(&name)];
            row.push(decimal(mean(&outcome.curve, picture.value)));
            row.push(decimal(outcome.curve.iter().map(picture.value).fold(0.0, f64::max)));
            row.extend(moments.iter().map(|at| {
                value_at(&outcome.curve, *at, picture.value).map_or_else(|| "–".to_owned(), decimal)
            }));
            row
        },
    );
    table(&heads, rows)
}

/// A table that scrolls horizontally on narrow screens. Cells are markup.
fn table(heads: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    for head in heads {
        let _ = write!(text, "<th scope=\"col\">{head}</th>");
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (index, row) in rows.enumerate() {
        let _ = write!(text, "<tr data-row=\"{index}\">");
        for (column, cell) in row.iter().enumerate() {
            let _ = if column == 0 {
                write!(text, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(text, "<td>{cell}</td>")
            };
        }
        text.push_str("</tr>\n");
    }
    text + "</tbody></table></div>\n"
}

fn results(report: &Report<'_>) -> String {
    let named = names(report.outcomes);
    let columns: &[ResultColumn] = match report.axis {
        Axis::Time => &REPLAY,
        Axis::Arrived => &PACKING,
    };
    let mut heads = vec!["strategy".to_owned()];
    heads.extend(columns.iter().map(|(head, _)| (*head).to_owned()));
    let rows = report.outcomes.iter().zip(named).enumerate().map(|(index, (outcome, name))| {
        let mut row = vec![swatch(index) + &escape(&name)];
        row.extend(columns.iter().map(|(_, cell)| cell(outcome)));
        row
    });
    table(&heads, rows)
}

/// Title and cell of a result column.
type ResultColumn = (&'static str, fn(&Outcome) -> String);

const REPLAY: [ResultColumn; 13] = [
    ("allocated %", |o| decimal(o.allocation_percent)),
    ("fragmented %", |o| decimal(o.fragmentation_percent)),
    ("wait", |o| time(o.wait_seconds.mean)),
    ("p50", |o| time(o.wait_seconds.p50)),
    ("p99", |o| time(o.wait_seconds.p99)),
    ("done", |o| time(o.completion_seconds.mean)),
    ("p50", |o| time(o.completion_seconds.p50)),
    ("p99", |o| time(o.completion_seconds.p99)),
    ("makespan", |o| time(o.makespan_seconds)),
    ("finished", |o| o.finished.to_string()),
    ("dropped", |o| o.dropped.to_string()),
    ("preempted", |o| o.preemptions.to_string()),
    ("decisions/s", |o| format!("{:.0}", o.decisions_per_second())),
];

const PACKING: [ResultColumn; 7] = [
    ("allocated %", |o| format!("{:.2}", o.allocation_percent)),
    ("fragmented %", |o| decimal(o.fragmentation_percent)),
    ("allocated GPUs", |o| decimal(o.allocated_milli as f64 / 1000.0)),
    ("all GPUs", |o| decimal(o.capacity_milli as f64 / 1000.0)),
    ("arrived", |o| o.jobs.to_string()),
    ("dropped", |o| o.dropped.to_string()),
    ("decisions/s", |o| format!("{:.0}", o.decisions_per_second())),
];

/// Mean along the axis; each sample holds until the next.
fn mean(curve: &[Sample], value: fn(&Sample) -> f64) -> f64 {
    let area: f64 = curve
        .windows(2)
        .map(|pair| value(&pair[0]) * (pair[1].at_seconds - pair[0].at_seconds))
        .sum();
    match (curve.first(), curve.last()) {
        (Some(first), Some(last)) if last.at_seconds > first.at_seconds => {
            area / (last.at_seconds - first.at_seconds)
        }
        (Some(only), _) => value(only),
        _ => 0.0,
    }
}

/// The value at a moment; `None` outside the curve.
fn value_at(curve: &[Sample], at: f64, value: fn(&Sample) -> f64) -> Option<f64> {
    let after = curve.partition_point(|sample| sample.at_seconds <= at + 1e-6);
    let over = curve.last().is_none_or(|last| at > last.at_seconds + 1e-6);
    if over { None } else { curve.get(after.checked_sub(1)?).map(value) }
}

fn decimal(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn moment(at: f64, axis: Axis) -> String {
    match axis {
        Axis::Time => time(at),
        Axis::Arrived => format!("{at:.0} %"),
    }
}

/// A duration in its two largest units, without spaces.
fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

#[cfg(test)]
#[path = "html/tests.rs"]
mod tests;
