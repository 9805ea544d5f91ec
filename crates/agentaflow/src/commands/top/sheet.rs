//! What can be read about one thing: the output of a job, why it waits, help, the facts of a GPU.

use agentaflow_api::explain::Explanation;
use agentaflow_api::job::Job;
use agentaflow_api::node::Node;

use super::model::{Cover, Model, Subject, has_output};
use super::text;
use crate::{amount, listing, output};

/// How a line is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// What matters most.
    Strong,
    /// What is said on the side.
    Faint,
    /// What went wrong.
    Bad,
}

/// A line and how it is meant.
pub(super) type Toned = (Tone, String);

const HELP: [(&str, &str); 17] = [
    ("Tab, Shift-Tab", "next pane, pane before"),
    ("arrows, j k", "up and down"),
    ("PgUp PgDn Home End", "a page, the first, the last"),
    ("/", "show only what contains these words; Esc shows all"),
    ("s, S", "sort by the next column, the other way round"),
    ("Enter, e", "explain the job: why it waits, what became of it"),
    ("l", "what the job wrote; follows it while it runs"),
    ("c", "cancel the job; asks first"),
    ("Space, x", "fold or unfold a node, all nodes"),
    ("r", "ask now"),
    ("Ctrl-L", "paint the screen again"),
    ("Ctrl-Z", "put it aside; `fg` brings it back"),
    ("?", "this"),
    ("q, Ctrl-C", "quit; q and Esc also leave what covers the panes"),
    ("", ""),
    ("MEMORY", "what jobs and others hold, of all"),
    ("POWER", "the bar ends at what a card of that model may draw"),
];

/// Rows of a screen on which a cover shows its lines.
pub(super) fn page((_, rows): (u16, u16)) -> usize {
    usize::from(rows.saturating_sub(4)).max(1)
}

/// The lines of what covers the panes, for so many columns of screen.
pub(super) fn lines(model: &Model, columns: usize) -> Vec<Toned> {
    let columns = columns.saturating_sub(4).max(8);
    match &model.cover {
        Cover::Nothing | Cover::Confirm(_) => Vec::new(),
        Cover::Help => help(columns),
        Cover::Logs(job) => output_of(model, job, columns),
        Cover::Why(job) => why(model, job, columns),
    }
}

/// The lines about what the user points at.
pub(super) fn about(model: &Model, columns: usize) -> Vec<Toned> {
    let columns = columns.max(8);
    match model.subject() {
        Subject::Nothing => Vec::new(),
        Subject::Job(job) if has_output(job) => match model.logs(&job.handle()) {
            Some(Ok(lines)) if lines.is_empty() => quiet(job),
            Some(Ok(lines)) => lines.iter().map(|line| (Tone::Plain, line.clone())).collect(),
            Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
            None => vec![(Tone::Faint, "…".to_owned())],
        },
        Subject::Job(job) => why(model, &job.handle(), columns),
        Subject::Node(node) => node_facts(node, columns),
        Subject::Gpu(node, gpu) => gpu_facts(model, node, gpu, columns),
    }
}

/// What the lines about the subject are.
pub(super) fn title(model: &Model) -> String {
    match model.subject() {
        Subject::Nothing => "Nothing chosen".to_owned(),
        Subject::Job(job) if has_output(job) => format!("Logs of {}", job_title(job)),
        Subject::Job(job) => format!("Why {} waits", job_title(job)),
        Subject::Node(node) => format!("Node {}", node.spec.node_name),
        Subject::Gpu(node, gpu) => {
            format!("GPU {} of {}", gpu_number(node, gpu), node.spec.node_name)
        }
    }
}

/// A job by its number and name, or by the name alone where that is both.
pub(super) fn job_title(job: &Job) -> String {
    let (handle, name) = (text::clean(&job.handle()), job_name(job));
    let name = text::cut(&name, 32, '…');
    if name.is_empty() || name == handle { handle } else { format!("{handle} {name}") }
}

/// What people call a job: its name, else what it runs.
pub(super) fn job_name(job: &Job) -> String {
    let spec = &job.spec;
    let command = || spec.command.as_ref().map(|words| words.join(" "));
    let given = spec.job_name.clone().filter(|name| !name.trim().is_empty());
    let name = given.or_else(|| spec.docker_image.clone()).or_else(command);
    text::clean(&name.unwrap_or_default()).trim().to_owned()
}

/// The number of a GPU on its node.
pub(super) fn gpu_number(node: &Node, gpu: usize) -> u32 {
    let instance = node.spec.gpu_instances.get(gpu);
    instance.and_then(|instance| instance.gpu_index).unwrap_or(gpu as u32)
}

fn help(columns: usize) -> Vec<Toned> {
    let line = |(key, does): &(&str, &str)| {
        let text = format!("{key:<20}{does}");
        wrapped(Tone::Plain, text.trim_end(), columns, "    ")
    };
    HELP.iter().flat_map(line).collect()
}

fn output_of(model: &Model, handle: &str, columns: usize) -> Vec<Toned> {
    match model.logs(handle) {
        Some(Ok(lines)) if lines.is_empty() => model.job(handle).map_or_else(Vec::new, quiet),
        Some(Ok(lines)) => {
            lines.iter().flat_map(|line| wrapped(Tone::Plain, line, columns, "")).collect()
        }
        Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
        None => match model.job(handle) {
            Some(job) if !has_output(job) => quiet(job),
            _ => vec![(Tone::Faint, "…".to_owned())],
        },
    }
}

fn quiet(job: &Job) -> Vec<Toned> {
    let words = match (has_output(job), job.status.is_final()) {
        (false, false) => "it waits, and has written nothing",
        (_, true) => "it wrote nothing",
        (true, false) => "it has written nothing yet",
    };
    vec![(Tone::Faint, words.to_owned())]
}

fn why(model: &Model, handle: &str, columns: usize) -> Vec<Toned> {
    match model.explanation(handle) {
        Some(Ok(said)) => words(said, columns),
        Some(Err(problem)) => wrapped(Tone::Bad, problem, columns, ""),
        None => {
            let reason = model.job(handle).and_then(|job| job.wait_reason.clone());
            wrapped(Tone::Strong, reason.as_deref().unwrap_or("…"), columns, "")
        }
    }
}

fn words(said: &Explanation, columns: usize) -> Vec<Toned> {
    let mut lines = wrapped(Tone::Strong, &said.summary, columns, "");
    let mut add = |tone, text: &str| lines.extend(wrapped(tone, text, columns, "  "));
    if let Some(detail) = said.detail.as_deref().filter(|detail| !said.summary.contains(*detail)) {
        add(Tone::Plain, detail);
    }
    if let Some(position) = said.position {
        let eta = if said.summary.contains(&said.eta_text) { "" } else { said.eta_text.as_str() };
        let gap = if eta.is_empty() { "" } else { ", " };
        add(Tone::Plain, &format!("place {position} of {}{gap}{eta}", said.waiting));
    }
    if !said.would_start_now.is_empty() {
        add(Tone::Plain, &format!("would start now {}", said.would_start_now.join(", or ")));
    }
    for node in &said.closest {
        add(Tone::Faint, &format!("{}: {}", node.node_name, node.lacks));
    }
    for task in &said.placement {
        let simulated = if task.simulated { " (SIMULATED)" } else { "" };
        let gpus = if task.gpus.is_empty() { "no GPU".to_owned() } else { task.gpus.join(", ") };
        add(Tone::Plain, &format!("task {} on {}: {gpus}{simulated}", task.task, task.node_name));
    }
    if let Some(price) = said.price_per_hour {
        let all = said.estimated_cost.map(|cost| format!(", {} in all", listing::money(cost)));
        add(Tone::Faint, &format!("{} an hour{}", listing::money(price), all.unwrap_or_default()));
    }
    lines
}

fn node_facts(node: &Node, columns: usize) -> Vec<Toned> {
    let spec = &node.spec;
    let mut lines = wrapped(Tone::Strong, &listing::node_gpus(node), columns, "  ");
    let mut add = |text: String| lines.extend(wrapped(Tone::Plain, &text, columns, "  "));
    let used = |all: u64, free: u64| {
        let held = all.saturating_sub(free);
        format!("{} of {}", amount::memory(held), amount::memory(all))
    };
    add(format!("GPU memory {} given out", used(spec.gpu_memory_total, node.gpu_memory_available)));
    let cores = |milli: u64| format!("{}", milli as f64 / 1000.0);
    let held = spec.cpu_cores.0.saturating_sub(node.cpu_cores_available.0);
    add(format!(
        "CPU {} of {} cores · memory {}",
        cores(held),
        cores(spec.cpu_cores.0),
        used(spec.memory_total, node.memory_available)
    ));
    let seen = node.last_seen.map_or_else(|| "never".to_owned(), listing::ago);
    let plural = if node.current_jobs == 1 { "" } else { "s" };
    add(format!("{} · {} job{plural} · seen {seen}", node.node_id, node.current_jobs));
    let price = format!("{} an hour a GPU", spec.price_per_gpu_hour);
    let driver = spec.gpu_driver_version.iter().map(|driver| format!(" · driver {driver}"));
    add(price + &driver.collect::<String>());
    lines
}

fn gpu_facts(model: &Model, node: &Node, gpu: usize, columns: usize) -> Vec<Toned> {
    let Some(instance) = node.spec.gpu_instances.get(gpu) else { return Vec::new() };
    let simulated = if node.spec.simulated { " (SIMULATED)" } else { "" };
    let name = instance.gpu_name.as_deref().or(instance.gpu_type.as_deref()).unwrap_or("GPU");
    let mut lines = wrapped(Tone::Strong, &format!("{name}{simulated}"), columns, "  ");
    let mut add = |tone, text: String| lines.extend(wrapped(tone, &text, columns, "  "));
    let facts = [
        instance.gpu_uuid.clone(),
        instance.sm_clock.map(|clock| format!("{clock} MHz")),
        instance.ecc_errors.map(|errors| format!("{errors} memory errors")),
        instance.nvlink_group.map(|group| format!("NVLink group {group}")),
        instance.pci_bus_id.clone(),
    ];
    add(Tone::Plain, facts.into_iter().flatten().collect::<Vec<_>>().join(" · "));
    if !instance.throttled.is_empty() {
        add(Tone::Bad, format!("throttled: {}", instance.throttled.join(", ")));
    }
    for slice in instance.mig.iter().flatten() {
        add(Tone::Plain, format!("MIG {} at {} ({})", slice.profile, slice.start, slice.uuid));
    }
    for job in model.jobs_on(node, gpu) {
        let ran = job.duration_seconds.map(|ran| format!(" · {}", output::short_time(ran)));
        let ran = ran.unwrap_or_default();
        add(Tone::Plain, format!("job {} · {}{ran}", job_title(job), job.status.as_str()));
    }
    lines
}

fn wrapped(tone: Tone, said: &str, columns: usize, indent: &str) -> Vec<Toned> {
    let lines = text::wrap(&text::clean(said), columns, indent);
    lines.into_iter().map(|line| (tone, line)).collect()
}
