//! Lines of the overlays and of the detail area: logs and explanation of a job, facts of a node or GPU, help.

use agentaflow_api::explain::Explanation;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;

use crate::labels::{gpu_number, job_title};
use crate::model::{Model, Overlay, Selection, has_output};
use crate::{format, labels, text};

/// Emphasis of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Strong,
    Faint,
    Bad,
}

pub(crate) type StyledLine = (Tone, String);

const HELP: [(&str, &str); 17] = [
    ("Tab, Shift-Tab", "next pane, previous pane"),
    ("arrows, j k", "up and down"),
    ("PgUp PgDn Home End", "page up, page down, first row, last row"),
    ("/", "filter rows by words; Esc clears the filter"),
    ("s, S", "sort by the next column, reverse the order"),
    ("Enter, e", "explain the job: pending reason, placement, end reason"),
    ("l", "show and follow the logs of the job"),
    ("c", "cancel the job, after confirmation"),
    ("Space, x", "fold or unfold a node, all nodes"),
    ("r", "refresh now"),
    ("Ctrl-L", "redraw the screen"),
    ("Ctrl-Z", "suspend; `fg` resumes"),
    ("?", "show this help"),
    ("q, Ctrl-C", "quit; q and Esc also close this page"),
    ("", ""),
    ("MEMORY", "memory in use and total"),
    ("POWER", "the full bar is the power limit of the GPU model"),
];

/// Rows of an overlay on a screen of this size.
pub(crate) fn page((_, rows): (u16, u16)) -> usize {
    usize::from(rows.saturating_sub(4)).max(1)
}

/// Lines of the current overlay, wrapped for a screen of `columns` columns.
pub(crate) fn overlay_lines(model: &Model, columns: usize) -> Vec<StyledLine> {
    let columns = columns.saturating_sub(4).max(8);
    match &model.overlay {
        Overlay::None | Overlay::Confirm(_) => Vec::new(),
        Overlay::Help => help(columns),
        Overlay::Logs(job) => log_lines(model, job, columns),
        Overlay::Explain(job) => explanation_lines(model, job, columns),
    }
}

/// Lines about the selected row.
pub(crate) fn selection_lines(model: &Model, columns: usize) -> Vec<StyledLine> {
    let columns = columns.max(8);
    match model.selection() {
        Selection::Nothing => Vec::new(),
        Selection::Job(job) if has_output(job) => match model.logs(&job.handle()) {
            Some(Ok(lines)) if lines.is_empty() => no_logs(job),
            Some(Ok(lines)) => lines.iter().map(|line| (Tone::Plain, line.clone())).collect(),
            Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
            None => vec![(Tone::Faint, "…".to_owned())],
        },
        Selection::Job(job) => explanation_lines(model, &job.handle(), columns),
        Selection::Node(node) => node_facts(node, columns),
        Selection::Gpu(node, gpu) => gpu_facts(model, node, gpu, columns),
    }
}

pub(crate) fn selection_title(model: &Model) -> String {
    match model.selection() {
        Selection::Nothing => "No selection".to_owned(),
        Selection::Job(job) if has_output(job) => format!("Logs of {}", job_title(job)),
        Selection::Job(job) => format!("Pending reason of {}", job_title(job)),
        Selection::Node(node) => format!("Node {}", node.spec.node_name),
        Selection::Gpu(node, gpu) => {
            let number = node.spec.gpu_instances.get(gpu).map(|instance| gpu_number(gpu, instance));
            format!("GPU {} of {}", number.unwrap_or_default(), node.spec.node_name)
        }
    }
}

fn help(columns: usize) -> Vec<StyledLine> {
    let line = |(key, does): &(&str, &str)| {
        let text = format!("{key:<20}{does}");
        wrapped(Tone::Plain, text.trim_end(), columns, "    ")
    };
    HELP.iter().flat_map(line).collect()
}

fn log_lines(model: &Model, handle: &str, columns: usize) -> Vec<StyledLine> {
    match model.logs(handle) {
        Some(Ok(lines)) if lines.is_empty() => model.job(handle).map_or_else(Vec::new, no_logs),
        Some(Ok(lines)) => {
            lines.iter().flat_map(|line| wrapped(Tone::Plain, line, columns, "")).collect()
        }
        Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
        None => match model.job(handle) {
            Some(job) if !has_output(job) => no_logs(job),
            _ => vec![(Tone::Faint, "…".to_owned())],
        },
    }
}

fn no_logs(job: &Job) -> Vec<StyledLine> {
    let text = match (has_output(job), job.status.is_final()) {
        (false, false) => "No logs: the job is pending",
        (_, true) => "No logs",
        (true, false) => "No logs yet",
    };
    vec![(Tone::Faint, text.to_owned())]
}

fn explanation_lines(model: &Model, handle: &str, columns: usize) -> Vec<StyledLine> {
    match model.explanation(handle) {
        Some(Ok(explanation)) => explained(explanation, columns),
        Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
        None => {
            let reason = model.job(handle).and_then(|job| job.wait_reason.clone());
            wrapped(Tone::Strong, reason.as_deref().unwrap_or("…"), columns, "")
        }
    }
}

fn explained(explanation: &Explanation, columns: usize) -> Vec<StyledLine> {
    let mut lines = wrapped(Tone::Strong, &explanation.summary, columns, "");
    let mut add = |tone, text: &str| lines.extend(wrapped(tone, text, columns, "  "));
    if let Some(detail) = explanation.detail.as_deref() {
        add(Tone::Plain, detail);
    }
    if let Some(position) = explanation.position {
        let eta = explanation.eta_text.as_str();
        let gap = if eta.is_empty() { "" } else { ", " };
        add(Tone::Plain, &format!("Position {position} of {}{gap}{eta}", explanation.waiting));
    }
    if !explanation.would_start_now.is_empty() {
        add(Tone::Plain, &format!("Would start now {}", explanation.would_start_now.join(", or ")));
    }
    for node in &explanation.closest {
        add(Tone::Faint, &format!("{}: {}", node.node_name, node.lacks));
    }
    for task in &explanation.placement {
        let simulated = if task.simulated { " (SIMULATED)" } else { "" };
        let gpus = if task.gpus.is_empty() { "no GPU".to_owned() } else { task.gpus.join(", ") };
        add(Tone::Plain, &format!("task {} on {}: {gpus}{simulated}", task.task, task.node_name));
    }
    if let Some(price) = explanation.price_per_hour {
        let all =
            explanation.estimated_cost.map(|cost| format!(", {} in total", format::money(cost)));
        add(Tone::Faint, &format!("{} per hour{}", format::money(price), all.unwrap_or_default()));
    }
    lines
}

fn node_facts(node: &Node, columns: usize) -> Vec<StyledLine> {
    let spec = &node.spec;
    let mut lines = wrapped(Tone::Strong, &labels::node_gpus(node), columns, "  ");
    let mut add = |text: String| lines.extend(wrapped(Tone::Plain, &text, columns, "  "));
    let used = |all: u64, free: u64| {
        let held = all.saturating_sub(free);
        format!("{} of {}", format::memory(held), format::memory(all))
    };
    add(format!("GPU memory {} allocated", used(spec.gpu_memory_total, node.gpu_memory_available)));
    let cores = |milli: u64| format!("{}", milli as f64 / 1000.0);
    let held = spec.cpu_cores.0.saturating_sub(node.cpu_cores_available.0);
    add(format!(
        "CPU {} of {} cores · memory {}",
        cores(held),
        cores(spec.cpu_cores.0),
        used(spec.memory_total, node.memory_available)
    ));
    let seen = node.last_seen.map_or_else(|| "never".to_owned(), format::ago);
    add(format!(
        "{} · {} · last seen {seen}",
        node.node_id,
        format::counted(node.current_jobs, "job")
    ));
    let price = format!("{} per GPU hour", spec.price_per_gpu_hour);
    let driver = spec.gpu_driver_version.iter().map(|driver| format!(" · driver {driver}"));
    add(price + &driver.collect::<String>());
    lines
}

fn gpu_facts(model: &Model, node: &Node, gpu: usize, columns: usize) -> Vec<StyledLine> {
    let Some(instance) = node.spec.gpu_instances.get(gpu) else { return Vec::new() };
    let simulated = if node.spec.simulated { " (SIMULATED)" } else { "" };
    let name = instance.gpu_name.as_deref().or(instance.gpu_type.as_deref()).unwrap_or("GPU");
    let mut lines = wrapped(Tone::Strong, &format!("{name}{simulated}"), columns, "  ");
    let mut add = |tone, text: String| lines.extend(wrapped(tone, &text, columns, "  "));
    let facts = [
        instance.gpu_uuid.clone(),
        instance.sm_clock.map(|clock| format!("{clock} MHz")),
        instance.ecc_errors.map(|errors| format!("{errors} ECC errors")),
        instance.nvlink_group.map(|group| format!("NVLink group {group}")),
        instance.pci_bus_id.clone(),
    ];
    add(Tone::Plain, facts.into_iter().flatten().collect::<Vec<_>>().join(" · "));
    if let Some(problem) = &instance.problem {
        add(Tone::Bad, problem.clone());
    }
    if !instance.throttled.is_empty() {
        add(Tone::Bad, format!("throttled: {}", instance.throttled.join(", ")));
    }
    for slice in instance.mig.iter().flatten() {
        add(Tone::Plain, format!("MIG {} at {} ({})", slice.profile, slice.start, slice.uuid));
    }
    for job in model.jobs_on(node, gpu) {
        let ran = job.duration_seconds.map(|ran| format!(" · {}", format::short_time(ran)));
        let ran = ran.unwrap_or_default();
        add(Tone::Plain, format!("job {} · {}{ran}", job_title(job), job.status.as_str()));
    }
    lines
}

fn wrapped(tone: Tone, content: &str, columns: usize, indent: &str) -> Vec<StyledLine> {
    let lines = text::wrap(&text::clean(content), columns, indent);
    lines.into_iter().map(|line| (tone, line)).collect()
}
