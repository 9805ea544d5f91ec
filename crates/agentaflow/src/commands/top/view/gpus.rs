//! The pane of nodes and their GPUs.

use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::model::{GpuRow, Model, Pane};
use super::super::sheet;
use super::Heading;
use super::row::Row;
use super::theme::Theme;
use crate::listing;

/// Degrees Celsius at which the bar of the temperature ends.
const HOTTEST: f64 = 100.0;

/// Widths of the columns; one without room has none.
#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    gap: usize,
    name: usize,
    busy_bar: usize,
    busy: usize,
    history: usize,
    memory_bar: usize,
    memory: usize,
    heat_bar: usize,
    heat: usize,
    power_bar: usize,
    power: usize,
    jobs: usize,
}

pub(super) fn draw(
    model: &Model,
    theme: Theme,
    head: &Heading<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let columns = Columns::new(usize::from(area.width));
    // A note stands where the heading of the jobs would.
    let jobs = if head.note.is_empty() { "JOBS" } else { "" };
    head.draw(theme, columns.heading(theme, jobs), area, buffer);
    let cursor = model.cursor(Pane::Gpus);
    let rows = model.gpus();
    if rows.is_empty() {
        let none = match (&model.data, model.filter.is_empty()) {
            (None, _) => "asking …",
            (_, true) => "There are no nodes yet.",
            (_, false) => "No node passes the filter.",
        };
        let width = usize::from(area.width);
        let row = Row::new(theme).gap(1).left(none, width.saturating_sub(1), theme.faint());
        return row.draw(false, area, 1, buffer);
    }
    let page = usize::from(area.height.saturating_sub(1));
    for (index, row) in rows.iter().enumerate().skip(cursor.offset).take(page) {
        let drawn = match row {
            GpuRow::Node { node, folded: true } => columns.folded(theme, node),
            GpuRow::Node { node, folded: false } => node_line(theme, node, area.width),
            GpuRow::Gpu { node, gpu } => columns.gpu(model, theme, node, *gpu),
        };
        let chosen = head.focused && index == cursor.index;
        drawn.draw(chosen, area, (index - cursor.offset + 1) as u16, buffer);
    }
}

/// Watts as people read them.
pub(super) fn watts(power: f64) -> String {
    if power < 1000.0 { format!("{power:.0}W") } else { format!("{:.1}kW", power / 1000.0) }
}

impl Columns {
    /// Columns for so many columns of screen: what matters least goes first.
    fn new(width: usize) -> Self {
        let gap = if width >= 100 { 2 } else { 1 };
        let mut columns =
            Self { gap, name: 12, busy_bar: 6, busy: 5, memory: 8, ..Self::default() };
        if width >= 48 {
            columns.heat = 5;
        }
        if width >= 56 {
            columns.power = 6;
        }
        if width >= 68 {
            columns.history = 8;
        }
        if width >= 78 {
            columns = Self { memory_bar: 4, heat_bar: 3, power_bar: 3, ..columns };
        }
        let unused = width.saturating_sub(columns.width());
        if width >= 100 {
            let share = |percent: usize, most: usize| (unused * percent / 100).min(most);
            columns.name += share(8, 14);
            columns.busy_bar += share(14, 18);
            columns.history += share(24, 60);
            columns.memory_bar += share(10, 12);
            columns.heat_bar += share(5, 5);
            columns.power_bar += share(5, 5);
        }
        columns.jobs = width.saturating_sub(columns.width() + gap);
        if columns.jobs < 6 {
            columns.jobs = 0;
        }
        columns
    }

    /// What is taken, apart from the jobs.
    fn width(&self) -> usize {
        let parts = [
            self.name,
            self.busy_bar + self.busy,
            self.history,
            self.memory_bar + self.memory,
            self.heat_bar + self.heat,
            self.power_bar + self.power,
        ];
        1 + parts.iter().filter(|part| **part > 0).map(|part| part + self.gap).sum::<usize>()
    }

    fn heading(&self, theme: Theme, jobs: &str) -> Row {
        let style = theme.heading();
        let mut row = Row::new(theme).gap(1).left("", self.name, style);
        for (name, width) in [
            ("UTILISATION", self.busy_bar + self.busy),
            ("HISTORY", self.history),
            ("MEMORY", self.memory_bar + self.memory),
            ("TEMP", self.heat_bar + self.heat),
            ("POWER", self.power_bar + self.power),
            (jobs, self.jobs),
        ] {
            if width > 0 {
                row = row.gap(self.gap).left(name, width, style);
            }
        }
        row
    }

    fn gpu(&self, model: &Model, theme: Theme, node: &Node, gpu: usize) -> Row {
        let Some(instance) = node.spec.gpu_instances.get(gpu) else { return Row::new(theme) };
        let name = format!("  {} {}", sheet::gpu_number(node, gpu), short_model(instance, node));
        let readings = Readings::of(node, instance);
        let troubled = instance
            .status
            .filter(|status| matches!(status, GpuStatus::Error | GpuStatus::Maintenance));
        let style = if troubled.is_some() { theme.bad() } else { Style::new() };
        let row = Row::new(theme).gap(1).left(&name, self.name, style);
        let history = model.history(node, gpu);
        let history = history.map(|readings| readings.iter().copied().collect::<Vec<_>>());
        let row = self.bars(theme, row, &readings, &history.unwrap_or_default());
        let jobs: Vec<_> = model.jobs_on(node, gpu).into_iter().map(sheet::job_title).collect();
        let (said, style) = match troubled {
            Some(status) => (status.as_str().to_owned(), theme.bad()),
            None => (jobs.join(", "), Style::new()),
        };
        if self.jobs > 0 { row.gap(self.gap).left(&said, self.jobs, style) } else { row }
    }

    /// A node in one line: its means and sums, and how busy each of its GPUs is instead of history.
    fn folded(&self, theme: Theme, node: &Node) -> Row {
        let (state, state_style) = state(theme, node);
        let name = format!("{} {}", theme.arrow(true), node.spec.node_name);
        let style = if is_well(node) { theme.strong() } else { state_style };
        let row = Row::new(theme).gap(1).left(&name, self.name, style);
        let gpus = &node.spec.gpu_instances;
        let each: Vec<_> = gpus.iter().map(|gpu| gpu.utilization).collect();
        let row = self.bars(theme, row, &Readings::sum(node), &each);
        let said = format!("{state} {}", gpu_count(node));
        if self.jobs > 0 {
            row.gap(self.gap).left(said.trim(), self.jobs, state_style)
        } else {
            row
        }
    }

    fn bars(&self, theme: Theme, row: Row, is: &Readings, history: &[Option<f64>]) -> Row {
        let load = |share: Option<f64>| theme.load(share.unwrap_or(0.0));
        let busy = is.busy.map(|percent| percent / 100.0);
        let percent = is.busy.map_or_else(|| "-".to_owned(), |busy| format!("{busy:.0}%"));
        let mut row = row.gap(self.gap).bar(busy, self.busy_bar, load(busy)).right(
            &percent,
            self.busy,
            load(busy),
        );
        if self.history > 0 {
            row = self.history(theme, row.gap(self.gap), history);
        }
        let share = is.memory.map(|(held, all)| held / all.max(1.0));
        row = row.gap(self.gap).bar(share, self.memory_bar, theme.held()).right(
            &is.memory_words(),
            self.memory,
            Style::new(),
        );
        if self.heat > 0 {
            let style = is.heat.map(|heat| theme.heat(heat)).unwrap_or_default();
            let words = is.heat.map(|heat| format!("{heat:.0}{}", theme.degrees()));
            row = row
                .gap(self.gap)
                .bar(is.heat.map(|heat| heat / HOTTEST), self.heat_bar, style)
                .right(&words.unwrap_or_else(|| "-".to_owned()), self.heat, style);
        }
        if self.power > 0 {
            let share = is.power_share();
            let words = is.power.map_or_else(|| "-".to_owned(), watts);
            row = row.gap(self.gap).bar(share, self.power_bar, load(share)).right(
                &words,
                self.power,
                Style::new(),
            );
        }
        row
    }

    /// The newest readings, the last at the right end.
    fn history(&self, theme: Theme, row: Row, readings: &[Option<f64>]) -> Row {
        let shown = &readings[readings.len().saturating_sub(self.history)..];
        let mut row = row.gap(self.history - shown.len());
        for reading in shown {
            let style = theme.load(reading.unwrap_or(0.0) / 100.0);
            let style =
                if reading.is_some_and(|percent| percent < 1.0) { theme.faint() } else { style };
            row = row.raw(theme.height(*reading).to_string(), style);
        }
        row
    }
}

/// What is read of a GPU, or of a whole node.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    busy: Option<f64>,
    /// MiB held, and of how many.
    memory: Option<(f64, f64)>,
    heat: Option<f64>,
    power: Option<f64>,
    power_limit: Option<f64>,
}

impl Readings {
    fn of(node: &Node, gpu: &GpuInstance) -> Self {
        let all = gpu.gpu_memory;
        let held =
            |all: u64| Some((all.saturating_sub(gpu.gpu_memory_available?) as f64, all as f64));
        let name = gpu.gpu_type.as_deref().or(gpu.gpu_name.as_deref());
        let name = name.or(node.spec.gpu_type.as_deref());
        let finite = |reading: Option<f64>| reading.filter(|reading| reading.is_finite());
        Self {
            busy: finite(gpu.utilization).map(|busy| busy.clamp(0.0, 100.0)),
            memory: all.and_then(held),
            heat: finite(gpu.temperature),
            power: finite(gpu.power_usage),
            power_limit: name.and_then(|name| agentaflow_gpu::power_limit(name, all)),
        }
    }

    /// The mean load, all memory, the highest temperature, all power.
    fn sum(node: &Node) -> Self {
        let gpus = node.spec.gpu_instances.iter();
        let all: Vec<_> = gpus.map(|gpu| Self::of(node, gpu)).collect();
        let sum = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>());
        let busy: Vec<_> = all.iter().filter_map(|gpu| gpu.busy).collect();
        let count = busy.len().max(1) as f64;
        let held = sum(all.iter().filter_map(|gpu| Some(gpu.memory?.0)).collect());
        let memory = sum(all.iter().filter_map(|gpu| Some(gpu.memory?.1)).collect());
        Self {
            busy: sum(busy).map(|busy| busy / count),
            memory: held.zip(memory),
            heat: all.iter().filter_map(|gpu| gpu.heat).max_by(f64::total_cmp),
            power: sum(all.iter().filter_map(|gpu| gpu.power).collect()),
            power_limit: sum(all.iter().filter_map(|gpu| gpu.power_limit).collect()),
        }
    }

    fn memory_words(&self) -> String {
        let Some((held, all)) = self.memory else { return "-".to_owned() };
        format!("{:.0}/{:.0}G", held / 1024.0, all / 1024.0)
    }

    fn power_share(&self) -> Option<f64> {
        Some(self.power? / self.power_limit?.max(1.0))
    }
}

/// A node whose GPUs follow, in words.
fn node_line(theme: Theme, node: &Node, width: u16) -> Row {
    let (state, style) = state(theme, node);
    let name = format!("{} {}", theme.arrow(false), node.spec.node_name);
    let gpus = match &node.spec.gpu_type {
        Some(model) if node.spec.gpu_count > 0 => format!("{} × {model}", node.spec.gpu_count),
        _ => gpu_count(node),
    };
    let cores = |milli: u64| format!("{:.0}", milli as f64 / 1000.0);
    let held = node.spec.cpu_cores.0.saturating_sub(node.cpu_cores_available.0);
    let cpu = format!("CPU {}/{}", cores(held), cores(node.spec.cpu_cores.0));
    let memory = node.spec.memory_total.saturating_sub(node.memory_available);
    let gib = |mib: u64| format!("{:.0}", mib as f64 / 1024.0);
    let memory = format!("RAM {}/{}G", gib(memory), gib(node.spec.memory_total));
    let plural = if node.current_jobs == 1 { "" } else { "s" };
    let jobs = format!("{} job{plural}", node.current_jobs);
    let mut row = Row::new(theme).gap(1).raw(theme.say(&name), theme.strong());
    for (said, style) in [
        (state.as_str(), style),
        (gpus.as_str(), Style::new()),
        (jobs.as_str(), theme.faint()),
        (cpu.as_str(), theme.faint()),
        (memory.as_str(), theme.faint()),
    ] {
        if !said.is_empty() && row.width() + said.chars().count() + 2 <= usize::from(width) {
            row = row.gap(2).raw(theme.say(said), style);
        }
    }
    row
}

/// What is to be known about a node: that its GPUs are simulated, and whether it takes no work.
fn state(theme: Theme, node: &Node) -> (String, Style) {
    let mut said = Vec::new();
    if node.spec.simulated && node.spec.gpu_count > 0 {
        said.push("SIMULATED".to_owned());
    }
    if !is_well(node) {
        said.push(listing::node_status(node).trim_start_matches("active, ").to_owned());
    }
    if node.health_status == Health::Unhealthy {
        said.push("unhealthy".to_owned());
    }
    if node.cordoned && !node.draining {
        said.push("cordoned".to_owned());
    }
    let style = match node.status {
        NodeStatus::Error | NodeStatus::Inactive => theme.bad(),
        _ if node.health_status == Health::Unhealthy => theme.bad(),
        _ => theme.warn(),
    };
    (said.join(" "), style)
}

fn is_well(node: &Node) -> bool {
    node.status == NodeStatus::Active && node.reachable && !node.draining
}

fn gpu_count(node: &Node) -> String {
    match node.spec.gpu_count {
        0 => "no GPUs".to_owned(),
        1 => "1 GPU".to_owned(),
        count => format!("{count} GPUs"),
    }
}

/// A model without its maker, which labels of Kubernetes join with a hyphen.
fn short_model(gpu: &GpuInstance, node: &Node) -> String {
    let name = gpu.gpu_type.as_deref().or(gpu.gpu_name.as_deref());
    let mut name = name.or(node.spec.gpu_type.as_deref()).unwrap_or_default();
    for maker in ["NVIDIA", "GeForce", "Tesla"] {
        let rest = name.strip_prefix(maker).and_then(|rest| rest.strip_prefix([' ', '-']));
        name = rest.unwrap_or(name);
    }
    name.to_owned()
}
