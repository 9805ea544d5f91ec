//! The panes of jobs: those with a place, and those that wait for one.

use agentaflow_api::Dollars;
use agentaflow_api::job::{Job, JobStatus};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::super::model::{Model, Pane, gpus_held, gpus_wanted};
use super::super::sheet;
use super::Heading;
use super::row::Row;
use super::theme::Theme;
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

/// A column: its heading, its width, and on which side it stands.
type Column = (&'static str, usize, bool);

pub(super) fn draw(
    model: &Model,
    theme: Theme,
    head: &Heading<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let columns = Columns::new(model, head, area);
    let wide = columns.width;
    let mut all: Vec<Column> = vec![("STATE", 9, false), ("GPUS", 4, true), ("TIME", 6, true)];
    if wide >= 70 {
        all.push(("PRICE", 8, true));
    }
    if wide >= 52 {
        all.push(("WHERE", 0, false));
    }
    let cells = |job: &Job| {
        let time = job.duration_seconds.map_or_else(String::new, output::short_time);
        let gpus = match gpus_held(job) {
            0 => "-".to_owned(),
            count => count.to_string(),
        };
        let (state, style) = state(theme, job);
        let price = job.price_per_hour.filter(|_| !job.status.is_final());
        let (place, place_style) = place(theme, job);
        let mut cells = vec![(state, style), (gpus, Style::new()), (time, Style::new())];
        if wide >= 70 {
            cells.push((price.map(self::price).unwrap_or_default(), Style::new()));
        }
        cells.push((place, place_style));
        cells
    };
    let none = "Nothing runs.";
    columns.list(model, theme, head, Pane::Jobs, (&all, none), &cells, area, buffer);
}

pub(super) fn draw_queue(
    model: &Model,
    theme: Theme,
    head: &Heading<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let columns = Columns::new(model, head, area);
    let wide = columns.width;
    let mut all: Vec<Column> = vec![("PLACE", 7, false), ("GPUS", 4, true), ("WAITS", 6, true)];
    if wide >= 70 {
        all.push(("ETA", 7, true));
    }
    if wide >= 52 {
        all.push(("WHY", 0, false));
    }
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
        let mut cells = vec![
            (position, theme.warn()),
            (wanted(job), Style::new()),
            (output::short_time(waits), Style::new()),
        ];
        if wide >= 70 {
            cells.push((eta, Style::new()));
        }
        cells.push((why.unwrap_or_default(), Style::new()));
        cells
    };
    let none = "Nothing waits.";
    columns.list(model, theme, head, Pane::Queue, (&all, none), &cells, area, buffer);
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

    #[expect(clippy::too_many_arguments, reason = "where, what and how, said once for both lists")]
    fn list(
        &self,
        model: &Model,
        theme: Theme,
        head: &Heading<'_>,
        pane: Pane,
        (all, none): (&[Column], &str),
        cells: &dyn Fn(&Job) -> Vec<(String, Style)>,
        area: Rect,
        buffer: &mut Buffer,
    ) {
        // The name of the pane stands where the heading of the numbers would.
        let number = if head.title.is_empty() { "JOB" } else { "" };
        head.draw(theme, self.heading(theme, number, all), area, buffer);
        let jobs = if pane == Pane::Jobs { model.jobs() } else { model.queue() };
        if jobs.is_empty() && model.data.is_some() {
            let none = if model.filter.is_empty() { none } else { "No job passes the filter." };
            let room = self.width.saturating_sub(1);
            return Row::new(theme)
                .gap(1)
                .left(none, room, theme.faint())
                .draw(false, area, 1, buffer);
        }
        let cursor = model.cursor(pane);
        let height = usize::from(area.height.saturating_sub(1));
        for (index, job) in jobs.iter().enumerate().skip(cursor.offset).take(height) {
            let faint = job.status.is_final();
            let row = self.row(theme, all, job, cells(job), faint);
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
        for (title, width, right) in all {
            row = row.gap(self.gap);
            row = match (width, right) {
                (0, _) => row.left(title, title.len(), style),
                (_, true) => row.right(title, *width, style),
                (_, false) => row.left(title, *width, style),
            };
        }
        row
    }

    fn row(
        &self,
        theme: Theme,
        all: &[Column],
        job: &Job,
        cells: Vec<(String, Style)>,
        faint: bool,
    ) -> Row {
        let dim = |style: Style| if faint && style == Style::new() { theme.faint() } else { style };
        let mut row = Row::new(theme).gap(1);
        if self.number > 0 {
            row = row.right(&job.handle(), self.number, dim(Style::new())).gap(self.gap);
        }
        let name = if self.number > 0 { sheet::job_name(job) } else { job.handle() };
        row = row.left(&name, self.name, if faint { theme.faint() } else { theme.strong() });
        for ((_, width, right), (said, style)) in all.iter().zip(cells) {
            row = row.gap(self.gap);
            let style = dim(style);
            row = match (width, right) {
                (0, _) => {
                    let room = self.width.saturating_sub(row.width());
                    row.left(shortened(&said, room), room, style)
                }
                (_, true) => row.right(&said, *width, style),
                (_, false) => row.left(&said, *width, style),
            };
        }
        row
    }
}

/// A reason that is too long for its column, without the count of nodes that it begins with.
fn shortened(said: &str, room: usize) -> &str {
    match said.split_once(": ") {
        Some((count, rest)) if said.chars().count() > room && count.contains("nodes fit") => rest,
        _ => said,
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
fn place(theme: Theme, job: &Job) -> (String, Style) {
    if job.status == JobStatus::Failed {
        let why = job.error_message.clone().or_else(|| job.end_reason.clone());
        return (why.unwrap_or_default(), theme.bad());
    }
    let places: Vec<_> = job
        .tasks
        .iter()
        .map(|task| {
            if task.gpus.is_empty() {
                task.node_name.clone()
            } else {
                format!("{}:{}", task.node_name, task.gpus.join(","))
            }
        })
        .collect();
    let simulated = if job.simulated { " SIMULATED" } else { "" };
    (format!("{}{simulated}", places.join(" ")), Style::new())
}

/// GPUs that a job asks for.
fn wanted(job: &Job) -> String {
    match gpus_wanted(job) {
        0.0 if job.spec.gpu_memory_required.is_some() => "1".to_owned(),
        0.0 => "-".to_owned(),
        count if count.fract() == 0.0 => format!("{count:.0}"),
        count => format!("{count:.2}"),
    }
}
