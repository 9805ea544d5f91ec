//! Colours and glyphs. The sixteen terminal colours fit any background. Without colours, text, bold, dim and reverse
//! video carry the same information.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

use crate::detail::Tone;
use crate::text;

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    pub colour: bool,
    /// Draws ASCII only.
    pub ascii: bool,
}

const PLAIN_FRAME: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

#[expect(clippy::unused_self, reason = "callers ask the theme for every style alike")]
impl Theme {
    pub(crate) fn frame(self) -> border::Set<'static> {
        if self.ascii { PLAIN_FRAME } else { border::ROUNDED }
    }

    /// Mark at the end of a cut text.
    pub(crate) fn cut(self) -> char {
        if self.ascii { '~' } else { '…' }
    }

    pub(crate) fn arrow(self, folded: bool) -> &'static str {
        match (self.ascii, folded) {
            (false, true) => "▸",
            (false, false) => "▾",
            (true, true) => "+",
            (true, false) => "-",
        }
    }

    pub(crate) fn degrees(self) -> &'static str {
        if self.ascii { "C" } else { "°C" }
    }

    /// Foreign text without control characters, in the character set of the terminal.
    pub(crate) fn printable(self, content: &str) -> String {
        let clean = text::clean(content);
        if self.ascii { text::ascii(&clean) } else { clean }
    }

    /// The filled and the empty part of a bar. Bars are lines, since blocks of adjacent rows would touch.
    pub(crate) fn bar(self, share: f64, columns: usize) -> (String, String) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        if self.ascii {
            let full = (share * columns as f64).round() as usize;
            return ("#".repeat(full), ".".repeat(columns - full));
        }
        let halves = (share * columns as f64 * 2.0).round() as usize;
        // A positive share shows at least half a column.
        let halves = if share > 0.0 && columns > 0 { halves.max(1) } else { halves };
        let mut filled = "━".repeat(halves / 2);
        if !halves.is_multiple_of(2) {
            filled.push('╸');
        }
        (filled, "─".repeat(columns - halves.div_ceil(2)))
    }

    /// One column of a history: a percentage as a height. The highest block leaves a gap to the row above.
    pub(crate) fn height(self, percent: Option<f64>) -> char {
        const BLOCKS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];
        const LETTERS: [char; 7] = ['_', '.', ':', '-', '=', '*', '#'];
        let Some(percent) = percent else { return ' ' };
        let step = (percent.clamp(0.0, 100.0) / 100.0 * 6.0).round() as usize;
        if self.ascii { LETTERS[step.min(6)] } else { BLOCKS[step.min(6)] }
    }

    pub(crate) fn load(self, share: f64) -> Style {
        match share {
            share if share < 0.7 => self.fore(Color::Green),
            share if share < 0.9 => self.fore(Color::Yellow),
            _ => self.fore(Color::Red),
        }
    }

    /// Allocated memory; full allocation is not an alarm.
    pub(crate) fn allocated(self) -> Style {
        self.fore(Color::Blue)
    }

    pub(crate) fn temperature(self, celsius: f64) -> Style {
        match celsius {
            celsius if celsius < 65.0 => self.fore(Color::Green),
            celsius if celsius < 80.0 => self.fore(Color::Yellow),
            _ => self.fore(Color::Red),
        }
    }

    pub(crate) fn good(self) -> Style {
        self.fore(Color::Green)
    }

    pub(crate) fn warn(self) -> Style {
        self.fore(Color::Yellow)
    }

    pub(crate) fn bad(self) -> Style {
        self.fore(Color::Red)
    }

    pub(crate) fn accent(self) -> Style {
        self.fore(Color::Cyan)
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn faint(self) -> Style {
        if self.colour {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    pub(crate) fn heading(self) -> Style {
        self.faint()
    }

    pub(crate) fn title(self, focused: bool) -> Style {
        let style = if focused { self.accent() } else { Style::new().fg(Color::Reset) };
        style.add_modifier(Modifier::BOLD)
    }

    pub(crate) fn edge(self, focused: bool) -> Style {
        if focused { self.accent() } else { self.faint() }
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn banner(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::White).bg(Color::Red)
        } else {
            style.add_modifier(Modifier::REVERSED)
        }
    }

    pub(crate) fn tone(self, tone: Tone) -> Style {
        match tone {
            Tone::Plain => Style::new(),
            Tone::Strong => self.strong(),
            Tone::Faint => self.faint(),
            Tone::Bad => self.bad(),
        }
    }

    fn fore(self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}
