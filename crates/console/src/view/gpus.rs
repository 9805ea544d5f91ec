//! Pane of nodes and GPUs.

use agentaflow_api::node::{GpuInstance, GpuStatus, Health, Node, NodeStatus};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::PaneHeader;
use super::row::Row;
use super::theme::Theme;
use crate::format::counted;
use crate::labels::{self, is_ready};
use crate::model::{GpuRow, Model, Pane};

/// Degrees Celsius of a full temperature bar.
const MAX_CELSIUS: f64 = 100.0;

/// Widths of the columns; a hidden column has width 0.
#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    gap: usize,
    name: usize,
    utilization_bar: usize,
    utilization: usize,
    history: usize,
    memory_bar: usize,
    memory: usize,
    temperature_bar: usize,
    temperature: usize,
    power_bar: usize,
    power: usize,
    jobs: usize,
}

pub(crate) fn draw(
    model: &Model,
    theme: Theme,
    head: &PaneHeader<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let columns = Columns::new(usize::from(area.width));
    // A note replaces the header of the last column.
    let jobs = if head.note.is_empty() { "JOBS" } else { "" };
    head.draw(theme, columns.heading(theme, jobs), area, buffer);
    let cursor = model.cursor(Pane::Gpus);
    let rows = model.gpus();
    if rows.is_empty() {
        let none = match (&model.data, model.filter.is_empty()) {
            (None, _) => "Loading…",
            (_, true) => "No nodes.",
            (_, false) => "No node matches the filter.",
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
        let selected = head.focused && index == cursor.index;
        drawn.draw(selected, area, (index - cursor.offset + 1) as u16, buffer);
    }
}

pub(crate) fn watts(power: f64) -> String {
    if power < 1000.0 { format!("{power:.0}W") } else { format!("{:.1}kW", power / 1000.0) }
}

impl Columns {
    /// Columns for a pane of this width; less important columns are hidden first.
    fn new(width: usize) -> Self {
        let gap = if width >= 100 { 2 } else { 1 };
        let mut columns = Self {
            gap,
            name: 12,
            utilization_bar: 6,
            utilization: 5,
            memory: 8,
            ..Self::default()
        };
        if width >= 48 {
            columns.temperature = 5;
        }
        if width >= 56 {
            columns.power = 6;
        }
        if width >= 68 {
            columns.history = 8;
        }
        if width >= 78 {
            columns = Self { memory_bar: 4, temperature_bar: 3, power_bar: 3, ..columns };
        }
        let unused = width.saturating_sub(columns.width());
        if width >= 100 {
            let share = |percent: usize, most: usize| (unused * percent / 100).min(most);
            columns.name += share(8, 14);
            columns.utilization_bar += share(14, 18);
            columns.history += share(24, 60);
            columns.memory_bar += share(10, 12);
            columns.temperature_bar += share(5, 5);
            columns.power_bar += share(5, 5);
        }
        columns.jobs = width.saturating_sub(columns.width() + gap);
        if columns.jobs < 6 {
            columns.jobs = 0;
        }
        columns
    }

    /// Width without the column of jobs.
    fn width(&self) -> usize {
        let parts = [
            self.name,
            self.utilization_bar + self.utilization,
            self.history,
            self.memory_bar + self.memory,
            self.temperature_bar + self.temperature,
            self.power_bar + self.power,
        ];
        1 + parts.iter().filter(|part| **part > 0).map(|part| part + self.gap).sum::<usize>()
    }

    fn heading(&self, theme: Theme, jobs: &str) -> Row {
        let style = theme.heading();
        let mut row = Row::new(theme).gap(1).left("", self.name, style);
        for (name, width) in [
            ("UTILISATION", self.utilization_bar + self.utilization),
            ("HISTORY", self.history),
            ("MEMORY", self.memory_bar + self.memory),
            ("TEMP", self.temperature_bar + self.temperature),
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
        let name =
            format!("  {} {}", labels::gpu_number(gpu, instance), short_model(instance, node));
        let readings = Readings::of(node, instance);
        let unavailable = instance
            .status
            .filter(|status| matches!(status, GpuStatus::Error | GpuStatus::Maintenance));
        let style = if unavailable.is_some() { theme.bad() } else { Style::new() };
        let row = Row::new(theme).gap(1).left(&name, self.name, style);
        let history = model.history(node, gpu);
        let history = history.map(|readings| readings.iter().copied().collect::<Vec<_>>());
        let row = self.bars(theme, row, &readings, &history.unwrap_or_default());
        let jobs: Vec<_> = model.jobs_on(node, gpu).into_iter().map(labels::job_title).collect();
        let (text, style) = match unavailable {
            Some(status) => (status.as_str().to_owned(), theme.bad()),
            None => (jobs.join(", "), Style::new()),
        };
        if self.jobs > 0 { row.gap(self.gap).left(&text, self.jobs, style) } else { row }
    }

    /// A folded node: means and sums of its GPUs, and the utilization of each GPU in place of history.
    fn folded(&self, theme: Theme, node: &Node) -> Row {
        let (state, state_style) = state(theme, node);
        let name = format!("{} {}", theme.arrow(true), node.spec.node_name);
        let style = if is_ready(node) { theme.strong() } else { state_style };
        let row = Row::new(theme).gap(1).left(&name, self.name, style);
        let gpus = &node.spec.gpu_instances;
        let each: Vec<_> = gpus.iter().map(|gpu| gpu.utilization).collect();
        let row = self.bars(theme, row, &Readings::sum(node), &each);
        let text = format!("{state} {}", gpu_count(node));
        if self.jobs > 0 {
            row.gap(self.gap).left(text.trim(), self.jobs, state_style)
        } else {
            row
        }
    }

    fn bars(&self, theme: Theme, row: Row, is: &Readings, history: &[Option<f64>]) -> Row {
        let load = |share: Option<f64>| theme.load(share.unwrap_or(0.0));
        let busy = is.utilization.map(|percent| percent / 100.0);
        let percent = is.utilization.map_or_else(|| "-".to_owned(), |busy| format!("{busy:.0}%"));
        let mut row = row.gap(self.gap).bar(busy, self.utilization_bar, load(busy)).right(
            &percent,
            self.utilization,
            load(busy),
        );
        if self.history > 0 {
            row = self.history(theme, row.gap(self.gap), history);
        }
        let share = is.memory.map(|(held, all)| held / all.max(1.0));
        row = row.gap(self.gap).bar(share, self.memory_bar, theme.allocated()).right(
            &is.memory_text(),
            self.memory,
            Style::new(),
        );
        if self.temperature > 0 {
            let style = is
                .temperature
                .map(|temperature| theme.temperature(temperature))
                .unwrap_or_default();
            let text =
                is.temperature.map(|temperature| format!("{temperature:.0}{}", theme.degrees()));
            row = row
                .gap(self.gap)
                .bar(
                    is.temperature.map(|temperature| temperature / MAX_CELSIUS),
                    self.temperature_bar,
                    style,
                )
                .right(&text.unwrap_or_else(|| "-".to_owned()), self.temperature, style);
        }
        if self.power > 0 {
            let share = is.power_share();
            let text = is.power.map_or_else(|| "-".to_owned(), watts);
            row = row.gap(self.gap).bar(share, self.power_bar, load(share)).right(
                &text,
                self.power,
                Style::new(),
            );
        }
        row
    }

    /// The newest readings, right-aligned.
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

/// Readings of a GPU, or of all GPUs of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Readings {
    utilization: Option<f64>,
    /// Used and total MiB.
    memory: Option<(f64, f64)>,
    temperature: Option<f64>,
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
            utilization: finite(gpu.utilization).map(|busy| busy.clamp(0.0, 100.0)),
            memory: all.and_then(held),
            temperature: finite(gpu.temperature),
            power: finite(gpu.power_usage),
            power_limit: name.and_then(|name| agentaflow_gpu::power_limit(name, all)),
        }
    }

    /// Mean utilization, total memory, highest temperature, total power.
    fn sum(node: &Node) -> Self {
        let gpus = node.spec.gpu_instances.iter();
        let all: Vec<_> = gpus.map(|gpu| Self::of(node, gpu)).collect();
        let sum = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>());
        let busy: Vec<_> = all.iter().filter_map(|gpu| gpu.utilization).collect();
        let count = busy.len().max(1) as f64;
        let held = sum(all.iter().filter_map(|gpu| Some(gpu.memory?.0)).collect());
        let memory = sum(all.iter().filter_map(|gpu| Some(gpu.memory?.1)).collect());
        Self {
            utilization: sum(busy).map(|busy| busy / count),
            memory: held.zip(memory),
            temperature: all.iter().filter_map(|gpu| gpu.temperature).max_by(f64::total_cmp),
            power: sum(all.iter().filter_map(|gpu| gpu.power).collect()),
            power_limit: sum(all.iter().filter_map(|gpu| gpu.power_limit).collect()),
        }
    }

    fn memory_text(&self) -> String {
        let Some((held, all)) = self.memory else { return "-".to_owned() };
        format!("{:.0}/{:.0}G", held / 1024.0, all / 1024.0)
    }

    fn power_share(&self) -> Option<f64> {
        Some(self.power? / self.power_limit?.max(1.0))
    }
}

/// An unfolded node.
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
    let jobs = counted(node.current_jobs, "job");
    let mut row = Row::new(theme).gap(1).raw(theme.printable(&name), theme.strong());
    for (text, style) in [
        (state.as_str(), style),
        (gpus.as_str(), Style::new()),
        (jobs.as_str(), theme.faint()),
        (cpu.as_str(), theme.faint()),
        (memory.as_str(), theme.faint()),
    ] {
        if !text.is_empty() && row.width() + text.chars().count() + 2 <= usize::from(width) {
            row = row.gap(2).raw(theme.printable(text), style);
        }
    }
    row
}

/// Simulated GPUs and every condition that keeps new tasks away.
fn state(theme: Theme, node: &Node) -> (String, Style) {
    let mut conditions = Vec::new();
    if node.spec.simulated && node.spec.gpu_count > 0 {
        conditions.push("SIMULATED".to_owned());
    }
    if !is_ready(node) {
        let condition = labels::node_condition(node).filter(|_| node.status == NodeStatus::Active);
        conditions.push(condition.unwrap_or_else(|| labels::node_status(node)));
    }
    if node.health_status == Health::Unhealthy {
        conditions.push("unhealthy".to_owned());
    }
    if node.cordoned && !node.draining {
        conditions.push("cordoned".to_owned());
    }
    let style = match node.status {
        NodeStatus::Error | NodeStatus::Inactive => theme.bad(),
        _ if node.health_status == Health::Unhealthy => theme.bad(),
        _ => theme.warn(),
    };
    (conditions.join(" "), style)
}

fn gpu_count(node: &Node) -> String {
    match node.spec.gpu_count {
        0 => "no GPUs".to_owned(),
        count => counted(count, "GPU"),
    }
}

/// The model without its vendor; Kubernetes labels join both with a hyphen.
fn short_model(gpu: &GpuInstance, node: &Node) -> String {
    let name = gpu.gpu_type.as_deref().or(gpu.gpu_name.as_deref());
    let mut name = name.or(node.spec.gpu_type.as_deref()).unwrap_or_default();
    for maker in ["NVIDIA", "GeForce", "Tesla"] {
        let rest = name.strip_prefix(maker).and_then(|rest| rest.strip_prefix([' ', '-']));
        name = rest.unwrap_or(name);
    }
    name.to_owned()
}
