//! Draws the model into a frame.

mod gpus;
mod jobs;
mod overlay;
mod row;
#[cfg(test)]
pub(crate) mod tests;
mod theme;

use agentaflow_api::job::JobStatus;
use agentaflow_api::node::NodeStatus;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Widget as _};

pub use theme::Theme;

use self::row::Row;
use crate::format::{self, counted};
use crate::layout::{self, MIN_SIZE};
use crate::model::{Model, Overlay, Pane, orders};
use crate::{labels, text};

pub(crate) fn draw(model: &Model, theme: Theme, frame: &mut Frame<'_>) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if layout::too_small((area.width, area.height)) || layout::too_small(model.size) {
        return too_small(theme, area, buffer);
    }
    let areas = model.areas();
    header(model, theme, areas.header, buffer);
    banner(model, theme, areas.banner, buffer);
    match &model.overlay {
        Overlay::None | Overlay::Confirm(_) => {
            for pane in [Pane::Gpus, Pane::Jobs, Pane::Queue] {
                draw_pane(model, theme, pane, buffer);
            }
            overlay::draw_detail(model, theme, areas.detail, areas.framed, buffer);
        }
        _ => overlay::draw(model, theme, body(model), buffer),
    }
    if let Overlay::Confirm(job) = &model.overlay {
        overlay::draw_confirmation(model, theme, job, body(model), buffer);
    }
    footer(model, theme, areas.footer, buffer);
}

/// The area between header and footer.
fn body(model: &Model) -> Rect {
    let areas = model.areas();
    let top = areas.header.height + areas.banner.height;
    Rect::new(0, top, areas.header.width, areas.footer.y.saturating_sub(top))
}

fn too_small(theme: Theme, area: Rect, buffer: &mut Buffer) {
    let (columns, rows) = MIN_SIZE;
    let lines = [
        "too small".to_owned(),
        format!("{}x{}", area.width, area.height),
        format!("minimum {columns}x{rows}"),
    ];
    for (row, text) in lines.iter().enumerate() {
        let width = usize::from(area.width);
        Row::new(theme).left(text, width, Style::new()).draw(false, area, row as u16, buffer);
    }
}

fn header(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let age = age(model);
    let fresh = age == "live" && model.error.is_none();
    let style = if fresh { theme.good() } else { theme.warn() };
    let mut left = Row::new(theme)
        .raw(" agentaflow ".to_owned(), theme.accent().add_modifier(ratatui::style::Modifier::BOLD))
        .raw(theme.printable(&model.address), theme.strong());
    let mut rows = vec![];
    let facts = facts(model);
    if area.height > 1 {
        let room = width.saturating_sub(left.width() + age.len() + 1);
        left = left.gap(room).raw(age, style);
        rows.push(left);
        rows.push(fitting(theme, &facts, width, Row::new(theme)));
    } else {
        let room = width.saturating_sub(age.len() + 2);
        let used = left.width();
        let row = if used + 12 < room {
            left
        } else {
            Row::new(theme).raw(" agentaflow".to_owned(), theme.strong())
        };
        let row = fitting(theme, &facts, room, row);
        let used = row.width();
        rows.push(row.gap(width.saturating_sub(used + age.len() + 1)).raw(age, style));
    }
    for (index, row) in rows.into_iter().enumerate() {
        row.draw(false, area, index as u16, buffer);
    }
}

/// Appends as many facts as fit.
fn fitting(theme: Theme, facts: &[(String, bool)], room: usize, mut row: Row) -> Row {
    for (fact, loud) in facts {
        let fact = theme.printable(fact);
        let gap = if row.width() == 0 { 1 } else { 2 };
        if row.width() + gap + text::width(&fact) > room {
            break;
        }
        let style = if *loud { theme.warn() } else { Style::new() };
        row = row.gap(gap).raw(fact, style);
    }
    row
}

/// Facts of the header by importance, each with its emphasis.
fn facts(model: &Model) -> Vec<(String, bool)> {
    let Some(data) = &model.data else { return vec![("Loading…".to_owned(), false)] };
    let active = data.nodes.iter().filter(|node| node.status == NodeStatus::Active);
    let gpus: Vec<_> = active.clone().flat_map(|node| &node.spec.gpu_instances).collect();
    let busy: Vec<f64> = gpus.iter().filter_map(|gpu| gpu.utilization).collect();
    // Without a node monitor no GPU reports its utilization.
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    let load = if busy.is_empty() { String::new() } else { format!(" {mean:.0}%") };
    let count =
        |which: &[JobStatus]| data.jobs.iter().filter(|job| which.contains(&job.status)).count();
    let mut facts = Vec::new();
    let simulated = active.clone().any(|node| node.spec.simulated && node.spec.gpu_count > 0);
    let number: u32 = active.clone().map(|node| node.spec.gpu_count).sum();
    facts.push((counted(number, "GPU") + &load, false));
    let running = count(&[JobStatus::Running, JobStatus::Scheduled]);
    facts.push((format!("{running} running"), false));
    facts.push((format!("{} pending", count(&[JobStatus::Pending])), false));
    if simulated {
        facts.push(("SIMULATED".to_owned(), true));
    }
    let nodes = format!("{}/{} nodes", active.clone().count(), data.nodes.len());
    facts.push((nodes, active.count() < data.nodes.len()));
    let power: f64 = gpus.iter().filter_map(|gpu| gpu.power_usage).sum();
    if power > 0.0 {
        facts.push((gpus::watts(power), false));
    }
    let price: i64 = data
        .jobs
        .iter()
        .filter(|job| !job.status.is_final())
        .filter(|job| job.status != JobStatus::Pending)
        .filter_map(|job| Some(job.price_per_hour?.0))
        .sum();
    if price > 0 {
        facts.push((jobs::price(agentaflow_api::Dollars(price)), false));
    }
    facts
}

/// Age of the data; data of the last refresh is `live`, since an age that jumps between 0 and 1 adds nothing.
fn age(model: &Model) -> String {
    let age = model.age();
    if model.data.is_none() {
        String::new()
    } else if age < model.interval.as_secs_f64() + 2.0 {
        "live".to_owned()
    } else {
        format!("{} old", format::short_time(age))
    }
}

fn banner(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let Some(error) = &model.error else { return };
    let age = match model.data {
        Some(_) => format!("data {} old", format::short_time(model.age())),
        None => "no data".to_owned(),
    };
    let width = usize::from(area.width);
    let room = width.saturating_sub(age.len() + 3);
    Row::new(theme)
        .raw(" ".to_owned(), theme.banner())
        .left(error, room, theme.banner())
        .raw(format!(" {age} "), theme.banner())
        .draw(false, area, 0, buffer);
}

fn draw_pane(model: &Model, theme: Theme, pane: Pane, buffer: &mut Buffer) {
    let areas = model.areas();
    let area = areas.pane(pane);
    if area.is_empty() {
        return;
    }
    let focused = model.focus == pane;
    let (title, count) = match pane {
        Pane::Gpus => ("Nodes", model.gpus().len()),
        Pane::Jobs => ("Jobs", model.jobs().len()),
        Pane::Queue => ("Queue", model.queue().len()),
    };
    let cursor = model.cursor(pane);
    let mut order = String::new();
    if cursor.sort != 0 || cursor.reversed {
        let by = orders(pane).get(cursor.sort).copied().unwrap_or_default();
        order = format!("by {by}{}", if cursor.reversed { ", reversed" } else { "" });
    }
    let height = areas.page(pane);
    if count > height {
        let last = (cursor.offset + height).min(count);
        let gap = if order.is_empty() { "" } else { "  " };
        order = format!("{order}{gap}{}-{last} of {count}", cursor.offset + 1);
    }
    let inner =
        if areas.framed { framed(theme, title, &order, focused, area, buffer) } else { area };
    let heading = if areas.framed { "" } else { title };
    let note = if areas.framed { "" } else { order.as_str() };
    let head = PaneHeader { title: heading, note, focused };
    match pane {
        Pane::Gpus => gpus::draw(model, theme, &head, inner, buffer),
        Pane::Jobs => jobs::draw(model, theme, &head, inner, buffer),
        Pane::Queue => jobs::draw_queue(model, theme, &head, inner, buffer),
    }
}

/// Title, note and focus of a pane. The title is empty where the pane has a frame.
struct PaneHeader<'a> {
    title: &'a str,
    note: &'a str,
    focused: bool,
}

impl PaneHeader<'_> {
    /// Draws column headers, the title over the first of them, and the note at the right end.
    fn draw(&self, theme: Theme, row: Row, area: Rect, buffer: &mut Buffer) {
        row.draw(false, area, 0, buffer);
        if !self.title.is_empty() {
            let style = theme.title(self.focused);
            let mark = if self.focused { ">" } else { " " };
            let title = format!("{mark}{} ", self.title);
            Row::new(theme).raw(title, style).draw(false, area, 0, buffer);
        }
        let width = text::width(self.note) + 2;
        if width > 2 && area.width >= 60 {
            let at = Rect { x: area.right() - width as u16, width: width as u16, ..area };
            Row::new(theme)
                .raw(format!(" {} ", self.note), theme.accent())
                .draw(false, at, 0, buffer);
        }
    }
}

/// Draws a frame and returns the area inside.
fn framed(
    theme: Theme,
    title: &str,
    note: &str,
    focused: bool,
    area: Rect,
    buffer: &mut Buffer,
) -> Rect {
    let title = theme.printable(&format!(" {title} "));
    let room = usize::from(area.width.saturating_sub(4));
    let title = text::cut(&title, room, theme.cut());
    let mut block = Block::bordered()
        .border_set(theme.frame())
        .border_style(theme.edge(focused))
        .title_top(Line::styled(title, theme.title(focused)));
    if !note.is_empty() {
        let note = Line::styled(format!(" {note} "), theme.accent());
        block = block.title_top(note.right_aligned());
    }
    let inner = block.inner(area);
    block.render(area, buffer);
    inner
}

fn footer(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    if model.typing {
        let room = width.saturating_sub(9);
        let shown: String = theme.printable(&model.filter);
        let skip = text::width(&shown).saturating_sub(room.saturating_sub(2));
        let shown: String = shown.chars().skip(skip).collect();
        return Row::new(theme)
            .raw(" filter: ".to_owned(), theme.accent())
            .raw(shown, theme.strong())
            .raw(" ".to_owned(), theme.selected())
            .draw(false, area, 0, buffer);
    }
    if let Some((_, notice)) = &model.notice {
        return Row::new(theme)
            .gap(1)
            .left(notice, width.saturating_sub(1), theme.warn())
            .draw(false, area, 0, buffer);
    }
    let mut row = Row::new(theme);
    if !model.filter.is_empty() {
        let filter = text::cut(&theme.printable(&model.filter), 20, theme.cut());
        row = row.gap(1).raw("filter ".to_owned(), theme.accent()).raw(filter, theme.strong());
        row = row.raw(" (Esc)".to_owned(), theme.faint()).gap(1);
    }
    for (key, does) in keys(model) {
        if row.width() + key.len() + does.len() + 3 > width {
            break;
        }
        row = row
            .gap(1)
            .raw((*key).to_owned(), theme.strong())
            .gap(1)
            .raw((*does).to_owned(), theme.faint())
            .gap(1);
    }
    row.draw(false, area, 0, buffer);
}

/// Key hints of the footer.
fn keys(model: &Model) -> &'static [(&'static str, &'static str)] {
    match &model.overlay {
        Overlay::None => &[
            ("q", "quit"),
            ("?", "help"),
            ("Tab", "pane"),
            ("/", "filter"),
            ("s", "sort"),
            ("e", "explain"),
            ("l", "logs"),
            ("c", "cancel"),
            ("Space", "fold"),
        ],
        Overlay::Help => &[("Esc", "back")],
        Overlay::Confirm(_) => &[("y", "cancel the job"), ("any other key", "keep it")],
        Overlay::Logs(_) => &[
            ("Esc", "back"),
            ("arrows", "scroll"),
            ("End", "follow"),
            ("e", "explain"),
            ("c", "cancel"),
        ],
        Overlay::Explain(_) => {
            &[("Esc", "back"), ("arrows", "scroll"), ("l", "logs"), ("c", "cancel")]
        }
    }
}

fn overlay_title(model: &Model) -> String {
    let job = |handle: &str| {
        model.job(handle).map_or_else(
            || handle.to_owned(),
            |job| format!("{} · {}", labels::job_title(job), job.status.as_str()),
        )
    };
    match &model.overlay {
        Overlay::Help => "Keys".to_owned(),
        Overlay::Logs(handle) => format!("Logs of {}", job(handle)),
        Overlay::Explain(handle) => format!("Job {}", job(handle)),
        Overlay::None | Overlay::Confirm(_) => String::new(),
    }
}
