//! The panes of jobs: those with a place, and those that wait for one.

use agentaflow_api::Dollars;
use agentaflow_api::job::{Job, JobStatus, TaskPlace};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::model::{Model, Pane};
use super::super::sheet;
use super::Heading;
use super::row::Row;
use super::theme::Theme;
use crate::listing::{gpus_held, gpus_wanted};
use crate::output;

/// Widths of what both lists begin with.
#[derive(Clone, Copy, Debug)]
struct Columns {
    gap: usize,
    /// Nothing where a job's name is all there is.
    number: usize,
    name: usize,
    width: usize,
}

/// A column of a list.
struct Column {
    title: &'static str,
    /// 0 takes what is left.
    width: usize,
    right: bool,
    /// How wide the pane must be for it.
    from: usize,
}

const fn column(title: &'static str, width: usize, right: bool, from: usize) -> Column {
    Column { title, width, right, from }
}

/// What one of the two panes shows.
struct List<'a> {
    pane: Pane,
    columns: &'a [Column; 5],
    /// A cell for every column, whether it is shown or not.
    cells: &'a dyn Fn(&Job) -> Cells,
    none: &'static str,
}

type Cells = [(String, Style); 5];

const WITH_A_PLACE: [Column; 5] = [
    column("STATE", 9, false, 0),
    column("GPUS", 4, true, 0),
    column("TIME", 6, true, 0),
    column("PRICE", 8, true, 70),
    column("WHERE", 0, false, 52),
];

const WAITING: [Column; 5] = [
    column("PLACE", 7, false, 0),
    column("GPUS", 4, true, 0),
    column("WAITS", 6, true, 0),
    column("ETA", 7, true, 70),
    column("WHY", 0, false, 52),
];

pub(super) fn draw(
    model: &Model,
    theme: Theme,
    head: &Heading<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let cells = |job: &Job| {
        let time = job.duration_seconds.map_or_else(String::new, output::short_time);
        let price = job.price_per_hour.filter(|_| !job.status.is_final());
        let price = price.map(self::price).unwrap_or_default();
        let plain = |text| (text, Style::new());
        [
            state(theme, job),
            plain(gpus(gpus_held(job))),
            plain(time),
            plain(price),
            place(model, theme, job),
        ]
    };
    let list =
        List { pane: Pane::Jobs, columns: &WITH_A_PLACE, cells: &cells, none: "Nothing runs." };
    Columns::new(model, head, area).list(model, theme, head, &list, area, buffer);
}

pub(super) fn draw_queue(
    model: &Model,
    theme: Theme,
    head: &Heading<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let cells = |job: &Job| {
        let said = model.explanation(&job.handle()).and_then(|said| said.as_ref().ok());
        let position = said.and_then(|said| said.position.map(|at| (at, said.waiting)));
        let position = position.map(|(at, all)| format!("{at}/{all}")).unwrap_or_default();
        let waits = (model.now.0 - job.created_at.0).max(0) as f64 / 1000.0;
        let eta = said.and_then(|said| said.eta).map(|eta| eta.0 - model.now.0);
        let eta = match eta {
            Some(eta) if eta > 0 => format!("~{}", output::short_time(eta as f64 / 1000.0)),
            Some(_) => "soon".to_owned(),
            None => "-".to_owned(),
        };
        let why = said.and_then(|said| said.detail.clone()).or_else(|| job.wait_reason.clone());
        let why = if job.cancel_requested { Some("being stopped".to_owned()) } else { why };
        let plain = |text| (text, Style::new());
        [
            (position, theme.warn()),
            plain(gpus(gpus_wanted(job))),
            plain(output::short_time(waits)),
            plain(eta),
            plain(why.unwrap_or_default()),
        ]
    };
    let list = List { pane: Pane::Queue, columns: &WAITING, cells: &cells, none: "Nothing waits." };
    Columns::new(model, head, area).list(model, theme, head, &list, area, buffer);
}

/// A price as people read it.
pub(super) fn price(price: Dollars) -> String {
    format!("${:.2}/h", price.0 as f64 / 1e6)
}

impl Columns {
    fn new(model: &Model, head: &Heading<'_>, area: Rect) -> Self {
        let width = usize::from(area.width);
        let jobs = model.data.iter().flat_map(|data| &data.jobs);
        let numbered = jobs.into_iter().all(|job| job.id != 0 || job.k8s_job_name.is_none());
        // The name of the pane stands over the numbers.
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
        head: &Heading<'_>,
        list: &List<'_>,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        // The name of the pane stands where the heading of the numbers would.
        let number = if head.title.is_empty() { "JOB" } else { "" };
        head.draw(theme, self.heading(theme, number, list.columns), area, buffer);
        let jobs = if list.pane == Pane::Jobs { model.jobs() } else { model.queue() };
        if jobs.is_empty() && model.data.is_some() {
            let none =
                if model.filter.is_empty() { list.none } else { "No job passes the filter." };
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
            let chosen = head.focused && index == cursor.index;
            row.draw(chosen, area, (index - cursor.offset + 1) as u16, buffer);
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
        for column in all.iter().filter(|column| column.from <= self.width) {
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
        let name = if self.number > 0 { sheet::job_name(job) } else { job.handle() };
        row = row.left(&name, self.name, if faint { theme.faint() } else { theme.strong() });
        let shown = all.iter().zip(cells).filter(|(column, _)| column.from <= self.width);
        for (column, (said, style)) in shown {
            row = row.gap(self.gap);
            let style = dim(style);
            row = match (column.width, column.right) {
                (0, _) => {
                    let room = self.width.saturating_sub(row.width());
                    row.left(&output::shortened(&said, room), room, style)
                }
                (width, true) => row.right(&said, width, style),
                (width, false) => row.left(&said, width, style),
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

/// Where a job is, or why it ended.
fn place(model: &Model, theme: Theme, job: &Job) -> (String, Style) {
    if job.status == JobStatus::Failed {
        return (crate::listing::failure(job), theme.bad());
    }
    let places: Vec<_> = job
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
    (format!("{}{simulated}", places.join(" ")), Style::new())
}

/// The GPUs of a task by their numbers on the node, where their names are known there.
fn numbers(model: &Model, task: &TaskPlace) -> Vec<String> {
    let mut nodes = model.data.iter().flat_map(|data| &data.nodes);
    let Some(node) = nodes.find(|node| node.node_id == task.node_id) else {
        return task.gpus.clone();
    };
    let known = &node.spec.gpu_instances;
    let number = |name: &String| {
        let bare = name.rsplit('/').next();
        let found = known.iter().position(|gpu| gpu.gpu_uuid.as_deref() == bare);
        found.map_or_else(|| name.clone(), |at| sheet::gpu_number(node, at).to_string())
    };
    let mut numbers: Vec<String> = task.gpus.iter().map(number).collect();
    numbers.sort();
    numbers
}

/// A number of GPUs, or a share of one.
fn gpus(count: f64) -> String {
    match count {
        0.0 => "-".to_owned(),
        count if count.fract() == 0.0 => format!("{count:.0}"),
        count => format!("{count:.2}"),
    }
}
