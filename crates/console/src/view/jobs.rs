//! Panes of placed and of pending jobs.

use agentaflow_api::Dollars;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{Job, JobStatus, TaskPlace};
use agentaflow_explain::pending;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::PaneHeader;
use super::row::Row;
use super::theme::Theme;
use crate::format;
use crate::labels::{self, gpus_allocated, gpus_requested};
use crate::model::{Model, Pane};

/// Widths of the leading columns of both lists.
#[derive(Clone, Copy, Debug)]
struct Columns {
    gap: usize,
    /// 0 in a cluster, where jobs have no numbers.
    number: usize,
    name: usize,
    width: usize,
}

struct Column {
    title: &'static str,
    /// 0 takes the remaining width.
    width: usize,
    right: bool,
    /// Minimum width of the pane that shows the column.
    min_pane: usize,
}

const fn column(title: &'static str, width: usize, right: bool, min_pane: usize) -> Column {
    Column { title, width, right, min_pane }
}

struct List<'a> {
    pane: Pane,
    columns: &'a [Column; 5],
    /// One cell per column, including hidden columns.
    cells: &'a dyn Fn(&Job) -> Cells,
    none: &'static str,
}

type Cells = [(String, Style); 5];

const PLACED_COLUMNS: [Column; 5] = [
    column("STATE", 9, false, 0),
    column("GPUS", 4, true, 0),
    column("TIME", 6, true, 0),
    column("PRICE", 8, true, 70),
    column("NODES", 0, false, 52),
];

const PENDING_COLUMNS: [Column; 5] = [
    column("POS", 7, false, 0),
    column("GPUS", 4, true, 0),
    column("WAIT", 6, true, 0),
    column("ETA", 7, true, 70),
    column("REASON", 0, false, 52),
];

pub(crate) fn draw(
    model: &Model,
    theme: Theme,
    head: &PaneHeader<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let cells = |job: &Job| {
        let time = job.duration_seconds.map_or_else(String::new, format::short_time);
        let price = job.price_per_hour.filter(|_| !job.status.is_final());
        let price = price.map(self::price).unwrap_or_default();
        let plain = |text| (text, Style::new());
        [
            state(theme, job),
            plain(gpus(gpus_allocated(job))),
            plain(time),
            plain(price),
            location(model, theme, job),
        ]
    };
    let list = List {
        pane: Pane::Jobs,
        columns: &PLACED_COLUMNS,
        cells: &cells,
        none: "No running jobs.",
    };
    Columns::new(model, head, area).list(model, theme, head, &list, area, buffer);
}

pub(crate) fn draw_queue(
    model: &Model,
    theme: Theme,
    head: &PaneHeader<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    // Below this width the column has no room for the number of nodes.
    let narrow = area.width < 110;
    let cells = |job: &Job| {
        let explanation = model.explanation(&job.handle()).and_then(|result| result.as_ref().ok());
        let position = explanation.and_then(|it| it.position.map(|at| (at, it.waiting)));
        let position = position.map(|(at, all)| format!("{at}/{all}")).unwrap_or_default();
        let waited = (model.now.0 - job.created_at.0).max(0) as f64 / 1000.0;
        let eta = explanation.and_then(|it| it.eta).map(|eta| eta.0 - model.now.0);
        let eta = match eta {
            Some(eta) if eta > 0 => format!("~{}", format::short_time(eta as f64 / 1000.0)),
            Some(_) => "soon".to_owned(),
            None => "-".to_owned(),
        };
        let reason = explanation.and_then(|it| it.pending_reason.as_ref());
        let reason = reason.or(job.pending_reason.as_ref()).map(|reason| {
            let render = if narrow { pending::short_reason } else { pending::reason };
            format::one_line(&render(reason, model.now))
        });
        let reason = reason.or_else(|| job.wait_reason.clone());
        let reason = if job.cancel_requested { Some("Cancelling".to_owned()) } else { reason };
        let plain = |text| (text, Style::new());
        [
            (position, theme.warn()),
            plain(gpus(gpus_requested(job))),
            plain(format::short_time(waited)),
            plain(eta),
            plain(reason.unwrap_or_default()),
        ]
    };
    let list = List {
        pane: Pane::Queue,
        columns: &PENDING_COLUMNS,
        cells: &cells,
        none: "No pending jobs.",
    };
    Columns::new(model, head, area).list(model, theme, head, &list, area, buffer);
}

pub(crate) fn price(price: Dollars) -> String {
    format!("${:.2}/h", price.0 as f64 / 1e6)
}

impl Columns {
    fn new(model: &Model, head: &PaneHeader<'_>, area: Rect) -> Self {
        let width = usize::from(area.width);
        let jobs = model.data.iter().flat_map(|data| &data.jobs);
        let numbered =
            jobs.into_iter().all(|job| job.id != JobId::default() || job.k8s_job_name.is_none());
        // The title of the pane is the header of the numbers.
        let number = if head.title.is_empty() { 5 } else { 6 };
        let number = if numbered { number } else { 0 };
        let name = match width {
            0..52 => width.saturating_sub(number + 25).clamp(6, 24),
            52..100 => 14 + (width - 52) / 10,
            _ => 19 + (width - 100) / 6,
        };
        let name = if numbered { name } else { name + 6 };
        Self { gap: if width >= 100 { 2 } else { 1 }, number, name: name.min(36), width }
    }

    fn list(
        &self,
        model: &Model,
        theme: Theme,
        head: &PaneHeader<'_>,
        list: &List<'_>,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        // The title of the pane replaces the header of the numbers.
        let number = if head.title.is_empty() { "JOB" } else { "" };
        head.draw(theme, self.heading(theme, number, list.columns), area, buffer);
        let jobs = if list.pane == Pane::Jobs { model.jobs() } else { model.queue() };
        if jobs.is_empty() && model.data.is_some() {
            let none =
                if model.filter.is_empty() { list.none } else { "No job matches the filter." };
            let room = self.width.saturating_sub(1);
            return Row::new(theme)
                .gap(1)
                .left(none, room, theme.faint())
                .draw(false, area, 1, buffer);
        }
        let cursor = model.cursor(list.pane);
        let height = usize::from(area.height.saturating_sub(1));
        for (index, job) in jobs.iter().enumerate().skip(cursor.offset).take(height) {
            let row = self.row(theme, list.columns, job, (list.cells)(job));
            let selected = head.focused && index == cursor.index;
            row.draw(selected, area, (index - cursor.offset + 1) as u16, buffer);
        }
    }

    fn heading(&self, theme: Theme, number: &str, all: &[Column]) -> Row {
        let style = theme.heading();
        let name = if self.number > 0 { "NAME" } else { number };
        let mut row = Row::new(theme).gap(1);
        if self.number > 0 {
            row = row.right(number, self.number, style).gap(self.gap);
        }
        row = row.left(name, self.name, style);
        for column in all.iter().filter(|column| column.min_pane <= self.width) {
            let title = column.title;
            row = row.gap(self.gap);
            row = match (column.width, column.right) {
                (0, _) => row.left(title, title.len(), style),
                (width, true) => row.right(title, width, style),
                (width, false) => row.left(title, width, style),
            };
        }
        row
    }

    fn row(&self, theme: Theme, all: &[Column], job: &Job, cells: Cells) -> Row {
        let faint = job.status.is_final();
        let dim = |style: Style| if faint && style == Style::new() { theme.faint() } else { style };
        let mut row = Row::new(theme).gap(1);
        if self.number > 0 {
            row = row.right(&job.handle(), self.number, dim(Style::new())).gap(self.gap);
        }
        let name = if self.number > 0 { labels::job_name(job) } else { job.handle() };
        row = row.left(&name, self.name, if faint { theme.faint() } else { theme.strong() });
        let shown = all.iter().zip(cells).filter(|(column, _)| column.min_pane <= self.width);
        for (column, (text, style)) in shown {
            row = row.gap(self.gap);
            let style = dim(style);
            row = match (column.width, column.right) {
                (0, _) => {
                    let room = self.width.saturating_sub(row.width());
                    row.left(&text, room, style)
                }
                (width, true) => row.right(&text, width, style),
                (width, false) => row.left(&text, width, style),
            };
        }
        row
    }
}

fn state(theme: Theme, job: &Job) -> (String, Style) {
    if job.cancel_requested && !job.status.is_final() {
        return ("stopping".to_owned(), theme.warn());
    }
    let style = match job.status {
        JobStatus::Running => theme.good(),
        JobStatus::Scheduled => theme.accent(),
        JobStatus::Failed => theme.bad(),
        JobStatus::Pending | JobStatus::Completed | JobStatus::Cancelled => Style::new(),
    };
    (job.status.as_str().to_owned(), style)
}

/// Nodes and GPUs of a job, or the cause of its failure.
fn location(model: &Model, theme: Theme, job: &Job) -> (String, Style) {
    if job.status == JobStatus::Failed {
        return (labels::failure(job), theme.bad());
    }
    let locations: Vec<_> = job
        .tasks
        .iter()
        .map(|task| {
            if task.gpus.is_empty() {
                task.node_name.clone()
            } else {
                format!("{}:{}", task.node_name, numbers(model, task).join(","))
            }
        })
        .collect();
    let simulated = if job.simulated { " SIMULATED" } else { "" };
    (format!("{}{simulated}", locations.join(" ")), Style::new())
}

/// GPUs of a task by their numbers on the node, or by name if the node does not report them.
fn numbers(model: &Model, task: &TaskPlace) -> Vec<String> {
    let mut nodes = model.data.iter().flat_map(|data| &data.nodes);
    let Some(node) = nodes.find(|node| node.node_id == task.node_id) else {
        return task.gpus.clone();
    };
    let known = &node.spec.gpu_instances;
    let number = |name: &String| {
        let bare = name.rsplit('/').next();
        let found = known.iter().position(|gpu| gpu.gpu_uuid.as_deref() == bare);
        found.map_or_else(|| name.clone(), |at| labels::gpu_number(at, &known[at]))
    };
    let mut numbers: Vec<String> = task.gpus.iter().map(number).collect();
    numbers.sort();
    numbers
}

fn gpus(count: f64) -> String {
    match count {
        0.0 => "-".to_owned(),
        count if count.fract() == 0.0 => format!("{count:.0}"),
        count => format!("{count:.2}"),
    }
}
