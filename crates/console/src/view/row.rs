//! Row builder.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::theme::Theme;
use crate::text;

/// A row built from left to right in columns of fixed width.
#[derive(Debug)]
pub(crate) struct Row {
    theme: Theme,
    spans: Vec<Span<'static>>,
}

impl Row {
    pub(crate) fn new(theme: Theme) -> Self {
        Self { theme, spans: Vec::new() }
    }

    pub(crate) fn gap(self, columns: usize) -> Self {
        self.raw(" ".repeat(columns), Style::new())
    }

    pub(crate) fn left(self, content: &str, columns: usize, style: Style) -> Self {
        let fitted = text::fit(&self.theme.printable(content), columns, self.theme.cut());
        self.raw(fitted, style)
    }

    pub(crate) fn right(self, content: &str, columns: usize, style: Style) -> Self {
        let fitted = text::fit_right(&self.theme.printable(content), columns, self.theme.cut());
        self.raw(fitted, style)
    }

    /// A bar, or spaces if there is no reading.
    pub(crate) fn bar(self, share: Option<f64>, columns: usize, style: Style) -> Self {
        let Some(share) = share else { return self.gap(columns) };
        let (filled, empty) = self.theme.bar(share, columns);
        let faint = self.theme.faint();
        self.raw(filled, style).raw(empty, faint)
    }

    /// Text that is safe to draw without sanitizing.
    pub(crate) fn raw(mut self, text: String, style: Style) -> Self {
        if !text.is_empty() {
            self.spans.push(Span::styled(text, style));
        }
        self
    }

    pub(crate) fn width(&self) -> usize {
        self.spans.iter().map(|span| text::width(&span.content)).sum()
    }

    /// A selected row is drawn in reverse video over its full width.
    pub(crate) fn draw(self, selected: bool, area: Rect, row: u16, buffer: &mut Buffer) {
        if row >= area.height || area.width == 0 {
            return;
        }
        let at = Rect::new(area.x, area.y + row, area.width, 1).intersection(buffer.area);
        if at.is_empty() {
            return;
        }
        let spans = if selected {
            // Reversed colours would be patches of bright background.
            self.spans.into_iter().map(|span| Span::raw(span.content)).collect()
        } else {
            self.spans
        };
        buffer.set_line(at.x, at.y, &Line::from(spans), at.width);
        if selected {
            buffer.set_style(at, self.theme.selected());
        }
    }
}
