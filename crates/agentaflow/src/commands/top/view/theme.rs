//! Colours and glyphs. Colours are the terminal's own sixteen, so that they fit its background; without colours
//! everything is still told apart by its words and by bold, dim and reversed.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

use super::super::sheet::Tone;
use super::super::text;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Theme {
    pub(in super::super) colour: bool,
    pub(in super::super) ascii: bool,
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

#[expect(
    clippy::unused_self,
    reason = "every style is asked of the theme, whatever it needs to know"
)]
impl Theme {
    pub(super) fn frame(self) -> border::Set<'static> {
        if self.ascii { PLAIN_FRAME } else { border::ROUNDED }
    }

    /// Marks that a text was cut.
    pub(super) fn cut(self) -> char {
        if self.ascii { '~' } else { '…' }
    }

    pub(super) fn arrow(self, folded: bool) -> &'static str {
        match (self.ascii, folded) {
            (false, true) => "▸",
            (false, false) => "▾",
            (true, true) => "+",
            (true, false) => "-",
        }
    }

    pub(super) fn degrees(self) -> &'static str {
        if self.ascii { "C" } else { "°C" }
    }

    /// Text from anywhere as this terminal can show it.
    pub(super) fn say(self, said: &str) -> String {
        let said = text::clean(said);
        if self.ascii { text::ascii(&said) } else { said }
    }

    /// A bar of so many columns, a share of which is filled: the filled and the empty part. A line, not a block:
    /// bars of rows that stand close would run into each other.
    pub(super) fn bar(self, share: f64, columns: usize) -> (String, String) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        if self.ascii {
            let full = (share * columns as f64).round() as usize;
            return ("#".repeat(full), ".".repeat(columns - full));
        }
        let halves = (share * columns as f64 * 2.0).round() as usize;
        // What is more than nothing is seen.
        let halves = if share > 0.0 && columns > 0 { halves.max(1) } else { halves };
        let mut filled = "━".repeat(halves / 2);
        if !halves.is_multiple_of(2) {
            filled.push('╸');
        }
        (filled, "─".repeat(columns - halves.div_ceil(2)))
    }

    /// One column of a history: a percentage as a height. The highest leaves a gap to the row above.
    pub(super) fn height(self, percent: Option<f64>) -> char {
        const BLOCKS: [char; 7] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇'];
        const LETTERS: [char; 7] = ['_', '.', ':', '-', '=', '*', '#'];
        let Some(percent) = percent else { return ' ' };
        let step = (percent.clamp(0.0, 100.0) / 100.0 * 6.0).round() as usize;
        if self.ascii { LETTERS[step.min(6)] } else { BLOCKS[step.min(6)] }
    }

    pub(super) fn load(self, share: f64) -> Style {
        match share {
            share if share < 0.7 => self.fore(Color::Green),
            share if share < 0.9 => self.fore(Color::Yellow),
            _ => self.fore(Color::Red),
        }
    }

    /// What is booked: a GPU that is all held is no alarm.
    pub(super) fn held(self) -> Style {
        self.fore(Color::Blue)
    }

    pub(super) fn heat(self, celsius: f64) -> Style {
        match celsius {
            celsius if celsius < 65.0 => self.fore(Color::Green),
            celsius if celsius < 80.0 => self.fore(Color::Yellow),
            _ => self.fore(Color::Red),
        }
    }

    pub(super) fn good(self) -> Style {
        self.fore(Color::Green)
    }

    pub(super) fn warn(self) -> Style {
        self.fore(Color::Yellow)
    }

    pub(super) fn bad(self) -> Style {
        self.fore(Color::Red)
    }

    pub(super) fn accent(self) -> Style {
        self.fore(Color::Cyan)
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn faint(self) -> Style {
        if self.colour {
            Style::new().fg(Color::DarkGray)
        } else {
            Style::new().add_modifier(Modifier::DIM)
        }
    }

    /// Headings of columns.
    pub(super) fn heading(self) -> Style {
        self.faint()
    }

    /// The name of a pane.
    pub(super) fn title(self, focused: bool) -> Style {
        let style = if focused { self.accent() } else { Style::new().fg(Color::Reset) };
        style.add_modifier(Modifier::BOLD)
    }

    /// Around a pane.
    pub(super) fn edge(self, focused: bool) -> Style {
        if focused { self.accent() } else { self.faint() }
    }

    /// The chosen row, in the pane where keys go and elsewhere.
    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn banner(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour {
            style.fg(Color::White).bg(Color::Red)
        } else {
            style.add_modifier(Modifier::REVERSED)
        }
    }

    pub(super) fn tone(self, tone: Tone) -> Style {
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
