//! A row that is built from left to right in columns of fixed width.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::super::text;
use super::theme::Theme;

/// A row that is built from left to right.
#[derive(Debug)]
pub(super) struct Row {
    theme: Theme,
    spans: Vec<Span<'static>>,
}

impl Row {
    pub(super) fn new(theme: Theme) -> Self {
        Self { theme, spans: Vec::new() }
    }

    pub(super) fn gap(self, columns: usize) -> Self {
        self.raw(" ".repeat(columns), Style::new())
    }

    pub(super) fn left(self, said: &str, columns: usize, style: Style) -> Self {
        let said = text::fit(&self.theme.say(said), columns, self.theme.cut());
        self.raw(said, style)
    }

    pub(super) fn right(self, said: &str, columns: usize, style: Style) -> Self {
        let said = text::fit_right(&self.theme.say(said), columns, self.theme.cut());
        self.raw(said, style)
    }

    /// A bar, or an empty place where there is no reading.
    pub(super) fn bar(self, share: Option<f64>, columns: usize, style: Style) -> Self {
        let Some(share) = share else { return self.gap(columns) };
        let (filled, empty) = self.theme.bar(share, columns);
        let faint = self.theme.faint();
        self.raw(filled, style).raw(empty, faint)
    }

    /// Text that is known to be harmless, as it is.
    pub(super) fn raw(mut self, said: String, style: Style) -> Self {
        if !said.is_empty() {
            self.spans.push(Span::styled(said, style));
        }
        self
    }

    /// Columns that are taken.
    pub(super) fn width(&self) -> usize {
        self.spans.iter().map(|span| text::width(&span.content)).sum()
    }

    /// Draws it; a chosen row is reversed from edge to edge.
    pub(super) fn draw(self, chosen: bool, area: Rect, row: u16, buffer: &mut Buffer) {
        if row >= area.height || area.width == 0 {
            return;
        }
        let at = Rect::new(area.x, area.y + row, area.width, 1).intersection(buffer.area);
        if at.is_empty() {
            return;
        }
        let spans = if chosen {
            // Colours are left out: reversed they would be patches of loud background.
            self.spans.into_iter().map(|span| Span::raw(span.content)).collect()
        } else {
            self.spans
        };
        buffer.set_line(at.x, at.y, &Line::from(spans), at.width);
        if chosen {
            buffer.set_style(at, self.theme.chosen());
        }
    }
}
