//! Detail area below the panes, overlay pages, and the confirmation of a cancellation.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Clear, Widget as _};

use super::row::Row;
use super::theme::Theme;
use super::{framed, overlay_title};
use crate::detail::{self, StyledLine};
use crate::labels;
use crate::model::{Model, Overlay, Selection, has_output};
use crate::text;

/// The selected row below the panes: the end of its logs, else the beginning of its facts.
pub(crate) fn draw_detail(
    model: &Model,
    theme: Theme,
    area: Rect,
    with_frame: bool,
    buffer: &mut Buffer,
) {
    if area.is_empty() {
        return;
    }
    let title = detail::selection_title(model);
    let inner = if with_frame {
        framed(theme, &title, "", false, area, buffer)
    } else {
        let width = usize::from(area.width).saturating_sub(1);
        Row::new(theme).gap(1).left(&title, width, theme.strong()).draw(false, area, 0, buffer);
        Rect { y: area.y + 1, height: area.height - 1, ..area }
    };
    let lines = detail::selection_lines(model, usize::from(inner.width).saturating_sub(2));
    let output = matches!(model.selection(), Selection::Job(job) if has_output(job));
    let skip = if output { lines.len().saturating_sub(usize::from(inner.height)) } else { 0 };
    draw_lines(theme, &lines, skip, inner, buffer);
}

pub(crate) fn draw(model: &Model, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let lines = detail::overlay_lines(model, usize::from(area.width));
    let page = usize::from(area.height.saturating_sub(2));
    let most = lines.len().saturating_sub(page);
    let scroll = model.scroll.min(most);
    let output = matches!(model.overlay, Overlay::Logs(_));
    let skip = if output { most - scroll } else { scroll };
    let note = match (lines.len() > page, output && scroll == 0) {
        (true, true) => format!("{} lines, at the end", lines.len()),
        (true, false) => {
            format!("{}-{} of {}", skip + 1, (skip + page).min(lines.len()), lines.len())
        }
        (false, _) => String::new(),
    };
    let inner = framed(theme, &overlay_title(model), &note, true, area, buffer);
    draw_lines(theme, &lines, skip, inner, buffer);
}

pub(crate) fn draw_confirmation(
    model: &Model,
    theme: Theme,
    handle: &str,
    body: Rect,
    buffer: &mut Buffer,
) {
    let Some(job) = model.job(handle) else { return };
    let nodes = labels::job_nodes(job);
    let location = if nodes.is_empty() { String::new() } else { format!(" on {nodes}") };
    let question =
        format!("Cancel job {}, {}{location}?", labels::job_title(job), job.status.as_str());
    let width = body.width.saturating_sub(4).min(64);
    let mut lines =
        text::wrap(&theme.printable(&question), usize::from(width.saturating_sub(4)), "");
    lines.extend([String::new(), "y cancels the job, any other key keeps it".to_owned()]);
    let height = (lines.len() as u16 + 2).min(body.height);
    let area = Rect::new(
        body.x + (body.width - width) / 2,
        body.y + (body.height - height) / 2,
        width,
        height,
    );
    Clear.render(area, buffer);
    let inner = framed(theme, "Cancel", "", true, area, buffer);
    let room = usize::from(inner.width).saturating_sub(2);
    for (row, line) in lines.iter().enumerate() {
        let style = if row == 0 { theme.strong() } else { Style::new() };
        Row::new(theme).gap(1).left(line, room, style).draw(false, inner, row as u16, buffer);
    }
}

fn draw_lines(theme: Theme, lines: &[StyledLine], skip: usize, area: Rect, buffer: &mut Buffer) {
    let room = usize::from(area.width).saturating_sub(2);
    let shown = lines.iter().skip(skip).take(usize::from(area.height));
    for (row, (tone, line)) in shown.enumerate() {
        let style = theme.tone(*tone);
        Row::new(theme).gap(1).left(line, room, style).draw(false, area, row as u16, buffer);
    }
}
