//! What is said about a job while it waits: on a terminal one line that is written over, elsewhere lines of a log.

use agentaflow_console::format;
use std::cell::{Cell, RefCell};
use std::io::{self, IsTerminal as _, Write as _};

/// Where it is said. Everything goes to stderr.
pub(super) struct Line {
    /// Whether a line may be written over: once the job has written something, it could be the job's.
    live: Cell<bool>,
    /// What stands in the line now.
    shown: RefCell<String>,
    /// The kind of what was said last.
    kind: RefCell<String>,
}

impl Line {
    pub(super) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let live = io::stderr().is_terminal() && !dumb;
        Self { live: Cell::new(live), shown: RefCell::default(), kind: RefCell::default() }
    }

    /// Says something that will not last, such as a place in the queue. Where lines stay, only what is of another
    /// `kind` than before is said. True if it is.
    pub(super) fn passing(&self, kind: &str, text: &str) -> bool {
        if !self.live.get() {
            return self.lasting(kind, text);
        }
        let text = cut(text, room());
        if *self.shown.borrow() != text {
            put(&format!("\r{text}\u{1b}[K"));
            *self.shown.borrow_mut() = text;
        }
        self.kind.replace(kind.to_owned()) != kind
    }

    /// Says something that stays. True if it is of another kind than what was said before.
    pub(super) fn lasting(&self, kind: &str, text: &str) -> bool {
        let news = self.kind.replace(kind.to_owned()) != kind;
        if news {
            self.clear();
            put(&format!("{text}\n"));
        }
        news
    }

    /// Takes away what does not stay.
    pub(super) fn clear(&self) {
        if !self.shown.take().is_empty() {
            put("\r\u{1b}[K");
        }
    }

    /// Leaves what stands there for good, such as a `^C` that was typed.
    pub(super) fn leave(&self, typed: bool) {
        if !self.shown.take().is_empty() || typed {
            put("\n");
        }
    }

    /// The job is about to write something.
    pub(super) fn give_way(&self) {
        self.clear();
        self.live.set(false);
    }
}

/// The columns that a line may take: one that fills the last moves the cursor on some terminals.
fn room() -> usize {
    let size = terminal_size::terminal_size_of(io::stderr());
    size.map_or(80, |(width, _)| usize::from(width.0)).saturating_sub(1).max(1)
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let text = format::shortened(text, room);
    if text.chars().count() <= room {
        return text.into_owned();
    }
    text.chars().take(room - 1).collect::<String>() + "…"
}

/// Nobody reads what is said where stderr is closed; that is no reason to fail.
fn put(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_takes_more_than_its_room() {
        assert_eq!(cut("job 1 waits", 11), "job 1 waits");
        assert_eq!(cut("job 1 waits", 6), "job 1…");
        assert_eq!(cut("job", 1), "…");
        let waits = "job 1 waits, start not known: 0/1 nodes fit, even when empty: 1 lacks 4 GPUs";
        assert_eq!(cut(waits, 50), "job 1 waits, start not known: 1 lacks 4 GPUs");
    }
}
